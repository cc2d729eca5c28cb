"""h against a slow Transformer written one token at a time, and which clips it reads."""
import pytest
import torch

from denoiser import Denoiser
from slow import draw, randomized, slow_h

N, D, HEADS = 5, 24, 2                             # D / 8 = 3 sinusoids: k / 2 is not k
pytestmark = pytest.mark.usefixtures("float64")    # of its level and its mask, too


def question():
    """zt, z, observed, j, t of three rows: another clip hidden, padding, x_j called observed."""
    observed = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    return draw(3, D, seed=1), draw(3, N, D), observed, torch.tensor([1, 3, 0]), torch.tensor(
        [3, 0, 2])


def test_eq5_h_equals_a_transformer_token_by_token():
    """Catches: heads or rows mixed, x_j, a hidden clip or padding read, a part more or less;
    another period of the level's sinusoids; x_j^t written into z; NaN if no clip is seen."""
    h = randomized(Denoiser(D, layers=2, heads=HEADS, clips=N + 1), 0.3)
    zt, z, observed, j, t = question()
    with torch.no_grad():
        fast = h(zt, z, observed, j, t)
        for b in range(3):
            slow = slow_h(h.state_dict(), HEADS, zt[b], z[b], observed[b], int(j[b]), int(t[b]))
            torch.testing.assert_close(fast[b], slow)
    assert torch.equal(z, question()[1])
    assert h(zt, z, torch.zeros_like(observed), j, t).isfinite().all()
