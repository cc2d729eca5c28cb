"""The pictures of docs/tour.md, of one forecast in the embedded world: what computes, what draws.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3. The page shows the code that computes:
functions of attributes of `Forecast`. Eight clips are observed; h predicts that of the next step.
Q draws, P = 1 missing clip, T levels, K phrases (the pool), S steps, D embedding. Embeddings are
drawn standardized, in the plane of the two main axes of the samples.
"""
from collections import Counter

import numpy as np
import torch

from data import classify_windows, forecast_samples, observed_steps
from diffusion import add_noise, expectation, sample
from evaluation.inference import draw_noise, score_texts
from evaluation.labeled import require_teacher
from evaluation.prediction import observe_toy, open_model, rank_next, rank_steps, truth_of
from experiments import charts
from experiments.charts import BLUE, GREEN, GREY, ORANGE
from pseudo_labels import soft_targets
from support.command import check, require
from toy import render
from toy.grammar import PHRASES, STEPS, Grammar
from toy.source import ToySource, load_teacher


class Forecast:
    """What the pictures show: the model, its texts, one video's clips, and noise."""

    def __init__(self, checkpoint, video, after, seed):
        """Number of the test video; how many of its steps are observed; seed of the noise."""
        device = torch.device("cpu")
        self.run, teacher = checkpoint, load_teacher(device)
        self.model, of_toy = open_model(self.run, device)
        require(of_toy and self.model.order == "diffusion"
                and len(self.model.phrases) == len(PHRASES), f"{self.run}: a diffusion "
                "model of the embedded world is needed, as `python train.py` makes it")
        require_teacher(teacher, self.model, self.run)
        source = ToySource("test", video + 1, self.model.encoder.frames, teacher)
        self.video = source.videos[video]
        samples = forecast_samples([self.video])
        check(after <= len(samples), "after", after,
              f"of video {video} at most {len(samples)} steps can be observed")
        self.sample = samples[after - 1]
        self.shown = observed_steps(self.sample, self.video)
        self.exact = dict(zip(STEPS, Grammar().next_step(*self.shown)))
        start, end, _ = self.video.steps[self.sample.step]
        windows = np.concatenate([self.sample.windows, classify_windows(start, end, end, 1)])
        loaded = source.load([(video, windows)])
        self.clips, self.features = loaded.clips, source.teacher_features(loaded.views)   # (9, ...)
        self.texts = teacher.encode_phrases(STEPS)                                         # (S, D)
        self.x = self.model.encode(self.clips)                                             # (9, D)
        self.noise = draw_noise(200, (1, self.model.dim), seed)                         # (Q, P, D)
        self.z0 = self.model.standardize(self.x[-1:]).expand_as(self.noise)
        self.pool = self.model.standardize(self.model.phrases)                             # (K, D)
        ends = sample(self.h, self.noise, self.model.alpha_bar)[:, 0]                      # (Q, D)
        self.axes = torch.linalg.svd(ends - ends.mean(0))[2][:2].T                         # (D, 2)
        self.reach = 1.2 * float((torch.cat([ends, self.z0[0]]) @ self.axes).abs().max())

    def h(self, zt, t):
        """Eq. 5 for Q draws of the clip after the eight: zt (Q, 1, D), t (Q,) -> (Q, 1, D)."""
        x, observed = self.x.expand(len(zt), -1, -1), torch.arange(9).expand(len(zt), -1) < 8
        return self.model.h(zt, x, observed, torch.full((len(zt), 1), 8), t)

    def log_p(self, z):
        """Eq. 6 over the S steps: standardized (..., D) -> (..., S)."""
        return score_texts(self.model.standardize.inverse(z), self.texts, self.model.tau)

    def median_video(self, count):
        """Which of so many test videos has the median total variation, forecast by predict.py."""
        tv = {}
        for number in range(count):
            observed = observe_toy(number, self.model, None, 3)
            x = self.model.encode(observed.clips)[None]
            noise = draw_noise(3, (50, self.model.dim), number)[:1]
            log_p = score_texts(self.model.forecast_next(x, noise)[0], self.texts, self.model.tau)
            share = {row["step"]: row["share"] for row in
                     rank_next(log_p.exp().mean(0), log_p.argmax(-1), STEPS)}
            exact = truth_of(observed, [])["next"]
            tv[number] = 1 - sum(min(row["p"], share[row["step"]]) for row in exact)
        return sorted(tv, key=tv.get)[count // 2]


# --- What computes, in the paper's order ---
def soft_targets_of_a_clip(model, features):
    """Picture 1, Sec. 3.2: the teacher looks at the clip of the next step."""
    return soft_targets(features[-1:], model.phrases, model.tau)[0]                        # (K,)


def matching(model, x):
    """Picture 2, Eq. 6: the eight clips by the phrases."""
    return model.match(x[:8]).exp()                                                        # (8, K)


def noising(model, z0, noise):
    """Picture 3, Eq. 2: noised copies of the next clip, at each level."""
    return [add_noise(z0, noise, level) for level in model.alpha_bar]              # T of (Q, 1, D)


def denoising(model, h, z0, noise):
    """Picture 4, Eq. 5: what h predicts from each copy."""
    return [h(zt, torch.full((len(zt),), t)) for t, zt in enumerate(noising(model, z0, noise))]


def sampling(model, h, noise):
    """Picture 5, Sec. 3.3: what h predicts at each level, for twenty samples."""
    predicted = []

    def h_noted(zt, t):
        predicted.append(h(zt, t))
        return predicted[-1]
    sample(h_noted, noise[:20], model.alpha_bar)
    return torch.stack(predicted)                                                  # (T, 20, 1, D)


def zero_noise(model, h, noise, log_p):
    """Picture 6, Sec. 3.3: one forecast without noise."""
    z_hat = sample(h, torch.zeros_like(noise[:1]), model.alpha_bar)                    # (1, 1, D)
    return log_p(z_hat[0, 0]).exp()                                                        # (S,)


def expectation_beside_truth(model, h, noise, log_p):
    """Picture 7, Eq. 11: the mean over 200 samples."""
    z_hat = sample(h, noise, model.alpha_bar)                                          # (Q, 1, D)
    return expectation(log_p(z_hat.transpose(0, 1)))[0]                                    # (S,)


def objective(run, model):
    """Picture 8, Eq. 7: the rows of training, and L_MSE if h predicted the mean embedding."""
    rows = charts.load_metrics(run)
    return rows, float(model.dim * model.standardize.variance)


# --- What draws: the forecast, and what was computed -> a figure ---
def draw_clip(forecast, p):
    """The clip's frames, the shapes of its step alone, and bars."""
    step = STEPS[forecast.sample.label]
    thing, tool, _ = render.appearance(step)
    pictures = [*forecast.clips[-1].numpy()]
    for shape, *colors in ((render.OBJECT_SHAPE[thing], *render.OBJECT_COLORS[thing]),
                           (render.TOOL_SHAPE[tool], *render.TOOL_COLORS[tool])):
        colors = np.array([(90, 90, 90), *colors], np.uint8)                       # 0: background
        pictures.append(colors[np.pad(render.SPRITES[shape, 1], 10)].transpose(2, 0, 1))
    figure = charts.new_figure(8, 1.8)
    strip, bars = figure.subfigures(1, 2, width_ratios=(2, 1))
    charts.plot_strip(strip, f"A clip of: {step}", pictures, [""] * 4 + step.split()[::-1])
    charts.plot_bars(bars.subplots(), rank_steps(p, PHRASES), {})
    return figure


def draw_matching(forecast, p, phrases=PHRASES):
    """p (8, K) of K phrases as shades, with marks at the true steps."""
    middles = forecast.sample.windows.mean(1)                                              # (8,) s
    true = [next((STEPS[step.label] for step in forecast.video.steps
                  if step.start <= middle < step.end), None) for middle in middles]
    names = [phrases[k] for k in p.amax(0).argsort(descending=True)[:10]]
    names = sorted({*names, *(step for step in true if step in phrases)})
    figure = charts.new_figure(7, 3.6)
    axes = figure.subplots()
    image = axes.imshow(p[:, [phrases.index(name) for name in names]].T.numpy(), cmap="Blues",
                        vmin=0, vmax=1, aspect="auto")
    for i, (step, k) in enumerate(zip(true, p.argmax(1))):
        if step in names:
            axes.plot(i, names.index(step), "o" if step == phrases[k] else "x", color=ORANGE,
                      fillstyle="none")
    axes.set_title("Circle: the true step, likeliest for f. Cross: the true step, where f errs.")
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(8), [f"{middle:.0f} s" for middle in middles])
    figure.colorbar(image, label="p(y | x)")
    return figure


def draw_plane(axes, forecast, reach, scale=1.0):
    """The phrases of the pool, and the missing clip, both at a scale."""
    for z, mark, color, label in ((forecast.pool, ".", "#BBBBBB", "phrases"),
                                  (forecast.z0[0], "X", ORANGE, "the missing clip, z_0")):
        axes.plot(*(scale * z @ forecast.axes).T, mark, color=color, label=label)
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach))


def draw_noised(forecast, z, scales=None, reach=5, label="z_t, 200 copies"):
    """A panel for each level: its Q points, z (T, Q, 1, D), and the plane at its scale."""
    figure = charts.new_figure(8, 2.6)
    for t, (alpha_bar, axes) in enumerate(zip(forecast.model.alpha_bar, figure.subplots(1, 4))):
        draw_plane(axes, forecast, reach, alpha_bar.sqrt() if scales is None else scales)
        axes.plot(*(z[t][:, 0] @ forecast.axes).T, ".", color=BLUE, alpha=0.4, zorder=1,
                  label=label)
        axes.set_title(f"t = {t + 1}, alpha_bar = {alpha_bar:.2g}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_predicted(forecast, z_hat):
    """The same panels of what h predicts from the copies, at the scale of z_0."""
    return draw_noised(forecast, z_hat, 1, forecast.reach, "z_hat_0 of each copy")


def draw_samples(forecast, predicted):
    """The paths of the samples through the plane, (T, 20, 1, D), by the step where they end."""
    places = (predicted[:, :, 0] @ forecast.axes).numpy()                          # (T, 20, 2)
    picks = forecast.log_p(predicted[-1, :, 0]).argmax(-1)
    figure = charts.new_figure(6, 4)
    axes = figure.subplots()
    draw_plane(axes, forecast, forecast.reach)
    colors = BLUE, ORANGE, GREEN, "black", GREY, "#CC79A7"
    for (step, count), color, mark in zip(Counter(picks.tolist()).most_common(), colors, "os^DvP"):
        x, y = places[:, picks == step].T                                           # (count, T)
        axes.plot(x.T, y.T, ".-", color=color, alpha=0.5, linewidth=1, markersize=4, markevery=[0])
        axes.plot(x[:, -1], y[:, -1], mark, color=color, markeredgecolor="white",
                  label=f"{STEPS[step]}: {count} of 20")
    figure.legend(loc="outside right upper")
    return figure


def draw_next(forecast, p):
    """Bars of the likeliest next steps, and of the exact distribution."""
    figure = charts.new_figure(5, 2.6)
    charts.plot_bars(figure.subplots(), rank_steps(p, STEPS), forecast.exact)
    return figure


def draw_objective(forecast, computed):
    """The curves of training."""
    return charts.plot_training(*computed)


PICTURES = {
    soft_targets_of_a_clip: draw_clip, matching: draw_matching, noising: draw_noised,
    denoising: draw_predicted, sampling: draw_samples, zero_noise: draw_next,
    expectation_beside_truth: draw_next, objective: draw_objective}
