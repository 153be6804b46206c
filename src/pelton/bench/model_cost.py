"""What a decode step of a model has to read and to compute, counted from its recorded programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pelton.config import SamplingConfig
from pelton.core.kv_spec import DTYPE_BYTES
from pelton.models import Model, record_backbone
from pelton.ops import KVCacheLayer, PackedLinear
from pelton.ops.operators import ATTENTION, EMBED
from pelton.ops.program import Launch
from pelton.sampling import record_head


@dataclass
class ModelCost:
    """What is small beside it is left out: activations, norms, rotary angles, and sampling."""

    context: int
    """Tokens of each request behind the one that is computed."""
    weight_bytes: dict[str, int] = field(default_factory=dict)
    """Format -> bytes of weights that every step reads, as they are packed: scales, biases and padding included.
    Of an embedding that is not the head too, only some rows are read: it does not count."""
    kv_cache_dtype: str = ""
    kv_bytes: int = 0
    """Keys and values that are read for one request; a layer with a window reads those within it."""
    product_flop: dict[str, int] = field(default_factory=dict)
    """Format of weights -> multiplications and additions for one token."""
    attention_flop: int = 0
    """Those with keys and values, for one token."""

    @property
    def weight_bytes_total(self) -> int:
        return sum(self.weight_bytes.values())


def model_cost(model: Model, context: int) -> ModelCost:
    """Of a loaded model, in a step of one token for each request, all of which are sampled from."""
    backbone = record_backbone(model, [0] * len(model.kv_specs()), 1)
    head = record_head(model, SamplingConfig())
    cost = ModelCost(context)
    seen: set[int] = set()
    for launch in (*backbone.launches, *head.launches):
        if launch.operator is ATTENTION:
            _add_attention(cost, launch)
        elif launch.operator is not EMBED:
            _add_products(cost, launch.arguments, seen)
    return cost


def _add_products(cost: ModelCost, arguments: Sequence[object], seen: set[int]) -> None:
    """A weight that several launches use is read by each, but from memory once: it is the caches' business."""
    for weight in arguments:
        if isinstance(weight, PackedLinear):
            flop = 2 * weight.num_rows * weight.in_features
            cost.product_flop[weight.format] = cost.product_flop.get(weight.format, 0) + flop
            if id(weight.array) not in seen:
                seen.add(id(weight.array))
                cost.weight_bytes[weight.format] = cost.weight_bytes.get(weight.format, 0) + _num_bytes(weight)


def _num_bytes(weight: PackedLinear) -> int:
    parts = (weight.array, weight.scales, weight.minimums, weight.bias)
    return sum(part.nbytes for part in parts if part is not None)


def _add_attention(cost: ModelCost, launch: Launch) -> None:
    arguments = dict(zip(launch.operator.parameters, launch.arguments, strict=False))
    cache, window = arguments["cache"], arguments["window"]
    assert isinstance(cache, KVCacheLayer)
    num_seen = cost.context + 1
    if window is not None:
        assert isinstance(window, int)
        num_seen = min(num_seen, window)
    (query_size,) = (size for size in launch.outputs[0].shape[1:] if isinstance(size, int))
    cost.kv_cache_dtype = cache.dtype
    cost.kv_bytes += 2 * cache.num_kv_heads * cache.head_size * DTYPE_BYTES[cache.dtype] * num_seen
    cost.attention_flop += 4 * query_size * num_seen
