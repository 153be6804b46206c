"""The operators in plain numpy: what every other implementation is compared with, and the fallback."""

from pelton.ops.reference.activations import ACTIVATIONS
from pelton.ops.reference.attention import attention
from pelton.ops.reference.edit_logits import edit_logits
from pelton.ops.reference.embed import embed
from pelton.ops.reference.gated_linear import gated_linear
from pelton.ops.reference.gather_rows import gather_rows
from pelton.ops.reference.linear import linear
from pelton.ops.reference.logits import logits
from pelton.ops.reference.logprobs import logprobs
from pelton.ops.reference.process_logits import process_logits
from pelton.ops.reference.rms_norm import rms_norm
from pelton.ops.reference.rope_and_cache import rope_and_cache
from pelton.ops.reference.rotary import rotary
from pelton.ops.reference.sample import sample
from pelton.ops.reference.warp_logits import warp_logits

__all__ = [
    "ACTIVATIONS",
    "attention",
    "edit_logits",
    "embed",
    "gated_linear",
    "gather_rows",
    "linear",
    "logits",
    "logprobs",
    "process_logits",
    "rms_norm",
    "rope_and_cache",
    "rotary",
    "sample",
    "warp_logits",
]
