"""Rows of the forecast table: the model, baselines without labels, the truth of the embedded world.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2. M examples, N = 8 observed
clips, Q Monte Carlo samples, H steps ahead, S steps (the label set), D embedding.
"""
import numpy as np
import torch
from torch.nn import functional

from data import CLIPS, consecutive_windows, observed_steps
from diffusion import expectation
from evaluation.inference import draw_noise, predict_missing, sample_in_turn
from evaluation.metrics import (TEMPERATURES, accuracy_rows, bigram_counts, bigram_forecast,
                                distinct, histogram, nll, oracle_correct, oracle_softmax, percent,
                                softmax_at, topk_correct, total_variation)
from toy import grammar
from toy.source import ToySource

DRAWS = 200                    # of a forecast, for its total variation
COMPARED, SHARE = 200, 20      # forecasts that are drawn from: one in SHARE, at most COMPARED
FUTURES = 100                  # forecasts whose futures are sampled step by step


def spread(M, most):
    """(min(M, most),) positions, evenly spread over M examples."""
    return torch.linspace(0, M - 1, min(most, M)).long()


def model_rows(zero, log_p, y):
    """The model's own rows: zero noise (M, S), Monte Carlo samples (M, Q, S), labels y (M,)."""
    mean = expectation(log_p)                                                  # Eq. 11  (M, S)
    picks = log_p.argmax(-1)                                                   # (M, Q)
    rows = accuracy_rows({"zero_noise": zero, "expectation": mean}, y)
    rows["top1"]["oracle"] = percent(oracle_correct(picks, y))
    rows["top1"]["oracle_softmax"] = oracle_softmax(zero, y, log_p.shape[1])
    return rows | {"distinct": float(distinct(picks).double().mean())}


# --- Baselines ---
def baseline_rows(model, x, teacher, texts, y, args, device):
    """Percent right of the label-free baselines; None if one cannot be had.

        unigram      how often f sees each step in the training videos
        bigram       how often it follows the step that is nearest to the last observed clip
        bigram_soft  the same with the clip's posterior instead of the nearest step
        clip         the teacher on the observed clips, as the paper re-purposes it

    Counted are up to 9 clips of each training video of the embedded world, cut as in pre-training,
    without labels. In the bigrams, consecutive clips that are nearest to one step count as one.
    """
    scores = dict.fromkeys(("unigram", "clip", "bigram", "bigram_soft"))
    if teacher is not None:
        scores["clip"] = model.match(teacher.mean(1), texts).cpu()
    if args.data == "toy" and texts is not None:
        source, steps = ToySource("train", args.toy_videos, model.encoder.frames), []
        rng = np.random.default_rng(args.seed)
        for video in range(len(source)):
            windows = consecutive_windows(source.pretrain_windows(video, rng), CLIPS, rng)
            clips = source.load([(video, windows)]).clips.to(device)
            with torch.no_grad():
                steps.append(model.match(model.encode(clips), texts).argmax(-1).cpu())
        counts = bigram_counts(steps, len(texts)).fill_diagonal_(0)     # no step follows itself
        posterior = model.match(x[:, -1], texts).exp().cpu()                   # (M, S)
        nearest = functional.one_hot(posterior.argmax(1), len(texts))
        seen = torch.bincount(torch.cat(steps), minlength=len(texts))
        scores |= {"unigram": seen.expand(len(x), -1), "bigram": bigram_forecast(counts, nearest),
                   "bigram_soft": bigram_forecast(counts, posterior)}
    S = sum(model.classes) if texts is None else len(texts)
    return {"random": 100 / S} | {name: None if p is None else percent(topk_correct(p, y, 1))
                                  for name, p in scores.items()}


# --- The truth of the embedded world ---
def true_distribution(examples, videos):
    """The exact distribution of the next step, given the true steps observed: (M, S) float64."""
    exact = grammar.Grammar()
    rows = [exact.next_step(*observed_steps(e, videos[e.video])) for e in examples]
    return torch.from_numpy(np.array(rows))


def possible_row(p, truth):
    """[% of the likeliest steps that are possible, % of the probability on possible steps]."""
    possible = truth > 0
    return [percent(possible.gather(1, p.argmax(-1, keepdim=True))),
            percent((p * possible).sum(-1))]


def truth_rows(model, x, texts, examples, videos, zero, log_p, y, args):
    """The forecasts against the exact distribution of the next step.

        bayes_top1     top-1 of the exact distribution, the most that one forecast can reach
        ideal_oracle   best of Q draws from it
        tv, tv_ideal   total variation from it, of DRAWS samples of the model, and of DRAWS draws
        tv_softmax     total variation of the zero-noise softmax itself, without draws
        nll            mean of -log p(y): of the share among the model's draws, and of the softmax
        possible_next  see `possible_row`
    The softmax takes the best of TEMPERATURES for each figure, a favor to this baseline.
    """
    truth, S = true_distribution(examples, videos), zero.shape[1]
    generator = torch.Generator().manual_seed(args.seed)
    ideal = torch.multinomial(truth, DRAWS, replacement=True, generator=generator)     # (M, DRAWS)
    compared = spread(len(x), min(COMPARED, len(x) // SHARE + 1))
    picks = []
    for i, shape in enumerate(torch.ones(DRAWS).split(10)):
        noise = draw_noise((len(compared), len(shape), model.dim), args.seed * 1000 + 1 + i)
        log_q = predict_missing(model, x[compared], texts, noise, args.batch)
        picks.append(log_q.argmax(-1))
    drawn, exact = histogram(torch.cat(picks, 1), S), histogram(ideal[compared], S)    # (m, S)
    softmaxes = [softmax_at(zero[compared], temperature) for temperature in TEMPERATURES]
    return {"bayes_top1": percent(topk_correct(truth, y, 1)),
            "ideal_oracle": percent(oracle_correct(ideal[:, :log_p.shape[1]], y)),
            "tv": float(total_variation(drawn, truth[compared]).mean()),
            "tv_ideal": float(total_variation(exact, truth[compared]).mean()),
            "tv_softmax": min(float(total_variation(p, truth[compared]).mean()) for p in softmaxes),
            "nll": {"draws": nll(drawn, y[compared]),
                    "softmax": min(nll(p, y[compared]) for p in softmaxes)},
            "possible_next": {"zero_noise": possible_row(zero.exp(), truth),
                              "expectation": possible_row(expectation(log_p), truth)}}


def future_rows(model, x, texts, examples, videos, args):
    """DRAWS sampled futures of H steps of FUTURES examples, against the grammar.

    Returns: {"possible": % of the futures, "first": % of their first steps, that the grammar
    allows given the true steps}.
    """
    exact, device = grammar.Grammar(), x.device
    rows = {"possible": [], "first": []}
    for i in spread(len(x), FUTURES).tolist():
        windows = examples[i].windows
        noise = draw_noise((args.horizon, DRAWS, model.dim), args.seed * 1000 + 500 + i)
        seconds = windows[-1, 1] - windows[0, 0]
        _, picks = sample_in_turn(model, x[i], seconds, texts, noise.to(device))        # (Q, H)
        before = observed_steps(examples[i], videos[examples[i].video])
        futures, count = np.unique(picks.cpu().numpy(), axis=0, return_counts=True)
        for name, length in (("possible", args.horizon), ("first", 1)):
            allowed = [exact.chance(*before, future[:length]) > 0 for future in futures]
            rows[name].append(100 * float(count @ np.array(allowed)) / DRAWS)
    return {name: float(np.mean(values)) for name, values in rows.items()}
