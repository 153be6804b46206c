"""What an attention layer asks of the KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class KVCacheSpec:
    """The keys and values that one attention layer keeps.

    Layers with equal specs are interchangeable to the KV cache; see `pelton.kv.groups`.
    """

    kind: ClassVar[str]

    block_size: int
    """Tokens per block."""
    num_kv_heads: int
    head_size: int
    dtype: str

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer: keys and values."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class FullAttentionSpec(KVCacheSpec):
    """A layer whose queries see every earlier position."""

    kind: ClassVar[str] = "full attention"


@dataclass(frozen=True)
class SlidingWindowSpec(KVCacheSpec):
    """A layer whose queries see their own position and the `window - 1` before it."""

    kind: ClassVar[str] = "sliding window"

    window: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that share one block table per request: equal specs, equal sizes.

    `layers` are indices of attention layers. The i-th layer of every group shares the i-th storage array; a
    block id belongs to one group at a time.
    """

    spec: KVCacheSpec
    layers: tuple[int, ...]


def layer_groups(groups: Sequence[KVCacheGroup]) -> list[int]:
    """The index of each layer's group."""
    index_of = {layer: index for index, group in enumerate(groups) for layer in group.layers}
    return [index_of[layer] for layer in range(len(index_of))]
