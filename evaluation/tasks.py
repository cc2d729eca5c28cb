"""What the forecasts of evaluate.py are compared with, and its other tasks.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.1, 4.2. M examples of a task, N clips of
each, Q Monte Carlo samples, H steps ahead, S steps (the label set), D embedding. Each task takes
what evaluate.py has read, a Read, and returns lines of its JSON.
"""
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from data import CLIPS, observed_steps, paper_rows
from diffusion import expectation
from evaluation.inference import (draw_noise, match_teacher, predict_missing, sample_in_turn,
                                  score_labels)
from evaluation.metrics import (accuracies, best_of_draws, nearest_variation, neighbor_forecast,
                                pack, percent, topk_correct, total_variation)
from support.errors import require
from toy import grammar
from toy.source import ToySource, in_threads
from training.rows import forecast_rows, steps_of

VIEWS = 10                     # clips of an action; the released configuration's
DRAWS = 200                    # of a forecast, for its total variation; of a video's futures
COMPARED, SHARE = 200, 20      # forecasts that are drawn from: one in SHARE, at most COMPARED
FUTURES = 100                  # forecasts whose futures are sampled step by step


class Read(NamedTuple):
    """What evaluate.py has read of the M readable examples."""
    source: object                 # of the videos
    examples: list                 # (M)
    labels: torch.Tensor           # (M,) int64; (M, 2) verbs and nouns of EPIC
    x: torch.Tensor                # (M, N, D) f's embeddings of their clips
    teacher: torch.Tensor | None   # (M, N, D) the teacher's features; None if it embeds no texts
    texts: torch.Tensor | None     # (S, D) of the label set; None if the task matches no texts


# --- Beside the forecasts ---
def similar_histories(model, read, args):
    """How often each step followed the histories nearest to what h reads: (M, S). These histories
    are those of h's training rows, from all videos that the checkpoint was trained on."""
    toy = model.settings.get("data") == "toy"
    count = model.settings["toy_videos"] if toy else args.toy_videos
    source, rng = ToySource("train", count, model.encoder.frames), np.random.default_rng(args.seed)
    requests = [[(video, source.pretrain_windows(video, rng))] for video in range(count)]

    @torch.no_grad()                                       # a thread does not inherit no_grad
    def histories(request):
        x = model.encode(source.load(request).clips.to(read.x.device))         # (n, D)
        phrases, steps = (model.match(x, texts).argmax(-1) for texts in (None, read.texts))
        rows = forecast_rows(request[0][1], steps_of(phrases.tolist()))
        rows = torch.tensor([row for row, _ in rows], dtype=torch.int64).view(-1, CLIPS)
        return model.standardize(x[rows[:, :-1]]), steps[rows[:, -1]]
    keys, following = map(torch.cat, zip(*in_threads(histories, requests, "similar histories")))
    return neighbor_forecast(keys, following, model.standardize(read.x), len(read.texts)).cpu()


def chosen_examples(M):
    """Which of M forecasts are compared with the exact distribution: (m,) int64."""
    return torch.linspace(0, M - 1, min(M, COMPARED, M // SHARE + 1)).long()


def baselines(model, read, exact, args):
    """Label-free baselines: {"random", "teacher": percent right, "similar": {...} or None}; and
    which examples they have right, {name: (M,) bool}. exact (M, S), or None outside the toy world.
    Only zero-shot models have `similar`.

        teacher   the teacher on the observed clips, as the paper re-purposes it
        similar   `similar_histories`: its likeliest step, its five likeliest, the best of as many
                  draws as the oracle has, and total variation, both at the best temperature
    """
    y = read.labels
    teacher = match_teacher(model, read.teacher.mean(1, keepdim=True), read.texts)[:, 0].cpu()
    right = {"teacher": topk_correct(teacher, y, 1)}
    lines = {"random": 100 / len(read.texts), "teacher": percent(right["teacher"]), "similar": None}
    if exact is not None and not model.task:
        p, chosen = similar_histories(model, read, args), chosen_examples(len(y))          # (M, S)
        right["similar"], log_p = topk_correct(p, y, 1), p.clamp(min=1e-3).log()
        lines["similar"] = {
            "top1": percent(right["similar"]), "top5": percent(topk_correct(p, y, 5)),
            "oracle": percent(best_of_draws(log_p[:, None].expand(-1, args.samples, -1), y)),
            "tv": nearest_variation(log_p[chosen], exact[chosen])}
    return lines, right


def exact_forecasts(read):
    """P(next step | what is known of the steps observed): {"bayes_KNOWN": (M, S) float64} for each
    of grammar.KNOWN. For the sequence the name is "bayes_top1". Of the sequence and of the set also
    if names must be guessed: "bayes_unnamed", "bayes_set_unnamed"."""
    before = [observed_steps(example, read.source.videos[example.video])
              for example in read.examples]
    worlds = {known: grammar.Grammar(known) for known in grammar.KNOWN}
    exact = {"bayes_top1" if known == "sequence" else f"bayes_{known}": torch.from_numpy(
        np.array([world.next_step(*steps) for steps in before])) for known, world in worlds.items()}
    return exact | {"bayes_unnamed": names_guessed(exact["bayes_top1"]),
                    "bayes_set_unnamed": names_guessed(exact["bayes_set"])}


def truth(model, read, zero, log_p, exact, args):
    """Compare the forecasts, log p of zero noise (M, S) and of samples (M, Q, S), with the exact
    distribution of the next step given the steps observed, exact (M, S).

        ideal_oracle   best of Q draws from the exact distribution
        tv, tv_ideal   total variation of DRAWS samples of the model, and of DRAWS exact draws
        tv_error       standard error of tv; its forecasts are, as a rule, of different videos
        tv_softmax     total variation of the zero-noise softmax, at its best temperature
        possible_next  % of forecasts whose likeliest step is possible; % of p on possible steps
    """
    y, S = read.labels, zero.shape[1]
    generator = torch.Generator().manual_seed(args.seed)
    ideal = torch.multinomial(exact, DRAWS, replacement=True, generator=generator)
    possible, of_possible = exact > 0, {}
    for name, p in (("zero_noise", zero.exp()), ("expectation", expectation(log_p))):
        best = possible.gather(1, p.argmax(-1, keepdim=True))                  # (M, 1)
        of_possible[name] = [percent(best), percent((p * possible).sum(-1))]

    # Distances are measured on m of the M forecasts. Draws for them are made ten at a time.
    picks, chosen = [], chosen_examples(len(y))                                # (m,)
    for i in range(DRAWS // 10):
        noise = draw_noise((len(chosen), 10, model.dim), args.seed * 1000 + 1 + i)
        log_q = predict_missing(model, read.x[chosen], read.texts, noise, args.batch)
        picks.append(log_q.argmax(-1))                                         # (m, 10)
    draws, ideal_draws = (functional.one_hot(of, S).double().mean(1)                   # (m, S)
                          for of in (torch.cat(picks, 1), ideal[chosen]))
    variation = total_variation(draws, exact[chosen])                          # (m,)
    return {"ideal_oracle": percent((ideal[:, :log_p.shape[1]] == y[:, None]).any(1)),
            "tv": float(variation.mean()),
            "tv_error": float(variation.std() / len(chosen) ** 0.5) if len(chosen) > 1 else None,
            "tv_ideal": float(total_variation(ideal_draws, exact[chosen]).mean()),
            "tv_softmax": nearest_variation(zero[chosen], exact[chosen]),
            "possible_next": of_possible}


def by_pair(p, y):
    """p (..., S), y (M,) with two look-alikes as one answer: their probabilities are added."""
    alike = torch.from_numpy(grammar.ALIKE)                                    # (S,)
    return torch.zeros_like(p).index_add_(-1, alike, p), alike[y]


def names_guessed(p):
    """p (M, S) if the name must be guessed within a pair of look-alikes: both are equally likely,
    so the likeliest step is always the same one of its pair."""
    pairs, alike = by_pair(p, torch.arange(p.shape[1]))                        # (M, S), (S,)
    return pairs[:, alike] / alike.bincount()[alike]


def forecasts_by_pair(zero, log_p, exact, y):
    """Percent right if the name of a step's look-alike counts as right, too. Zero noise, log p
    (M, S), and exact (M, S) have one forecast. Samples, log p (M, Q, S), and exact draws have the
    best of Q."""
    (zero, pairs), (draws, _), (exact, _) = (by_pair(p, y) for p in (
        zero.exp(), log_p.exp(), exact))
    hits = {"zero_noise": topk_correct(zero, pairs, 1), "bayes_top1": topk_correct(exact, pairs, 1),
            "oracle": (draws.argmax(-1) == pairs[:, None]).any(1),
            "ideal_oracle": 1 - (1 - exact.gather(1, pairs[:, None])) ** log_p.shape[1]}
    return {name: percent(of) for name, of in hits.items()}


def new_forecasts(read):
    """Which forecasts have a history and next step that no training video can show: (M,) bool."""
    trained, videos = grammar.Grammar(training=True), read.source.videos
    return torch.tensor([
        trained.chance(*observed_steps(example, videos[example.video]), [label]) == 0
        for example, label in zip(read.examples, read.labels.tolist())])


def beside_the_truth(model, read, zero, log_p, exact, right, new, args):
    """The lines of forecasts in the toy world: "truth", "by_pair", "new", "futures". right: {name:
    (M,) bool}; new (M,) bool, of `new_forecasts`."""
    known = {name: percent(hits) for name, hits in right.items() if name.startswith("bayes")}
    return {"truth": known | truth(model, read, zero, log_p, exact, args),
            "by_pair": forecasts_by_pair(zero, log_p, exact, read.labels),
            "new": {"evaluated": int(new.sum())} | {
                name: percent(right[name][new]) for name in ("zero_noise", "similar", "bayes_top1")
                if name in right},
            "futures": futures(model, read, args) if args.horizon > 1 else None}


def futures(model, read, args):
    """Percent of sampled futures of H steps, and of their first steps, that the grammar allows
    after the true steps. Up to FUTURES examples that have H more steps get DRAWS futures each; None
    if there is no such example."""
    videos, H = read.source.videos, args.horizon
    long = [i for i, e in enumerate(read.examples) if e.step + H <= len(videos[e.video].steps)]
    if not long:
        return None
    exact, hits = grammar.Grammar(), []                    # whether the future, its first step is
    spread = torch.linspace(0, len(long) - 1, min(len(long), FUTURES)).long()
    for i in (long[place] for place in spread):
        x, example = read.x[i], read.examples[i]
        noise = draw_noise((H, DRAWS, model.dim), args.seed * 1000 + 500 + i)
        seconds = example.windows[-1, 1] - example.windows[0, 0]
        _, picks = sample_in_turn(model, x, seconds, read.texts, noise.to(x.device))   # (DRAWS, H)
        before = observed_steps(example, videos[example.video])
        hits += [[exact.chance(*before, steps) > 0 for steps in (future, future[:1])]
                 for future in picks.tolist()]
    return dict(zip(("possible", "first"), (100 * np.mean(hits, 0)).tolist()))


# --- Infilling ---
def hide_each_step(read):
    """Rows of the steps of a video (Sec. 3.1): each step is missing in one, with up to eight steps
    around it. Only videos that could be read whole have rows -> x (M, 9, D); missing (M,), numbers
    of examples; where: observed (M, 9) bool and j (M,) for `predict_missing`; position (M,): 0 for
    a first step, 1 between, 2 for a last step."""
    source, videos = read.source, {}
    for i, example in enumerate(read.examples):        # one of each step
        if source.videos[example.video].name not in source.unreadable:
            videos.setdefault(example.video, []).append(i)
    require(videos, "no video to infill could be read whole")
    # If examples 4 to 7 are the steps of a video, the row in which the third is missing is
    #     rows 4 5 6 7 -1 -1 -1 -1 -1;  j 2;  missing 6;  observed 1 1 0 1 0 0 0 0 0;  position 1
    rows, j = map(torch.tensor, zip(*paper_rows(videos.values())))             # (M, 9), (M,)
    missing = rows.gather(1, j[:, None])[:, 0]                                 # (M,)
    observed = (rows >= 0) & (rows != missing[:, None])                        # (M, 9)
    ends = {clips[0]: 0 for clips in videos.values()} | {clips[-1]: 2 for clips in videos.values()}
    position = torch.tensor([ends.get(clip, 1) for clip in missing.tolist()])
    return read.x[rows, 0], missing, (observed, j), position


def exact_infilling(read, missing):
    """P(missing step | all other steps of its video in order, and how many come before it), for
    each example of `missing` (M,): (M, S) float64."""
    around = defaultdict(lambda: np.zeros(len(grammar.STEPS)))
    for p, names in sum(grammar.PROCEDURES.values(), []):
        steps = [grammar.STEP_ID[name] for name in names]
        for k, step in enumerate(steps):
            around[(*steps[:k], None, *steps[k + 1:])][step] += p
    rows = []
    for example in (read.examples[i] for i in missing.tolist()):
        steps = [step.label for step in read.source.videos[example.video].steps]
        rows.append(around[(*steps[:example.step], None, *steps[example.step + 1:])])
    exact = torch.from_numpy(np.array(rows))
    return exact / exact.sum(1, keepdim=True)


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


def classify(model, read, args):
    """Which step a clip shows: softmaxes averaged over 3 views x (M, 3, D), and the teacher's."""
    y = read.labels
    p = {"ours": score_labels(model, read.x, read.texts).exp().mean(1).cpu(),          # (M, S)
         "teacher": match_teacher(model, read.teacher, read.texts).exp().mean(1).cpu()}
    right = {name: topk_correct(scores, y, 1) for name, scores in p.items()}           # (M,)
    rows, parts = accuracies(p, y), {}
    if args.data == "toy":
        pairs = {name: within_pairs(scores, y) for name, scores in p.items()}
        parts = {name: torch.isin(y, torch.tensor([grammar.STEP_ID[step] for step in steps]))
                 for name, steps in (("held_out", grammar.HELD_OUT),
                                     ("look_alikes", sum(grammar.LOOK_ALIKES, ())))}
        for part, hits in ("held_out", right), ("look_alikes", pairs):
            rows[part] = {name: percent(of[parts[part]]) for name, of in hits.items()}
        rows["by_pair"] = {name: percent(topk_correct(*by_pair(scores, y), 1))
                           for name, scores in p.items()}
        right = right | {"look_alikes": pairs["ours"]}
    rows["by_class"] = [percent(right["ours"][y == k]) for k in range(p["ours"].shape[1])]
    return rows | {"right": pack(right, read.examples, parts)}


def activity(model, read, args):
    """Which activity a video shows: the classifier on h's zero-noise prediction."""
    zeros = torch.zeros(len(read.x), 1, model.dim)
    log_p = predict_missing(model, read.x, None, zeros, args.batch)[:, 0]      # (M, S)
    return accuracies({"ours": log_p}, read.labels)


def actions(model, read, args):
    """Table 3: V verbs and U nouns, from softmaxes averaged over VIEWS clips of each action. An
    action is right if both verb and noun are. Its top 5 have the largest p(verb) p(noun)."""
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(read.x))   # (M, V), (M, U)
    v, u = read.labels.T                                                       # (M,) each
    verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
    rows = {name: verbs[name] | nouns[name] for name in verbs}
    pairs = [torch.outer(p, q).flatten().topk(5).indices for p, q in zip(verb, noun)]      # of V U
    hits = torch.stack(pairs) == (v * noun.shape[1] + u)[:, None]              # (M, 5)
    rows["top1"]["action"], rows["top5"]["action"] = percent(hits[:, 0]), percent(hits.any(1))
    return rows
