"""Attention layers."""

from collections.abc import Iterator
from dataclasses import dataclass

from pelton.core.kv_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from pelton.layers.linear import Linear
from pelton.layers.parameter import Parameter
from pelton.layers.rotary import Rotary
from pelton.ops import KVCacheLayer, Recorder, Value


@dataclass(frozen=True)
class AttentionInputs:
    """What an attention layer needs to know of the step."""

    positions: Value
    """[T] int32, of each token within its request."""
    query_start: Value
    """[R + 1] int32: request r owns tokens [query_start[r], query_start[r + 1])."""
    seq_lens: Value
    """[R] int32, including this step's tokens."""
    slot_mapping: Value
    """[T] int64: where each token's key and value go, in the layer's group."""
    block_table: Value
    """[R, max_blocks] int32, of the layer's group."""


class Attention:
    """Grouped-query attention with rotary positions over a paged KV cache."""

    def __init__(
        self,
        name: str,
        *,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        window: int | None,
        block_size: int,
        head_size: int,
        rotary: Rotary,
    ) -> None:
        q_size, kv_size = num_heads * head_size, num_kv_heads * head_size
        parts = [(f"{name}.q", q_size), (f"{name}.k", kv_size), (f"{name}.v", kv_size)]
        self._qkv = Linear(parts, hidden_size)
        self._output = Linear([(f"{name}.o", hidden_size)], q_size)
        self._rotary = rotary
        self._scale = head_size**-0.5
        self._window = window
        self.kv_cache = KVCacheLayer(name, num_kv_heads=num_kv_heads, block_size=block_size, head_size=head_size)
        self.kv_spec: KVCacheSpec = (
            FullAttentionSpec(block_size, num_kv_heads, head_size, "float32")
            if window is None
            else SlidingWindowSpec(block_size, num_kv_heads, head_size, "float32", window)
        )

    def parameters(self) -> Iterator[Parameter]:
        yield from self._qkv.parameters()
        yield from self._output.parameters()

    def __call__(self, op: Recorder, x: Value, residual: Value, inputs: AttentionInputs) -> Value:
        """x and residual [T, E] -> residual plus what the tokens attended to [T, E]."""
        qkv = self._qkv(op, x)
        q = op.rope_and_cache(
            qkv, inputs.positions, inputs.slot_mapping, self._rotary.cos, self._rotary.sin, self.kv_cache
        )
        attended = op.attention(
            q,
            self.kv_cache,
            inputs.block_table,
            inputs.query_start,
            inputs.seq_lens,
            scale=self._scale,
            window=self._window,
        )
        return self._output(op, attended, residual)
