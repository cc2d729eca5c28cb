"""Sources of clips: from listed videos to what the model reads, C clips of F frames, width D."""
import functools

import numpy as np
import torch

from data import Loaded, Video, frame_times, sentence_windows, window_around
from files import annotations, listings
from files.captions import Captions
from files.video import (Unreadable, duration, evaluation_view, find_videos, read_frames, record,
                         short_side_for, training_view)
from support.command import BadInput, require
from support.device import send
from weights.teacher import checksum

SHORTER = 3               # s that the teacher's features of a video may end before its last frame


class Source:
    """Listed videos: `videos` are those whose id is in `present`, `missing` names the others."""

    def __init__(self, listed, present):
        self.listed = listed
        self.videos = [video for video in listed if video.name in present]
        self.missing = [video.name for video in listed if video.name not in present]
        self.unreadable = {}                            # {id: reason}, filled by whoever reads

    def __len__(self):
        return len(self.videos)


class FeatureSource(Source):
    """Videos of COIN.json; their clips are rows of a FeaturesFile, one near each step's middle."""

    def __init__(self, videos, features):
        listed = [video for video in videos if video.steps]
        super().__init__(listed, {video.name for video in listed if features.covers(
            video.name, [(step.start + step.end) / 2 for step in video.steps])})
        self.features = features

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video: its annotated steps; their labels stay unused."""
        return np.array([step[:2] for step in self.videos[video].steps])

    def load(self, requests, rng=None):
        """The rows (C, D) float32 nearest to the windows' middles -> Loaded; views: the same."""
        rows = [self.features.nearest(self.videos[video].name, windows.mean(-1))
                for video, windows in requests]
        x = torch.from_numpy(self.features.embedding[np.concatenate(rows)]).float()
        return Loaded(requests, x, x, {})

    def teacher_features(self, views):
        """The embedding is its own teacher."""
        return views


class VideoSource(Source):
    """Video files, read on demand.
    paths: {id: path}; teacher: pseudo_labels.Teacher, or None where its features are not needed;
    captions: in pre-training, a video without a narration is missing; cached: folder of
    `python -m files teach`, used where it has a video, --clip and --clip-weights."""

    def __init__(self, videos, paths, view, teacher=None, captions=None, cached=None):
        super().__init__(videos, paths if captions is None else paths.keys() & captions.keys())
        self.paths, self.view, self.teacher, self.captions = paths, view, teacher, captions
        self.cached, self.made = cached, ("teach", cached and checksum(teacher))

    def duration(self, video):
        """s, as the file says. Raises video.Unreadable."""
        return duration(self.paths[self.videos[video].name])

    def sentences(self, video):
        """[(start s, end s, text), ...] of its narration; [] if that makes it unreadable."""
        name = self.videos[video].name
        try:
            return self.captions.sentences(name)
        except BadInput as error:
            self.unreadable[name] = str(error)
            return []

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a narrated video; see `sentence_windows`."""
        sentences = self.sentences(video)
        return sentence_windows(sentences, max((end for _, end, _ in sentences), default=0.0), rng)

    def teacher_rows(self, name, times):
        """The cached features of frames at `times` (n, F) s: (n, F, D); None without a file."""
        path = self.cached and self.cached / f"{name}.npz"
        if not path or not path.is_file():
            return None
        rows, made = annotations.load_teacher_rows(path)
        if made != record(self.paths[name], *self.made) or times.max() > len(rows) + SHORTER:
            raise Unreadable(f"{path}: of another teacher, another file of this video, or a "
                             "shorter one; make it again with `python -m files teach`")
        return torch.from_numpy(rows[np.minimum(times.astype(np.int64), len(rows) - 1)])

    def read(self, request, short_side):
        """Pictures (n F, 3, H, W), their times (n, F) s, and the request, cut to its video."""
        video, windows = request
        path, times = self.paths[self.videos[video].name], frame_times(windows, *self.view[1:])
        try:
            return read_frames(path, times.reshape(-1), short_side), times, request
        except Unreadable:
            end = duration(path) if self.captions else np.inf
            if windows.max() <= end or windows.min() >= end:
                raise
        windows = [window_around(*window, window[1] - window[0], end) for window in windows
                   if window[0] < end]
        return self.read((video, np.array(windows)), short_side)

    def load(self, requests, rng=None):
        """Each request's clips, from one opening of its file -> Loaded; rng None: the middle views.
        views: of each video (n, F, 3, H, W) at the teacher's size, or cached features (n, F, D)."""
        size, F, _ = self.view
        readable, clips, views, failed = [], [], [], dict(self.unreadable)
        short_side = short_side_for(max(size, self.teacher.size if self.teacher else 0))
        for request in requests:
            name = self.videos[request[0]].name
            try:
                frames, times, request = self.read(request, short_side)
                rows = self.teacher_rows(name, times)
            except (Unreadable, OSError) as error:
                failed[name] = str(error)
                continue
            readable.append(request)
            clips += [evaluation_view(clip, size) if rng is None
                      else training_view(clip, size, rng) for clip in frames.split(F)]
            if rows is not None:
                views.append(rows)
            elif self.teacher:
                views.append(evaluation_view(frames, self.teacher.size).unflatten(0, (-1, F)))
        return Loaded(readable, torch.stack(clips) if clips else torch.empty(0), views, failed)

    def teacher_features(self, views):
        """The teacher's features of clips: the mean over their frames (Sec. 3.2) -> (C, D)."""
        rows = [self.teacher.encode_frames(view.flatten(0, 1)).unflatten(0, view.shape[:2])
                if view.ndim > 3 else send(view, self.teacher.device)          # (n, F, D) of each
                for view in views]
        return torch.cat(rows).mean(1)


read_features = functools.lru_cache(maxsize=1)(annotations.load_features)      # 650 MB: once


def open_coin_features(annotation_file, feature_file, text_file, split, needed=True):
    """COIN.json with a features file: (FeatureSource of one split, class embeddings (K, D))."""
    videos, labels = annotations.load_coin(annotation_file)
    texts = annotations.load_texts_of(labels, text_file, annotation_file)
    features = read_features(feature_file)
    width = features.embedding.shape[1]
    require(texts.shape[1] == width, f"{feature_file}: embeddings of width {width}, but "
            f"{text_file} has {texts.shape[1]}; one space is needed")
    source = FeatureSource([video for video in videos if video.split == split], features)
    require(not needed or len(source), f"{feature_file}: no row for any of the "
            f"{len(source.missing)} {split} videos of {annotation_file} near its steps; video must "
            "hold their ids, start and end seconds (are they milliseconds?)")
    return source, torch.from_numpy(texts)


def require_videos(source, folder):
    """The source; BadInput if it has no video."""
    require(len(source), f"--videos {folder}: no file (with a narration, in training) for any of "
            f"the {len(source.listed)} videos listed; their names must be the ids")
    return source


def open_folder(folder, caption_path, ids, view, teacher=None, cached=None):
    """The videos of a folder, those with captions if any are given (HowTo100M) -> VideoSource."""
    captions, paths = Captions(caption_path) if caption_path else None, find_videos(folder)
    names = listings.load_ids(ids) if ids else captions or sorted(paths)
    return require_videos(VideoSource([Video(name) for name in names], paths, view, teacher,
                                      captions, cached), folder)
