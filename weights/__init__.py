"""Weights from outside: published checkpoints and teachers, read, renamed, checked.

    from weights import load_released          # a published checkpoint; see weights/checkpoint.py
    python -m weights IN OUT                    # the same as a file of ours
"""


def load_released(path, heads=None):
    """See weights.checkpoint.load_released. Imported on call: `--help` does not wait for torch."""
    from weights.checkpoint import load_released
    return load_released(path, heads)
