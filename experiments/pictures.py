"""The pictures of docs/tour.md: each function draws one, of a forecast in the embedded world.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3. A docstring is the text of the page: a
title, an equation, and what the picture shows. The page also shows the code below it.

Eight clips are observed; h has to predict the clip of the next step. Q draws, P = 1 missing clip,
T levels, K phrases (the pool), S steps, D embedding. Embeddings are drawn standardized, in the
plane of the two main axes of the pool.
"""
from collections import Counter

import numpy as np
import torch

from data import classify_windows, forecast_samples, observed_steps
from diffusion import add_noise, expectation, sample
from evaluation.inference import draw_noise, score_texts
from evaluation.labeled import require_teacher
from evaluation.prediction import open_model, rank_steps
from experiments import charts
from experiments.charts import BLUE, GREEN, GREY, ORANGE
from pseudo_labels import soft_targets
from support.command import check, require
from toy.grammar import PHRASES, STEPS, Grammar
from toy.source import ToySource, load_teacher


class Forecast:
    """What the pictures show: the model, its texts, one video's clips, and noise."""

    def __init__(self, settings):
        device = torch.device("cpu")
        self.settings, teacher = settings, load_teacher(device)
        self.model, of_toy = open_model(settings.checkpoint, device)
        require(of_toy and self.model.order == "diffusion"
                and len(self.model.phrases) == len(PHRASES), f"{settings.checkpoint}: a diffusion "
                "model of the embedded world is needed, as `python train.py` makes it")
        require_teacher(teacher, self.model, settings.checkpoint)
        source = ToySource("test", settings.video + 1, self.model.encoder.frames, teacher)
        self.video = source.videos[settings.video]
        samples = forecast_samples([self.video])
        check(settings.after <= len(samples), "after", settings.after,
              f"of video {settings.video} at most {len(samples)} steps can be observed")
        self.sample = samples[settings.after - 1]
        start, end, _ = self.video.steps[self.sample.step]
        windows = np.concatenate([self.sample.windows, classify_windows(start, end, end, 1)])
        loaded = source.load([(settings.video, windows)])
        self.clips, self.features = loaded.clips, source.teacher_features(loaded.views)   # (9, ...)
        self.texts = teacher.encode_phrases(STEPS)                                         # (S, D)
        self.x = self.model.encode(self.clips)                                             # (9, D)
        self.z0 = self.model.standardize(self.x[-1:])                                      # (1, D)
        self.noise = draw_noise(200, (1, self.model.dim), settings.seed)                # (Q, P, D)
        self.pool = self.model.standardize(self.model.phrases)                             # (K, D)
        self.axes = torch.linalg.svd(self.pool - self.pool.mean(0))[2][:2].T               # (D, 2)

    def h(self, zt, t):
        """Eq. 5 for Q draws of the clip after the eight: zt (Q, 1, D), t (Q,) -> (Q, 1, D)."""
        x, observed = self.x.expand(len(zt), -1, -1), torch.arange(9).expand(len(zt), -1) < 8
        return self.model.h(zt, x, observed, torch.full((len(zt), 1), 8), t)

    def plane(self, z):
        """Standardized embeddings (..., D) -> places in the plane (..., 2), numpy."""
        return (z @ self.axes).numpy()

    def log_p(self, z):
        """Eq. 6 over the S steps: standardized (..., D) -> (..., S)."""
        return score_texts(self.model.standardize.inverse(z), self.texts, self.model.tau)


# --- Drawing ---
def draw_plane(axes, forecast):
    """The phrases of the pool as gray points."""
    places = forecast.plane(forecast.pool)
    axes.plot(*places.T, ".", color="#BBBBBB", markersize=4)
    low, high = places.min() - 1, places.max() + 1
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=(low, high), ylim=(low, high))


def draw_levels(forecast, z):
    """A figure of each level's Q points, z (T, Q, 1, D), with a cross at the true embedding."""
    figure = charts.new_figure(8, 2.6)
    for t, axes in enumerate(figure.subplots(1, 4, sharex=True, sharey=True)):
        draw_plane(axes, forecast)
        axes.plot(*forecast.plane(z[t][:, 0]).T, ".", color=BLUE, alpha=0.4, markersize=4)
        axes.plot(*forecast.plane(forecast.z0).T, "X", color=ORANGE, markeredgecolor="white")
        axes.set_title(f"t = {t + 1}")
    return figure


# --- The pictures, in the paper's order ---
def soft_targets_of_a_clip(forecast):
    """A clip and its soft targets (Sec. 3.2)

    p'_k = softmax_k(cos(teacher(v), y_k) / tau)

    The teacher, a CLIP, compares the frames of a clip, here of the next step, with every phrase of
    the pool. Nobody labels the clip: f learns to match these probabilities, and it also learns from
    what h predicts (picture 8). The teacher sees no order of steps. It is sure here, and often not.
    """
    figure, model = charts.new_figure(7.5, 2), forecast.model
    pictures, bars = figure.subfigures(1, 2, width_ratios=(3, 2))
    charts.plot_strip(pictures, "Frames of the clip", forecast.clips[-1].numpy(), [""] * 4)
    p = soft_targets(forecast.features[-1:], model.phrases, model.tau)[0]
    charts.plot_bars(bars.subplots(), rank_steps(p, PHRASES), {})
    return figure


def matching(forecast):
    """Matching: clips by phrases (Eq. 6)

    p(y_k | x_i) = softmax_k(cos(f(v_i), y_k) / tau)

    Every column is one of the eight observed clips, every row one of the twelve likeliest phrases.
    The encoder f embeds the clip, and its cosine with a phrase gives the phrase's probability. A
    circle marks the step that the video really shows there, if it has a row.
    """
    p = forecast.model.match(forecast.x[:8]).exp()                                 # (8, K)
    rows = p.amax(0).argsort(descending=True)[:12].sort().values.tolist()
    figure = charts.new_figure(7, 3.4)
    axes = figure.subplots()
    image = axes.imshow(p[:, rows].T.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    names, middles = [PHRASES[k] for k in rows], forecast.sample.windows.mean(1)   # (8,) s
    for i, middle in enumerate(middles):
        for step in forecast.video.steps:
            if step.start <= middle < step.end and STEPS[step.label] in names:
                axes.plot(i, names.index(STEPS[step.label]), "o", color=ORANGE, fillstyle="none")
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(8), [f"{middle:.0f} s" for middle in middles])
    figure.colorbar(image, label="p(y | x)")
    return figure


def noising(forecast):
    """Noise on the missing clip (Eq. 2)

    z_t = sqrt(alpha_bar_t) z_0 + sqrt(1 - alpha_bar_t) noise

    The ninth clip is hidden from h; only noised copies of its embedding are given. The gray points
    are the phrases of the pool, in the plane of their two main axes; the blue ones are 200 copies
    at each of the four levels, drawn as z_t / sqrt(alpha_bar_t) so that the signal stays at the
    cross, the embedding itself. Points outside the frame are not shown: at the last level the noise
    has buried the signal, and few points are left.
    """
    z0, alpha_bar = forecast.z0.expand_as(forecast.noise), forecast.model.alpha_bar
    zt = [add_noise(z0, forecast.noise, level) for level in alpha_bar]
    return draw_levels(forecast, [z / level.sqrt() for z, level in zip(zt, alpha_bar)])


def denoising(forecast):
    """What h makes of each level (Eq. 5)

    x_hat_0 = h(z_t, {x_i}, t)

    From each noised copy h predicts the clean embedding, with the eight observed clips as context.
    With less noise, the predictions depend more on the copy. With much noise, they stay near one
    point, set by the context.
    """
    z0, alpha_bar = forecast.z0.expand_as(forecast.noise), forecast.model.alpha_bar
    zt = [add_noise(z0, forecast.noise, level) for level in alpha_bar]
    return draw_levels(forecast, [forecast.h(z, torch.full((len(z),), t))
                                  for t, z in enumerate(zt)])


def sampling(forecast):
    """From noise to steps: twenty samples (Sec. 3.3)

    z_T ~ N(0, I);  x_hat_0 = h(z_t, {x_i}, t);  z_{t-1} = x_hat_0 with z_T's noise at level t - 1

    At inference nothing is known of the next clip, so z_T is pure noise. Each line follows one of
    twenty samples through the middle of the plane, from its noise (small point) to the embedding
    where it ends: different noise ends at different steps. Their shares estimate how likely each
    step is; Eq. 11 averages the probabilities of the samples instead of counting their picks.
    """
    paths = []

    def h(zt, t):
        paths.append(zt)
        return forecast.h(zt, t)

    noise = forecast.noise[:20]
    ends = sample(h, noise, forecast.model.alpha_bar)
    places = forecast.plane(torch.stack([*paths, ends])[:, :, 0])                  # (T + 1, 20, 2)
    picks = forecast.log_p(ends[:, 0]).argmax(-1)
    figure = charts.new_figure(6, 4)
    axes = figure.subplots()
    draw_plane(axes, forecast)
    colors = BLUE, ORANGE, GREEN, "black", GREY, "#CC79A7"
    ranked = Counter(picks.tolist()).most_common()
    for (step, count), color, marker in zip(ranked, colors, "osD^v*"):
        x, y = places[:, picks == step].T                                       # (count, T + 1)
        axes.plot(x.T, y.T, ".-", color=color, alpha=0.5, linewidth=1, markersize=4, markevery=[0])
        axes.plot(x[:, -1], y[:, -1], marker, color=color, markeredgecolor="white",
                  label=f"{STEPS[step]}: {count} of 20")
    (left, low), (right, high) = (places.min((0, 1)) - 1, places.max((0, 1)) + 1)
    axes.set(xlim=(left, right), ylim=(low, high))
    figure.legend(loc="outside right upper")
    return figure


def zero_noise(forecast):
    """Zero noise: one deterministic forecast (Sec. 3.3)

    z_T = 0

    Starting from zeros instead of noise takes one pass through the levels and always gives the same
    answer. It lands at, or between, the likeliest steps. This is the number zero_noise of
    evaluate.py, the cheapest forecast.
    """
    z_hat = sample(forecast.h, torch.zeros_like(forecast.noise[:1]), forecast.model.alpha_bar)
    figure = charts.new_figure(5, 2.2)
    p = forecast.log_p(z_hat[0, 0]).exp()
    charts.plot_bars(figure.subplots(), rank_steps(p, STEPS), {})
    return figure


def expectation_beside_truth(forecast):
    """The expectation beside the exact distribution (Eq. 11)

    p(y_j) = E[p(y_j | x_hat_0)]: the mean of p over samples of noise

    Blue bars are the mean over 200 samples. In the embedded world the grammar gives the exact
    distribution of the next step after the steps observed, hatched. The row tv of evaluate.py
    compares it with how often each step is a sample's likeliest one.
    """
    z_hat = sample(forecast.h, forecast.noise, forecast.model.alpha_bar)
    p = expectation(forecast.log_p(z_hat[None, :, 0]))[0]
    exact = Grammar().next_step(*observed_steps(forecast.sample, forecast.video))
    figure = charts.new_figure(5, 2.6)
    charts.plot_bars(figure.subplots(), rank_steps(p, STEPS), dict(zip(STEPS, exact)))
    return figure


def objective(forecast):
    """The three terms over training (Eq. 7)

    L = L_XE + L_MSE + L_MC

    L_XE matches the observed clips to their soft targets, L_MSE pulls the prediction of h to the
    true embedding, and L_MC matches it to the missing clip's soft targets. None of them needs a
    label. The dotted line is where AdamW takes over from SGD.
    """
    rows = charts.load_metrics(forecast.settings.checkpoint)
    return charts.plot_training(rows)


PICTURES = (soft_targets_of_a_clip, matching, noising, denoising, sampling, zero_noise,
            expectation_beside_truth, objective)
