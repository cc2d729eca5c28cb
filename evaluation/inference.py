"""What a checkpoint answers: scores against texts, forecasts.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3. M samples of a task, N = 8 observed
clips, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import torch


def distinct_texts(texts):
    """COIN has steps with the same text: which rows are the first of their kind.

    Scores of equal texts must tie exactly (ties go to the lowest index), whatever a matrix product
    does to two equal columns: so each text is scored once.

    Returns: unique (U, D), and index (S,) with unique[index] == texts.
    """
    return torch.unique(texts, dim=0, return_inverse=True)


def in_batches(size, *columns):
    """Slices of `size` rows of lists and tensors of the same length, side by side."""
    for i in range(0, len(columns[0]), size):
        yield tuple(column[i:i + size] for column in columns)


def score(match, x, texts):
    """log p over the label set, equal texts exactly equal: (..., D) -> (..., S).

    match: model.match_predicted for predictions, model.read for clips that were observed.
    """
    unique, index = distinct_texts(texts)
    log_p = match(x, unique)
    return (log_p - log_p[..., index].logsumexp(-1, keepdim=True))[..., index]


def answer(model, x, texts):
    """log p over the label set, (..., D) -> (..., S), for embeddings of clips or of h.

    Fine-tuned it is the classifier's. Zero-shot it is that of the texts (S, D), which are matched
    at the temperature of a prediction.
    """
    return model.classify(x)[0] if model.task else score(model.match_predicted, x, texts)


def forecasts(model, x, texts, samples, seed, batch):
    """Zero-noise log p (M, S), and log p of Q Monte Carlo samples (M, Q, S): Sec. 3.3.

    The noise of a sample depends on the seed and its place in the list, not on the batch.
    """
    M, N, D = x.shape
    noise = torch.randn(M, samples, D, generator=torch.Generator().manual_seed(seed)).to(x.device)
    zero, drawn = [], []
    with torch.no_grad():
        for clips, eps in in_batches(batch, x, noise):
            queries = torch.cat([torch.zeros_like(eps[:, :1]), eps], 1)        # (B, 1 + Q, D)
            log_p = answer(model, model.forecast_next(clips, queries), texts)
            zero.append(log_p[:, 0])
            drawn.append(log_p[:, 1:])
    return torch.cat(zero), torch.cat(drawn)
