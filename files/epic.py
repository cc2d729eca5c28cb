"""EPIC-Kitchens-100: actions, each a verb and a noun, in long videos of kitchens.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.2 (Table 3) and appendix B.
Lists: the official EPIC_100_train.csv, _validation.csv and _test_timestamps.csv (no labels), one
split each. Videos: P01_101.MP4 and the like, in any subfolder.

A clip is 2 s, 32 frames at 16 per second. Each is read with its own crop, flip and RandAugment in
training, and mixed with another (MixUp); in testing the softmax is averaged over VIEWS clips
spread over the action, their middle squares (the released code also takes those beside).
M actions, B clips of a step, V = 97 verbs, U = 300 nouns.
"""
import json
import zipfile
from dataclasses import dataclass

import numpy as np
import torch

from files import listings
from evaluation import metrics
from data import found
from support.command import BadInput, write_atomically
from protocols import EPIC_SECONDS, classify_windows, random_window
from tasks import Sample

VIEWS = 10                # clips of an action in testing; the released configuration's
MIXUP = 0.1               # alpha of MixUp; the released configuration's
# What a submission must say of its supervision, 0 (least) to 5: pre-trained on public video, labels
# with start and end, trained on the training set. Edit test.json where something else is true.
SUPERVISION = {"sls_pt": 2, "sls_tl": 3, "sls_td": 3}


@dataclass(frozen=True)
class Kitchen:
    """A video with its actions, listings.EpicSegment in the file's order."""
    name: str
    actions: tuple


def open_actions(settings, size, frames, needed=True):
    """The videos of a csv -> data.VideoSource of Kitchen."""
    segments = {}
    for segment in listings.load_epic(settings.annotations):
        segments.setdefault(segment.video, []).append(segment)
    videos = [Kitchen(name, tuple(rows)) for name, rows in segments.items()]
    return found(settings, videos, size, frames, needed=needed)


def split_of(path):
    """Which split an official csv is, by its name; validation where it does not say."""
    return next((split for split in ("train", "test") if split in path.name), "validation")


def samples(videos, views):
    """One sample for every action; its label is (verb, noun), (None, None) in the test list.

    A video's length is not in the csv: a window may end less than a second after it, and is read.
    """
    return [Sample(i, classify_windows(action.start, action.end, np.inf, views, EPIC_SECONDS),
                   (action.verb, action.noun), k)
            for i, video in enumerate(videos) for k, action in enumerate(video.actions)]


# ------------------------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------------------------
def load_actions(source, chosen, rng):
    """A clip from anywhere in each of some actions: cropped, flipped, augmented.

    Args:    chosen: [Sample, ...]; rng: numpy Generator, all randomness is from it.
    Returns: data.Loaded, and labels (B, 2) int64 of the clips that could be read: verb, noun.
    """
    from torchvision.transforms import v2
    requests, labels = [], {}
    for sample in chosen:
        action = source.videos[sample.video].actions[sample.step]
        requests.append((sample.video,
                         random_window(action.start, action.end, EPIC_SECONDS, rng)))
        labels[id(requests[-1])] = sample.label
    loaded = source.load(requests, rng)
    with torch.random.fork_rng(devices=[]):            # torchvision draws from torch's generator
        torch.manual_seed(int(rng.integers(2 ** 31)))
        augment = v2.RandAugment()                     # one draw for all frames of a clip
        loaded.clips = torch.stack([augment(clip) for clip in loaded.clips]
                                   ) if loaded.requests else loaded.clips
    labels = [labels[id(request)] for request in loaded.requests]
    return loaded, torch.tensor(labels, dtype=torch.int64).view(-1, 2)


def mix(clips, labels, classes):
    """MixUp: each clip with the one before it, in shares drawn from Beta(MIXUP, MIXUP).

    Args:    clips (B, F, 3, H, W) uint8, labels (B, 2), classes [V, U].
    Returns: clips float 0-255, and target (B, V + U): p' of the verb, then of the noun.
    """
    from torch.nn import functional
    from torchvision.transforms import v2
    from torchvision.tv_tensors import Video
    target = torch.cat([functional.one_hot(label, count) for label, count in
                        zip(labels.T, classes)], 1).float()
    blend = v2.MixUp(alpha=MIXUP, labels_getter=lambda batch: batch[1])
    clips, target = blend(Video(clips.float()), target)
    return clips.as_subclass(torch.Tensor), target


# ------------------------------------------------------------------------------------------------
# Testing
# ------------------------------------------------------------------------------------------------
def rows(verb, noun, labels):
    """Rows of Table 3, {"top1": {"verb", ...}, ...} in percent, of p(verb) (M, V), p(noun) (M, U).

    An action is right if both are; of the top 5 are the pairs with the largest p(verb) p(noun).
    Args: labels: [(verb, noun), ...]; all rows are None where there are none (the test list).
    """
    names = ("verb", "noun", "action")
    if not labels or labels[0][0] is None:
        return {"top1": dict.fromkeys(names), "top5": dict.fromkeys(names),
                "mean_class": dict.fromkeys(names[:2])}
    y = torch.tensor(labels)                                                   # (M, 2)
    both = y[:, 0] * noun.shape[1] + y[:, 1]
    result, mean = {}, {}
    for k in (1, 5):
        action = [metrics.topk_correct((p[:, :, None] * q[:, None]).flatten(1), pair, k)
                  for p, q, pair in zip(verb.split(256), noun.split(256), both.split(256))]
        hits = (metrics.topk_correct(verb, y[:, 0], k), metrics.topk_correct(noun, y[:, 1], k),
                torch.cat(action))
        result[f"top{k}"] = {name: 100 * float(hit.double().mean())
                             for name, hit in zip(names, hits)}
        mean = mean or {name: 100 * metrics.mean_class(hit, column)
                        for name, hit, column in zip(names[:2], hits, y.T)}
    return {**result, "mean_class": mean}


def write_submission(path, names, verb, noun):
    """The file of the action recognition challenge: a zip with test.json.

        {"version": "0.2", "challenge": "action_recognition", "sls_pt", "sls_tl", "sls_td",
         "results": {narration_id: {"verb": {"0": score, ...}, "noun": {"0": score, ...}}}}

    Args: names [narration_id, ...] (M,); verb (M, V), noun (M, U): log probabilities.
    """
    def scores(row):
        return {str(i): value for i, value in enumerate(row)}

    results = {name: {"verb": scores(v), "noun": scores(n)}
               for name, v, n in zip(names, verb.tolist(), noun.tolist())}
    text = json.dumps({"version": "0.2", "challenge": "action_recognition", **SUPERVISION,
                       "results": results}, allow_nan=False)

    def write(file):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("test.json", text)
    write_atomically(path, write)


def require_labels(chosen, path):
    """BadInput if the actions have no labels."""
    if any(sample.label == (None, None) for sample in chosen):
        raise BadInput(f"{path}: has no labels (is it the test list?); to fine-tune, "
                       "EPIC_100_train.csv is needed")
