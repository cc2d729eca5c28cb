"""Fine-tuning on EPIC-Kitchens-100: clips of actions, augmented and mixed.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.2 (Table 3) and appendix B.

A clip is 2 s, 32 frames at 16 per second. Each has its own crop, flip and RandAugment, and is mixed
with another (MixUp). B clips of a step, V = 97 verbs, U = 300 nouns.
"""
from dataclasses import replace

import torch
from torch.nn import functional
from torchvision.transforms import v2
from torchvision.tv_tensors import Video

from data import EPIC_SECONDS, random_window
from evaluation.embedding import load_samples

MIXUP = 0.1               # alpha of MixUp; the released configuration's


def load_actions(source, samples, rng):
    """A clip from anywhere in each of some actions: cropped, flipped, augmented.

    Args:    samples: [data.Sample, ...]; rng: numpy Generator, all randomness is from it.
    Returns: data.Loaded, and labels (B, 2) int64 of the clips that could be read: verb, noun.
    """
    drawn = []
    for sample in samples:
        start, end, _ = source.videos[sample.video].steps[sample.step]
        drawn.append(replace(sample, windows=random_window(start, end, EPIC_SECONDS, rng)))
    loaded, read = load_samples(source, drawn, rng)
    with torch.random.fork_rng(devices=[]):            # torchvision draws from torch's generator
        torch.manual_seed(int(rng.integers(2 ** 31)))
        augment = v2.RandAugment()                     # one draw for all frames of a clip
        if loaded.requests:
            loaded.clips = torch.stack([augment(clip) for clip in loaded.clips])
    return loaded, torch.tensor([sample.label for sample in read], dtype=torch.int64).view(-1, 2)


def mix(clips, labels, classes):
    """MixUp: each clip with the one before it, in shares drawn from Beta(MIXUP, MIXUP).

    Args:    clips (B, F, 3, H, W) uint8, labels (B, 2), classes [V, U].
    Returns: clips float 0-255, and target (B, V + U): p' of the verb, then of the noun.
    """
    target = torch.cat([functional.one_hot(label, count) for label, count in
                        zip(labels.T, classes)], 1).float()
    blend = v2.MixUp(alpha=MIXUP, labels_getter=lambda batch: batch[1])
    clips, target = blend(Video(clips.float()), target)
    return clips.as_subclass(torch.Tensor), target
