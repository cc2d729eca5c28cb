"""Look at data before training: `check` counts it, `phrases` collects verb phrases from it."""
import json
from pathlib import Path

from data import Video, examples_of
from files.captions import Captions
from files.lists import NOUNS, VERBS, epic_split, load_coin, load_epic
from files.phrases import collect
from files.sources import require_found
from files.video import find_videos, look_at
from support.arguments import Parser, count, whole
from support.errors import run
from support.workers import prefetch
from support.write import write_json


def counts(listed, paths, unreadable):
    """{"videos", "found", "absent", "unreadable"} of some ids; without paths three are None."""
    ids, found = set(listed), [None] * 3
    if paths is not None:
        found = [len(ids & paths.keys()), len(ids - paths.keys()), len(ids & unreadable.keys())]
    return dict(zip(("videos", "found", "absent", "unreadable"), (len(ids), *found)))


def count_coin(videos, *found):
    """What each task lists of each split of COIN.json. found: see `counts`."""
    result = {"classify": {}, "forecast": {}, "activity": {}}
    for task in result:
        for split in "train", "validation", "test":
            chosen = [video for video in videos if video.split == split]
            examples = examples_of(task, chosen)
            listed = [chosen[example.video].name for example in examples]
            result[task][split] = {"listed": len(examples), **counts(listed, *found)}
    return result


def check(args):
    """Print what a list holds and, with --videos, what of it is there. args: see `parse`."""
    wrong = {}                                         # {id: reason} of narrations
    if args.data == "coin":
        videos, names = load_coin(args.annotations)
        videos = [video for video in videos if video.steps]
        facts = {"classes": len(names), "distinct_texts": len(set(names))}
    elif args.data == "epic":
        videos = load_epic(args.annotations)
        segments = {epic_split(args.annotations): sum(len(video.steps) for video in videos)}
        facts = {"segments": segments, "verbs": VERBS, "nouns": NOUNS}
    else:
        captions = Captions(args.captions)
        videos = [Video(name) for name in captions]
        ends, sentences = {}, 0
        for name, spoken in captions.readable(wrong):
            ends[name] = max((end for _, end, _ in spoken), default=0.0)
            sentences += len(spoken)
        facts = {"captions": len(captions), "unreadable_captions": len(wrong),
                 "sentences": sentences, "hours": round(sum(ends.values()) / 3600, 2)}
    paths = find_videos(args.videos) if args.videos else None
    items = {video.name: (paths[video.name], max((step.end for step in video.steps), default=None))
             for video in videos if paths and video.name in paths}
    listed, there = [video.name for video in videos], paths is not None
    if there:
        require_found(items, listed, paths)
    found = dict(zip(items, prefetch(look_at, list(items.values()), args.workers, "read")))
    unreadable = {name: reason for name, (_, reason) in found.items() if reason}
    facts |= (count_coin(videos, paths, unreadable) if args.data == "coin" else
              counts(listed, paths, unreadable))
    facts["absent_ids"] = [name for name in listed if name not in paths] if there else None
    facts["unreadable_ids"] = wrong | unreadable
    if args.data == "howto100m":
        both = [name for name in ends if name in found and name not in unreadable]
        said, shown = sum(ends[name] for name in both), sum(found[name][0] for name in both)
        facts["video_hours"] = round(shown / 3600, 2) if there else None
        facts["without_captions_ids"] = sorted(paths.keys() - captions.keys()) if there else None
    if args.json:
        write_json(args.json, facts)
    print(json.dumps(facts, indent=2))
    if args.data == "howto100m" and not 0.1 * shown <= said <= 2 * shown:
        print(f"{len(both)} videos last {shown:.0f} s in all, their captions {said:.0f} s: are the "
              "times of the captions seconds, and the captions of these videos?")


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m files")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    flags = commands.add_parser("check", description="count what annotations or captions hold, "
                                "and what of it can be read")
    flags.add_argument("--data", choices=["coin", "epic", "howto100m"], default="coin", help="kind")
    flags.add_argument("--annotations", type=Path, help="COIN.json, or EPIC's csv")
    flags.add_argument("--captions", type=Path, help="howto100m: folder, or caption.json")
    flags.add_argument("--videos", type=Path, help="folder; without it only the list is counted")
    flags.add_argument("--json", type=Path, help="also write the counts here")
    flags.add_argument("--workers", type=whole, default=0, help="processes that read videos")
    flags = commands.add_parser("phrases", description="collect verb phrases from narrations")
    flags.add_argument("--captions", type=Path, required=True, help="folder, or caption.json")
    flags.add_argument("--out", type=Path, required=True, help="file to write: phrase,count,")
    flags.add_argument("--min-count", type=count, default=12, help="leave out rarer phrases")
    flags.add_argument("--model", default="en_core_web_sm", help="of spaCy: a name, or a folder")
    args = parser.parse_args(argv)
    if args.command == "check":
        needed = "captions" if args.data == "howto100m" else "annotations"
        if getattr(args, needed) is None:
            parser.error(f"check --data {args.data} needs --{needed}; narrated videos are --data "
                         "howto100m")
    return args


def main(args):
    """Run a command."""
    {"check": check, "phrases": collect}[args.command](args)


if __name__ == "__main__":
    run(main, parse)
