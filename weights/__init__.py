"""Weights from outside (published checkpoints, pre-trained teachers), and our own checkpoints."""


def load_released(path, heads=None):
    """See weights.checkpoint.load_released: imported here, since `--help` must not load torch."""
    from weights.checkpoint import load_released
    return load_released(path, heads)
