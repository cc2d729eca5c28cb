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


def counts(listed, paths, unreadable):
    """How many ids are listed, found, absent and unreadable; without paths, only the first."""
    ids = set(listed)
    if paths is None:
        return {"videos": len(ids), "found": None, "absent": None, "unreadable": None}
    return {"videos": len(ids), "found": len(ids & paths.keys()),
            "absent": len(ids - paths.keys()), "unreadable": len(ids & unreadable.keys())}


def check(args):
    """Print what a list holds and, with --videos, which of its videos training can use."""
    captions, wrong, facts = None, {}, {}              # {id: reason}: narrations
    if args.data == "coin":
        videos, names = load_coin(args.annotations)
        videos = [video for video in videos if video.steps]
        facts = {"classes": len(names), "distinct_texts": len(set(names))}
    elif args.data == "epic":
        videos = load_epic(args.annotations)
        segments = {epic_split(args.annotations): sum(len(video.steps) for video in videos)}
        facts = {"segments": segments, "verbs": VERBS, "nouns": NOUNS}
    else:
        captions, silent, sentences, end = Captions(args.captions), [], 0, 0.0
        for name, said in captions.readable(captions, wrong):      # all do not fit in memory
            sentences, end = sentences + len(said), end + max((of[1] for of in said), default=0.0)
            if not said:
                silent.append(name)
        videos = [Video(name) for name in captions]
        facts = {"captions": len(captions), "unreadable_captions": len(wrong),
                 "sentences": sentences, "hours": round(end / 3600, 2)}
    paths, source, looks, unreadable = None, None, [], {}
    if args.videos:
        paths = find_videos(args.videos)
        source = VideoSource(videos, paths, None, captions=captions)
        if captions:
            source.videos = [video for video in source.videos if video.name not in silent]
        looks = [*prefetch(source.look_at, range(len(source.videos)), args.workers, "read",
                           name=lambda i: source.videos[i].name)]
        source.unreadable = unreadable = {
            video.name: reason for video, (_, reason) in zip(source.videos, looks) if reason}
    if args.data == "coin":
        for task, split in product(EXAMPLES, ("train", "validation", "test")):
            chosen = [video for video in videos if video.split == split]
            listed = [chosen[example.video].name for example in EXAMPLES[task](chosen)]
            facts.setdefault(task, {})[split] = {"listed": len(listed),
                                                 **counts(listed, paths, unreadable)}
    else:
        facts |= counts([video.name for video in videos], paths, unreadable)
    facts |= {"absent_ids": source.absent if source else None, "unreadable_ids": wrong | unreadable}
    if captions:
        facts["silent_ids"] = sorted(silent)
        hours = sum(length for length, _ in looks) / 3600
        facts["video_hours"] = round(hours, 2) if source else None
        facts["without_captions_ids"] = sorted(paths.keys() - captions.keys()) if source else None
    if args.json:
        write_json(args.json, facts)
    print(json.dumps(facts, indent=2))
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
    if args.command == "phrases":
        return collect(args)
    needed = "captions" if args.data == "howto100m" else "annotations"
    require(getattr(args, needed), f"check --data {args.data} needs --{needed}; narrated videos "
            "are --data howto100m")
    check(args)


if __name__ == "__main__":
    run(main, parse)
