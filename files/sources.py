"""From videos to what the model reads: the sources of clips.

    source                                          a clip is            teacher features are
    ToySource       the embedded world              F frames, uint8      the teacher's, per frame
    FeatureSource   COIN.json and a features file   its embedding (D,)   the same embedding
    VideoSource     video files                     F frames, uint8      the teacher's, per frame

Which windows of a video are its clips is settled in protocols.py, and what is asked of them in
tasks.py. The commands `python data.py check | shrink | teach | export-toy` are in tools.py.
B videos, N clips, F frames, D embedding. Clips of several videos are stacked, (C, ...).
"""
if __name__ == "__main__":       # before torch is imported: --help does not wait for it
    from files.commands import main
    raise SystemExit(main())

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from files import annotations
from support import parallel
from toy import grammar
from support.command import BadInput, send, write_atomically
from protocols import frame_times, sentence_windows, step_windows


@dataclass
class Loaded:
    """What a source gives for some requests, [(video, windows (n, 2) s), ...]."""
    requests: list                # those that could be read
    clips: torch.Tensor           # of all of them, (C, F, 3, H, W) uint8, or embeddings (C, D)
    looks: object                 # what the source's `teach` turns into the teacher's features: a
                                  # tensor, or a list of one for each video
    failed: dict                  # {id: reason} of the others

    def pin_memory(self):
        """Copied to where a GPU fetches them by itself: a DataLoader's thread calls this."""
        looks = ([look.pin_memory() for look in self.looks] if isinstance(self.looks, list) else
                 self.looks.pin_memory())
        return Loaded(self.requests, self.clips.pin_memory(), looks, self.failed)


@dataclass(frozen=True, slots=True)
class Narrated:
    """A video with a narration and no annotation."""
    name: str


class ToySource:
    """The videos of one split of the embedded world, rendered into memory.

    Args:
        split:    "train", "validation" or "test".
        count:    number of videos.
        frames:   F, frames per clip.
        teacher:  pseudo_labels.Teacher, or None where its features are not needed. Every frame is
                  looked at once and kept.
    """

    def __init__(self, split, count, frames, teacher=None, progress=True):
        from toy import render
        self.teacher = teacher
        self.frames_per_clip, self.fps = frames, render.FPS
        self.videos = self.listed = [grammar.make_video(split, i) for i in range(count)]
        self.missing, self.unreadable = [], {}
        bar = tqdm(self.videos, desc=f"render {split}", mininterval=1, disable=not progress)
        parts = [render.render(video) for video in bar]
        self.first = np.cumsum([0] + [len(part) for part in parts])         # of each video's frames
        self.pixels = torch.from_numpy(np.concatenate(parts))               # (n, 3, H, W) uint8
        self.narration = [render.narrate(video) for video in self.videos]
        self.frame_features = None
        if teacher is not None:
            starts = tqdm(range(0, len(self.pixels), 1024), desc=f"teacher on {split}",
                          mininterval=1, disable=not progress)
            self.frame_features = torch.cat([teacher.encode_frames(self.pixels[i:i + 1024]).cpu()
                                             for i in starts])

    def __len__(self):
        return len(self.videos)

    def frame_index(self, video, windows):
        """(n, F) int64: which rows of `pixels` are nearest to the clips' frame times."""
        count = self.first[video + 1] - self.first[video]
        index = np.floor(frame_times(windows, self.frames_per_clip) * self.fps).astype(np.int64)
        return torch.from_numpy(self.first[video] + np.clip(index, 0, count - 1))

    def duration(self, video):
        """s"""
        return self.videos[video].duration

    def sentences(self, video):
        """[(start s, end s, text), ...] of its narration."""
        return self.narration[video]

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video; see `sentence_windows`."""
        return sentence_windows(self.sentences(video), self.videos[video].duration, rng)

    def load(self, requests, rng=None):
        """What f and the teacher see of the requests' clips -> Loaded; looks: rows of `pixels`."""
        index = torch.cat([self.frame_index(*request) for request in requests])    # (C, F)
        looks = index if self.frame_features is not None else index[:0]
        return Loaded(requests, self.pixels[index], looks, {})

    def teach(self, looks):
        """The teacher's features of clips: the mean over their frames (Sec. 3.2) -> (C, D)."""
        return self.frame_features[looks].mean(1)


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
        self.unreadable = {}

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video: its annotated segments; their labels stay unused."""
        return step_windows([(s.start, s.end) for s in self.videos[video].steps], rng)

    def load(self, requests, rng=None):
        """The rows (C, D) float32 nearest to the windows' middles -> Loaded; looks: the same."""
        rows = [self.features.nearest(self.videos[video].name, windows.mean(-1))
                for video, windows in requests]
        x = torch.from_numpy(self.features.embedding[np.concatenate(rows)]).float()
        return Loaded(requests, x, x, {})

    def teach(self, looks):
        """The embedding is its own teacher."""
        return looks


class VideoSource:
    """Video files, read when they are asked for.

    Args:
        videos:   [annotations.AnnotatedVideo or Narrated].
        paths:    {id: path}, see video.find_videos.
        size:     side of the encoder's pictures, pixels.
        frames:   F, frames per clip.
        teacher:  pseudo_labels.Teacher, or None where its features are not needed.
        captions: captions.Captions, in pre-training.
        seconds:  of the middle of a window, what the encoder sees; None: all of it.
        kept:     folder of the teacher's features, ID.npy, one row a second (`data.py teach`); a
                  video without such a file is shown to the teacher when it is read.
    `listed` holds all videos; `missing` names those without a file or (in pre-training) a
    narration, and `videos` holds the others.
    """

    def __init__(self, videos, paths, size, frames, teacher=None, captions=None, seconds=None,
                 kept=None):
        self.paths, self.size, self.frames_per_clip, self.seconds = paths, size, frames, seconds
        self.kept = {path.stem: path for path in kept.glob("*.npy")} if kept else {}
        self.width = teacher.encode_phrases(["a"]).shape[1] if kept else None
        self.listed, self.teacher, self.captions = videos, teacher, captions
        there = {video.name for video in videos if video.name in paths
                 and (captions is None or video.name in captions)}
        self.videos = [video for video in videos if video.name in there]
        self.missing = [video.name for video in videos if video.name not in there]
        self.unreadable = {}                            # {id: reason}, known once they were read

    def __len__(self):
        return len(self.videos)

    def duration(self, video):
        """s, as the file says. Raises video.Unreadable."""
        from files.video import duration
        return duration(self.paths[self.videos[video].name])

    def sentences(self, video):
        """[(start s, end s, text), ...] of its narration."""
        return self.captions.sentences(self.videos[video].name)

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a narrated video; see `sentence_windows`."""
        sentences = self.sentences(video)
        end = max((end for _, end, _ in sentences), default=0.0)
        return sentence_windows(sentences, end, rng)

    def load(self, requests, rng=None):
        """Each request's clips, from one opening of its file -> Loaded.

        rng: numpy Generator, for the random views of training; None: the middle view.
        looks: for each video the middle views at the teacher's size (n, F, 3, H, W), or the kept
        features of these frames (n, F, D); empty without a teacher.
        """
        from files.video import (Unreadable, evaluation_view, read_frames, short_side_for,
                           training_view)
        good, clips, looks, failed = [], [], [], {}
        sizes = [self.size] + ([self.teacher.size] if self.teacher else [])
        short_side = short_side_for(max(sizes))
        for request in requests:
            name = self.videos[request[0]].name
            times = frame_times(request[1], self.frames_per_clip, self.seconds)
            try:
                frames = read_frames(self.paths[name], times.reshape(-1), short_side)
            except (Unreadable, OSError) as error:
                failed[name] = str(error)
                continue
            good.append(request)
            split = frames.split(self.frames_per_clip)
            clips += [evaluation_view(clip, self.size) if rng is None
                      else training_view(clip, self.size, rng) for clip in split]
            if name in self.kept:
                rows = annotations.load_teacher_rows(self.kept[name], self.width)
                second = np.minimum(times.astype(np.int64), len(rows) - 1)           # (n, F)
                looks.append(torch.from_numpy(rows[second]))
            elif self.teacher:
                looks.append(torch.stack([evaluation_view(clip, self.teacher.size)
                                          for clip in split]))
        return Loaded(good, torch.stack(clips) if clips else torch.empty(0), looks, failed)

    def teach(self, looks):
        """The teacher's features of clips: the mean over their frames (Sec. 3.2) -> (C, D).

        Frames of all videos go through it together, 1024 at a time (some 2 GB at its size of 224).
        """
        shown = [look for look in looks if look.ndim > 3]
        if not shown:
            return torch.cat(looks).mean(1)
        frames = torch.cat(shown)                                              # (C', F, 3, H, W)
        rows = torch.cat([self.teacher.encode_frames(part)
                          for part in frames.flatten(0, 1).split(1024)])       # (C' F, D)
        taught = iter(rows.unflatten(0, frames.shape[:2]).split([len(look) for look in shown]))
        return torch.cat([next(taught) if look.ndim > 3 else send(look, rows.device)
                          for look in looks]).mean(1)


TEACHER_FILE = Path("runs/toy_teacher.pt")         # trained once, by whichever command comes first


def world_digest():
    """Which embedded world this is: SHA-256 of the two files that make it."""
    from toy import render
    return hashlib.sha256(b"".join(Path(module.__file__).read_bytes()
                                   for module in (grammar, render))).hexdigest()


def toy_teacher(device):
    """The embedded world's teacher as a pseudo_labels.Teacher: from its cache, or trained now.

    It is trained again when grammar.py or render.py is not what it was trained on.
    """
    from toy import render
    from pseudo_labels import Teacher
    model, tokenizer = render.build_teacher()
    try:
        kept = torch.load(TEACHER_FILE, weights_only=True)
        if kept["world"] != world_digest():
            raise ValueError("of another world")
        model.load_state_dict(kept["model"])
    except Exception:                              # absent, cut off, or of another version: again
        model, tokenizer = render.train_teacher()
        if parallel.PLACE[0] == 0:
            TEACHER_FILE.parent.mkdir(parents=True, exist_ok=True)
            kept = {"model": model.state_dict(), "world": world_digest()}
            write_atomically(TEACHER_FILE, lambda file: torch.save(kept, file))
    return Teacher(model, tokenizer, render.MEAN, render.STD, device)


KEPT = None               # {(split, videos, frames): ToySource} in a process that makes many runs


def open_toy(split, count, frames, teach, device):
    """A ToySource, with the teacher's features if `teach`; one that is kept is not made again."""
    kept, key = {} if KEPT is None else KEPT, (split, count, frames)
    if key not in kept or teach and kept[key].teacher is None:
        kept[key] = ToySource(split, count, frames, toy_teacher(device) if teach else None)
    return kept[key]


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


def found(settings, videos, *args, needed=True, **more):
    """A VideoSource of the videos listed; BadInput if (needed and) there is no file for any."""
    from files.video import find_videos
    source = VideoSource(videos, find_videos(settings.videos), *args, **more)
    if needed and not len(source):
        raise BadInput(f"--videos {settings.videos}: no file (with a narration, in training) of "
                       f"any of the {len(videos)} videos listed; their names must be the ids")
    return source


def open_videos(settings, model):
    """All videos of a folder, or those of --ids; or a split of the embedded world -> a source."""
    from files.listings import load_ids
    from files.video import find_videos
    if settings.videos is None:
        return ToySource(settings.split, settings.toy_videos, model.encoder.frames)
    names = load_ids(settings.ids) if settings.ids else sorted(find_videos(settings.videos))
    return found(settings, [Narrated(name) for name in names], model.encoder.image,
                 model.encoder.frames, seconds=model.encoder.seconds)


def open_narrated(settings, size, frames, teacher, seconds=None):
    """Videos with captions (HowTo100M, or a folder of one's own) -> VideoSource."""
    from files.captions import open_captions
    from files.listings import load_ids
    captions = open_captions(settings.captions)
    names = load_ids(settings.ids) if settings.ids else captions
    return found(settings, [Narrated(name) for name in names], size, frames, teacher, captions,
                 seconds=seconds, kept=settings.teacher_features)


def open_coin_videos(settings, size, frames, teacher, needed=True, seconds=None):
    """COIN.json or a released csv, with video files: (VideoSource of the split, class names).

    A csv is one split already. It has no names: they come from --steps.
    """
    from files import listings
    names = listings.load_steps(settings.steps) if settings.steps else None
    if settings.annotations.suffix == ".csv":
        if names is None and settings.text_embeddings is None and settings.task != "activity":
            raise BadInput(f"{settings.annotations}: a csv has no class names; add --steps FILE "
                           "or --text-embeddings FILE")
        videos = listings.load_released(settings.annotations, settings.task)
    else:
        videos, own = annotations.load_coin(settings.annotations)
        videos = [video for video in videos if video.split == settings.split and video.steps]
        names = names or own
    return found(settings, videos, size, frames, teacher, needed=needed, seconds=seconds), names


def pad_clips(x, counts, clips):
    """(C, ...) rows of several videos -> (B, N, ...), zeros where one has fewer, and what is there.

    Args:    counts (B,) int64, clips of each video, at most N = `clips`; their sum is C.
    Returns: (B, N, ...) and (B, N) bool. No value is read on the CPU: a GPU is not waited for.
    """
    n = torch.arange(clips, device=x.device)
    there = n < counts[:, None]                                                 # (B, N)
    row = (counts.cumsum(0) - counts)[:, None] + n                              # (B, N)
    padded = x[row.clamp(max=len(x) - 1)]              # padding is some other clip, for a moment
    return padded.masked_fill(~there.view(*there.shape, *[1] * (x.ndim - 1)), 0), there
