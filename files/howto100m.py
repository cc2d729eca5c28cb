"""HowTo100M, or any narrated videos: a folder of videos, and their captions."""
from data import Lists, Video
from files.folder import VideoFolder, add_narration_flags
from files.lists import load_coin
from support.arguments import existing


class HowTo100M(VideoFolder):
    """Narrated videos, with captions; no labels."""
    narrated = True

    @staticmethod
    def add_flags(add, command):
        """See Source.add_flags. To evaluate, no narration is read."""
        VideoFolder.add_flags(add, command)
        if command in ("pretrain", "check"):
            add_narration_flags(add, required=True)
        if command == "check":
            add("--annotations", type=existing, help="COIN.json of some of the videos, to tell "
                "which --stride fits")

    def read_lists(self, args, split):
        """See Source.read_lists. To check, the steps of the videos in --annotations, too."""
        steps = {}
        if getattr(args, "annotations", None):
            steps = {video.name: video.steps for video in load_coin(args.annotations).videos}
        return Lists([Video(name, steps=steps.get(name, ())) for name in self.ids(args)])
