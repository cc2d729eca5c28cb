"""What stands beside the forecasts of evaluate.py, and its other tasks.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.1, 4.2. M examples of a task, N clips of
each, Q Monte Carlo samples, H steps ahead, S steps (the label set), D embedding. Each task takes
what evaluate.py has read, a Read, and returns lines of its JSON.
"""
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from data import observed_steps, paper_rows
from diffusion import expectation
from evaluation.inference import (draw_noise, match_teacher, predict_missing, sample_in_turn,
                                  score_labels)
from evaluation.metrics import (accuracies, neighbor_forecast, pack, percent, softmaxes,
                                topk_correct, total_variation)
from support.errors import require
from toy import grammar
from toy.source import ToySource

VIEWS = 10                     # clips of an action; the released configuration's
DRAWS = 200                    # of a forecast, for its total variation; of a video's futures
COMPARED, SHARE = 200, 20      # forecasts that are drawn from: one in SHARE, at most COMPARED
FUTURES = 100                  # forecasts whose futures are sampled step by step


class Read(NamedTuple):
    """What was read of the M examples that could be read."""
    source: object                 # of the videos
    examples: list                 # (M)
    labels: torch.Tensor           # (M,) int64; (M, 2) verbs and nouns of EPIC
    x: torch.Tensor                # (M, N, D) f's embeddings of their clips
    teacher: torch.Tensor | None   # (M, N, D) the teacher's features; None if it embeds no texts
    texts: torch.Tensor | None     # (S, D) of the label set; None if the task matches no texts


# --- Beside the forecasts ---
def baselines(model, read, args):
    """Percent right of the label-free baselines.

        teacher   the teacher on the observed clips, as the paper re-purposes it
        similar   what followed in the histories that are most alike: `neighbor_forecast`, of the
                  clips of training videos, cut as in pre-training; None outside the toy world
    """
    right = {"random": 100 / len(read.texts), "similar": None}
    teacher = match_teacher(model, read.teacher.mean(1, keepdim=True), read.texts)[:, 0].cpu()
    right["teacher"] = percent(topk_correct(teacher, read.labels, 1))
    if args.data == "toy":
        source, seen = ToySource("train", args.toy_videos, model.encoder.frames), []
        rng = np.random.default_rng(args.seed)
        for video in range(len(source.videos)):
            clips = source.load([(video, source.pretrain_windows(video, rng))]).clips
            x = model.encode(clips.to(read.x.device))
            seen.append(model.match(x, read.texts).exp().cpu())                # p (n, S)
        similar = neighbor_forecast(seen, model.match(read.x, read.texts).exp().cpu())     # (M, S)
        right["similar"] = percent(topk_correct(similar, read.labels, 1))
    return right


def exact_next(known, before):
    """P(next step | what is known of the steps `before`, of grammar.KNOWN): (M, S) float64."""
    world = grammar.Grammar(known)
    return torch.from_numpy(np.array([world.next_step(*steps) for steps in before]))


def truth(model, read, zero, log_p, args):
    """The forecasts against the exact distribution of the next step, given the steps observed.

        bayes_top1     top-1 of the exact distribution, the most that one forecast can reach;
        bayes_set, bayes_set_last, bayes_last_two, bayes_last: given only the set of the steps
                       observed, the set and which was the last, or the last two or one alone
        bayes_alike    given all of them, but not which of two look-alikes each is
        ideal_oracle   best of Q draws from it
        tv, tv_ideal   total variation from it, of DRAWS samples of the model, and of DRAWS draws
        tv_error       standard error of tv, of forecasts in different videos, as a rule
        tv_softmax     total variation of the zero-noise softmax itself, without draws
        possible_next  [% of the likeliest steps that are possible, % of p on possible steps]

    The softmax stands at the best of TEMPERATURES, chosen for each figure by these answers.
    """
    y, S = read.labels, zero.shape[1]
    before = [observed_steps(example, read.source.videos[example.video])
              for example in read.examples]
    exact = exact_next("sequence", before)
    bayes = {"bayes_top1": exact} | {
        f"bayes_{known}": exact_next(known, before) for known in [*grammar.KNOWN][1:]}
    generator = torch.Generator().manual_seed(args.seed)
    ideal = torch.multinomial(exact, DRAWS, replacement=True, generator=generator)
    possible, of_possible = exact > 0, {}
    for name, p in (("zero_noise", zero.exp()), ("expectation", expectation(log_p))):
        best = possible.gather(1, p.argmax(-1, keepdim=True))                  # (M, 1)
        of_possible[name] = [percent(best), percent((p * possible).sum(-1))]

    # Distances are those of m of the M forecasts, whose draws are made ten at a time.
    M, picks = len(y), []
    chosen = torch.linspace(0, M - 1, min(M, COMPARED, M // SHARE + 1)).long()         # (m,)
    for i in range(DRAWS // 10):
        noise = draw_noise((len(chosen), 10, model.dim), args.seed * 1000 + 1 + i)
        log_q = predict_missing(model, read.x[chosen], read.texts, noise, args.batch)
        picks.append(log_q.argmax(-1))                                         # (m, 10)
    draws, ideal_draws = (functional.one_hot(of, S).double().mean(1)                   # (m, S)
                          for of in (torch.cat(picks, 1), ideal[chosen]))
    exact = exact[chosen]
    variation, softmax = total_variation(draws, exact), softmaxes(zero[chosen])        # (m,)
    error = float(variation.std() / len(chosen) ** 0.5) if len(chosen) > 1 else None
    return {name: percent(topk_correct(p, y, 1)) for name, p in bayes.items()} | {
        "ideal_oracle": percent((ideal[:, :log_p.shape[1]] == y[:, None]).any(1)),
        "tv": float(variation.mean()), "tv_error": error,
        "tv_ideal": float(total_variation(ideal_draws, exact).mean()),
        "tv_softmax": min(float(total_variation(p, exact).mean()) for p in softmax),
        "possible_next": of_possible}


def futures(model, read, args):
    """Percent of DRAWS sampled futures of H steps, and of their first steps, that the grammar
    allows given the true steps; of FUTURES examples after which so many follow, None without one.
    """
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
    """Rows of the steps of a video, each missing in one (Sec. 3.1), with up to eight around it; of
    videos that could be read whole -> x (M, 9, D); missing (M,), numbers of examples; where:
    observed (M, 9) bool and j (M,) of `predict_missing`; position (M,): 0 for a first step, 2 for a
    last one, 1 between."""
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


# --- Classification ---
def within_pairs(p, y):
    """Percent of the look-alikes whose name is likelier than the other of their pair, balanced: the
    mean over their steps; p (M, S), y (M,). None if one of them is absent."""
    shares = []
    for pair in grammar.LOOK_ALIKES:
        a, b = (grammar.STEP_ID[step] for step in pair)
        for own, other in (a, b), (b, a):
            shares.append(percent(p[y == own, own] > p[y == own, other]))
    return None if None in shares else float(np.mean(shares))


def by_pair(p, y):
    """p (M, S), y (M,) with two look-alikes as one answer: their probabilities are added."""
    alike = torch.from_numpy(grammar.ALIKE)                                    # (S,)
    return torch.zeros_like(p).index_add_(1, alike, p), alike[y]


def new_forecasts(read):
    """Which forecasts, history and next step, no training video can show: (M,) bool."""
    trained, videos = grammar.Grammar(training=True), read.source.videos
    return torch.tensor([
        trained.chance(*observed_steps(example, videos[example.video]), [label]) == 0
        for example, label in zip(read.examples, read.labels.tolist())])


def classify(model, read, args):
    """Which step a clip shows: softmaxes averaged over 3 views x (M, 3, D), and the teacher's."""
    y = read.labels
    p = {"ours": score_labels(model, read.x, read.texts).exp().mean(1).cpu(),          # (M, S)
         "teacher": match_teacher(model, read.teacher, read.texts).exp().mean(1).cpu()}
    right = {name: topk_correct(scores, y, 1) for name, scores in p.items()}           # (M,)
    rows = accuracies(p, y)
    if args.data == "toy":
        held_out = torch.isin(y, torch.tensor([*map(grammar.STEP_ID.get, grammar.HELD_OUT)]))
        rows["held_out"] = {name: percent(hits[held_out]) for name, hits in right.items()}
        rows["look_alikes"] = {name: within_pairs(scores, y) for name, scores in p.items()}
    rows["by_class"] = [percent(right["ours"][y == k]) for k in range(p["ours"].shape[1])]
    return rows | {"right": pack(right, read.examples)}


def activity(model, read, args):
    """Which activity a video shows: the classifier on h's zero-noise prediction."""
    zeros = torch.zeros(len(read.x), 1, model.dim)
    log_p = predict_missing(model, read.x, None, zeros, args.batch)[:, 0]      # (M, S)
    return accuracies({"ours": log_p}, read.labels)


def actions(model, read, args):
    """Table 3: V verbs and U nouns, by softmaxes averaged over VIEWS clips of each action. An
    action is right if both are; its top 5 are the pairs with the largest p(verb) p(noun)."""
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(read.x))   # (M, V), (M, U)
    v, u = read.labels.T                                                       # (M,) each
    verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
    rows = {name: verbs[name] | nouns[name] for name in verbs}
    pairs = [torch.outer(p, q).flatten().topk(5).indices for p, q in zip(verb, noun)]      # of V U
    hits = torch.stack(pairs) == (v * noun.shape[1] + u)[:, None]              # (M, 5)
    rows["top1"]["action"], rows["top5"]["action"] = percent(hits[:, 0]), percent(hits.any(1))
    return rows
