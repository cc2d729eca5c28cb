"""Pre-training as in the authors' code: what `train.py --recipe release` uses in place of its own.

    here               in place of                     what differs
    clip_features      pseudo_labels.clip_features     speech keeps its length
    soft_targets       pseudo_labels.soft_targets      only the five likeliest phrases are kept
    objective          train.objective                 one missing clip; h's chain through T levels
    BETAS              train.BETAS                     AdamW's default
    *_CUTS             -                               rates are cut to a tenth twice in each stage

train.py has the rest: `released_draw`, and the Recipe that names all this. Symbols and shapes are
those of train.py. docs/differences.md says what else the release does.
"""
import torch

import pseudo_labels
from diffusion import add_noise
from losses import agreement, cross_entropy, match

FLAGS = dict(noise=["release"], targets="both")         # defaults of train.py's flags
TOP = 5                                                 # phrases that are kept of a clip's softmax
BETAS = 0.9, 0.999                                      # of AdamW
# When the rate is cut to a tenth, as shares of the epochs: after 2 and 4 of 5, and 15 and 23 of 25.
SGD_CUTS, ADAMW_CUTS = (0.4, 0.8), (0.6, 0.92)


def clip_features(teacher, seen, said, targets="both"):
    """The teacher's features of C clips, (C, D). What is said keeps the length that the teacher
    gives it, so it weighs more than the frames, whose features have length 1. The arguments are
    those of `pseudo_labels.clip_features`."""
    if targets == "vision":
        return teacher.encode_clips(seen)
    spoken = []
    for share, texts in said:
        spoken.append(torch.from_numpy(share).to(teacher.device) @ teacher.encode_texts(texts))
    spoken = torch.cat(spoken)                                                     # (C, D)
    if targets == "narration":
        return spoken
    return (teacher.encode_clips(seen) + spoken) / 2


def soft_targets(features, texts, tau):
    """p', (..., K): only the TOP likeliest phrases keep their share, and the shares that are left
    sum to 1. The arguments are those of `pseudo_labels.soft_targets`."""
    p = pseudo_labels.soft_targets(features, texts, tau)
    share, k = p.topk(min(TOP, p.shape[-1]), -1)
    kept = torch.zeros_like(p).scatter(-1, k, share)
    return kept / kept.sum(-1, keepdim=True)


def objective(model, clips, targets, noise, j, observed, perm):
    """The terms of B videos; noise (B, T, D), j (B,), observed and perm (B, N).

    h goes through all levels in a chain. At the noisiest level it reads x_j^0, noised; at each
    lower level, its previous prediction, noised again. No gradient passes through what is noised.
    But x_j^0 as the target of L_MSE has one, and so trains f.

        L = (sum_i H(p'_i, p(y_i | x_i)) + sum_t H(p'_j, p(y_j | x_hat_j(t)))) / (N + T)
            + 1 / (T D) sum_t |x_hat_j(t) - x_j^0|^2

    where x_hat_j(t) is the x_hat_j^0 that h predicts at level t.

    The release has KL(p', p) = H(p', p) - H(p') in place of the cross entropy H. The gradient is
    the same, since nothing that is trained is in H(p').

    Returns: the three parts of L, of each video, (B,): of L_XE, of L_MSE and of L_MC, the first and
    the last as they are weighted here; the shares, (B,), as in train.objective, of h over levels.
    """
    B, N = clips.shape[:2]
    T = len(model.alpha_bar)
    x = model.encode(clips.flatten(0, 1)).unflatten(0, (B, N))             # x_i = f(v_i)
    log_p = match(x, model.phrases, model.tau)                             # Eq. 6
    x0 = x[torch.arange(B, device=x.device), j]                            # (B, D), with gradient
    others = (model.scale * x).take_along_dim(perm[..., None], 1)          # (B, N, D)
    z_hat = model.scale * x0                               # what is noised at the noisiest level
    predicted = []
    for t in reversed(range(T)):
        zt = add_noise(z_hat.detach(), noise[:, t], model.alpha_bar[t])
        z_hat = model.denoiser(zt, others, observed, j, torch.full_like(j, t)).float()    # Eq. 5
        predicted.append(z_hat)
    x_hat = torch.stack(predicted, 1) / model.scale                        # (B, T, D)
    log_q = match(x_hat, model.phrases, model.tau)                         # Eq. 6, of x_hat
    wanted = targets.take_along_dim(j[:, None, None], 1)                   # (B, 1, K)
    xe = cross_entropy(targets, log_p).sum(1) / (N + T)                    # N of N + T rows
    mse = (x_hat - x0[:, None]).pow(2).mean((1, 2))
    mc = cross_entropy(wanted, log_q).sum(1) / (N + T)                     # the other T
    return xe, mse, mc, agreement(log_p, targets), agreement(log_q, wanted)
