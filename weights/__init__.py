"""Weights from outside (published checkpoints, pre-trained teachers), and our own checkpoints."""
from weights.checkpoint import load as load
from weights.checkpoint import save as save
