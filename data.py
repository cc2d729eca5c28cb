"""Data sets and examples: which windows of a video are read, and what to predict.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3, Sec. 4 and appendix B.

A `Source` is a data set: its videos, what is said in them, and their clips. All else here is built
on it: nine narrated clips for pre-training, windows and labels for the tasks. An `Encoder` is what
f must be.
Times are in seconds; rng is a numpy Generator. A video has n windows. C clips have F frames each.
"""
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset
from tqdm import trange

from diffusion import CLIPS

HISTORY_CLIPS = CLIPS - 1     # clips of a history, at most
HISTORY = 68.0                # s of video that a forecast observes in the paper
CLIP_SECONDS = 9.0            # of a narrated clip, and of a clip to classify; as in the release
EPIC_FRAMES, EPIC_SECONDS = 32, 2.0                # of a clip of an action: 16 frames/s
VERBS, NOUNS = 97, 300        # classes of EPIC-Kitchens-100
PIXELS = 0.45, 0.225          # of the release: mean and deviation of pixels / 255
UNKNOWN = -1                  # label of a step whose class is not known, or is no candidate
MIN_WORDS = 12                # of a sentence; shorter ones are joined (release)
STRIDE = 2                    # every second sentence gives a clip (release)
MEASURED = 1000               # narrations from which the distance between clips is measured
ORDER, ITEM, LABELS = 0, 1, 2                      # what a generator draws


class Step(NamedTuple):
    """One annotated step, from `start` to `end` s. label: the number of its class, from 0, or
    UNKNOWN; (verb, noun) of EPIC."""
    start: float
    end: float
    label: int | tuple


class Video(NamedTuple):
    """One listed video. A field is None if the list lacks it."""
    name: str                          # its id: the stem of its file
    split: str | None = None           # "train", "validation" or "test"
    activity: int | None = None        # COIN's recipe_type, 0 to 179
    duration: float | None = None      # s
    steps: tuple = ()                  # Step, sorted by start


class Pictures(NamedTuple):
    """What f reads of a window."""
    image: int                         # side of a picture, pixels; 0: features
    frames: int                        # F
    seconds: float | None = None       # only the middle of the window; None: all

    @classmethod
    def of(cls, encoder):
        """What an Encoder reads."""
        return cls(encoder.image, encoder.frames, encoder.seconds)


class Encoder(Protocol):
    """What f must be: an nn.Module of one line of weights/encoders.py, which also says its sizes.

    It is made as Class(dim=D, ...) with the sizes of its line; all its arguments have defaults. If
    it reads pictures, `image` and `frames` are among them, by these names. One that reads features
    has an argument and an attribute `features`: F, how many numbers a clip has. When a model is
    made, f is asked for one clip, to see that it is as described here. With BatchNorm in f, each
    micro-batch and process has its own statistics, so their number changes the result.
    """
    image: int                         # side of the pictures it reads, pixels; 0: it reads features
    frames: int                        # F of a clip; 0: it reads features
    seconds: float | None              # it reads only the middle of a window; None: all of it

    def __call__(self, clips):
        """Clips (B, 3, F, H, W) float, or features (B, F) -> (B, D) float, length 1.

        Clips are RGB, (pixels / 255 - mean) / std by Source.pixels. Length 1 within float32's
        rounding, also under autocast: normalize in the type of the clips.
        """


class Unreadable(ValueError):
    """A video that cannot be used, and why. It is named and left out. All but `LeftOut` count
    toward --max-unreadable."""


class LeftOut(Unreadable):
    """A video that is not used: by --skip, or since nothing is said in it. It does not count toward
    --max-unreadable."""


class Lists(NamedTuple):
    """What the lists of a data set hold."""
    videos: list                   # Video; of the asked split or of all splits
    names: dict = {}               # {number of a class of steps: its name}, as far as they have
    #                                one. A number means the same in all splits: if labels are
    #                                texts, number the sorted texts of all splits
    activities: dict = {}          # {activity: its name}; "" if it has none
    split: str = "all"             # what the videos without a split are


class Source:
    """A data set. To add one, write a subclass in a module of its own, and its line in sources.py.

    The class says what the data set is. An instance is made from the command line, reads its lists,
    is opened, and then reads videos, in this order; it may be copied to worker processes, where it
    only reads. A list names all videos, and `found` says which are there. Splits, --hold-out,
    --skip, absent videos, names and counts follow for all data sets: sources.py.

    InputError is support.errors.InputError. Helpers to read lists: support/read.py and
    files/lists.py. Parse fields within `fields_of`, so that a wrong one is told with its line.
    """
    narrated = False               # videos have narrations, so that one can pre-train on them
    has = ()                       # what lists have: "steps", their "names", "activities",
    #                                "actions" (verb and noun of each). A task whose `needs` are
    #                                all here is offered
    side = None                    # of pictures, pixels; 0: features; None: any above 0
    pixels = PIXELS                # (mean, std) of pixels / 255 as f expects them

    # Defaults of pre-training. None: the paper's.
    tau = None                     # of Eq. 6
    size = "base"
    encoder = "timesformer"
    clip = None                    # the teacher
    phrases = None                 # the pool; None: --phrases is needed
    world = None                   # version of a world that is made up
    steps = None                   # names of its steps
    look_alikes = ()               # pairs of these, which only labels tell apart

    # What an instance holds.
    paths = {}                     # {id: where a video is read}; {} if no folder is given
    captions = None                # the ids that have a narration; None: no narrations are given
    widths = None                  # of features: (F, D), the numbers of a row for f, the teacher
    truth = None                   # what the toy world knows: toy/truth.py
    # sources.py sets these, from what `read_lists` returns:
    listed = ()                    # Video: all that a list names, of the split
    videos = ()                    # those that can be used; video i is videos[i]
    left_out = {}                  # {id: (kind, reason)}: "absent" ones are not among the videos;
    #                                "skipped" ones are, but are never opened
    split = "all"                  # the split's name

    @classmethod
    def serves(cls, command):
        """Whether one can "pretrain", "finetune", "evaluate" or "check" with it."""
        needs = {"pretrain": cls.narrated, "finetune": bool(cls.has)}
        return needs.get(command, True)

    @staticmethod
    def add_flags(add, command):
        """Declare the flags by add("--flag", ...), as argparse's add_argument. A file that must
        exist has the type support.arguments.existing; what is needed is required=True. Values that
        are paths may differ when a run is resumed. command: as in `serves`; to check, the videos
        themselves are not needed.
        """

    def __init__(self, args):
        """Find what is there. args: the flags' values. InputError if nothing is."""

    def read_lists(self, args, split):
        """Lists. split: "train", "validation" or "test", and videos of other splits may be listed,
        too; None: all are to be. A video whose split is None is of any. InputError with file and
        line."""
        raise NotImplementedError

    def found(self):
        """The ids of the videos that are there, with narrations if those are given; None: all."""
        if not self.paths:
            return None
        if self.captions is None:
            return self.paths.keys()
        return self.paths.keys() & set(self.captions)

    def open(self, pictures, teacher, narrated=False):
        """Prepare to read clips of `videos`. Narrations and durations can be read before.

        pictures: what f reads, Pictures. teacher: a Teacher that looks at the clips, or None. Its
        `size` is the side of the pictures it takes, in pixels. narrated: clips will be those of
        `sentence_windows` alone.
        """

    def narration(self, i):
        """What is said in video i: [(start s, end s, text), ...], by start, each with words; [] if
        nothing is. Raises Unreadable."""
        raise NotImplementedError

    def duration(self, i):
        """The length of video i, s. Raises Unreadable."""
        raise NotImplementedError

    def clips(self, i, windows, rng=None):
        """The clips of windows (n, 2) s of video i -> (for f, for the teacher).

        For f: (n, F, 3, H, W) uint8, or features (n, F). For the teacher: pictures (n, F, 3, H, W)
        uint8, or its features (n, D) float, or empty. Each time shows the last picture taken at or
        before it. rng draws which part of a picture is seen; None: the center. Raises Unreadable.
        """
        raise NotImplementedError

    def check(self, i):
        """The length of video i, s, for `python -m files check`. Raises Unreadable if the video
        cannot be used."""
        return self.duration(i)

    def require_used(self, i):
        """Raise LeftOut if video i is not to be opened."""
        kind, reason = self.left_out.get(self.videos[i].name, ("used", ""))
        if kind == "skipped":
            raise LeftOut(reason)


class Example(NamedTuple):
    """One thing to predict: what is observed of which video, and the right answer."""
    video: int                    # place in source.videos
    windows: np.ndarray           # (n, 2) s
    label: int | tuple | None     # a class; (verb, noun) of EPIC-Kitchens-100; None: unlabeled
    step: int                     # which step of the video: the labeled one; 0 without steps


# --- Pre-training: narrated clips ---
def window_around(start, end, seconds, duration):
    """A window of `seconds` with the middle of (start s, end s), moved into (0, duration)."""
    first = max(0.0, min((start + end - seconds) / 2, duration - seconds))
    return first, min(first + seconds, duration)


def joined(words, i):
    """The first and the last sentence of those joined with sentence i: the next sentence and the
    one before are added in turn, until there are 12 words. words: how many each sentence has."""
    first = last = i
    end = len(words) - 1
    while sum(words[first:last + 1]) < MIN_WORDS and (first > 0 or last < end):
        if last < end and (first == 0 or last - i <= i - first):
            last += 1
        else:
            first -= 1
    return first, last


def sentence_windows(sentences, duration, rng, stride=STRIDE):
    """9-s windows around every `stride`-th sentence, and what is `joined` with it: (n, 2) float64.
    The first is drawn. sentences: [(start s, end s, text), ...], by start, each with words."""
    windows, words = [], [len(text.split()) for _, _, text in sentences]
    offset = rng.integers(min(stride, max(len(sentences), 1)))
    for i in range(offset, len(sentences), stride):
        first, last = joined(words, i)
        start, end = sentences[first][0], sentences[last][1]
        windows.append(window_around(start, end, CLIP_SECONDS, duration))
    return np.array(windows).reshape(-1, 2)


def consecutive(windows, rng):
    """Nine consecutive windows of (n, 2) s, the first one drawn; fewer are repeated, evenly."""
    n = len(windows)
    if n == 0:
        return windows
    if n < CLIPS:
        return windows[np.linspace(0, n - 1, CLIPS).round().astype(int)]
    first = rng.integers(n - CLIPS + 1)
    return windows[first:first + CLIPS]


def sentences_before(narration, end):
    """The sentences that begin before a video ends, at `end` s. Unreadable if most do not."""
    said = [sentence for sentence in narration if sentence[0] < end]
    if 2 * len(said) < max(len(narration), 1):
        raise Unreadable(f"{len(said)} of {len(narration)} captions begin before the video ends, "
                         f"at {end:.1f} s; times must be seconds")
    return said


def averaging_weights(spans, windows, usable=True):
    """Weights that average m spans (m, 2) s over each window (n, 2) s: (n, m), rows sum to 1. Row i
    has equal weights for the spans whose middle lies in window i, or for the nearest span if there
    is none. Only usable spans, (n, m) bool, count."""
    middle = spans.mean(1)                                                          # (m,)
    inside = (windows[:, :1] <= middle) & (middle <= windows[:, 1:]) & usable       # (n, m)
    distance = np.where(usable, np.abs(middle - windows.mean(1, keepdims=True)), np.inf)
    alone = ~inside.any(1)
    inside[alone, distance[alone].argmin(1)] = True
    return inside / inside.sum(1, keepdims=True)


def clip_distance(source, stride, max_unreadable=1.0):
    """The mean distance between consecutive training clips, s, in the first MEASURED videos;
    CLIP_SECONDS if videos are so short that their clips coincide.

    Raises Unreadable if none of these videos has words, or if too large a share of their narrations
    cannot be read: the rest are then unlikely to be better. A skipped video is not opened.
    """
    rng = np.random.default_rng(0)
    distances, bad = [], []
    with_words = tried = 0
    for i in trange(min(len(source.videos), MEASURED), desc="captions", delay=2):
        try:
            source.require_used(i)
            tried += 1
            narration = source.narration(i)
        except LeftOut:
            continue
        except Unreadable as error:
            bad.append(error)
            continue
        if narration:
            with_words += 1
            end = max(end for _, end, _ in narration)
            windows = sentence_windows(narration, end, rng, stride)
            distances.extend(np.diff(windows.mean(1)))
    if len(bad) > max_unreadable * tried or not with_words:
        first = bad[0] if bad else "nothing is said in the others"
        raise Unreadable(f"of the first {tried} narrations, {with_words} have words and {len(bad)} "
                         f"cannot be read; --max-unreadable is {max_unreadable}; {first}")
    mean = float(np.mean(distances)) if distances else 0.0
    return mean if mean >= 1 else CLIP_SECONDS


class Read(NamedTuple):
    """What was read for one place of a batch."""
    name: str                              # id of the video
    place: int                             # in the batch
    clips: torch.Tensor | None = None      # for f, as Source.clips gives them; None: unreadable
    seen: torch.Tensor | None = None       # for the teacher
    said: tuple | None = None              # weights (n, m) of m sentences in each clip; their texts
    failed: str | None = None              # why it is unreadable
    left_out: bool = False                 # whether this is no failure: LeftOut
    length: float | None = None            # s, of the video, for `python -m files check`


class NarratedVideos(Dataset):
    """Nine consecutive clips of each narrated video. Item (epoch, video, place in a batch) -> Read;
    raises Unreadable; LeftOut if nothing is said, or for --skip.

    All random draws depend only on (seed, epoch, video), not on how many processes, workers or
    micro-batches make a run.
    """

    def __init__(self, source, seed, stride=STRIDE, sentences=False):
        self.source, self.seed, self.stride, self.sentences = source, seed, stride, sentences

    def __len__(self):
        return len(self.source.videos)

    def name(self, item):
        """The id of an item's video."""
        return self.source.videos[item[1]].name

    def __getitem__(self, item):
        epoch, video, place = item
        self.source.require_used(video)
        rng = np.random.default_rng((ITEM, self.seed, epoch, video))
        narration = self.source.narration(video)
        if not narration:
            raise LeftOut("no words")
        end = self.source.duration(video)
        narration = sentences_before(narration, end)
        windows = consecutive(sentence_windows(narration, end, rng, self.stride), rng)
        clips, seen = self.source.clips(video, windows, rng)
        said = None
        if self.sentences:
            said = sentences_in(narration, windows)
        return Read(self.name(item), place, clips, seen, said)


def sentences_in(narration, windows):
    """The sentences that belong to windows (n, 2) s: their `averaging_weights` (n, m), and their
    texts. The weights stay a NumPy array: a tensor would be moved to shared memory."""
    weights = averaging_weights(np.array([sentence[:2] for sentence in narration]), windows)
    used = np.flatnonzero(weights.any(0))
    return weights[:, used].astype(np.float32), [narration[i][2] for i in used]


# --- Labeled examples ---
def equal_windows(start, end, n):
    """(start s, end s), cut into n equal windows: (n, 2)."""
    edges = np.linspace(start, end, n + 1)
    return np.stack([edges[:-1], edges[1:]], -1)


def history_windows(end, spacing=None):
    """What a forecast observes of a video before `end` s: (n, 2) s.

    spacing: s, the length of a window, so that h reads clips as far apart as in training. There
    are as many, from 1 to 8, as spacings fit before `end`, rounded. Windows that would begin before
    the video are cut shorter, all alike. None: the paper's protocol (appendix B), the last 68 s
    cut into eight.
    """
    n, seconds = HISTORY_CLIPS, HISTORY
    if spacing is not None:
        n = min(max(round(end / spacing), 1), HISTORY_CLIPS)
        seconds = n * spacing
    return equal_windows(max(0.0, end - seconds), end, n)


def classify_windows(start, end, duration, views, seconds=CLIP_SECONDS):
    """`views` windows spread over a step; all at its middle if it is shorter than a window."""
    spare = max(end - start - seconds, 0.0)
    middles = (start + end) / 2 + spare * (np.arange(views) - (views - 1) / 2) / max(views - 1, 1)
    return np.array([window_around(m, m, seconds, duration) for m in middles])


def frame_times(windows, frames, seconds=None):
    """(n, F) s: the middles of F equal parts of each window (n, 2), or of its middle `seconds`."""
    windows = np.asarray(windows, float).reshape(-1, 2)
    if seconds is not None:
        spare = np.maximum(windows[:, 1] - windows[:, 0] - seconds, 0.0) / 2
        windows = windows + np.stack([spare, -spare], -1)
    part = (np.arange(frames) + 0.5) / frames
    return windows[:, :1] + (windows[:, 1:] - windows[:, :1]) * part


def classify_examples(videos, views=3, seconds=CLIP_SECONDS):
    """One example for every annotated step, or action, of a known class: see `classify_windows`."""
    examples = []
    for i, video in enumerate(videos):
        duration = max([video.duration or 0.0] + [step.end for step in video.steps])
        for k, step in enumerate(video.steps):
            if step.label == UNKNOWN:
                continue
            windows = classify_windows(step.start, step.end, duration, views, seconds)
            examples.append(Example(i, windows, step.label, k))
    return examples


def activity_examples(videos):
    """One example for every video: all of it, cut into eight."""
    examples = []
    for i, video in enumerate(videos):
        end = video.duration or max((step.end for step in video.steps), default=0.0)
        windows = equal_windows(0.0, end, HISTORY_CLIPS)
        examples.append(Example(i, windows, video.activity, 0))
    return examples


def forecast_examples(videos, spacing=None, min_steps=2):
    """One example for each two consecutive steps of a video with min_steps steps or more, if the
    class of the second is known: it is the label. The history ends when the first step ends or, if
    that is earlier and not at 0, when the second begins. spacing: as in `history_windows`."""
    examples = []
    for i, video in enumerate(videos):
        if len(video.steps) < min_steps:
            continue
        for k, (now, then) in enumerate(zip(video.steps, video.steps[1:]), start=1):
            end = min(now.end, then.start) if then.start > 0 else now.end
            if end > 0 and then.label != UNKNOWN:
                examples.append(Example(i, history_windows(end, spacing), then.label, k))
    return examples
