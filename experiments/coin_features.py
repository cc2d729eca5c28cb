"""Write COIN's step orders with simulated features, for --data features: docs/results.md.

COIN's videos cannot be shared, so features are simulated: a row of 4 s has CLIP's text embedding of
the step at its middle, or outside of steps the mean text, plus Gaussian noise of norm sigma. What
is said goes on all the time, and has no word of the steps: neither their names nor their times are
read in training.
"""
from pathlib import Path

import numpy as np

from data import CLIP_SECONDS, MIN_WORDS, STRIDE
from files.lists import check_names, load_coin
from support.arguments import Parser, positive, whole
from support.errors import run
from support.write import write_atomically, write_json, write_text

SECONDS = 4.0                              # of a row
SENTENCE = CLIP_SECONDS / STRIDE           # so that clips follow each other without a gap
SAID = " word" * MIN_WORDS                 # so long that it is not joined with other sentences


def main(args):
    """Write OUT/F.npz, phrases.txt, and caption.json of the training videos."""
    videos, labels = load_coin(args.annotations)
    with np.load(args.texts, allow_pickle=False) as file:
        names, texts = file["names"].tolist(), file["embeddings"]                  # (K, D)
    check_names(args.texts, names, args.annotations, labels)
    texts = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    mean, D = texts.mean(0, keepdims=True), texts.shape[1]
    texts = np.append(texts, mean / np.linalg.norm(mean), 0)                       # -1: no step
    rng, ids, starts, seen, said = np.random.default_rng(args.seed), [], [], [], {}
    for video in (video for video in videos if len(video.steps) > 1):
        end = max([video.duration or SECONDS] + [step.end for step in video.steps])
        start = np.arange(0, end, SECONDS)                                         # (m,) s
        label = np.full(len(start), -1)
        for step in video.steps:
            middle = start + SECONDS / 2
            label[(step.start <= middle) & (middle < step.end)] = step.label
        noise = args.sigma / D ** 0.5 * rng.standard_normal((len(start), D))
        ids += [video.name] * len(start)
        starts.append(start)
        seen.append((texts[label] + noise).astype(np.float16))                     # (m, D)
        if video.split != "test":                      # somebody speaks all the time
            begin = np.arange(0, end, SENTENCE)
            texts_said = [f"{number}{SAID}" for number in range(len(begin))]
            said[video.name] = {"start": begin.tolist(), "end": (begin + SENTENCE).tolist(),
                                "text": texts_said}
    start = np.concatenate(starts)
    write_atomically(args.out / "F.npz", lambda file: np.savez(
        file, video=ids, start=start, end=start + SECONDS, embedding=np.concatenate(seen)))
    write_json(args.out / "caption.json", said)
    write_text(args.out / "phrases.txt", "".join(f"{name}\n" for name in names))


def parse(argv=None):
    """The command line."""
    parser = Parser("Write COIN's step orders with simulated features.")
    add = parser.add_argument
    add("--annotations", type=Path, required=True, help="COIN.json")
    add("--texts", type=Path, required=True, help="npz of the classes: names and embeddings")
    add("--out", type=Path, required=True, help="folder to write into")
    add("--sigma", type=positive, default=2.95, help="norm of the noise")
    add("--seed", type=whole, default=0, help="of the noise")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
