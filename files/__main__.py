"""Before training: `check` counts data and names what is unusable, `phrases` collects a pool."""
import json
from itertools import product
from pathlib import Path

from data import Video, activity_examples, classify_examples, forecast_examples
from files.captions import MAX_UNREADABLE, Captions
from files.lists import NOUNS, VERBS, epic_split, load_coin, load_epic
from files.phrases import collect
from files.sources import VideoSource, require_readable
from files.video import find_videos
from support.arguments import Parser
from support.errors import require, run
from support.workers import prefetch
from support.write import write_json

EXAMPLES = {"classify": classify_examples, "forecast": forecast_examples,
            "activity": activity_examples}


def counts(listed, source):
    """How many ids are listed, found, absent and unreadable; without a source, only the first."""
    ids = set(listed)
    return {"videos": len(ids), "found": source and len(ids & source.paths.keys()),
            "absent": source and len(ids - source.paths.keys()),
            "unreadable": source and len(ids & source.unreadable.keys())}


def count_narrations(captions):
    """What is said in a folder: counts; ids without words; {id: reason} of what cannot be read."""
    wrong, silent, sentences, end = {}, [], 0, 0.0
    for name, said in captions.readable(captions, wrong):          # all do not fit in memory
        sentences, end = sentences + len(said), end + max((of[1] for of in said), default=0.0)
        if not said:
            silent.append(name)
    return {"captions": len(captions), "unreadable_captions": len(wrong), "sentences": sentences,
            "hours": round(end / 3600, 2), "silent_ids": silent}, wrong


def check(args):
    """Print what a list holds and, with --videos, which of its videos training can use."""
    needed = "captions" if args.data == "howto100m" else "annotations"
    require(getattr(args, needed), f"check --data {args.data} needs --{needed}")
    captions, source, looks, wrong, silent = None, None, [], {}, set()
    if args.data == "coin":
        videos, names = load_coin(args.annotations)
        videos = [video for video in videos if video.steps]
        facts = {"classes": len(names), "distinct_texts": len(set(names))}
    elif args.data == "epic":
        videos = load_epic(args.annotations)
        count = sum(len(video.steps) for video in videos)
        facts = {"segments": {epic_split(args.annotations): count}, "verbs": VERBS, "nouns": NOUNS}
    else:
        captions = Captions(args.captions)
        videos, (facts, wrong) = [Video(name) for name in captions], count_narrations(captions)
        silent = {*facts["silent_ids"]}
    if args.videos:
        source = VideoSource(videos, find_videos(args.videos), None, captions=captions)
        source.videos = [video for video in source.videos if video.name not in silent]
        looks = [*prefetch(source.look_at, range(len(source.videos)), args.workers, "read",
                           name=source.name)]
        source.unreadable = {video.name: reason for video, (_, reason) in zip(source.videos, looks)
                             if reason}
    if args.data == "coin":
        for task, split in product(EXAMPLES, ("train", "validation", "test")):
            chosen = [video for video in videos if video.split == split]
            listed = [chosen[example.video].name for example in EXAMPLES[task](chosen)]
            facts.setdefault(task, {})[split] = {"listed": len(listed), **counts(listed, source)}
    else:
        facts |= counts([video.name for video in videos], source)
    facts |= {"absent_ids": source and source.absent,
              "unreadable_ids": wrong | (source.unreadable if source else {})}
    if captions:
        hours = sum(length for length, _ in looks) / 3600
        facts["video_hours"] = source and round(hours, 2)
        facts["without_captions_ids"] = source and sorted(source.paths.keys() - captions.keys())
    print(json.dumps(facts, indent=2))
    if args.json:
        write_json(args.json, facts)
    if source:
        require_readable(source, MAX_UNREADABLE)


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m files")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = commands.add_parser("check", description="count data, and name the unusable").add_argument
    add("--data", choices=["coin", "epic", "howto100m"], default="coin", help="kind")
    add("--annotations", type=Path, help="COIN.json, or EPIC's csv")
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
