"""Nothing leaks: h trained on context that tells nothing predicts no better than the shares."""
import numpy as np
import pytest
import torch
from torch.nn import functional

from data import missing_clips
from denoiser import Denoiser
from model import ProcedureModel
from training.pretrain import ordering_losses

K, D, N = 6, 16, 5
SHARES = torch.tensor([.05, .10, .15, .20, .20, .30])         # of the steps, everywhere in a video
UNIGRAM = -(SHARES * SHARES.log()).sum().item()               # nats
TELLS, SILENT = 0.9, 0.0                                      # chance of a video's usual step


def batch(B, phrases, usual_share, generator):
    """Embeddings of B videos (B, N, D), one-hot targets of clip j (B, K), observed (B, N), j (B,).

    A clip shows the usual step of its video with the given chance, else any step; both are drawn
    from SHARES, so every position has these shares. With chance 0 the clips are independent: only
    clip j itself tells which step it shows.
    """
    usual = torch.multinomial(SHARES, B, replacement=True, generator=generator)
    other = torch.multinomial(SHARES, B * N, replacement=True, generator=generator).view(B, N)
    same = torch.rand(B, N, generator=generator) < usual_share
    steps = torch.where(same, usual[:, None], other)                                # (B, N)
    x = phrases[steps] + 0.05 * torch.randn(B, N, D, generator=generator)
    rng = np.random.default_rng(torch.randint(2 ** 31, (1,), generator=generator).item())
    j, observed = (torch.from_numpy(np.array(column))
                   for column in zip(*(missing_clips(N, 1, rng) for _ in range(B))))
    target = functional.one_hot(steps.gather(1, j), K).float()                   # (B, 1, K)
    return functional.normalize(x, dim=-1), target, observed, j


def trained(usual_share, steps=150, B=192):
    """h after a brief training, and the generator of its videos."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    phrases = functional.normalize(torch.randn(K, D, generator=generator), dim=-1)
    h = Denoiser(D, width=32, layers=2, heads=2, clips=N)
    model = ProcedureModel(phrases, None, h, "diffusion", 0.1, None)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / steps)
        mse, mc = ordering_losses(model, *batch(B, phrases, usual_share, generator))
        optimizer.zero_grad()
        (mse + mc).backward()
        optimizer.step()
    return model.eval(), generator


def nll(model, generator, usual_share, kind, M=10_000):
    """Mean -log p(y_j) over the missing clips of M new videos, seen as in training.

    kind: "zero" or "noisiest", what h reads of clip j.
    Returns: h's, and the least possible from the noisy point and SHARES alone, in nats; both
    corrected for the shares of this sample of clips.
    """
    x, target, observed, j = batch(M, model.phrases, usual_share, generator)
    y, a, zt = target[:, 0].argmax(-1), model.alpha_bar[-1], torch.zeros(M, D)
    best = SHARES.log().expand(M, K)
    if kind == "noisiest":
        zt = a.sqrt() * model.points[y] + (1 - a).sqrt() * torch.randn(M, D, generator=generator)
        far = torch.cdist(zt, a.sqrt() * model.points) ** 2 / (2 * (1 - a))
        best = (best - far).log_softmax(-1)
    t = torch.full((M, 1), len(model.alpha_bar) - 1)
    with torch.no_grad():
        x_hat, _ = model.predictor(x, observed, j)(zt[:, None], t)
    luck = -SHARES.log()[y].mean().item() - UNIGRAM
    return tuple(-p.gather(-1, y[:, None]).mean().item() - luck
                 for p in (model.match_predicted(x_hat[:, 0]), best))


def test_h_learns_nothing_where_the_context_tells_nothing():
    """Catches: clip j, a hidden clip or the clean point reaching h, directly or through another
    clip; a last level that still tells which step it is."""
    model, generator = trained(SILENT)
    zero, unigram = nll(model, generator, SILENT, "zero")
    assert unigram == pytest.approx(UNIGRAM, abs=1e-3)
    assert zero == pytest.approx(UNIGRAM, abs=0.03)
    noisiest, best = nll(model, generator, SILENT, "noisiest")
    assert UNIGRAM - 0.1 < best < UNIGRAM                     # a schedule that hides the answer
    assert noisiest == pytest.approx(best, abs=0.03)


def test_h_learns_from_a_context_that_tells():
    """Catches: the test above passing because h learns nothing at all."""
    model, generator = trained(TELLS)
    for kind in ("zero", "noisiest"):
        assert nll(model, generator, TELLS, kind)[0] < UNIGRAM - 0.4, kind
