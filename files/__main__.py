"""Before training: `check` counts data and names what is unusable, `phrases` collects a pool."""
import json
from itertools import pairwise
from pathlib import Path
from statistics import mean

from torch.utils.data import Dataset
from tqdm import tqdm, trange

from data import (
    NOUNS,
    STRIDE,
    VERBS,
    Read,
    Unreadable,
    activity_examples,
    classify_examples,
    forecast_examples,
)
from files.captions import MAX_UNREADABLE
from files.phrases import collect
from sources import add_data_flags, choose, data_set
from support.arguments import Parser, existing, positive
from support.errors import require_readable, run_command
from support.workers import read_ahead
from support.write import write_json

EXAMPLES = {"classify": classify_examples, "forecast": forecast_examples,
            "activity": activity_examples}


class CheckedLengths(Dataset):
    """Item (-, i, i) -> Read with the length of video i of a data.Source, if it can be used. Raises
    Unreadable."""

    def __init__(self, source):
        self.source = source

    def name(self, item):
        """The id of an item's video."""
        return self.source.videos[item[1]].name

    def __getitem__(self, item):
        _, i, place = item
        return Read(self.name(item), place, length=self.source.check(i))


# --- What lists and narrations hold ---
def seconds_between_steps(videos):
    """The mean time from the start of a step to that of the next, s; None without any."""
    apart = []
    for video in videos:
        apart += [then.start - now.start for now, then in pairwise(video.steps)]
    return mean(apart) if apart else None


def rounded(value, digits):
    """A number rounded, or None."""
    return None if value is None else round(value, digits)


def count_labels(source, lists):
    """What the lists of a data set hold of labels."""
    if "actions" in source.has:
        actions = sum(len(video.steps) for video in lists.videos)
        return {"segments": {lists.split: actions}, "verbs": VERBS, "nouns": NOUNS}
    names = lists.names
    return {"classes": 1 + max(names, default=-1), "distinct_texts": len(set(names.values())),
            "seconds_between_steps": rounded(seconds_between_steps(lists.videos), 1)}


def count_narrations(source):
    """What is said in the videos of a source, and {id: reason} of unreadable narrations. If some
    videos have steps, also the --stride by which clips are about a step apart."""
    sentences, end = 0, 0.0
    apart, silent, wrong = [], [], {}
    for i in trange(len(source.videos), desc="captions", mininterval=1):
        name = source.videos[i].name
        try:
            said = source.narration(i)
        except Unreadable as error:
            wrong[name] = str(error)
            continue
        if not said:
            silent.append(name)
            continue
        sentences += len(said)
        end += max(sentence[1] for sentence in said)
        apart += [then[0] - now[0] for now, then in pairwise(said)]
    between = mean(apart) if apart else None
    steps = seconds_between_steps(source.videos)
    stride = None
    if steps and between:
        stride = max(1, round(steps / between))
    narrated = len(source.videos) - len(wrong) - len(silent)
    clips = sentences / (stride or STRIDE) / max(1, narrated)
    facts = {"captions": len(source.videos), "unreadable_captions": len(wrong),
             "sentences": sentences, "silent_ids": silent, "stride": stride}
    facts["seconds_between_captions"] = rounded(between, 1)
    facts["seconds_between_steps"] = rounded(steps, 1)
    facts["clips_per_video"], facts["hours"] = round(clips, 1), round(end / 3600, 2)
    return facts, wrong


# --- What is there ---
def counts(names, source, unreadable):
    """How many ids are listed, found, absent and unreadable; if no videos are given, only the
    first."""
    ids = set(names)
    if not source.paths:
        return {"videos": len(ids), "found": None, "absent": None, "unreadable": None}
    return {"videos": len(ids), "found": len(ids & source.paths.keys()),
            "absent": len(ids - source.paths.keys()), "unreadable": len(ids & unreadable.keys())}


def count_examples(source, unreadable):
    """{task: {split: how many examples are listed, and of which videos}}."""
    found = {}
    for task, examples_of in EXAMPLES.items():
        if task == "activity" and "activities" not in source.has:
            continue
        found[task] = {}
        for split in ("train", "validation", "test"):
            videos = [video for video in source.listed if video.split == split]
            names = [videos[example.video].name for example in examples_of(videos)]
            found[task][split] = {"listed": len(names)} | counts(names, source, unreadable)
    return found


def check_videos(source, workers):
    """Look at each video of a source -> {id: reason} of the unreadable, hours of the others."""
    items = [(0, i, i) for i in range(len(source.videos))]
    unreadable, seconds = {}, 0.0
    with read_ahead(CheckedLengths(source), items, workers) as reads:
        for read in tqdm(reads, "read", len(items), mininterval=1):
            if read.failed:
                unreadable[read.name] = read.failed
            else:
                seconds += read.length
    return unreadable, seconds / 3600


def check(args):
    """Print what the lists of a data set hold and, if its videos are given, which can be used."""
    source = data_set(args.data)(args)
    lists = source.read_lists(args, None)
    source.videos = lists.videos
    facts, wrong, unreadable = {}, {}, {}
    hours = absent = None
    if source.has and any(video.steps for video in lists.videos):
        facts |= count_labels(source, lists)
    if source.captions is not None:
        narrations, wrong = count_narrations(source)
        facts |= narrations
    source.listed = lists.videos
    if source.paths:
        choose(source, lists.videos)
        absent = list(source.left_out)
        unreadable, hours = check_videos(source, args.workers)
        unreadable |= {name: wrong[name] for name in wrong if name in source.paths}
    if any(video.split for video in lists.videos):
        facts |= count_examples(source, unreadable)
    else:
        facts |= counts([video.name for video in lists.videos], source, unreadable)
    facts |= {"absent_ids": absent, "unreadable_ids": wrong | unreadable}
    if source.captions is not None:
        unheard = sorted(source.paths.keys() - set(source.captions))
        facts["video_hours"] = rounded(hours, 2)
        facts["without_captions_ids"] = unheard if source.paths else None
    print(json.dumps(facts, indent=2))
    if source.captions is not None:
        print("What is good: clips_per_video of 9 or more, for nine are read at once; clips about "
              "a step apart, by --stride; no unreadable ids.")
    if args.json:
        write_json(args.json, facts)
    if source.paths:
        names = {video.name for video in source.videos}
        require_readable(unreadable, len(names), MAX_UNREADABLE)


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m files")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    counted = commands.add_parser("check", help="count data; name unusable files",
                                  description="Count data, and name unusable files.")
    add_data_flags(counted, argv, "check", default="coin")
    parser.whose = counted.whose
    add = counted.add_argument_group("run").add_argument
    add("--json", type=Path, help="also write the counts here")
    add("--workers", type=positive(int, zero=True, most=1000), default=0,
        help="processes that read videos")
    pool = commands.add_parser("phrases", help="collect verb phrases from captions",
                               description="Collect verb phrases from captions (needs spaCy).")
    add = pool.add_argument
    add("--captions", type=existing, required=True, help="folder, or caption.json")
    add("--out", type=Path, required=True, help="file to write: phrase,count,")
    add("--min-count", type=positive(int), default=12, help="leave out rarer phrases")
    return parser.parse_args(argv)


def main(args):
    """Run a command."""
    commands = {"check": check, "phrases": collect}
    commands[args.command](args)


if __name__ == "__main__":
    run_command(main, parse)
