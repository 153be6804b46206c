"""Checkpoints and their weights."""

from pelton.loader.checkpoint import (
    Checkpoint,
    GGUFCheckpoint,
    SafetensorsCheckpoint,
    open_checkpoint,
    open_for_texts,
)
from pelton.loader.weights import load_weights

__all__ = [
    "Checkpoint",
    "GGUFCheckpoint",
    "SafetensorsCheckpoint",
    "load_weights",
    "open_checkpoint",
    "open_for_texts",
]
