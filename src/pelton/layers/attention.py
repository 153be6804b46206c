"""Attention layers."""

from collections.abc import Iterator
from dataclasses import dataclass

from pelton.config import DecoderConfig
from pelton.core.kv_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from pelton.layers.linear import Linear
from pelton.layers.parameter import Parameter
from pelton.layers.rotary import Rotation
from pelton.layers.target import Target
from pelton.ops import KVCacheLayer, QKNorm, Recorder, Value


@dataclass(frozen=True)
class AttentionInputs:
    """What an attention layer needs to know of the step."""

    query_start: Value
    """[R + 1] int32: request r owns tokens [query_start[r], query_start[r + 1])."""
    seq_lens: Value
    """[R] int32, including this step's tokens."""
    slot_mapping: Value
    """[T] int64: where each token's key and value go, in the layer's group."""
    block_table: Value
    """[R, max_blocks] int32, of the layer's group."""


class Attention:
    """Grouped-query attention with rotary positions over a paged KV cache.

    With `qk_norm`, each head of queries and keys is normalised before it is rotated (Henry et al. 2020,
    arXiv:2010.04245).
    """

    def __init__(
        self, name: str, config: DecoderConfig, target: Target, *, window: int | None, qk_norm: bool = False
    ) -> None:
        heads, kv_heads, head_size = config.num_heads, config.num_kv_heads, config.head_size
        q_size, kv_size = heads * head_size, kv_heads * head_size
        parts = [(f"{name}.q", q_size), (f"{name}.k", kv_size), (f"{name}.v", kv_size)]
        self._qkv = Linear(parts, config.hidden_size, target, bias=config.attention_bias)
        self._norms = [Parameter(f"{name}.{part}_norm", (head_size,)) for part in "qk"] if qk_norm else []
        self._output = Linear([(f"{name}.o", config.hidden_size)], q_size, target, bias=config.attention_output_bias)
        self._config = config
        self.window = window
        self._out_dtype = target.activation_dtype
        shape = target.block_size, kv_heads, head_size, target.kv_cache_dtype
        self.kv_spec: KVCacheSpec = (
            FullAttentionSpec(*shape) if window is None else SlidingWindowSpec(*shape, window=window)
        )
        self.kv_cache = _kv_cache(name, self.kv_spec)

    def parameters(self) -> Iterator[Parameter]:
        yield from self._qkv.parameters()
        yield from self._norms
        yield from self._output.parameters()

    def __call__(
        self, op: Recorder, x: Value, inputs: AttentionInputs, rotation: Rotation, residual: Value | None = None
    ) -> Value:
        """x [T, E] -> what the tokens attended to, plus the residual [T, E]."""
        norms = None
        if self._norms:
            q_norm, k_norm = self._norms
            norms = QKNorm(q_norm.array, k_norm.array, self._config.rms_norm_eps)
        qkv = self._qkv(op, x)
        q = op.rope_and_cache(qkv, rotation.cos, rotation.sin, inputs.slot_mapping, self.kv_cache, norms)
        attended = op.attention(
            q,
            self.kv_cache,
            inputs.block_table,
            inputs.query_start,
            inputs.seq_lens,
            scale=self._config.attention_scale,
            window=self.window,
            softcap=self._config.attention_softcap,
            out_dtype=self._out_dtype,
        )
        return self._output(op, attended, residual)


def _kv_cache(name: str, spec: KVCacheSpec) -> KVCacheLayer:
    """The operators' handle of a layer with this spec."""
    return KVCacheLayer(
        name,
        num_kv_heads=spec.num_kv_heads,
        block_size=spec.block_size,
        head_size=spec.head_size,
        dtype=spec.dtype,
    )
