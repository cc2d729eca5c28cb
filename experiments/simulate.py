"""A features file for COIN's step orders without COIN's videos: docs/results.md."""
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, WHAT, Settings, opt, run

SECONDS = 4.0                              # of a window


@dataclass(frozen=True)
class SimulateSettings(Settings):
    """Write simulated features of the windows of COIN's videos."""
    out: Path = opt("the file to write", Path("features-2.95.npz"), WHAT, file=())
    noise: float = opt("norm of the noise; texts have length 1", 2.95, WHAT, low=0)
    annotations: Path = opt("COIN.json", None, DATA, required=True)
    text_embeddings: Path = opt("npz of the classes' text embeddings", None, DATA, required=True)
    seed: int = opt("of the noise", 0, low=0, high=2 ** 32 - 1)


def main(settings):
    """To each window of 4 s: the text embedding (D,) of the step at its middle, or the mean text
    outside of steps, plus Gaussian noise, scaled to unit length."""
    import numpy as np

    from files.annotations import load_coin, load_texts_of
    from support.device import write_arrays
    videos, classes = load_coin(settings.annotations)
    texts = load_texts_of(classes, settings.text_embeddings, settings.annotations)
    texts = texts / np.linalg.norm(texts, axis=1, keepdims=True)                   # (S, D)
    mean = texts.mean(0) / np.linalg.norm(texts.mean(0))
    texts, rows = np.vstack([texts, mean]), []                     # the last, -1: no step
    for video in videos:
        length = video.duration or max([step.end for step in video.steps], default=SECONDS)
        for start in np.arange(0, max(length, SECONDS), SECONDS):
            shown = [step.label for step in video.steps
                     if step.start <= start + SECONDS / 2 < step.end]
            rows.append((video.name, start, [-1, *shown][-1]))
    names, start, label = map(np.array, zip(*rows))
    noise = np.random.default_rng(settings.seed).standard_normal(
        (len(label), texts.shape[1]), dtype=np.float32) * (settings.noise / np.sqrt(texts.shape[1]))
    x = texts[label] + noise
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    write_arrays(settings.out, video=names, start=start.astype(np.float32),
                 end=(start + SECONDS).astype(np.float32), embedding=x.astype(np.float16))
    print(f"{settings.out}: {len(label)} windows of {len(set(names))} videos")


if __name__ == "__main__":
    run(main, SimulateSettings)
