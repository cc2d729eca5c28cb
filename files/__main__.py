"""Before training: `check` counts data and names what is unusable, `phrases` collects a pool."""
import json
from itertools import product
from pathlib import Path

from torch.utils.data import Dataset
from tqdm import tqdm

from data import Read, activity_examples, classify_examples, forecast_examples
from files.captions import MAX_UNREADABLE
from files.phrases import collect
from sources import DATA, Way, require_flags
from support.arguments import Parser
from support.errors import require_readable, run
from support.workers import read_ahead
from support.write import write_json

EXAMPLES = {"classify": classify_examples, "forecast": forecast_examples,
            "activity": activity_examples}


class Looks(Dataset):
    """Item (-, i, i) -> Read, if video i of a VideoSource can be used; its `clips` are its length,
    s. Raises Unreadable."""

    def __init__(self, source):
        self.source = source

    def name(self, item):
        """The id of an item's video."""
        return self.source.videos[item[1]].name

    def __getitem__(self, item):
        return Read(self.name(item), item[2], self.source.check(item[1]))


def counts(listed, source, unreadable):
    """How many ids are listed, found, absent and unreadable; without a source, only the first."""
    ids = set(listed)
    return {"videos": len(ids), "found": source and len(ids & source.paths.keys()),
            "absent": source and len(ids - source.paths.keys()),
            "unreadable": source and len(ids & unreadable.keys())}


def check(args):
    """Print what a list holds and, with --videos, which of its videos training can use."""
    data, source, unreadable, looks = DATA[args.data], None, {}, []
    needs = {*(data.labeled or data.narrated).needs} & {"annotations", "captions"}
    require_flags(args, Way(check, (*needs,), ("videos", "annotations")))
    videos, captions, facts, wrong = data.count(args)
    if args.videos:
        source = data.kind(videos, data.find(args.videos), None, captions=captions,
                           max_unreadable=1.0)
        items = [(0, i, i) for i in range(len(source.videos))]
        with read_ahead(Looks(source), items, args.workers) as reads:
            looks = list(tqdm(reads, "read", len(items), mininterval=1))
        unreadable = {look.name: look.failed for look in looks if look.failed}
        unreadable |= {name: wrong[name] for name in wrong if name in source.paths}
    if any(video.split for video in videos):
        for task, split in product(EXAMPLES, ("train", "validation", "test")):
            chosen = [video for video in videos if video.split == split]
            listed = [chosen[example.video].name for example in EXAMPLES[task](chosen)]
            facts.setdefault(task, {})[split] = {
                "listed": len(listed), **counts(listed, source, unreadable)}
    else:
        facts |= counts([video.name for video in videos], source, unreadable)
    absent = source and [name for name in dict.fromkeys(video.name for video in videos)
                         if source.left_out.get(name, [""])[0] == "absent"]
    facts |= {"absent_ids": absent, "unreadable_ids": wrong | unreadable}
    if captions:
        hours = sum(look.clips or 0.0 for look in looks) / 3600
        facts["video_hours"] = source and round(hours, 2)
        facts["without_captions_ids"] = source and sorted(source.paths.keys() - captions.keys())
    print(json.dumps(facts, indent=2))
    if captions:
        print("good: clips_per_video of 9 or more, for nine are read at once; clips about a step "
              "apart, by --stride; no unreadable ids")
    if args.json:
        write_json(args.json, facts)
    if source:
        require_readable(unreadable, len({video.name for video in source.videos}), MAX_UNREADABLE)


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m files")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = commands.add_parser("check", description="count data; name unusable files").add_argument
    add("--data", choices=[name for name in DATA if DATA[name].count], default="coin", help="kind")
    add("--annotations", type=Path, help="COIN.json, or EPIC's csv; howto100m: of some of the "
        "videos, to tell which --stride fits")
    add("--captions", type=Path, help="howto100m: folder, or caption.json")
    add("--videos", type=Path, help="folder; without it only the list is counted")
    add("--json", type=Path, help="also write the counts here")
    add("--workers", type=int, default=0, help="processes that read videos")
    add = commands.add_parser("phrases", description="collect verb phrases").add_argument
    add("--captions", type=Path, required=True, help="folder, or caption.json")
    add("--out", type=Path, required=True, help="file to write: phrase,count,")
    add("--min-count", type=int, default=12, help="leave out rarer phrases")
    return parser.parse_args(argv)


def main(args):
    """Run a command."""
    {"check": check, "phrases": collect}[args.command](args)


if __name__ == "__main__":
    run(main, parse)
