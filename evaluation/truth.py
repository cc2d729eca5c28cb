"""Forecasts of the embedded world against its exact distribution: where are the points lost?

    bayes_top1           the exact distribution, given the true steps
    bayes_top1_pixels    the same, given what f sees: its posteriors, through the filter
    form                 what is left of that in the form of the paper: the best h, and texts
    the model            h as it is

M samples (forecasts), N = 8 observed clips, Q Monte Carlo samples, S steps, D embedding.
"""
import numpy as np
import torch

from data import observed_steps
from diffusion import expectation, sample
from evaluation.inference import draw_noise, predict_missing, score_texts
from evaluation.metrics import (by_class, distinct, oracle_correct, percent, topk_correct,
                                total_variation)
from toy.filter import next_step_from_clips
from toy.grammar import STEPS, Grammar

DRAWS = 200               # steps, or futures, per forecast for the total variation
FUTURES = 100             # forecasts whose futures are sampled step by step


def class_means(z, labels, S):
    """Mean of each class (S, D), that of all if it has no clip; covariance (D, D) around them."""
    own = torch.nn.functional.one_hot(labels, S).to(z)                         # (M, S)
    count = own.sum(0)[:, None]
    means = torch.where(count > 0, own.T @ z / count.clamp(min=1), z.mean(0))
    return means, (z - means[labels]).T.cov()


def best_h(prior, means, covariance, alpha_bar):
    """The h that minimizes L_MSE, if the missing step is one of `prior` and its z is Gaussian.

        h(z^t) = E[z | z^t],   z ~ sum_s prior_s N(means_s, covariance)

    prior (M, S), means (S, D). Returns: for diffusion.sample, zt (M, Q, D), t (M,) -> z_hat.
    """
    variance, axes = torch.linalg.eigh(covariance)                             # (D,), (D, D)

    def h(zt, t):
        a = alpha_bar[t[0]]
        total = a * variance + 1 - a                                           # (D,) of zt
        rest = (zt[:, :, None] - a.sqrt() * means) @ axes                      # (M, Q, S, D)
        log_w = prior.log()[:, None] - (rest.square() / total).sum(-1) / 2     # (M, Q, S)
        each = means + (a.sqrt() * variance / total * rest) @ axes.T           # E[z | z^t, s]
        return (log_w.softmax(-1)[..., None] * each).sum(2)
    return h


def right_of_means(p, y):
    """% right of the mean over the first 5, 50 and 200 samples (Eq. 11): p (m, DRAWS, S), y (m,)"""
    return [percent(topk_correct(p[:, :Q].mean(1), y, 1)) for Q in (5, 50, DRAWS)]


def form_rows(model, believed, ideal, clips, texts, y, some, truth, settings):
    """The model's rows, had it the best h that its form allows; and Eq. 11 with exact samples.

        form               `best_h`, with what f sees: the filter's forecast is its prior
        ideal_expectation  the mean of p(y | x) over exact samples of x: a step of the exact
                           distribution, and an embedding that f may give to a clip of it
    """
    z = model.standardize(clips[0][:, -1].to(texts))
    means, covariance = class_means(z, clips[2].to(z.device), len(texts))
    variance, axes = torch.linalg.eigh(covariance)
    noise = draw_noise(len(y), (settings.samples, model.dim), settings.seed)
    more = draw_noise(len(some), (DRAWS, model.dim), settings.seed + 1)

    def match(z):
        return score_texts(model.standardize.inverse(z), texts, model.tau).cpu()

    def forecast(prior, noise):                                                # (M, Q, S)
        return torch.cat([match(sample(best_h(p, means, covariance, model.alpha_bar), eps,
                                       model.alpha_bar))
                          for p, eps in zip(prior.to(z).split(64), noise.to(z).split(64))])

    def exact(steps, noise):                                                   # (M, Q, S)
        return match(means[steps] + noise.to(z) * variance.clamp(min=0).sqrt() @ axes.T).exp()

    zero = forecast(believed, torch.zeros_like(noise[:, :1]))[:, 0]
    log_p = forecast(believed, noise)
    many = torch.cat([forecast(believed[some], eps) for eps in more.split(50, 1)], 1)
    few = exact(ideal[:, :settings.samples], noise)
    return {"form": {"zero_noise": percent(topk_correct(zero, y, 1)),
                     "expectation": percent(topk_correct(expectation(log_p), y, 1)),
                     "oracle": percent(oracle_correct(log_p.argmax(-1), y)),
                     "distinct": float(distinct(log_p.argmax(-1)).double().mean()),
                     "tv": float(total_variation(many.argmax(-1), truth[some]).mean())},
            "ideal_expectation": percent(topk_correct(few.mean(1), y, 1)),
            "expectations": {"form": right_of_means(many.exp(), y[some]),
                             "exact": right_of_means(exact(ideal[some], more), y[some])}}


def possible_rows(zero, log_p, truth):
    """% of forecasts whose likeliest step is possible; % of their probability on possible steps.
    zero (M, S) and log_p (M, Q, S): of zero noise and of samples, whose mean is `expectation`.
    share: how many of the samples have a step as their likeliest, predict.py's forecast."""
    possible, mean = truth > 0, expectation(log_p)                             # (M, S)
    picks = torch.nn.functional.one_hot(log_p.argmax(-1), truth.shape[1])      # (M, Q, S)
    forecasts = {"zero_noise": zero.exp(), "expectation": mean,
                 "share": picks.double().mean(1) + 1e-9 * mean}                # ties go to p
    return {name: [percent(possible.gather(1, p.argmax(-1, keepdim=True))),
                   percent((p * possible).sum(-1))] for name, p in forecasts.items()}


def truth_rows(model, x, texts, samples, videos, clips, zero, log_p, some, drawn, settings):
    """Rows of the forecast table against the truth, and the truth's own accuracy for each step.

    zero (M, S), log_p (M, Q, S): forecasts of zero noise and samples; some (m,): the forecasts
    whose draws are compared with the truth; drawn (m, Q', S): their draws so far; clips: of
    `validation_clips`.
    """
    grammar, observed = Grammar(), [observed_steps(s, videos[s.video]) for s in samples]
    y = torch.tensor([sample.label for sample in samples])
    truth = torch.from_numpy(np.array([grammar.next_step(*steps) for steps in observed]))   # (M, S)

    # P(clip | step) is the posterior times S, since the prior is flat.
    likelihood = len(texts) * score_texts(x, texts, model.tau).exp().cpu().double().numpy()
    from_start = np.array([from_start for _, from_start in observed])
    seconds = np.array([s.windows[0, 1] - s.windows[0, 0] for s in samples])           # of a clip
    believed = torch.from_numpy(next_step_from_clips(grammar, likelihood, from_start, seconds))

    generator = torch.Generator().manual_seed(settings.seed)
    ideal = torch.multinomial(truth, DRAWS, replacement=True, generator=generator)
    few = ideal[:, :settings.samples]
    while drawn.shape[1] < DRAWS:
        shape = min(DRAWS - drawn.shape[1], 50), model.dim
        noise = draw_noise(len(some), shape, settings.seed * 1000 + drawn.shape[1])
        drawn = torch.cat([drawn, predict_missing(model, x[some], texts, noise, settings.batch)], 1)
    drawn, bayes = drawn[:, :DRAWS], topk_correct(truth, y, 1)
    rows = {"bayes_top1": percent(bayes),
            "bayes_top1_pixels": percent(topk_correct(believed, y, 1)), "form": None,
            "ideal_expectation": None, "ideal_oracle": percent(oracle_correct(few, y)),
            "ideal_distinct": float(distinct(few).double().mean()),
            "possible_next": possible_rows(zero, log_p, truth),
            "tv": float(total_variation(drawn.argmax(-1), truth[some]).mean()),
            "tv_ideal": float(total_variation(ideal[some], truth[some]).mean()),
            "tv_draws": DRAWS, "tv_forecasts": len(some), "expectations": {}}
    if clips and not model.task:
        rows |= form_rows(model, believed, ideal, clips, texts, y, some, truth, settings)
    rows["expectations"] |= {"model": right_of_means(drawn.exp(), y[some])}
    return rows, by_class(bayes, y, len(texts))


def pair_rows(zero, picks, samples, videos, temperature, seed):
    """Total variation of the next two steps together: zero (M, H, S) log p, picks (M, DRAWS, H).

        tv              draws of both steps, denoised together
        tv_independent  draws of each step from its own zero-noise softmax, at the temperature
        tv_ideal        as many draws from the truth: the floor
    """
    grammar, S = Grammar(), zero.shape[-1]
    truth = torch.from_numpy(np.stack([                                        # (M, S * S)
        grammar.next_two_steps(*observed_steps(sample, videos[sample.video])).ravel()
        for sample in samples]))
    generator = torch.Generator().manual_seed(seed)

    def draw(p):
        return torch.multinomial(p, DRAWS, replacement=True, generator=generator)

    first, second = (draw((zero[:, k] / temperature).softmax(-1)) for k in range(2))
    pairs = {"tv": picks[..., 0] * S + picks[..., 1], "tv_independent": first * S + second,
             "tv_ideal": draw(truth)}
    return {name: float(total_variation(steps, truth).mean()) for name, steps in pairs.items()}


def future_rows(picks, samples, videos):
    """Sampled futures against the grammar, given the true steps: picks (M, Q, H) -> a dict.

        possible, first     % of the futures, and of their first steps, that the grammar allows
        likeliest           % of the seven most frequent futures of each forecast
        tv                  total variation of the first two steps together
    """
    grammar, S, pairs = Grammar(), len(STEPS), []
    rows = {"possible": [], "first": [], "likeliest": []}
    for futures, sample in zip(picks.numpy(), samples):
        before = observed_steps(sample, videos[sample.video])
        pairs.append(grammar.next_two_steps(*before).ravel())
        kinds, count = np.unique(futures, axis=0, return_counts=True)
        allowed = np.array([grammar.chance(*before, kind) > 0 for kind in kinds])
        rows["possible"].append(count @ allowed / len(futures))
        rows["first"].append((grammar.next_step(*before)[futures[:, 0]] > 0).mean())
        rows["likeliest"].append(allowed[np.argsort(-count, kind="stable")[:7]].mean())
    tv = total_variation(picks[..., 0] * S + picks[..., 1], torch.from_numpy(np.array(pairs)))
    return {name: 100 * float(np.mean(values)) for name, values in rows.items()} | {
        "tv": float(tv.mean())}
