"""Weights from outside: published checkpoints and pre-trained teachers, and our own checkpoints.

    from weights import load_released           # a published checkpoint as a model
    python -m weights IN OUT                    # the same, written as a checkpoint of ours
"""


def load_released(path, heads=None):
    """See weights.checkpoint.load_released: imported here, since `--help` must not load torch."""
    from weights.checkpoint import load_released
    return load_released(path, heads)
