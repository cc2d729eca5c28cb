"""COIN, or videos in its layout."""
from files.folder import VideoFolder
from files.lists import load_coin, load_released_csv
from support.arguments import existing


def add_label_flags(add, command, required=True):
    """Declare --annotations and --steps."""
    add("--annotations", type=existing, required=required, help="COIN.json, or a released csv")
    if command != "check":
        add("--steps", type=existing, help="line i names class i (default: the names in COIN.json)")


def read_labels(args):
    """Lists of --annotations, without the videos that have no steps."""
    if args.annotations.suffix == ".csv":
        return load_released_csv(args.annotations, getattr(args, "task", None))
    lists = load_coin(args.annotations)
    labeled = [video for video in lists.videos if video.steps]
    return lists._replace(videos=labeled)


class Coin(VideoFolder):
    """COIN, or videos with steps in its layout."""
    has = "steps", "names", "activities"

    @staticmethod
    def add_flags(add, command):
        VideoFolder.add_flags(add, command)
        add_label_flags(add, command)

    def read_lists(self, args, split):
        return read_labels(args)
