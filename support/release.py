"""Pre-training as in the authors' code: what `train.py --recipe release` uses in place of its own.

    here               in place of                     what differs
    clip_features      pseudo_labels.clip_features     speech keeps its length
    soft_targets       pseudo_labels.soft_targets      only the five likeliest phrases are kept
    objective          train.objective                 one missing clip; h's chain through T levels
    missing_targets    train.all_targets               of the missing clip alone
    make_optimizer     train.make_optimizer            Nesterov momentum; AdamW's default betas
    rate_of            train.rate_of                   cut to a tenth twice in each stage

Symbols and shapes are those of train.py. docs/differences.md says what else the release does.
"""
import torch

import pseudo_labels
from diffusion import add_noise
from losses import cross_entropy, match
from support.run import stepped_rate

FLAGS = dict(noise=["release"], targets="both")         # defaults of train.py's flags
TOP = 5                                                 # phrases that are kept of a clip's softmax
SGD_LR, WEIGHT_DECAY = 5e-3, 1e-4
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


def soft_targets(features, phrases, tau):
    """p', (..., K): only the TOP likeliest phrases keep their share, and the shares that are left
    sum to 1. The arguments are those of `pseudo_labels.soft_targets`."""
    p = pseudo_labels.soft_targets(features, phrases, tau)
    share, k = p.topk(min(TOP, p.shape[-1]), -1)
    kept = torch.zeros_like(p).scatter(-1, k, share)
    return kept / kept.sum(-1, keepdim=True)


def objective(model, clips, targets, noise, j, observed, read):
    """The terms of B videos; noise (B, T, D), j (B,), observed and read (B, N).

    h goes through all levels in a chain. At the noisiest level it reads x_j^0, noised; at each
    lower level, its previous prediction, noised again. No gradient passes through what is noised.
    But x_j^0 as the target of L_MSE has one, and so trains f.

        L = (sum_i H(p'_i, p(y_i | x_i)) + sum_t H(p'_j, p(y_j | x_hat_j(t)))) / (N + T)
            + 1 / (T D) sum_t |x_hat_j(t) - x_j^0|^2

    where x_hat_j(t) is the x_hat_j^0 that h predicts at level t.

    The release has KL(p', p) = H(p', p) - H(p') in place of the cross entropy H. The gradient is
    the same, since nothing that is trained is in H(p').

    Returns: the three parts of L, of each video, (B,): of L_XE, of L_MSE and of L_MC, the first and
    the last as they are weighted here; log p of Eq. 6, of x (B, N, K) and of x_hat (B, T, K).
    """
    B, N = clips.shape[:2]
    T = len(model.alpha_bar)
    x = model.encode(clips.flatten(0, 1)).unflatten(0, (B, N))             # x_i = f(v_i)
    log_p = match(x, model.phrases, model.tau)                             # Eq. 6
    x0 = x[torch.arange(B, device=x.device), j]                            # (B, D), with gradient
    context = (model.scale * x).take_along_dim(read[..., None], 1)         # (B, N, D)
    z_hat, predicted = model.scale * x0, []                # what is noised at the noisiest level
    for t in reversed(range(T)):
        zt = add_noise(z_hat.detach(), noise[:, t], model.alpha_bar[t])
        z_hat = model.denoiser(zt, context, observed, j, torch.full_like(j, t)).float()    # Eq. 5
        predicted.append(z_hat)
    x_hat = torch.stack(predicted, 1) / model.scale                        # (B, T, D)
    log_q = match(x_hat, model.phrases, model.tau)                         # Eq. 6, of x_hat
    wanted = missing_targets(targets, noise, j)                            # (B, 1, K)
    xe = cross_entropy(targets, log_p).sum(1) / (N + T)                    # N of N + T rows
    mse = (x_hat - x0[:, None]).pow(2).mean((1, 2))
    mc = cross_entropy(wanted, log_q).sum(1) / (N + T)                     # the other T
    return xe, mse, mc, log_p, log_q


def missing_targets(targets, noise, j, *draws):
    """The soft targets of what h predicts in `objective`: of clip j, (B, 1, K), for all levels."""
    return targets.take_along_dim(j[:, None, None], 1)


def make_optimizer(model, stage):
    """SGD with Nesterov momentum, then AdamW. The loop sets the learning rate."""
    options = dict(lr=0.0, weight_decay=WEIGHT_DECAY)
    if stage == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **options)
    return torch.optim.AdamW(model.parameters(), fused=True, **options)


def rate_of(update, switch, updates, peak):
    """The learning rate of an update: no rise, and cut to a tenth twice in each stage."""
    if update < switch:
        return stepped_rate(update, 0, switch, SGD_LR, SGD_CUTS)
    return stepped_rate(update, switch, updates, peak, ADAMW_CUTS)
