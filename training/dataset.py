"""What training reads: clips drawn from videos, and what the teacher sees or hears of them.

Each choice is drawn from (seed, epoch, video) alone. So it does not depend on how many processes,
workers or micro-batches make a run. N = 9 clips of a video, m sentences, D embedding.
"""
import functools
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from data import CLIP_SECONDS, CLIPS, STRIDE, Loaded, consecutive, sentence_windows
from files.features import FeatureSource
from files.lists import load_phrases
from files.sources import VideoSource, open_folder, shares
from model import clips_at_once
from support.errors import require
from support.workers import prefetch
from toy import grammar, render
from toy.source import ToySource, load_teacher
from training import parallel
from weights.names import PIXELS
from weights.teacher import open_teacher

ORDER, ITEM, LABELS = 0, 1, 2        # kinds of draws
PITCHED = 1000                # narrations from which the distance of clips is measured


def add_video_flags(parser):
    """Add --data, and the flags for what it reads, to pre-training."""
    add = parser.add_argument
    add("--data", choices=["toy", "howto100m", "features"], default="toy",
        help="howto100m: narrated videos; features: their features instead of pictures")
    add("--toy-videos", type=int, default=6000, help="training videos of the toy world")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--features", type=Path, help="npz of features, as evaluate.py --task features writes")
    add("--captions", type=Path, help="folder of ID.csv, ID.srt or ID.vtt; or caption.json")
    add("--ids", type=Path, help="use only these videos: an id per line")
    add("--phrases", type=Path, help="the phrase pool, one phrase per line")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add("--stride", type=int, default=STRIDE, help="every so many sentences give a clip; choose "
        "it so that clips are about a step apart")
    add("--clip", default="ViT-B-16-quickgelu", help="teacher: open_clip's model or local-dir:DIR")
    add("--clip-weights", help="its weights: a tag of open_clip (default openai), or a file")


def open_videos(args, view):
    """The source of narrated videos that f reads by `view` (data.View), and the phrases of the
    pool. InputError if a path is absent."""
    if args.data == "toy":
        pool = load_phrases(args.phrases) if args.phrases else grammar.PHRASES
        return ToySource("train", args.toy_videos, view.frames), pool
    given, kind = (("features", FeatureSource) if args.data == "features" else
                   ("videos", VideoSource))
    for name in (given, "captions", "phrases"):
        require(getattr(args, name), f"--data {args.data} needs --{name}")
    pool = load_phrases(args.phrases)
    return open_folder(getattr(args, given), args.captions, args.ids, view, skip=args.skip,
                       max_unreadable=args.max_unreadable, kind=kind), pool


def teacher_of(source, data, clip, clip_weights, device):
    """The frozen teacher of these videos, and (mean, std) of pixels / 255 as f expects them."""
    if data == "toy":
        return load_teacher(device).watch(source), (render.MEAN, render.STD)
    teacher = open_teacher(clip, clip_weights, device)
    source.teacher_size = teacher.size
    return teacher, PIXELS


def mean_pitch(source, stride):
    """The mean distance of consecutive clips, s, of the first PITCHED narrations of a source."""
    rng, distances = np.random.default_rng(0), []
    for i in range(min(len(source.videos), PITCHED)):
        sentences = source.sentences(i)
        end = max(end for _, end, _ in sentences)
        distances.extend(np.diff(sentence_windows(sentences, end, rng, stride).mean(1)))
    return float(np.mean(distances)) if distances else CLIP_SECONDS


@functools.lru_cache(1)
def epoch_order(count, seed, epoch):
    """A new order of `count` videos or examples in every epoch: (count,) int."""
    return np.random.default_rng((ORDER, seed, epoch)).permutation(count)


def join(source, parts):
    """The Loaded of a micro-batch of [Loaded, ...], one for each item; None if none could be read.
    The videos that could not are added to source.unreadable {id: reason}, and printed once."""
    failed = {name: reason for part in parts for name, reason in part.failed.items()}
    for name in failed.keys() - source.unreadable.keys():
        tqdm.write(f"unreadable: {name}: {failed[name]}")
    source.unreadable |= failed
    read = [part for part in parts if part.requests]
    if not read:
        return None
    clips, views = (torch.cat(of) for of in zip(*((part.clips, part.views) for part in read)))
    return Loaded([part.requests[0] for part in read], clips, views, failed)


class NarratedVideos:
    """Nine consecutive clips of each narrated video. Item (epoch, video, place in the batch) ->
    Loaded of one request (video, windows (9, 2) s, place)."""
    clips = CLIPS                                      # of an item

    def __init__(self, source, seed, stride):
        self.source, self.seed, self.stride = source, seed, stride
        self.videos = range(len(source.videos))        # of each item: its place in source.videos

    def __len__(self):
        return len(self.videos)

    def __getitem__(self, item):
        epoch, video, place = item
        rng = np.random.default_rng((ITEM, self.seed, epoch, video))
        windows = consecutive(self.source.pretrain_windows(video, rng, self.stride), rng)
        return self.source.load([(video, windows, place)], rng)

    def name(self, item):
        """What to call an item whose worker was killed."""
        name = self.source.videos[self.videos[item[1]]].name
        return f"{name} (leave it out with --skip {name})"

    def items(self, updates, batch, share):
        """Yield the items of all updates (a range). batch: items of an update; share: the places of
        this process among them, a range."""
        for update in updates:
            epoch, k = divmod(update, len(self) // batch)
            order = epoch_order(len(self), self.seed, epoch)
            yield from ((epoch, int(order[k * batch + place]), place) for place in share)

    def updates(self, updates, batch, encoder, teacher_size, micro_batch, workers):
        """For each update (of a range), the Loaded of this process' share of a batch: an iterator
        of micro-batches, as many items as f takes at once. teacher_size: pixels, or 0."""
        share = parallel.share(batch)
        micro = max(1, clips_at_once(encoder, micro_batch) // self.clips)
        pixels = self.clips * encoder.frames * (encoder.image ** 2 + teacher_size ** 2)
        loader = prefetch(self.__getitem__, self.items(updates, batch, share), workers,
                          size=3 * pixels, held=min(micro, len(share)), name=self.name,
                          pin=torch.cuda.is_available())
        for _ in updates:
            parts = (join(self.source, [next(loader) for _ in share[i:i + micro]])
                     for i in range(0, len(share), micro))
            yield filter(None, parts)


class LabeledClips(NarratedVideos):
    """One of the views of each labeled example, window (1, 2) s; requests end with the label."""
    clips = 1

    def __init__(self, source, seed, examples):
        self.source, self.seed, self.examples = source, seed, examples
        self.videos = [example.video for example in examples]

    def __getitem__(self, item):
        epoch, number, place = item
        rng = np.random.default_rng((ITEM, self.seed, epoch, number))
        video, label = self.examples[number].video, self.examples[number].label
        view = rng.permutation(self.examples[number].windows)[:1]
        return self.source.load([(video, view, place, label)], rng)


def narration_features(teacher, source, requests):
    """The teacher's mean text feature of what is said during each clip: (C, D), length 1."""
    rows = []
    for video, windows, *_ in requests:
        sentences = source.sentences(video)
        spans = np.array([sentence[:2] for sentence in sentences])                  # (m, 2) s
        share = shares(spans, windows)                                              # (N, m)
        spoken = np.flatnonzero(share.any(0))
        features = teacher.encode_sentences([sentences[i][2] for i in spoken])
        rows.append(torch.from_numpy(share[:, spoken]).float() @ features)          # (N, D)
    return functional.normalize(torch.cat(rows), dim=-1)


def to_device(loaded, teacher, source, targets, device):
    """What `objective` needs of a Loaded: clips (B, 9, ...); features (B, 9, D) that soft targets
    are made of; and the places of these videos in the batch. targets: features of frames
    ("vision"), of speech ("narration"), or their mean ("both"), as in the release."""
    if targets == "narration":
        features = narration_features(teacher, source, loaded.requests)    # (C, D)
    else:
        features = teacher.encode_clips(loaded.views)                      # (C, D)
    if targets == "both":
        spoken = narration_features(teacher, source, loaded.requests).to(features.device)
        features = (functional.normalize(features, dim=-1) + spoken) / 2
    clips, features = (of.to(device, non_blocking=True).unflatten(0, (-1, CLIPS))
                       for of in (loaded.clips, features))
    return clips, features, [place for _, _, place, *_ in loaded.requests]
