"""EPIC-Kitchens-100: actions, each a verb and a noun."""
from files.folder import VideoFolder
from files.lists import load_epic
from support.arguments import existing


class Epic(VideoFolder):
    """EPIC-Kitchens-100: verbs and nouns of actions, without names."""
    has = ("actions",)

    @staticmethod
    def add_flags(add, command):
        VideoFolder.add_flags(add, command)
        add("--annotations", type=existing, required=True, help="the official csv of a split")

    def read_lists(self, args, split):
        """See Source.read_lists. A csv is one split."""
        return load_epic(args.annotations)
