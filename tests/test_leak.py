"""Nothing leaks: h trained on context that tells nothing predicts no better than the shares."""
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import train
from data import missing_clips, pick
from denoiser import Denoiser
from diffusion import add_noise
from model import ProcedureModel
from training import pretrain

K, D, N = 6, 16, 5
TAU = 0.3                                                     # L_MSE and L_MC want the same x_hat
SHARES = torch.tensor([.05, .10, .15, .20, .20, .30])         # of the steps, everywhere in a video
UNIGRAM = -(SHARES * SHARES.log()).sum().item()               # nats
TELLS, SILENT = 0.9, 0.0                                      # chance of a video's usual step


def draw_batch(B, phrases, usual_share):
    """Embeddings of B videos, whose steps are the teacher's features, as a Batch of train.py.

    A clip shows the usual step of its video with the given chance, else any step; both are drawn
    from SHARES, so every position has these shares. With chance 0 the clips are independent: only
    clip j itself tells which step it shows.
    """
    usual = torch.multinomial(SHARES, B, replacement=True)
    other = torch.multinomial(SHARES, B * N, replacement=True).view(B, N)
    same = torch.rand(B, N) < usual_share
    steps = torch.where(same, usual[:, None], other)                                # (B, N)
    x = functional.normalize(phrases[steps] + 0.05 * torch.randn(B, N, D), dim=-1)
    return pretrain.Batch(x, phrases[steps], torch.ones(B, N).bool(), torch.zeros(B).bool())


class Videos:
    """What train.py's loop asks of `Pretraining`: h alone, on 150 batches of such videos."""
    stages, device, total, steps = ["order"], "cpu", 150, 150

    def __init__(self, usual_share):
        torch.manual_seed(0)
        phrases = functional.normalize(torch.randn(K, D), dim=-1)
        h = Denoiser(D, width=32, layers=2, heads=2, clips=N)
        self.model = ProcedureModel(phrases, None, h, "diffusion", TAU, None, 0.01)
        self.model.standardize.fit(draw_batch(1000, phrases, usual_share).clips.flatten(0, 1))
        self.usual_share = usual_share

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def make_optimizer(self, stage):
        return torch.optim.AdamW(self.model.parameters())

    def batches(self, stage, optimizer):
        for step in range(self.steps):
            optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / self.steps)
            yield draw_batch(192, self.model.phrases, self.usual_share)

    def encode(self, batch):
        return batch.clips

    def clip_gradient_of_f(self):
        pass

    def log(self, clips, **terms):
        pass


def trained(usual_share, monkeypatch):
    """The model after a brief training by the loop of train.py."""
    run = Videos(usual_share)
    monkeypatch.setattr(pretrain, "Pretraining", lambda settings: run)
    train.main(SimpleNamespace(device="cpu", order="diffusion", out=Path("nowhere")))
    return run.model.eval()


@torch.no_grad()
def nll(model, usual_share, kind, M=10_000):
    """Mean -log p(y_j) over the missing clips of M new videos, seen as in training.

    kind: "zero" or "noisiest", what h reads of clip j.
    Returns: h's, and the least possible from the noisy point and SHARES alone, in nats; both
    corrected for the shares of this sample of clips.
    """
    batch = draw_batch(M, model.phrases, usual_share)
    x, a = batch.clips, model.alpha_bar[-1]
    j = missing_clips(batch.real)
    y = model.match(pick(batch.features, j))[:, 0].argmax(-1)
    best, zt = SHARES.log().expand(M, K), torch.zeros(M, 1, D)
    if kind == "noisiest":
        z0 = model.standardize(pick(x, j))
        zt = add_noise(z0, torch.randn_like(z0), a)
        points = model.standardize(model.phrases)
        far = torch.cdist(zt[:, 0], a.sqrt() * points) ** 2 / (2 * (1 - a))
        best = (best - far).log_softmax(-1)
    t = torch.full((M,), len(model.alpha_bar) - 1)
    z_hat = model.denoise(zt, x, batch.real.scatter(1, j, False), j, t)
    log_p = model.match(model.standardize.inverse(z_hat))[:, 0]
    luck = -SHARES.log()[y].mean().item() - UNIGRAM
    return tuple(-p.gather(-1, y[:, None]).mean().item() - luck for p in (log_p, best))


def test_h_learns_nothing_where_the_context_tells_nothing(monkeypatch):
    """Catches: clip j or the clean point reaching h, directly or through another clip; a last level
    that still tells which step it is."""
    model = trained(SILENT, monkeypatch)
    zero, unigram = nll(model, SILENT, "zero")
    assert unigram == pytest.approx(UNIGRAM, abs=1e-3)
    assert zero == pytest.approx(UNIGRAM, abs=0.03)
    noisiest, best = nll(model, SILENT, "noisiest")
    assert UNIGRAM - 0.1 < best < UNIGRAM                     # a schedule that hides the answer
    assert noisiest == pytest.approx(best, abs=0.03)


def test_h_learns_from_a_context_that_tells(monkeypatch):
    """Catches: the test above passing because h learns nothing at all."""
    model = trained(TELLS, monkeypatch)
    for kind in ("zero", "noisiest"):
        assert nll(model, TELLS, kind)[0] < UNIGRAM - 0.4, kind
