"""From probabilities to the lines of evaluate.py's table, and what stands beside its scores.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.1, 4.2. M examples of a task, N clips of
each, Q samples, H steps ahead, S steps (the label set), D embedding. p: what every answer is, from
the model, a baseline or the toy world's truth, probabilities (M, S).
"""
import numpy as np
import torch
from torch.nn.functional import normalize, one_hot, pad

from data import PIECES, Example
from evaluation.labeled import encode_examples
from evaluation.metrics import accuracies, draw_correct, pack, percent, topk_correct
from evaluation.prediction import observed_steps, sample_in_turn
from toy import grammar
from toy.source import ToySource

NEIGHBORS = 50                 # similar histories; chosen on validation videos from 20, 50, 100
FUTURES, DRAWS = 100, 200      # forecasts whose futures are sampled; samples of each


def counted(p, labels, alike):
    """{name: p (..., S)} and labels (M,) as they are scored, and how many steps are told apart. In
    the toy world, alike, both look-alikes of a pair count as the first, with the sum of their p."""
    S = next(iter(p.values())).shape[-1]
    first = torch.from_numpy(grammar.ALIKE) if alike else torch.arange(S)
    sums = {name: torch.zeros_like(of).index_add_(-1, first, of) for name, of in p.items()}
    return sums, first[labels], len(first.unique())


# --- Forecasts ---
def histories(x):
    """The eight clips before each place of x (V, N, D), zeros before the first: (V, N + 1, 8 D),
    length 1. So the last clips of two histories are compared with each other."""
    clips = pad(x, (0, 0, PIECES, 0)).unfold(1, PIECES, 1)                     # (V, N + 1, D, 8)
    return normalize(clips.mT.flatten(2), dim=-1)


def similar_histories(model, x, n, texts, args):
    """How often each step followed the NEIGHBORS most similar histories of training: p (M, S).

    They are the clips before each clip of all videos that the checkpoint was trained on, at most
    eight, as h reads them. The step that followed is that clip's likeliest step, by Eq. 6.
    """
    count, stride = model.settings["toy_videos"], model.settings["stride"]
    source, rng = ToySource("train", count, model.encoder.frames), np.random.default_rng(args.seed)
    videos = [Example(video, source.pretrain_windows(video, rng, stride), 0, 0)
              for video in range(count)]
    clips, counts, *_ = encode_examples(model, None, source, videos, args)     # (V, N, D)
    steps = model.match(clips, texts).argmax(-1)                               # (V, N)
    keys, following = (torch.cat([rows[1:count] for rows, count in zip(of, counts)])
                       for of in (histories(clips), steps))        # of all but a video's first clip
    queries = histories(x)[range(len(n)), n]                                   # (M, 8 D)
    nearest = torch.cat([(part @ keys.T).topk(min(NEIGHBORS, len(keys))).indices
                         for part in queries.split(256)])                      # (M, NEIGHBORS)
    return one_hot(following[nearest], len(texts)).double().mean(1).cpu()


def forecast_lines(p, labels, examples, videos, toy, task):
    """The lines of a forecast from {"zero_noise", "expectation", "teacher", maybe "similar": p,
    "samples": (M, Q, S)}. In the toy world there are more: by "truth", the exact distribution of
    the next step, from the sequence of steps shown or from their set; "by_place", after k steps of
    the video; "new", of those whose history and next step no training video can show. Look-alikes
    are told apart if a task is fine-tuned, since then labels name them."""
    if toy:
        known = [observed_steps(example, videos[example.video]) for example in examples]
        for column, world in ("exact", grammar.Grammar()), ("set", grammar.Grammar("set")):
            rows = [world.next_step(*steps) for steps in known]
            p = p | {column: torch.from_numpy(np.array(rows))}
    p, y, classes = counted(p, labels, toy and not task)
    samples = p.pop("samples")
    right = {name: topk_correct(of, y) for name, of in p.items()}              # (M,)
    right["oracle"] = (samples.argmax(-1) == y[:, None]).any(1)
    chance, right["oracle_softmax"] = draw_correct(p["zero_noise"], y, samples.shape[1])
    top1 = {name: percent(of) for name, of in right.items()} | {"oracle_softmax": percent(chance)}
    top5 = {name: percent(topk_correct(of, y, 5)) for name, of in p.items()}
    ways = ("zero_noise", "expectation")
    lines = {"top1": {name: top1[name] for name in (*ways, "oracle", "oracle_softmax")},
             "top5": {name: top5[name] for name in ways},
             "baselines": {"random": 100 / classes, "teacher": top1["teacher"], "similar": None},
             "truth": None, "by_place": None, "new": None, "futures": None}
    if not toy:
        return lines | {"right": pack(right, examples, {})}

    if "similar" in p:
        drawn, _ = draw_correct(p["similar"], y, samples.shape[1])
        lines["baselines"]["similar"] = {"top1": top1["similar"], "top5": top5["similar"],
                                         "oracle": percent(drawn)}

    def row(part):
        columns = [name for name in ("zero_noise", "exact", "set", "similar") if name in p]
        return {name: percent(right[name][part]) for name in columns} | {
            "evaluated": int(part.sum())}
    place, trained = torch.tensor([e.step for e in examples]), grammar.Grammar(training=True)
    new = torch.tensor([trained.chance(*steps, [label]) == 0
                        for steps, label in zip(known, labels.tolist())])
    return lines | {"truth": {name: top1[name] for name in ("exact", "set")},
                    "by_place": {int(k): row(place == k) for k in place.unique()},
                    "new": row(new), "right": pack(right, examples, {"new": new})}


def sampled_futures(model, x, n, texts, examples, videos, H, seed):
    """Percent of sampled futures of H steps, and of their first steps, that the grammar allows
    after the true steps; of FUTURES forecasts that H steps follow, DRAWS each. None without any."""
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
def classify_lines(log_p, labels, examples, toy, task):
    """The lines of {"ours", "teacher": log p (M, 3, S)}, whose softmaxes are averaged over 3 views:
    accuracies, of all and of each class. In the toy world there are more: "held_out", of the steps
    that no phrase of the pool names; "look_alikes", whether a look-alike's own name is likelier
    than the other of its pair. A video shows both: a constant answer is right half the time."""
    p, parts = {name: of.exp().mean(1).cpu() for name, of in log_p.items()}, {}        # (M, S)
    merged, y, _ = counted(p, labels, toy and not task)
    right, S = {name: topk_correct(of, y) for name, of in merged.items()}, p["ours"].shape[1]
    lines = accuracies(merged, y) | {"held_out": None, "look_alikes": None}
    lines["by_class"] = [percent(right["ours"][labels == k]) for k in range(S)]
    if toy:
        held_out = [grammar.STEP_ID[step] for step in grammar.HELD_OUT]
        alike = [[grammar.STEP_ID[step] for step in pair] for pair in grammar.LOOK_ALIKES]
        (a, b), twin = torch.tensor(alike).T, torch.arange(S)
        twin[a], twin[b] = b, a
        parts["held_out"] = torch.isin(labels, torch.tensor(held_out))                 # (M,)
        parts["look_alikes"] = twin[labels] != labels
        rows = torch.arange(len(labels))
        pairs = {name: of[rows, labels] > of[rows, twin[labels]] for name, of in p.items()}
        for part, hits in ("held_out", right), ("look_alikes", pairs):
            lines[part] = {name: percent(of[parts[part]]) for name, of in hits.items()}
        right["look_alikes"] = pairs["ours"]
    return lines | {"right": pack(right, examples, parts)}


def action_lines(log_p, labels):
    """Table 3: log p of V verbs (M, 10, V) and of U nouns (M, 10, U), whose softmaxes are averaged
    over 10 clips. An action is right if both are. Its top 5 have the largest p(verb) p(noun)."""
    verb, noun = (of.exp().mean(1).cpu() for of in log_p)                      # (M, V), (M, U)
    v, u = labels.T                                                            # (M,) each
    verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
    lines = {name: verbs[name] | nouns[name] for name in verbs}
    best = torch.stack([torch.outer(p, q).flatten().topk(5).indices for p, q in zip(verb, noun)])
    hits = best == (v * noun.shape[1] + u)[:, None]                            # (M, 5)
    lines["top1"]["action"], lines["top5"]["action"] = percent(hits[:, 0]), percent(hits.any(1))
    return lines
