"""What models are built from."""

from pelton.layers.attention import Attention, AttentionInputs
from pelton.layers.embedding import Embedding, Head
from pelton.layers.linear import Linear, LinearWeight
from pelton.layers.mlp import GatedMLP
from pelton.layers.norm import RMSNorm
from pelton.layers.parameter import Parameter
from pelton.layers.rotary import Rotary, Rotation
from pelton.layers.target import Target

__all__ = [
    "Attention",
    "AttentionInputs",
    "Embedding",
    "GatedMLP",
    "Head",
    "Linear",
    "LinearWeight",
    "Parameter",
    "RMSNorm",
    "Rotary",
    "Rotation",
    "Target",
]
