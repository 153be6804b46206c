"""The keys and values of one attention layer, as the operators see them."""

from pelton.ops.arrays import Float32


class KVCacheLayer:
    """A handle that programs are recorded with; the array is bound once the cache is sized.

    The array is [num_blocks, 2, num_kv_heads, block_size, head_size] float32: index 0 holds keys, 1 values.
    Position `offset` of block `b` is slot `b * block_size + offset`. Block 0 is the null block. Layers of
    different groups may be bound to one array.
    """

    def __init__(self, name: str, *, num_kv_heads: int, block_size: int, head_size: int) -> None:
        self.name = name
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_size = head_size
        self._array: Float32 | None = None

    def bind(self, array: Float32) -> None:
        """Use `array` from now on. Raises ValueError if its shape or dtype does not fit."""
        block = (2, self.num_kv_heads, self.block_size, self.head_size)
        if array.ndim != 5 or array.shape[1:] != block or array.dtype != "float32":
            raise ValueError(
                f"{self.name}: the KV cache must be float32 [num_blocks, {', '.join(map(str, block))}], "
                f"got {array.dtype} {list(array.shape)}"
            )
        self._array = array

    @property
    def array(self) -> Float32:
        assert self._array is not None, f"{self.name}: no KV cache is bound"
        return self._array

    def __str__(self) -> str:
        return f"({self.name})"
