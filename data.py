"""From videos to what the model reads: the two sources of clips, and the samples of each task.

    source                                          a clip is            teacher features are
    ToySource       the embedded world              F frames, uint8      the teacher's, per frame
    FeatureSource   COIN.json and a features file   its embedding (D,)   the same embedding
    KeptRows        either, once f has finished     its embedding (D,)   the teacher's, kept

Which windows of a video are its clips is settled in protocols.py.
B videos, N clips, F frames, D embedding. Clips of several videos are stacked, (C, ...).
"""
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import annotations
import toy
from protocols import (CLIP_SECONDS, CLIPS, FORECASTS, PIECES, around, classify_windows,
                       forecast_windows, frame_times, history_windows, missing_clip,
                       sentence_windows, step_windows)
from settings import BadInput, write_atomically


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
        rows = [self.features.nearest(self.videos[video].name, windows.mean(-1))
                for video, windows in requests]
        return torch.from_numpy(self.features.embedding[np.concatenate(rows)]).float()

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


read_features = functools.lru_cache(maxsize=1)(annotations.load_features)      # 650 MB: once


def open_coin(settings, split, needed=True):
    """COIN.json with a features file: (FeatureSource of one split, class embeddings (K, D)).

    Raises: BadInput if the files do not fit each other, or (if needed) no video has a feature row.
    """
    videos, _ = annotations.load_coin(settings.annotations)
    _, texts = annotations.load_text_embeddings(settings.text_embeddings)
    features = read_features(settings.features)
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
# What h is trained on once f has finished: kept embeddings
# ------------------------------------------------------------------------------------------------
def embed_videos(source, encode, stride, device):
    """Each video as embeddings of 9-s windows, one every `stride` s, and the teacher's features.

    Returns: annotations.FeaturesFile, and (R, D) features of its rows.
    """
    names, middles, x, features = [], [], [], []
    for video in tqdm(range(len(source)), desc="keep embeddings", mininterval=1):
        script = source.videos[video]
        middle = np.arange(stride / 2, max(script.duration, stride), stride)
        requests = [(video, np.array([around(m, m, CLIP_SECONDS, script.duration)
                                      for m in middle]))]
        names += [script.name] * len(middle)
        middles.append(middle)
        x.append(encode(source.clips(requests).to(device)).cpu())
        features.append(source.teacher(requests))
    return (annotations.FeaturesFile(np.array(names), np.concatenate(middles),
                                     torch.cat(x).numpy()), torch.cat(features))


class KeptRows:
    """Kept embeddings, and which of them h is asked about: forecasts first, then any clip.

    Args:
        source:   gives the videos and their pre-training windows.
        features: annotations.FeaturesFile of these videos.
        teacher:  (R, D) the teacher's features of its rows.
        passes:   how often each video is gone through, with other windows each time.
        rng:      numpy Generator.
    """

    def __init__(self, source, features, teacher, passes, rng):
        self.x, self.teacher = torch.from_numpy(features.embedding), teacher
        forecasts, others = [], []                     # (rows (N,), observed (N,), j)
        every = np.arange(CLIPS) < PIECES
        for video in np.tile(np.arange(len(source)), passes):
            name, windows = source.videos[video].name, source.pretrain_windows(video, rng)
            if len(windows) > 1:
                rows = features.nearest(name, history_windows(windows, rng).mean(-1))
                forecasts += [(row, every, PIECES) for row in rows]
            if len(windows):
                j, observed = missing_clip(len(windows), rng)
                rows = np.zeros(CLIPS, np.int64)       # padding: any row, as it is not observed
                rows[:len(windows)] = features.nearest(name, windows.mean(-1))
                others.append((rows, np.pad(observed, (0, CLIPS - len(windows))), j))
        if not others:
            raise BadInput(f"none of the {len(source)} videos has a clip to train on")
        self.forecasts = len(forecasts)
        self.rows, self.observed, self.j = (torch.from_numpy(np.array(column))
                                            for column in zip(*forecasts, *others))

    def batch(self, size, rng, device):
        """x (B, N, D), features of clip j (B, D), observed (B, N), j (B,)."""
        first = rng.integers(self.forecasts, size=round(FORECASTS * size)) if self.forecasts else []
        then = rng.integers(self.forecasts, len(self.j), size=size - len(first))
        chosen = torch.from_numpy(np.concatenate([first, then]).astype(np.int64))
        rows, j = self.rows[chosen], self.j[chosen]
        missing = rows.gather(1, j[:, None])[:, 0]                                  # (B,)
        return (self.x[rows].float().to(device), self.teacher[missing].float().to(device),
                self.observed[chosen].to(device), j.to(device))


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
    """(C, ...) rows of several videos -> (B, N, ...), zeros where one has fewer, and what is there.

    Args:    counts (B,) int64, clips of each video, at most N = `clips`; their sum is C.
    Returns: (B, N, ...) and (B, N) bool.
    """
    there = torch.arange(clips, device=x.device) < counts[:, None]              # (B, N)
    padded = x.new_zeros(len(counts), clips, *x.shape[1:])
    padded[there] = x
    return padded, there
