"""From probabilities to the lines of evaluate.py's table, and what stands beside its scores.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.1, 4.2. M examples of a task, N clips of
each, Q samples, H steps ahead, S steps (the label set), D embedding. p: what every answer is, from
the model, a baseline or the toy world's truth, probabilities (M, S).
"""
import numpy as np
import torch
from torch.nn.functional import normalize, one_hot, pad

from data import PIECES
from evaluation.metrics import accuracies, draw_correct, pack, percent, topk_correct
from evaluation.prediction import observed_steps, sample_in_turn
from losses import match
from toy import grammar
from toy.source import ToySource, in_threads

NEIGHBORS = 50                 # similar histories; chosen on validation videos from 20, 50, 100
FUTURES, DRAWS = 100, 200      # forecasts whose futures are sampled; samples of each


def counted_as(S, toy, task):
    """(S,) int64: which step each counts as. In the toy world both look-alikes of a pair count as
    the first, unless the model is fine-tuned (task), since then labels name them."""
    return torch.from_numpy(grammar.ALIKE) if toy and not task else torch.arange(S)


def merged(p, alike):
    """p (..., S): the probabilities of steps that count as one are added. alike: `counted_as`."""
    return torch.zeros_like(p).index_add_(-1, alike, p)


# --- Baselines of a forecast ---
def teacher_forecast(model, seen, n, texts):
    """The teacher on the observed clips, as the paper re-purposes CLIP: p (M, S). seen (M, N, D):
    its features, zeros after an example's own n (M,) clips."""
    return match(seen.sum(1) / n[:, None], texts, model.tau).exp().cpu()


def aligned(histories):
    """Histories [(n, D), ...], n <= 8, moved to the end of eight places: (M, 8 D), length 1. So the
    last clips of two histories are compared with each other."""
    places = [pad(x, (0, 0, PIECES - len(x), 0)).flatten() for x in histories]
    return normalize(torch.stack(places), dim=-1)


@torch.no_grad()
def similar_histories(model, x, n, texts, seed):
    """How often each step followed the NEIGHBORS most similar histories of training: p (M, S).

    They are the clips before each clip of all videos that the checkpoint was trained on, at most
    eight, as h reads them. The step that followed is that clip's likeliest step, by Eq. 6.
    """
    stride, count = model.settings["stride"], model.settings["toy_videos"]
    source, rng = ToySource("train", count, model.encoder.frames), np.random.default_rng(seed)
    requests = [(video, source.pretrain_windows(video, rng, stride)) for video in range(count)]
    parts = [requests[i:i + 50] for i in range(0, count, 50)]

    @torch.no_grad()                                       # a thread does not inherit it
    def encode(part):
        return model.encode(source.load(part).clips)
    clips = torch.cat(in_threads(encode, parts, "similar histories"))
    counts = [len(windows) for _, windows in requests]
    steps = model.match(clips, texts).argmax(-1).split(counts)
    following = torch.cat([own[1:] for own in steps])
    keys = aligned([own[max(k - PIECES, 0):k] for own in clips.split(counts)
                    for k in range(1, len(own))])
    queries = aligned([own[:k] for own, k in zip(x, n.tolist())])
    nearest = torch.cat([(part @ keys.T).topk(min(NEIGHBORS, len(keys))).indices
                         for part in queries.split(256)])                      # (M, NEIGHBORS)
    return one_hot(following[nearest], len(texts)).double().mean(1).cpu()


# --- Forecasts ---
def forecast_lines(p, samples, labels, examples, videos, toy, task):
    """The lines of a forecast from {"zero_noise", "expectation", "teacher", maybe "similar": p},
    of samples (M, Q, S). In the toy world there are more:

        truth       the exact distribution of the next step given the steps shown, from their
                    sequence, and from their set
        by_place    % right after k steps of the video
        new         forecasts whose history and next step no training video can show
    """
    if toy:
        known = [observed_steps(example, videos[example.video]) for example in examples]
        for column, name in ("exact", "sequence"), ("set", "set"):
            world = grammar.Grammar(name)
            rows = [world.next_step(*steps) for steps in known]
            p = p | {column: torch.from_numpy(np.array(rows))}
    Q, alike = samples.shape[1], counted_as(samples.shape[2], toy, task)
    y, p = alike[labels], {name: merged(of, alike) for name, of in p.items()}
    right, parts = {name: topk_correct(of, y) for name, of in p.items()}, {}   # (M,)
    right["oracle"] = (merged(samples, alike).argmax(-1) == y[:, None]).any(1)
    chance, right["oracle_softmax"] = draw_correct(p["zero_noise"], y, Q)

    lines = accuracies({name: p[name] for name in ("zero_noise", "expectation")}, y)
    lines["top1"] |= {"oracle": percent(right["oracle"]), "oracle_softmax": percent(chance)}
    lines["baselines"] = {"random": 100 / len(alike.unique()), "teacher": percent(right["teacher"]),
                          "similar": None}
    if "similar" in p:
        lines["baselines"]["similar"] = {
            "top1": percent(right["similar"]), "top5": percent(topk_correct(p["similar"], y, 5)),
            "oracle": percent(draw_correct(p["similar"], y, Q)[0])}
    lines |= dict.fromkeys(("truth", "by_place", "new", "futures"))
    if toy:
        place = torch.tensor([example.step for example in examples])
        trained = grammar.Grammar(training=True)
        parts["new"] = torch.tensor([trained.chance(*steps, [label]) == 0
                                     for steps, label in zip(known, labels.tolist())])

        def row(part):
            return {name: percent(right[name][part])
                    for name in ("zero_noise", "exact", "set", "similar") if name in right} | {
                "evaluated": int(part.sum())}
        lines["truth"] = {name: percent(right[name]) for name in ("exact", "set")}
        lines["by_place"] = {int(k): row(place == k) for k in place.unique()}
        lines["new"] = row(parts["new"])
    return lines | {"right": pack(right, examples, parts)}


def sampled_futures(model, x, n, texts, examples, videos, H, seed):
    """Percent of sampled futures of H steps, and of their first steps, that the grammar allows
    after the true steps; of FUTURES forecasts that H steps follow, DRAWS each. None without any."""
    long = [i for i, e in enumerate(examples) if e.step + H <= len(videos[e.video].steps)]
    if not long:
        return None
    exact, hits = grammar.Grammar(), []
    spread = torch.linspace(0, len(long) - 1, min(len(long), FUTURES)).long()
    for i in (long[place] for place in spread):
        noise = torch.randn(H, DRAWS, model.dim,
                            generator=torch.Generator().manual_seed(seed * 1000 + 500 + i))
        _, picks = sample_in_turn(model, x[i, :n[i]], texts, noise)            # (DRAWS, H)
        before = observed_steps(examples[i], videos[examples[i].video])
        hits += [[exact.chance(*before, steps) > 0 for steps in (future, future[:1])]
                 for future in picks.tolist()]
    return dict(zip(("possible", "first"), (100 * np.mean(hits, 0)).tolist()))


# --- Classification ---
def within_pairs(p, y):
    """Whether a look-alike's own name is likelier than the other name of its pair: p (M, S),
    y (M,) -> (M,) bool. A video shows both of a pair, so a constant answer is right half the time.
    """
    other = torch.arange(len(grammar.STEPS))                                   # (S,)
    for a, b in grammar.LOOK_ALIKES:
        a, b = grammar.STEP_ID[a], grammar.STEP_ID[b]
        other[a], other[b] = b, a
    return (p.gather(1, y[:, None]) > p.gather(1, other[y][:, None]))[:, 0]


def classify_lines(p, labels, examples, toy, task):
    """The lines of {"ours", "teacher": p}: accuracies; in the toy world those of the held-out
    steps, and within pairs of look-alikes; and of each class."""
    S, parts, lines = p["ours"].shape[1], {}, {"held_out": None, "look_alikes": None}
    alike = counted_as(S, toy, task)
    y, one = alike[labels], {name: merged(of, alike) for name, of in p.items()}
    right = {name: topk_correct(of, y) for name, of in one.items()}            # (M,)
    if toy:
        pairs = {name: within_pairs(of, labels) for name, of in p.items()}
        for part, steps, hits in (("held_out", grammar.HELD_OUT, right),
                                  ("look_alikes", sum(grammar.LOOK_ALIKES, ()), pairs)):
            ids = torch.tensor([grammar.STEP_ID[step] for step in steps])
            parts[part] = torch.isin(labels, ids)
            lines[part] = {name: percent(of[parts[part]]) for name, of in hits.items()}
        right["look_alikes"] = pairs["ours"]
    lines["by_class"] = [percent(right["ours"][labels == k]) for k in range(S)]
    return accuracies(one, y) | lines | {"right": pack(right, examples, parts)}


def action_lines(verb, noun, labels):
    """Table 3: p of V verbs (M, V) and U nouns (M, U). An action is right if both are. Its top 5
    have the largest p(verb) p(noun)."""
    v, u = labels.T                                                            # (M,) each
    verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
    lines = {name: verbs[name] | nouns[name] for name in verbs}
    best = torch.stack([torch.outer(p, q).flatten().topk(5).indices for p, q in zip(verb, noun)])
    hits = best == (v * noun.shape[1] + u)[:, None]                            # (M, 5)
    lines["top1"]["action"], lines["top5"]["action"] = percent(hits[:, 0]), percent(hits.any(1))
    return lines
