"""From videos to what the model reads: protocols, and the two sources of clips.

A protocol turns a video into windows, (n, 2) start and end in s; a source turns windows into clips.

    protocol (FIELD: paper, appendix B)             function             windows
    pre-training: around narrated sentences         sentence_windows     up to N = 9 of 9 s
    pre-training on annotated steps (features)      step_windows         up to N = 9
    step forecasting: the last 68 s, cut into 8     forecast_windows     8
    step classification: 3 views of one step        classify_windows     3 of 9 s

    source                                          a clip is            teacher features are
    ToySource       the embedded world              F frames, uint8      the teacher's, per frame
    FeatureSource   COIN.json and a features file   its embedding (D,)   the same embedding
    B videos, N clips, F frames, D embedding. Clips of several videos are stacked, (C, ...).
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import annotations
import toy
from settings import BadInput, write_atomically

CLIPS = 9                     # N: clips per video in pre-training, and positions of h
HISTORY, PIECES = 68.0, 8     # s of observed video in step forecasting, cut into so many clips
CLIP_SECONDS = 9.0            # of a clip in pre-training and step classification
MIN_WORDS = 12                # a shorter sentence is joined with its neighbours
STRIDE = 2                    # every second sentence gives a clip


# ------------------------------------------------------------------------------------------------
# Protocols: windows in seconds
# ------------------------------------------------------------------------------------------------
def around(start, end, seconds, duration):
    """A window of `seconds` with the same middle as (start, end), moved into (0, duration)."""
    first = max(0.0, min((start + end - seconds) / 2, duration - seconds))
    return first, min(first + seconds, duration)


def sentence_windows(sentences, duration, rng):
    """Pre-training windows of one narrated video: 9 s around every second sentence.

    A sentence of fewer than 12 words is joined with the next, then the one before, and so on; its
    span grows with it. Of more than N windows a random run of N is kept; fewer are all kept, and
    the batch is padded (the released code repeats the last sentence instead).

    Args:
        sentences: list of (start s, end s, text), by start. Those without words are left out.
        duration:  s.
        rng:       numpy Generator: which sentence is first, which run is kept.
    Returns: (n, 2) float64, n <= N; n = 0 where nothing is said.
    """
    sentences = [s for s in sentences if s[2].split()]
    words = [len(text.split()) for _, _, text in sentences]
    windows = []
    for i in range(rng.integers(min(STRIDE, max(len(sentences), 1))), len(sentences), STRIDE):
        first = last = i
        while sum(words[first:last + 1]) < MIN_WORDS and (first > 0 or last < len(words) - 1):
            after = last < len(words) - 1 and (last - i <= i - first or first == 0)
            first, last = (first, last + 1) if after else (first - 1, last)
        windows.append(around(sentences[first][0], sentences[last][1], CLIP_SECONDS, duration))
    return random_run(np.array(windows).reshape(-1, 2), rng)


def step_windows(segments, rng):
    """Pre-training windows of a video without narration: its annotated segments, labels unused."""
    return random_run(np.asarray(segments, float).reshape(-1, 2), rng)


def random_run(windows, rng):
    """At most N consecutive windows, the first of them drawn uniformly."""
    first = rng.integers(max(len(windows) - CLIPS, 0) + 1)
    return windows[first:first + CLIPS]


def forecast_windows(end):
    """The observed history before `end` s: its last 68 s (or all there is) cut into 8 windows."""
    edges = np.linspace(max(0.0, end - HISTORY), end, PIECES + 1)
    return np.stack([edges[:-1], edges[1:]], 1)


def classify_windows(start, end, duration, views):
    """`views` windows of 9 s spread over a step; all around its middle where it is shorter."""
    spare = max(end - start - CLIP_SECONDS, 0.0)
    middles = (start + end) / 2 + spare * (np.arange(views) - (views - 1) / 2) / max(views - 1, 1)
    return np.array([around(m, m, CLIP_SECONDS, duration) for m in middles])


def frame_times(windows, frames):
    """(n, F) s: the middles of F equal parts of each window (n, 2)."""
    windows = np.asarray(windows, float).reshape(-1, 2)
    part = (np.arange(frames) + 0.5) / frames
    return windows[:, :1] + (windows[:, 1:] - windows[:, :1]) * part


# ------------------------------------------------------------------------------------------------
# Sources: clips of windows
# ------------------------------------------------------------------------------------------------
class ToySource:
    """The videos of one split of the embedded world, rendered into memory.

    Args:
        split:    "train", "validation" or "test".
        count:    number of videos.
        frames:   F, frames per clip.
        features: callable, frames (n, 3, H, W) uint8 -> (n, D): the teacher's image features; or
                  None where they are not needed. Every frame is looked at once and kept.
    """

    def __init__(self, split, count, frames, features=None, progress=True):
        import toy_render
        self.frames_per_clip, self.fps = frames, toy_render.FPS
        self.videos = self.listed = [toy.make_video(split, i) for i in range(count)]
        self.missing = []
        bar = tqdm(self.videos, desc=f"render {split}", mininterval=1, disable=not progress)
        parts = [toy_render.render(video) for video in bar]
        self.first = np.cumsum([0] + [len(part) for part in parts])         # of each video's frames
        self.pixels = torch.from_numpy(np.concatenate(parts))               # (n, 3, H, W) uint8
        self.narration = [toy_render.narrate(video) for video in self.videos]
        self.frame_features = None
        if features is not None:
            starts = tqdm(range(0, len(self.pixels), 1024), desc=f"teacher on {split}",
                          mininterval=1, disable=not progress)
            self.frame_features = torch.cat([features(self.pixels[i:i + 1024]) for i in starts])

    def __len__(self):
        return len(self.videos)

    def frame_index(self, video, windows):
        """(n, F) int64: which rows of `pixels` are nearest to the clips' frame times."""
        count = self.first[video + 1] - self.first[video]
        index = np.floor(frame_times(windows, self.frames_per_clip) * self.fps).astype(np.int64)
        return torch.from_numpy(self.first[video] + np.clip(index, 0, count - 1))

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video; see `sentence_windows`."""
        return sentence_windows(self.narration[video], self.videos[video].duration, rng)

    def clips(self, requests):
        """[(video, windows), ...] -> (C, F, 3, H, W) uint8."""
        return self.pixels[torch.cat([self.frame_index(*request) for request in requests])]

    def teacher(self, requests):
        """[(video, windows), ...] -> (C, D): mean over each clip's frames (Sec. 3.2)."""
        index = torch.cat([self.frame_index(*request) for request in requests])
        return self.frame_features[index].mean(1)


class FeatureSource:
    """Videos of COIN.json whose clips are rows of a features file.

    Args:
        videos:   [annotations.AnnotatedVideo], of one split.
        features: annotations.FeaturesFile.
    `listed` holds the videos with steps; `missing` names those of them without a row, and `videos`
    holds the others.
    """

    def __init__(self, videos, features):
        self.features = features
        self.listed = [video for video in videos if video.steps]
        self.videos = [video for video in self.listed if video.name in features.rows]
        self.missing = [video.name for video in self.listed if video.name not in features.rows]

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video: its annotated segments; their labels stay unused."""
        return step_windows([(s.start, s.end) for s in self.videos[video].steps], rng)

    def clips(self, requests):
        """[(video, windows), ...] -> (C, D) float32: the rows nearest to the windows' middles."""
        rows = [self.features.nearest(self.videos[video].name, windows.mean(1))
                for video, windows in requests]
        return torch.from_numpy(np.concatenate(rows))

    teacher = clips                                # the embedding is its own teacher


TEACHER_FILE = Path("runs/toy_teacher.pt")         # trained once, by whichever command comes first


def toy_teacher(device):
    """The embedded world's teacher as a pseudo_labels.Teacher: from its cache, or trained now."""
    import toy_render
    from pseudo_labels import Teacher
    model, tokenizer = toy_render.build_teacher()
    try:
        model.load_state_dict(torch.load(TEACHER_FILE, weights_only=True))
    except Exception:                              # absent, cut off, or of another version: again
        model, tokenizer = toy_render.train_teacher()
        TEACHER_FILE.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(TEACHER_FILE, lambda file: torch.save(model.state_dict(), file))
    return Teacher(model, tokenizer, toy_render.MEAN, toy_render.STD, device)


def open_coin(settings, split, needed=True):
    """COIN.json with a features file: (FeatureSource of one split, class embeddings (K, D)).

    Raises: BadInput if the files do not fit each other, or (if needed) no video has a feature row.
    """
    videos, _ = annotations.load_coin(settings.annotations)
    _, texts = annotations.load_text_embeddings(settings.text_embeddings)
    features = annotations.load_features(settings.features)
    width, largest = features.embedding.shape[1], max(
        (step.label for video in videos for step in video.steps), default=-1)
    if texts.shape[1] != width:
        raise BadInput(f"{settings.features}: embeddings of width {width}, but "
                       f"{settings.text_embeddings} has {texts.shape[1]}; one space is needed")
    if largest >= len(texts):
        raise BadInput(f"{settings.text_embeddings}: {len(texts)} classes, but "
                       f"{settings.annotations} has class {largest + 1}; row i must be class i + 1")
    source = FeatureSource([video for video in videos if video.split == split], features)
    if needed and not len(source):
        raise BadInput(f"{settings.features}: no row for any of the {len(source.missing)} {split} "
                       f"videos of {settings.annotations}; video must hold their ids")
    return source, torch.from_numpy(texts)


# ------------------------------------------------------------------------------------------------
# Samples of the two tasks
# ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sample:
    """One thing to predict: what is observed of which video, and what is right."""
    video: int                    # position in source.videos
    windows: np.ndarray           # (n, 2) s
    label: int
    step: int                     # which step of the video: the labelled one


def steps_of(video):
    """[(start s, end s, label), ...] of a toy.Video or an annotations.AnnotatedVideo."""
    if isinstance(video, toy.Video):
        return [(*segment, step) for segment, step in zip(video.segments, video.steps)]
    return [(step.start, step.end, step.label) for step in video.steps]


def forecast_samples(videos, min_steps=2):
    """One sample for every pair of consecutive steps (k, k + 1): see `forecast_windows`.

    Videos with fewer than min_steps steps are left out. A step that ends at 0 s shows nothing and
    is left out too.
    """
    samples = []
    for i, video in enumerate(videos):
        steps = steps_of(video)
        if len(steps) >= min_steps:
            samples += [Sample(i, forecast_windows(end), steps[k + 1][2], k + 1)
                        for k, (_, end, _) in enumerate(steps[:-1]) if end > 0]
    return samples


def classify_samples(videos, views=3):
    """One sample for every annotated step: see `classify_windows`."""
    samples = []
    for i, video in enumerate(videos):
        steps = steps_of(video)
        duration = max([video.duration or 0.0] + [end for _, end, _ in steps])
        samples += [Sample(i, classify_windows(start, end, duration, views), label, k)
                    for k, (start, end, label) in enumerate(steps)]
    return samples


def pad_clips(x, counts, clips):
    """(C, D) rows of several videos -> (B, N, D), zeros where one has fewer, and what is there.

    Args:    counts (B,) int64, clips of each video, at most N = `clips`; their sum is C.
    Returns: (B, N, D) and (B, N) bool.
    """
    there = torch.arange(clips, device=x.device) < counts[:, None]              # (B, N)
    padded = x.new_zeros(len(counts), clips, x.shape[-1])
    padded[there] = x
    return padded, there
