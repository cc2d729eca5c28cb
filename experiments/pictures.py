"""The pictures of docs/tour.md: each function draws one, of a forecast in the embedded world.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3. A docstring is the text of the page: a
title, an equation, three sentences. The page also shows the code below it.

Eight clips are observed; h has to predict the clip of the next step. Q draws, P = 1 missing clip,
T levels, K phrases (the pool), S steps, D embedding. Embeddings are drawn standardized, in the
plane of the two main axes of the pool.
"""
import numpy as np
import torch

from data import classify_windows, forecast_samples, observed_steps
from diffusion import add_noise, expectation, sample
from evaluation.inference import score_texts
from evaluation.labeled import require_teacher
from experiments import charts
from experiments.charts import BLUE, GREEN, GREY, ORANGE, TRUE
from pseudo_labels import soft_targets
from support.command import check, require
from toy import grammar
from toy.source import ToySource, load_teacher
from weights.checkpoint import load_model


class Forecast:
    """What the pictures show: the model, its texts, one video's clips, and noise."""

    def __init__(self, settings):
        device = torch.device("cpu")
        self.settings, teacher = settings, load_teacher(device)
        self.model = load_model(settings.checkpoint)[0]
        require(self.model.encoder and self.model.order == "diffusion" and not self.model.task
                and len(self.model.phrases) == len(grammar.PHRASES), f"{settings.checkpoint}: a "
                "zero-shot diffusion model of the embedded world is needed, as `python train.py "
                "--stage pretrain` makes it")
        require_teacher(teacher, self.model, settings.checkpoint)
        source = ToySource("test", settings.video + 1, self.model.encoder.frames, teacher)
        self.video = source.videos[settings.video]
        samples = [s for s in forecast_samples(source.videos) if s.video == settings.video]
        check(settings.after <= len(samples), "after", settings.after,
              f"of video {settings.video} at most {len(samples)} steps can be observed")
        self.sample = samples[settings.after - 1]
        start, end, self.label = self.video.steps[self.sample.step]
        windows = np.concatenate([self.sample.windows, classify_windows(start, end, end, 1)])
        loaded = source.load([(settings.video, windows)])
        self.clips, self.features = loaded.clips, source.teacher_features(loaded.views)   # (9, ...)
        self.pool, self.names, self.steps = self.model.phrases, grammar.PHRASES, grammar.STEPS
        self.texts = teacher.encode_phrases(self.steps)                                    # (S, D)
        self.x = self.model.encode(self.clips)                                             # (9, D)
        self.z0 = self.model.standardize(self.x[-1:])                                      # (1, D)
        torch.manual_seed(settings.seed)
        self.noise = torch.randn(200, 1, self.model.dim)                                # (Q, P, D)
        z = self.model.standardize(self.pool)
        self.axes = torch.linalg.svd(z - z.mean(0), full_matrices=False)[2][:2].T          # (D, 2)

    def h(self, zt, t):
        """Eq. 5 for Q draws of the clip after the eight: zt (Q, 1, D), t (Q,) -> (Q, 1, D)."""
        x, observed = self.x.expand(len(zt), -1, -1), torch.arange(9).expand(len(zt), -1) < 8
        return self.model.denoise(zt, x, observed, torch.full((len(zt), 1), 8), t)

    def plane(self, z):
        """Standardized embeddings (..., D) -> places in the plane (..., 2), numpy."""
        return (z @ self.axes).numpy()

    def log_p(self, z):
        """Eq. 6 over the S steps: standardized (..., D) -> (..., S)."""
        return score_texts(self.model.standardize.inverse(z), self.texts, self.model.tau)


# --- Drawing ---
def draw_plane(axes, forecast, names=()):
    """The phrases of the pool as gray points, some of them with their names."""
    places = forecast.plane(forecast.model.standardize(forecast.pool))
    axes.plot(*places.T, ".", color="#BBBBBB", markersize=4)
    for name in names:
        axes.annotate(name, places[forecast.names.index(name)], color=GREY, fontsize=7)
    low, high = places.min() - 1, places.max() + 1
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=(low, high), ylim=(low, high))


def draw_bars(axes, p, names, count=6, true=None):
    """The largest of p (K,) as bars; `true` (K,): hatched beside them."""
    best = p.argsort(descending=True)[:count].tolist()
    high = 0.7 if true is None else 0.38
    for place, k in enumerate(best):
        axes.barh(place - (high / 2 if true is not None else 0), p[k], high, color=BLUE,
                  label="model" if place == 0 else None)
        if true is not None:
            label = "exact" if place == 0 else None
            axes.barh(place + high / 2, true[k], high, label=label, **TRUE)
    axes.set_yticks(range(len(best)), [names[k] for k in best])
    axes.set(xlim=(0, 1), ylim=(len(best) - 0.4, -0.6), xlabel="probability")


# --- The pictures, in the paper's order ---
def soft_targets_of_a_clip(forecast):
    """A clip and its soft targets (Sec. 3.2)

    p'_k = softmax_k(cos(teacher(v), y_k) / tau')

    The teacher, a CLIP, looks at the frames of a clip and compares them with every phrase of the
    pool. Nobody labels the clip: these probabilities are all that f learns from. The teacher sees
    no order of steps, and it is often unsure.
    """
    figure = charts.new_figure(7.5, 2)
    pictures, bars = figure.subfigures(1, 2, width_ratios=(3, 2))
    for axes, frame in zip(pictures.subplots(1, 4), forecast.clips[-1]):
        charts.show_picture(axes, frame.numpy(), [])
    p = soft_targets(forecast.features[-1:], forecast.pool, forecast.model.teacher_tau)[0]
    draw_bars(bars.subplots(), p, forecast.names)
    return figure


def matching(forecast):
    """Matching: clips by phrases (Eq. 6)

    p(y_k | x_i) = softmax_k(cos(f(v_i), y_k) / tau)

    Every column is one of the eight observed clips, every row a phrase. The encoder f embeds the
    clip, and its cosine with a phrase gives the phrase's probability. A circle marks the step that
    the video really shows there.
    """
    p = forecast.model.match(forecast.x[:8]).exp()                                 # (8, K)
    rows = p.amax(0).argsort(descending=True)[:12].sort().values.tolist()
    figure = charts.new_figure(7, 3.4)
    axes = figure.subplots()
    image = axes.imshow(p[:, rows].T.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i, (start, end) in enumerate(forecast.sample.windows):
        for step in forecast.video.steps:
            name = forecast.steps[step.label]
            if step.start <= (start + end) / 2 < step.end and name in forecast.names:
                if (k := forecast.names.index(name)) in rows:
                    axes.plot(i, rows.index(k), "o", color=ORANGE, markerfacecolor="none")
    axes.set_yticks(range(len(rows)), [forecast.names[k] for k in rows])
    axes.set_xticks(range(8), [f"{(a + b) / 2:.0f} s" for a, b in forecast.sample.windows])
    figure.colorbar(image, label="p(y | x)")
    return figure


def noising(forecast):
    """Noise on the missing clip (Eq. 2)

    z_t = sqrt(alpha_bar_t) z_0 + sqrt(1 - alpha_bar_t) noise

    The ninth clip is hidden from h; only noised copies of its embedding are given. Blue points are
    200 such copies at each of the four levels, drawn as z_t / sqrt(alpha_bar_t) so that the signal
    stays at the cross, the embedding itself. At the last level the noise has buried it.
    """
    figure = charts.new_figure(8, 2.6)
    for t, axes in enumerate(figure.subplots(1, 4, sharex=True, sharey=True)):
        zt = add_noise(forecast.z0.expand_as(forecast.noise), forecast.noise,
                       forecast.model.alpha_bar[t])
        draw_plane(axes, forecast)
        places = forecast.plane(zt[:, 0] / forecast.model.alpha_bar[t].sqrt())
        axes.plot(*places.T, ".", color=BLUE, alpha=0.4, markersize=4)
        axes.plot(*forecast.plane(forecast.z0).T, "X", color=ORANGE, markeredgecolor="white")
        axes.set_title(f"t = {t + 1}")
    return figure


def denoising(forecast):
    """What h makes of each level (Eq. 5)

    x_hat_0 = h(z_t, {x_i}, t)

    From each noised copy h predicts the clean embedding, with the eight observed clips as context.
    At little noise the copy still tells what the clip shows. At much noise h must rely on the
    context, and it answers near the mean of what can follow.
    """
    figure = charts.new_figure(8, 2.6)
    for t, axes in enumerate(figure.subplots(1, 4, sharex=True, sharey=True)):
        zt = add_noise(forecast.z0.expand_as(forecast.noise), forecast.noise,
                       forecast.model.alpha_bar[t])
        z_hat = forecast.h(zt, torch.full((len(zt),), t))
        draw_plane(axes, forecast)
        axes.plot(*forecast.plane(z_hat[:, 0]).T, ".", color=BLUE, alpha=0.4, markersize=4)
        axes.plot(*forecast.plane(forecast.z0).T, "X", color=ORANGE, markeredgecolor="white")
        axes.set_title(f"from t = {t + 1}")
    return figure


def sampling(forecast):
    """From noise to steps: twenty samples (Sec. 3.3)

    z_T ~ N(0, I);  x_hat_0 = h(z_t, {x_i}, t);  z_{t-1} = noised again to level t - 1

    At inference nothing is known of the next clip, so z_T is pure noise. Each line follows one of
    twenty samples from its noise (small point) through the levels to the embedding where it ends.
    Different noise ends at different steps, and their shares are the forecast.
    """
    paths = []

    def predict(zt, t):
        paths.append(zt)
        return forecast.h(zt, t)

    noise = forecast.noise[:20]
    ends = sample(predict, noise, forecast.model.alpha_bar)
    places = forecast.plane(torch.stack([*paths, ends])[:, :, 0])                  # (T + 1, 20, 2)
    picks = forecast.log_p(ends[:, 0]).argmax(-1).tolist()
    figure = charts.new_figure(6, 4)
    axes = figure.subplots()
    draw_plane(axes, forecast)
    for i, step in enumerate(sorted(set(picks), key=picks.count, reverse=True)[:6]):
        chosen = [k for k, pick in enumerate(picks) if pick == step]
        color, marker = (BLUE, ORANGE, GREEN, "black", GREY, "#CC79A7")[i], "osD^v*"[i]
        axes.plot(places[:, chosen, 0], places[:, chosen, 1], color=color, alpha=0.5, linewidth=1)
        axes.plot(*places[0, chosen].T, ".", color=color, markersize=4)
        axes.plot(*places[-1, chosen].T, marker, color=color, linestyle="", markeredgecolor="white",
                  label=f"{forecast.steps[step]}: {len(chosen)} of 20")
    figure.legend(loc="outside right upper")
    return figure


def zero_noise(forecast):
    """Zero noise: one forecast without chance (Sec. 3.3)

    z_T = 0

    Starting from zeros instead of noise takes one pass through the levels and always gives the same
    answer. It lands at, or between, the likeliest steps. This is the number zero_noise of
    evaluate.py, the cheapest forecast.
    """
    z_hat = sample(forecast.h, torch.zeros_like(forecast.noise[:1]), forecast.model.alpha_bar)
    figure = charts.new_figure(5, 2.2)
    draw_bars(figure.subplots(), forecast.log_p(z_hat[0, 0]).exp(), forecast.steps)
    return figure


def expectation_beside_truth(forecast):
    """The expectation beside the exact distribution (Eq. 11)

    p(y_j) = E[p(y_j | x_hat_0)]: the mean of p over samples of noise

    Blue bars are the mean over 200 samples. In the embedded world the grammar gives the exact
    distribution of the next step after the steps observed, hatched. The distance of the samples
    from it is the row tv of evaluate.py; this forecast is clearer than most.
    """
    z_hat = sample(forecast.h, forecast.noise, forecast.model.alpha_bar)
    p = expectation(forecast.log_p(z_hat[None, :, 0]))[0]
    exact = grammar.Grammar().next_step(*observed_steps(forecast.sample, forecast.video))
    figure = charts.new_figure(5, 2.6)
    axes = figure.subplots()
    draw_bars(axes, p, forecast.steps, true=torch.from_numpy(exact))
    axes.legend(loc="lower right")
    return figure


def objective(forecast):
    """The three terms over training (Eq. 7)

    L = L_XE + L_MSE + L_MC

    L_XE matches the observed clips to their soft targets, L_MSE pulls the prediction of h to the
    true embedding, and L_MC matches it to the missing clip's soft targets. None of them needs a
    label. A dotted line marks where a stage begins: SGD, then AdamW, then h alone.
    """
    return charts.plot_training(charts.load_metrics(
        forecast.settings.checkpoint / "metrics.jsonl"))


PICTURES = (soft_targets_of_a_clip, matching, noising, denoising, sampling, zero_noise,
            expectation_beside_truth, objective)
