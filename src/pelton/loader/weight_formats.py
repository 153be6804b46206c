"""In which formats a checkpoint's weights are kept, if not all in one."""

from collections.abc import Callable

from pelton.loader.checkpoint import Checkpoint
from pelton.loader.name_maps import WeightNames

PartFormat = Callable[[str], str]
"""Name of a weight, or of a part of one -> format."""

_VOCABULARY = frozenset({"embed_tokens", "lm_head"})
"""The weights with a row per token."""


def stored_formats(checkpoint: Checkpoint) -> PartFormat:
    """Each weight in the narrowest format that keeps what is stored."""
    names = WeightNames(checkpoint.config, checkpoint.format)
    present = checkpoint.tensor_names()

    def stored_format(name: str) -> str:
        foreign = names.foreign(name)
        stored = checkpoint.tensor(foreign).weight_format if foreign in present else None
        return "bf16" if stored is None else stored  # such a tensor is refused when it is loaded

    return stored_format


def int4_formats(checkpoint: Checkpoint) -> PartFormat:
    """Four bits, but eight for the embedding and the head, unless they are stored in four."""
    stored_format = stored_formats(checkpoint)
    return lambda name: "int8" if name in _VOCABULARY and stored_format(name) != "int4" else "int4"
