"""What stands beside the scores of evaluate.py: baselines, and the truth of the toy world.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.1, 4.2. M examples of a task, N clips of
each, H steps ahead, S steps (the label set), D embedding.
"""
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize, one_hot

from data import PIECES
from evaluation.metrics import accuracies, draw_correct, pack, percent, topk_correct
from evaluation.prediction import observed_steps, sample_in_turn
from losses import match
from toy import grammar
from toy.source import ToySource, in_threads

NEIGHBORS = 50                 # similar histories; chosen on validation videos from 20, 50, 100
FUTURES, DRAWS = 100, 200      # forecasts whose futures are sampled; samples of each


class Read(NamedTuple):
    """What evaluate.py has read of the M readable examples."""
    source: object                 # of the videos
    examples: list                 # (M)
    labels: torch.Tensor           # (M,) int64; (M, 2) verbs and nouns of EPIC
    x: torch.Tensor                # (M, N, D) f's embeddings of their clips
    n: torch.Tensor                # (M,) how many of the N clips an example has
    teacher: torch.Tensor | None   # (M, N, D) the teacher's features; None if it embeds no texts
    texts: torch.Tensor | None     # (S, D) of the label set; None if the task matches no texts
    toy: bool                      # whether the truth is known
    as_one: bool                   # whether look-alikes count as one: where no label names them


def look_alikes_as_one(read, p):
    """p (..., S), where the two of a pair of look-alikes count as one: their probabilities are
    added at the first of them. As they are, if fine-tuned or not in the toy world."""
    if not read.as_one:
        return p
    return torch.zeros_like(p).index_add_(-1, torch.from_numpy(grammar.ALIKE), p)


def right_steps(read):
    """(M,) int64: the correct step; the first of its pair if look-alikes count as one."""
    return torch.from_numpy(grammar.ALIKE)[read.labels] if read.as_one else read.labels


# --- Forecasts ---
def teacher_forecast(model, read):
    """The teacher on the observed clips, as the paper re-purposes CLIP: p (M, S)."""
    observed = torch.arange(read.x.shape[1], device=read.n.device) < read.n[:, None]       # (M, N)
    mean = (read.teacher * observed[..., None]).sum(1) / read.n[:, None]                   # (M, D)
    return look_alikes_as_one(read, match(mean, read.texts, model.tau).exp().cpu())


def aligned(x, n):
    """Histories x (M, N, D) of n (M,) clips, moved to the end of eight places: (M, 8 D), length 1.
    So the last clips of two histories are compared with each other."""
    place = torch.arange(PIECES, device=x.device) - (PIECES - n[:, None])                  # (M, 8)
    moved = x.take_along_dim(place.clamp(0, x.shape[1] - 1)[..., None], 1)
    return normalize((moved * (place >= 0)[..., None]).flatten(1), dim=-1)


@torch.no_grad()
def similar_histories(model, read, seed):
    """How often each step followed the NEIGHBORS most similar histories of training: p (M, S).

    They are the clips before each clip of all videos that the checkpoint was trained on, at most
    eight, as h reads them. The step that followed is that clip's likeliest step, by Eq. 6.
    """
    stride, count = model.settings["stride"], model.settings["toy_videos"]
    source, rng = ToySource("train", count, model.encoder.frames), np.random.default_rng(seed)
    requests = [(video, source.pretrain_windows(video, rng, stride)) for video in range(count)]
    parts = [requests[i:i + 50] for i in range(0, count, 50)]

    def encode(part):                                      # a thread does not inherit no_grad
        with torch.no_grad():
            return model.encode(source.load(part).clips)
    x = torch.cat(in_threads(encode, parts, "similar histories"))
    steps, keys, following = model.match(x, read.texts).argmax(-1), [], []
    for own, step in zip(*(of.split([len(windows) for _, windows in requests])
                           for of in (x, steps))):
        n = torch.arange(1, len(own)).clamp(max=PIECES)
        before = [own[max(k - PIECES, 0):k] for k in range(1, len(own))]
        if before:
            before = torch.nn.utils.rnn.pad_sequence(before, batch_first=True)
            keys.append(aligned(before, n))
            following.append(step[1:])
    keys, following = torch.cat(keys), torch.cat(following)
    nearest = torch.cat([(part @ keys.T).topk(min(NEIGHBORS, len(keys))).indices
                         for part in aligned(read.x, read.n).split(256)])      # (M, NEIGHBORS)
    return one_hot(following[nearest], len(read.texts)).double().mean(1).cpu()


def known_steps(read):
    """What each forecast may know: [(labels of the steps shown, whether from the start), ...]."""
    return [observed_steps(example, read.source.videos[example.video]) for example in read.examples]


def sampled_futures(model, read, H, seed):
    """Percent of sampled futures of H steps, and of their first steps, that the grammar allows
    after the true steps; of FUTURES forecasts that H steps follow, DRAWS each. None without any."""
    videos = read.source.videos
    long = [i for i, e in enumerate(read.examples) if e.step + H <= len(videos[e.video].steps)]
    if not long:
        return None
    exact, hits = grammar.Grammar(), []
    spread = torch.linspace(0, len(long) - 1, min(len(long), FUTURES)).long()
    for i in (long[place] for place in spread):
        generator = torch.Generator().manual_seed(seed * 1000 + 500 + i)
        noise = torch.randn(H, DRAWS, model.dim, generator=generator)
        _, picks = sample_in_turn(model, read.x[i, :read.n[i]], read.texts, noise)     # (DRAWS, H)
        before = observed_steps(read.examples[i], videos[read.examples[i].video])
        hits += [[exact.chance(*before, steps) > 0 for steps in (future, future[:1])]
                 for future in picks.tolist()]
    return dict(zip(("possible", "first"), (100 * np.mean(hits, 0)).tolist()))


def beside_forecasts(model, read, right, samples, similar, horizon, seed):
    """The lines of a forecast beside its own scores. right: {name: (M,) bool} of these.

        baselines   random, the teacher, and similar histories if asked for, with the best of as
                    many draws as there are samples
        truth       the exact distribution of the next step given the steps shown, from their
                    sequence, and from their set
        by_place    % right after k steps of the video
        new         forecasts whose history and next step no training video can show
        futures     `sampled_futures`
    """
    y, parts, right = right_steps(read), {}, dict(right)
    right["teacher"] = topk_correct(teacher_forecast(model, read), y)
    classes = len(set(grammar.ALIKE.tolist())) if read.as_one else len(read.texts)
    lines = {"baselines": {"random": 100 / classes, "teacher": percent(right["teacher"]),
                           "similar": None}}
    lines |= dict.fromkeys(("truth", "by_place", "new", "futures"))
    if similar and read.toy:
        p = look_alikes_as_one(read, similar_histories(model, read, seed))
        right["similar"] = topk_correct(p, y)
        lines["baselines"]["similar"] = {
            "top1": percent(right["similar"]), "top5": percent(topk_correct(p, y, 5)),
            "oracle": percent(draw_correct(p, y, samples)[0])}
    if read.toy:
        known = known_steps(read)
        for name in grammar.KNOWN:
            world = grammar.Grammar(name)
            p = torch.from_numpy(np.array([world.next_step(*steps) for steps in known]))
            column = "exact" if name == "sequence" else name
            right[column] = topk_correct(look_alikes_as_one(read, p), y)
        lines["truth"] = {name: percent(right[name]) for name in ("exact", "set")}
        place = torch.tensor([example.step for example in read.examples])
        columns = [name for name in ("zero_noise", "exact", "set", "similar") if name in right]
        lines["by_place"] = {int(k): {name: percent(right[name][place == k]) for name in columns}
                             | {"evaluated": int((place == k).sum())} for k in place.unique()}
        trained = grammar.Grammar(training=True)
        parts["new"] = torch.tensor([trained.chance(*steps, [label]) == 0
                                     for steps, label in zip(known, read.labels.tolist())])
        lines["new"] = {"evaluated": int(parts["new"].sum())} | {
            name: percent(right[name][parts["new"]]) for name in columns}
        if horizon > 1:
            lines["futures"] = sampled_futures(model, read, horizon, seed)
    return lines | {"right": pack(right, read.examples, parts)}


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


def beside_classification(read, p):
    """The lines of {"ours", "teacher": p (M, S)}: accuracies; in the toy world those of the
    held-out steps, and within pairs of look-alikes; and of each class."""
    y, parts = right_steps(read), {}
    merged = {name: look_alikes_as_one(read, of) for name, of in p.items()}
    right = {name: topk_correct(of, y) for name, of in merged.items()}                 # (M,)
    lines = accuracies(merged, y) | {"held_out": None, "look_alikes": None}
    if read.toy:
        for part, steps in (("held_out", grammar.HELD_OUT),
                            ("look_alikes", sum(grammar.LOOK_ALIKES, ()))):
            ids = torch.tensor([grammar.STEP_ID[step] for step in steps])
            parts[part] = torch.isin(read.labels, ids)
        pairs = {name: within_pairs(of, read.labels) for name, of in p.items()}
        for part, hits in ("held_out", right), ("look_alikes", pairs):
            lines[part] = {name: percent(of[parts[part]]) for name, of in hits.items()}
        right["look_alikes"] = pairs["ours"]
    S = p["ours"].shape[1]
    lines["by_class"] = [percent(right["ours"][read.labels == k]) for k in range(S)]
    return lines | {"right": pack(right, read.examples, parts)}


def action_scores(verb, noun, labels):
    """Table 3: p of V verbs (M, V) and U nouns (M, U). An action is right if both are. Its top 5
    have the largest p(verb) p(noun)."""
    v, u = labels.T                                                            # (M,) each
    verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
    lines = {name: verbs[name] | nouns[name] for name in verbs}
    best = torch.stack([torch.outer(p, q).flatten().topk(5).indices for p, q in zip(verb, noun)])
    hits = best == (v * noun.shape[1] + u)[:, None]                            # (M, 5)
    lines["top1"]["action"], lines["top5"]["action"] = percent(hits[:, 0]), percent(hits.any(1))
    return lines
