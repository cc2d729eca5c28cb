"""Before training: `check` counts data, `copy` makes small videos, `phrases` collects a pool."""
import json
from pathlib import Path

from data import Video, examples_of
from files.captions import MAX_UNREADABLE, Captions
from files.copies import copy
from files.lists import NOUNS, VERBS, epic_split, load_coin, load_epic
from files.phrases import collect
from files.sources import VideoSource, require_readable
from files.video import find_videos
from support.arguments import Parser, count, positive, whole
from support.errors import InputError, run
from support.workers import prefetch
from support.write import write_json


def counts(listed, paths, unreadable):
    """{"videos", "found", "absent", "unreadable"} of ids; the last three are None without paths."""
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
    """Print what a list holds and, with --videos, which of its videos are there and can be used, by
    the rules of training and evaluation. args: see `parse`."""
    captions, wrong, silent = None, {}, set()          # {id: reason}, {id}: narrations
    if args.data == "coin":
        videos, names = load_coin(args.annotations)
        videos = [video for video in videos if video.steps]
        facts = {"classes": len(names), "distinct_texts": len(set(names))}
    elif args.data == "epic":
        videos = load_epic(args.annotations)
        segments = {epic_split(args.annotations): sum(len(video.steps) for video in videos)}
        facts = {"segments": segments, "verbs": VERBS, "nouns": NOUNS}
    else:
        captions, sentences, seconds = Captions(args.captions), 0, 0.0
        videos = [Video(name) for name in captions]
        for name, spoken in captions.readable(captions, wrong):
            sentences += len(spoken)
            seconds += max((end for _, end, _ in spoken), default=0.0)
            if not spoken:
                silent.add(name)
        facts = {"captions": len(captions), "unreadable_captions": len(wrong),
                 "sentences": sentences, "hours": round(seconds / 3600, 2)}
    paths, source, seconds, unreadable = None, None, 0.0, {}
    if args.videos:
        paths = find_videos(args.videos)
        source = VideoSource(videos, paths, None, captions=captions)
        source.videos = [video for video in source.videos if video.name not in silent]
        looks = prefetch(source.look_at, range(len(source.videos)), args.workers, "read",
                         name=lambda i: source.videos[i].name)
        unreadable = source.unreadable
        for (length, reason), video in zip(looks, source.videos):
            seconds += length
            if reason:
                unreadable[video.name] = reason
    facts |= (count_coin(videos, paths, unreadable) if args.data == "coin" else
              counts([video.name for video in videos], paths, unreadable))
    facts["absent_ids"] = source.absent if source else None
    facts["unreadable_ids"] = wrong | unreadable
    if captions:
        facts["silent_ids"] = sorted(silent)
        facts["video_hours"] = round(seconds / 3600, 2) if source else None
        facts["without_captions_ids"] = sorted(paths.keys() - captions.keys()) if source else None
    if args.json:
        write_json(args.json, facts)
    print(json.dumps(facts, indent=2))
    if source:
        try:
            require_readable(source, MAX_UNREADABLE)
        except InputError as error:
            print(error)


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m files")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    flags = commands.add_parser("check", description="count what annotations or captions hold, "
                                "and what of it can be used")
    flags.add_argument("--data", choices=["coin", "epic", "howto100m"], default="coin", help="kind")
    flags.add_argument("--annotations", type=Path, help="COIN.json, or EPIC's csv")
    flags.add_argument("--captions", type=Path, help="howto100m: folder, or caption.json")
    flags.add_argument("--videos", type=Path, help="folder; without it only the list is counted")
    flags.add_argument("--json", type=Path, help="also write the counts here")
    flags.add_argument("--workers", type=whole, default=0, help="processes that read videos")
    flags = commands.add_parser("copy", description="make a small copy of each video of a folder")
    flags.add_argument("--videos", type=Path, required=True, help="folder")
    flags.add_argument("--out", type=Path, required=True, help="folder for the copies, ID.mp4")
    flags.add_argument("--fps", type=positive, help="pictures a second, at most (default: all)")
    flags.add_argument("--workers", type=whole, default=0, help="processes that make copies")
    flags = commands.add_parser("phrases", description="collect verb phrases from narrations")
    flags.add_argument("--captions", type=Path, required=True, help="folder, or caption.json")
    flags.add_argument("--out", type=Path, required=True, help="file to write: phrase,count,")
    flags.add_argument("--min-count", type=count, default=12, help="leave out rarer phrases")
    flags.add_argument("--model", default="en_core_web_sm", help="spaCy's model: a name or folder")
    args = parser.parse_args(argv)
    if args.command == "check":
        needed = "captions" if args.data == "howto100m" else "annotations"
        if getattr(args, needed) is None:
            parser.error(f"check --data {args.data} needs --{needed}; narrated videos are --data "
                         "howto100m")
    return args


def main(args):
    """Run a command."""
    {"check": check, "copy": copy, "phrases": collect}[args.command](args)


if __name__ == "__main__":
    run(main, parse)
