"""Matching and the three terms: Eqs. 6 and 8-10, and the bound they come from (Eq. A).

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and appendix A.

    paper                    here       shape        meaning
    x_i, x_hat_j^0           x, x_hat   (..., D)     embeddings of clips, of any length
    y^{1:K}                  texts      (K, D)       embeddings of the phrase pool, any length
    tau                      tau        float        temperature; the paper's 0.02
    p(y_i | x_i)             match      (..., K)     Eq. 6, as log probabilities
    p'_i                     targets    (B, N, K)    the teacher's soft targets, no gradient
    H(p', p)                 cross_entropy  (..., )  of Eqs. 8 and 10
    L_XE, L_MSE, L_MC        xe, mse, mc  (B,)       Eqs. 8, 9, 10, in train.py:objective
    B videos, N clips of each, K phrases, D embedding.

The bound. Clip j is missing. The diffusion gives a distribution p_theta of x_j, and so of its text:

    p_theta(y_j | {x_i}) = E_{x_j ~ p_theta} p(y_j | x_j)

Appendix A bounds the negative log likelihood of Eq. 1 from above, in three parts. Its only equation
is numbered L there, and is called Eq. A here:

    sum_i -log p(y_i | x_i)                                                            -> L_XE
    -log p_theta(x_j^0 | {x_i})                                                        -> L_MSE
        <= c + sum_t E KL( q(x_j^{t-1} | x_j^t, x_j^0) || p_theta(x_j^{t-1} | x_j^t, {x_i}) )
    -log p_theta(y_j | {x_i}) <= E_{x_j ~ p_theta} -log p(y_j | x_j)                   -> L_MC

q is the noising of Eq. 2. The bound of L_MSE is that of every diffusion model; the bound of L_MC is
Jensen's inequality. The paper simplifies in five places:
- Eq. 1 takes p(y_j | x_j) at the true x_j. Eq. A averages -log p(y_j | x_j) over p_theta. This mean
  bounds -log p_theta(y_j | {x_i}) for the text of a forecast.
- At t = 1 the KL is a likelihood instead, -log p_theta(x_j^0 | x_j^1). The KL of the prior,
  KL( q(x_j^T | x_j^0) || N(0, I) ), is the constant c: no parameter of h is in it, and no gradient
  flows through x_j^0.
- For Gaussians of equal covariance the KL is a squared distance with a weight for each level:
      1/2 (s_{t-1} - s_t) |x_j^0 - x_hat_j^0|^2,    s_t = alpha_bar_t / (1 - alpha_bar_t)
  for x scaled as it is noised.
  Eq. 9 gives all levels equal weight, as Tevet et al. 2022 do. The simple loss of Ho et al. 2020
  weighs them by s_t, which falls by a factor of 44 over the four levels of diffusion.py.
- Eq. A has -log p of one text. Eqs. 8 and 10 have the cross entropy with soft targets.
- Eq. A has sums. Instead, Eq. 8 has a mean over the clips, and Eq. 9 a mean over t. Eq. 10 also
  has a mean over t, which the bound of L_MC lacks.
The code draws nothing from p_theta in L_MC: x_hat_j^0 is h's prediction from x_j^t, as in L_MSE.
"""
import torch
from torch.nn import functional

TAU = 0.02                # temperature of Eq. 6: the paper's, for CLIP's embeddings


def match(x, texts, tau):
    """log p(y | x) over the pool: Eq. 6.

        p(y_k | x) = exp(cos(x, y_k) / tau) / sum_l exp(cos(x, y_l) / tau)

    In float32 even under autocast: a cosine in bfloat16, divided by 0.02, is off by up to 0.1.

    Args:    x (..., D), texts (K, D), both normalized here; tau > 0.
    Returns: (..., K) log probabilities, float32; float64 if x is.
    """
    with torch.autocast(x.device.type, enabled=False):
        x = x if x.dtype == torch.float64 else x.float()
        y = functional.normalize(texts.to(x.dtype), dim=-1)                         # (K, D)
        cosine = functional.normalize(x, dim=-1) @ y.T                              # (..., K)
        return (cosine / tau).log_softmax(-1)


def cross_entropy(targets, log_p):
    """H(p', p) = -sum_k p'_k log p_k of each clip: what L_XE and L_MC share.

        L_XE = 1 / (N - 1) sum_{i != j} H(p'_i, p(y_i | x_i))          (Eq. 8)
        L_MC = H(p'_j, p(y_j | x_hat_j^0))                             (Eq. 10)

    In training each clip j is missing in turn, and L_XE has the mean over all j. So both are means
    over the N clips of a video, L_XE of those of f, L_MC of those that h predicts, each at its t.

    Args:    targets (B, N, K), soft; log_p (B, N, K) from `match`. With --recipe release, h has T
             predictions of one clip: (B, 1, K) and (B, T, K).
    Returns: (B, N), or (B, T).
    """
    return -(targets * log_p).sum(-1)


def mse_loss(x_hat, x):
    """L_MSE (Eq. 9): squared distance from each predicted to the true embedding, (B, N, D) both ->
    (B,): summed over D, averaged over the missing clip j and its level t."""
    return (x_hat - x).pow(2).sum(-1).mean(1)


def agreement(log_p, targets):
    """The share of a video's clips whose likeliest phrase is the teacher's: log_p (B, N, K) and
    targets, which may have one row for all, (B, 1, K) -> (B,)."""
    return (log_p.argmax(-1) == targets.argmax(-1)).float().mean(1)
