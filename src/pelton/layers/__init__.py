"""What models are built from."""

from pelton.layers.attention import Attention, AttentionInputs
from pelton.layers.embedding import Embedding, TiedHead, head
from pelton.layers.linear import Linear
from pelton.layers.mlp import GatedMLP
from pelton.layers.norm import RMSNorm
from pelton.layers.parameter import Parameter
from pelton.layers.rotary import Rotary, Rotation

__all__ = [
    "Attention",
    "AttentionInputs",
    "Embedding",
    "GatedMLP",
    "Linear",
    "Parameter",
    "RMSNorm",
    "Rotary",
    "Rotation",
    "TiedHead",
    "head",
]
