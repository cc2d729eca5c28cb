"""What the toy world knows, beside what a model answers: `truth` of its data.Source.

M examples, N clips of each, Q samples, H steps ahead, S steps, D embedding. p:
probabilities (M, S), from the model, a baseline or the truth. Where no label names look-alikes,
the two of a pair count as one.
"""
import numpy as np
import torch
from torch.nn.functional import normalize, one_hot, pad

from data import HISTORY_CLIPS, Example, sentence_windows
from model import sample_in_turn
from support.encode import encode_examples
from support.metrics import draw_correct, percent, topk_correct
from toy import grammar

NEIGHBORS = 50                 # similar histories; chosen on validation videos from 20, 50, 100
FUTURES, DRAWS = 100, 200      # forecasts whose futures are sampled; samples of each


def observed_steps(example, video):
    """What a forecast may know: labels of the steps that are seen for 1 s or more; whether the
    video's first step is among them."""
    seen = [step.end - example.windows[0, 0] >= 1 for step in video.steps]
    return [video.steps[k].label for k in range(example.step) if seen[k]], seen[0]


def histories(x):
    """The eight clips before each place of x (V, N, D), zeros before the first: (V, N + 1, 8 D),
    length 1. So the last clips of two histories are compared with each other."""
    clips = pad(x, (0, 0, HISTORY_CLIPS, 0)).unfold(1, HISTORY_CLIPS, 1)       # (V, N + 1, D, 8)
    return normalize(clips.mT.flatten(2), dim=-1)


class Truth:
    """The truth of a toy.source.Toy."""
    steps = grammar.STEPS                              # names of the S steps
    first = torch.from_numpy(grammar.ALIKE)            # (S,) id of a step, or of its pair's first

    def __init__(self, source):
        self.source = source

    # --- Forecasts ---
    def known(self, examples):
        """`observed_steps` of each example."""
        return [observed_steps(example, self.source.videos[example.video]) for example in examples]

    def next_steps(self, examples):
        """The exact distribution of the next step, from the sequence of the steps shown ("exact")
        and from their set: {name: p (M, S)}."""
        worlds = {"exact": grammar.Grammar(), "set": grammar.Grammar("set")}
        return {name: torch.from_numpy(np.array([world.next_step(*steps)
                                                 for steps in self.known(examples)]))
                for name, world in worlds.items()}

    def similar_histories(self, model, x, n, texts, args):
        """How often each step followed the NEIGHBORS most similar histories of training: p (M, S).

        They are the clips before each clip of all videos that the checkpoint was trained on, at
        most eight, as h reads them. The step that followed is that clip's likeliest step, by Eq. 6.
        """
        count, rng = model.settings["toy_videos"], np.random.default_rng(args.seed)
        source = type(self.source).of("train", range(count), model.encoder.frames)
        videos = [Example(i, sentence_windows(source.narration(i), source.duration(i), rng,
                                              model.config.stride), 0, 0) for i in range(count)]
        clips, counts, *_ = encode_examples(model, None, source, videos, args)     # (V, N, D)
        steps = model.match(clips, texts).argmax(-1)                               # (V, N)
        keys, following = (torch.cat([row[1:count] for row, count in zip(rows, counts)])
                           for rows in (histories(clips), steps))  # all but a video's first clip
        queries = histories(x)[range(len(n)), n]                                   # (M, 8 D)
        nearest = torch.cat([(part @ keys.T).topk(min(NEIGHBORS, len(keys))).indices
                             for part in queries.split(256)])                      # (M, NEIGHBORS)
        return one_hot(following[nearest], len(texts)).double().mean(1).cpu()

    def forecast_lines(self, p, right, labels, examples, samples):
        """More lines of a forecast, of p {name: (M, S)} and which are right {name: (M,) bool}: by
        "truth"; "by_place", after k steps of the video; "new", of those whose history and next step
        no training video can show. And the examples that are new, (M,) bool."""
        columns = [name for name in ("zero_noise", "exact", "set", "similar") if name in p]

        def row(part):
            return {name: percent(right[name][part]) for name in columns} | {
                "evaluated": int(part.sum())}
        place, trained = torch.tensor([e.step for e in examples]), grammar.Grammar(training=True)
        new = torch.tensor([trained.chance(*steps, [one.label]) == 0
                            for steps, one in zip(self.known(examples), examples)])
        lines = {"truth": {name: percent(right[name]) for name in ("exact", "set")},
                 "by_place": {int(k): row(place == k) for k in place.unique()}, "new": row(new)}
        if "similar" in p:
            drawn, _ = draw_correct(p["similar"], labels, samples)
            lines["similar"] = {"top1": percent(right["similar"]), "oracle": percent(drawn),
                                "top5": percent(topk_correct(p["similar"], labels, 5))}
        return lines, new

    def sampled_futures(self, model, x, n, texts, examples, H, seed):
        """Percent of sampled futures of H steps, and of their first steps, that the grammar allows
        after the true steps; over FUTURES forecasts that H steps follow, with DRAWS samples each.
        None if there are no such forecasts."""
        videos = self.source.videos
        long = [i for i, e in enumerate(examples) if e.step + H <= len(videos[e.video].steps)]
        if not long:
            return None
        exact, possible, first = grammar.Grammar(), [], []
        for k in torch.linspace(0, len(long) - 1, min(len(long), FUTURES)).long():
            i = long[k]
            noise = torch.randn(H, DRAWS, model.dim,
                                generator=torch.Generator().manual_seed(seed * 1000 + 500 + i))
            _, picks = sample_in_turn(model, x[i, :n[i]], texts, noise)            # (DRAWS, H)
            before = observed_steps(examples[i], videos[examples[i].video])
            for future in picks.tolist():
                possible.append(exact.chance(*before, future) > 0)
                first.append(exact.chance(*before, future[:1]) > 0)
        return {"possible": percent(torch.tensor(possible)), "first": percent(torch.tensor(first))}

    # --- Classification ---
    def classify_lines(self, p, right, labels):
        """More lines of a classification, of p and right {"ours", "teacher"}: "held_out", of the
        steps that no phrase of the pool names; "look_alikes", whether a look-alike's own name is
        likelier than the other of its pair. A video shows both: a constant answer is right half the
        time. And which examples are of each, {name: (M,) bool}; which look-alikes are right."""
        held_out = [grammar.STEP_ID[step] for step in grammar.HELD_OUT]
        a, b = torch.tensor([[grammar.STEP_ID[step] for step in pair]
                             for pair in grammar.LOOK_ALIKES]).T
        twin, rows = torch.arange(len(self.steps)), torch.arange(len(labels))
        twin[a], twin[b] = b, a
        parts = {"held_out": torch.isin(labels, torch.tensor(held_out)),
                 "look_alikes": twin[labels] != labels}
        pairs = {name: q[rows, labels] > q[rows, twin[labels]] for name, q in p.items()}
        lines = {part: {name: percent(row[parts[part]]) for name, row in hits.items()}
                 for part, hits in (("held_out", right), ("look_alikes", pairs))}
        return lines, parts, pairs["ours"]

    # --- One video, for predict.py ---
    def place_to_stop(self, left):
        """The end, s, of a random step of the first video, such that `left` steps remain."""
        video = self.source.videos[0]
        rng = np.random.default_rng(grammar.number_of(video))
        return video.steps[rng.integers(max(len(video.steps) - left, 1))].end

    def of_forecast(self, windows, futures):
        """What is true of the first video: the step of each window or None, the exact "next" step
        and share of each of the futures, if the video goes on, and what "follows" in it."""
        exact, shown, script = grammar.Grammar(), [], self.source.videos[0]
        for middle in windows.mean(1):
            labels = [step.label for step in script.steps if step.start <= middle < step.end]
            shown.append(self.steps[labels[0]] if labels else None)
        begun = sum(step.start <= windows[-1, 1] - 1 for step in script.steps)
        before = observed_steps(Example(0, windows, -1, begun), script)
        p = exact.next_step(*before)
        ids = [[grammar.STEP_ID.get(step, -1) for step in future["steps"]] for future in futures]
        return {"clips": shown,
                "next": [{"step": self.steps[k], "p": float(p[k])}
                         for k in np.argsort(-p, kind="stable") if p[k] > 0],
                "futures": [future | {"share": exact.chance(*before, steps)}
                            for future, steps in zip(futures, ids)],
                "follows": [self.steps[step.label] for step in script.steps[begun:]]}
