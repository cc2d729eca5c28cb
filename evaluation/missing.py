"""Steps missing anywhere: one of a video from all others, and several future ones.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1: the model "is not limited to single
step prediction and can be readily extended to predict multiple missing steps".

    --task infill                   each step from the others: prior, current, future
    --task forecast --horizon H     the next H steps, denoised together; and in turn, each draw
                                    going on from its own first step

Several missing clips have a joint distribution: which step comes second depends on which came
first. A softmax for each position cannot hold it, however good it is; which of the two ways of
drawing does is measured in README.md (Results).
M samples, N clips, P missing ones, Q draws, H steps ahead, S steps (the label set), D embedding.
"""
import numpy as np
import torch
from torch.nn import functional

from data import CLIP_SECONDS, CLIPS, HISTORY, classify_samples, observed_steps
from evaluation import metrics
from evaluation.embedding import encode_samples
from evaluation.inference import answer, in_batches
from evaluation.metrics import percent
from support.command import BadInput
from toy.grammar import Grammar

PLACES = "prior", "current", "future"             # the first step of a video, the others, the last
DRAWS = 200                                       # sampled pairs for the total variation
IN_TURN = 500                                     # forecasts whose pairs are drawn in turn, at most


def predict_missing(model, x, observed, j, texts, samples, seed, batch):
    """Zero noise and Q Monte Carlo samples of clips j, denoised together (Sec. 3.3).

    Args:    x (M, N, D), observed (M, N) bool, j (M, P), texts (S, D) or None once fine-tuned.
    Returns: zero-noise log p (M, P, S), p averaged over the samples (M, P, S), and the likeliest
             step of each sample (M, Q, P), all on the CPU.
    """
    (M, _, D), P = x.shape, j.shape[1]
    noise = torch.randn(M, samples, P, D, generator=torch.Generator().manual_seed(seed))
    zero, mean, picks = [], [], []
    for clips, seen, places, eps in in_batches(batch, x, observed, j, noise.to(x.device)):
        queries = torch.cat([torch.zeros_like(eps[:, :1]), eps], 1).flatten(1, 2)
        x_hat = model.forecast(clips, seen, places, queries)           # (B, (1 + Q) P, D)
        log_p = answer(model, x_hat, texts).unflatten(1, (-1, P)).cpu()
        zero.append(log_p[:, 0])
        mean.append(log_p[:, 1:].exp().mean(1))                        # Eq. 11
        picks.append(log_p[:, 1:].argmax(-1))
    return torch.cat(zero), torch.cat(mean), torch.cat(picks)


def lengthen(x, seconds, step):
    """A history of N windows that goes on with a step of 9 s, cut again into N windows.

    As at inference: the last 68 s, or all there is. A new window has the embedding of the old one
    in which its middle lies. Of 68 s it is nearly a shift by one; of a short history the new step
    becomes several windows, as h has seen it in training (data.history_windows).

    Args:    x (M, N, D); seconds (M,) float64 that each covers; step (M, D), unit length.
    Returns: (M, N, D), and the seconds (M,) that they cover.
    """
    N, total = x.shape[1], seconds + CLIP_SECONDS
    kept = total.clamp(max=HISTORY)
    middles = (total - kept)[:, None] + kept[:, None] * (torch.arange(N) + 0.5) / N    # (M, N)  s
    rows = (middles / (seconds[:, None] / N)).long().clamp(max=N)              # N: the new step
    x = torch.cat([x, step[:, None]], 1)                                       # (M, N + 1, D)
    return x.gather(1, rows.to(x.device)[..., None].expand(-1, -1, x.shape[2])), kept


def sample_in_turn(model, x, seconds, texts, noise):
    """Q futures of H steps of each video, each sampled step by step (Sec. 3.3, repeated).

    What a sample says comes next, its likeliest step, is then taken for observed: the embedding of
    its text is the last clip of the next forecast. Each of the Q has a history of its own.

    Args:    x (M, N, D) of the observed windows; seconds (M,) float64 that they cover;
             texts (S, D); noise (H, M, Q, D), standard normal.
    Returns: first (M, Q, S), log p of the next step; picks (M, Q, H) int64.
    """
    H, M, Q, D = noise.shape
    y = functional.normalize(texts, dim=-1)
    first = answer(model, model.forecast_next(x, noise[0]), texts)             # (M, Q, S)
    picks = [first.argmax(-1)]                                                 # (M, Q)
    x, seconds = x.repeat_interleave(Q, 0), seconds.repeat_interleave(Q)       # (M Q, N, D)
    for eps in noise[1:]:
        x, seconds = lengthen(x, seconds, y[picks[-1].flatten()])
        log_p = answer(model, model.forecast_next(x, eps.reshape(M * Q, 1, D)), texts)
        picks.append(log_p.argmax(-1).view(M, Q))
    return first, torch.stack(picks, -1)


def infill_rows(counts):
    """Which clips are read to infill each step of videos with so many steps.

    Of a video of more than 9 steps the nine around the missing one are read.

    Returns: rows (M, 9) int64, of all steps of all videos one after another; there (M, 9) bool;
             j (M, 1), the place of the missing step among the nine; kind (M,), of PLACES.
    """
    rows, there, js, kinds, first = [], [], [], [], 0
    for count in counts:
        for k in range(count):
            begin = min(max(k - CLIPS // 2, 0), max(count - CLIPS, 0))
            place = begin + np.arange(CLIPS)
            rows.append(first + np.minimum(place, count - 1))
            there.append(place < count)
            js.append([k - begin])
            kinds.append(0 if k == 0 else 2 if k == count - 1 else 1)
        first += count
    return tuple(torch.from_numpy(np.array(column)) for column in (rows, there, js, kinds))


def infill(model, source, texts, settings, device):
    """Each step of a video from all the others, and from those before it alone."""
    least = max(settings.min_steps, len(PLACES))
    counts = {i: len(video.steps) for i, video in enumerate(source.videos)}
    every = [sample for sample in classify_samples(source.videos, 1)
             if counts[sample.video] >= least]
    if not every:
        raise BadInput(f"--split {settings.split}: no video with {least} steps; there is nothing "
                       "to infill")
    x, _, read = encode_samples(model, source, every, settings, device)
    rows, there, j, kind = infill_rows([count for i, count in counts.items() if count >= least
                                        and source.videos[i].name not in source.unreadable])
    y = torch.tensor([sample.label for sample in read])
    observed = there & (torch.arange(CLIPS) != j)                              # (M, 9)

    def predict(seen):
        return predict_missing(model, x[rows, 0], seen.to(device), j.to(device), texts,
                               settings.samples, settings.seed, settings.batch)

    zero, mean, picks = predict(observed)
    past, _, _ = predict(observed & (torch.arange(CLIPS) < j))
    right, before = (metrics.topk_correct(log_p[:, 0], y, 1) for log_p in (zero, past))
    return ({"top1": {"zero_noise": percent(right),
                      "expectation": percent(metrics.topk_correct(mean[:, 0], y, 1)),
                      "oracle": percent(metrics.oracle_correct(picks[..., 0], y))},
             "by_position": [percent(right[kind == place]) for place in range(len(PLACES))],
             "past_alone": [percent(before[kind == place]) for place in range(len(PLACES))]},
            len(y), sum(len(video.steps) for video in source.listed
                        if len(video.steps) >= least))


def horizon(model, x, samples, videos, texts, temperature, settings):
    """The next H steps of each forecast that has so many, denoised together.

    Args:    x (M, 8, D) and samples, M of them, as of a forecast; temperature of its softmax.
    Returns: {"by_step": top-1 of each of the H steps, "pairs": the first two beside their truth}.
    """
    H, places = settings.horizon, model.denoiser.clips - x.shape[1]
    if H > places:
        raise BadInput(f"--horizon {H}: {settings.checkpoint} was trained with at most {places} "
                       f"clips missing together; train with --missing {H}")
    steps = [[step.label for step in videos[s.video].steps[s.step:s.step + H]] for s in samples]
    long = [i for i, next_steps in enumerate(steps) if len(next_steps) == H]
    if not long:
        raise BadInput(f"--horizon {H}: no video has {H} steps after another one")
    y = torch.tensor([steps[i] for i in long])                                 # (M', H)
    M, N, D = x[long].shape
    clips = torch.cat([x[long], x.new_zeros(M, H, D)], 1)                      # (M', 8 + H, D)
    place = torch.arange(N + H, device=x.device).expand(M, -1)
    toy_pairs = settings.data == "toy"
    zero, _, picks = predict_missing(model, clips, place < N, place[:, N:], texts,
                                     DRAWS if toy_pairs else settings.samples, settings.seed,
                                     settings.batch)
    by_step = [percent(metrics.topk_correct(zero[:, k], y[:, k], 1)) for k in range(H)]
    if not toy_pairs:
        return {"by_step": by_step, "pairs": None}
    far = -(-M // IN_TURN)                             # every far-th forecast is drawn in turn
    seconds = torch.tensor([np.ptp(samples[i].windows) for i in long[::far]])
    noise = torch.randn(2, len(seconds), DRAWS, D,
                        generator=torch.Generator().manual_seed(settings.seed))
    turns = torch.cat([
        sample_in_turn(model, part, covered, texts, eps.transpose(0, 1).to(x.device))[1].cpu()
        for part, covered, eps in in_batches(settings.batch, x[long[::far]], seconds,
                                             noise.transpose(0, 1))])          # (M'', DRAWS, 2)
    return {"by_step": by_step,
            "pairs": pair_rows(zero, picks, turns, far, [samples[i] for i in long], videos,
                               temperature, settings.seed)}


def pair_rows(zero, picks, turns, far, samples, videos, temperature, seed):
    """Total variation of the next two steps together, in the embedded world: draws beside truth.

        tv              draws of both steps, denoised together
        tv_repaired     the draws of tv, each first step with the second of another draw
        tv_in_turn      draws of the first step, each going on to a second one
        tv_in_turn_repaired   these, each first step with the second of another draw
        tv_independent  draws of each step from its own zero-noise softmax, at the temperature
        tv_ideal        as many draws from the truth: the floor

    zero (M, 2, S), picks (M, DRAWS, 2), turns (M'', DRAWS, 2) of every far-th of the M.
    """
    grammar, S = Grammar(), zero.shape[-1]
    truth = torch.from_numpy(np.stack([                                        # (M, S * S)
        grammar.next_two_steps(*observed_steps(sample, videos[sample.video])).ravel()
        for sample in samples]))
    generator = torch.Generator().manual_seed(seed)

    def draw(p):
        return torch.multinomial(p, DRAWS, replacement=True, generator=generator)

    def tv(first, second, truth=truth):
        return float(metrics.total_variation(first * S + second, truth).mean())

    alone = [draw((zero[:, k] / temperature).softmax(-1)) for k in range(2)]   # (M, DRAWS) each
    ideal, (first, second), (begun, then) = draw(truth), picks.unbind(-1), turns.unbind(-1)
    return {"tv": tv(first, second), "tv_independent": tv(*alone),
            "tv_repaired": tv(first, second.roll(1, 1)),
            "tv_in_turn": tv(begun, then, truth[::far]),
            "tv_in_turn_repaired": tv(begun, then.roll(1, 1), truth[::far]),
            "tv_ideal": tv(ideal // S, ideal % S)}
