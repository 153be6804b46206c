"""The operator set: shapes, references, generators and tolerances, in one table.

Shape inference works on value handles and on arrays alike.
"""

from pelton.ops import generators, reference
from pelton.ops.dims import Dim, Shape, mask_words, shape_str
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.logits_hook import LogitsHook
from pelton.ops.operator import ArraySpec, Operator, Shaped, Tolerance
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.qk_norm import QKNorm

Specs = tuple[ArraySpec, ...]

_EXACT = {"fp32": Tolerance(0.0, 0.0, "copies, or integers that follow from comparisons")}
_ELEMENTWISE = {"fp32": Tolerance(4e-6, 1e-6, "some ten roundings and one exp of a few ulp, 2**-23 each")}
_LINEAR = {
    "fp32": Tolerance(1e-5, 1e-4, "up to 576 products of order 1: sums up to 64, rounded by 2**-18, sqrt(576) times")
}
_ATTENTION = {
    "fp32": Tolerance(
        1e-5, 1e-5, "scores of order 10 err by some 1e-6, so do the weights, relatively; values are averaged"
    )
}
_EDITED = {"fp32": Tolerance(1e-6, 1e-5, "up to four roundings of numbers below 100, which may cancel each other")}


def _expect(name: str, value: Shaped, shape: Shape, dtype: str = "float32") -> None:
    if value.shape != shape or value.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} {shape_str(shape)}, got {value.dtype} {shape_str(value.shape)}")


def _expect_matrix(name: str, value: Shaped) -> tuple[Dim | int, int]:
    if len(value.shape) != 2 or not isinstance(value.shape[1], int) or value.dtype != "float32":
        raise ValueError(f"{name} must be a float32 matrix, got {value.dtype} {shape_str(value.shape)}")
    return value.shape[0], value.shape[1]


def _embed(token_ids: Shaped, table: Shaped, scale: float) -> Specs:
    _, hidden = _expect_matrix("table", table)
    _expect("token_ids", token_ids, token_ids.shape[:1], "int32")
    return (ArraySpec("x", (token_ids.shape[0], hidden)),)


def _rms_norm(x: Shaped, weight: Shaped, eps: float, residual: Shaped | None) -> Specs:
    rows, hidden = _expect_matrix("x", x)
    _expect("weight", weight, (hidden,))
    if residual is not None:
        _expect("residual", residual, (rows, hidden))
    return (ArraySpec("normed", (rows, hidden)),)


def _linear(x: Shaped, weight: PackedLinear, residual: Shaped | None) -> Specs:
    rows, _ = _expect_matrix("x", x)
    _expect("x", x, (rows, weight.in_features))
    if residual is not None:
        _expect("residual", residual, (rows, weight.out_features))
    return (ArraySpec("y", (rows, weight.out_features)),)


def _gated_activation(gate_up: Shaped, activation: str) -> Specs:
    rows, size = _expect_matrix("gate_up", gate_up)
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(reference.ACTIVATIONS)}, got {activation!r}")
    if size % 2:
        raise ValueError(f"gate_up must have an even number of columns, got {size}")
    return (ArraySpec("activated", (rows, size // 2)),)


def _rotary(positions: Shaped, frequencies: Shaped, factor: float) -> Specs:
    rows = positions.shape[0]
    _expect("positions", positions, (rows,), "int32")
    _expect("frequencies", frequencies, frequencies.shape[:1])
    shape = (rows, frequencies.shape[0])
    return (ArraySpec("cos", shape), ArraySpec("sin", shape))


def _rope_and_cache(
    qkv: Shaped,
    cos: Shaped,
    sin: Shaped,
    slot_mapping: Shaped,
    cache: KVCacheLayer,
    norms: QKNorm | None,
) -> Specs:
    rows, size = _expect_matrix("qkv", qkv)
    q_size = size - 2 * cache.num_kv_heads * cache.head_size
    if q_size <= 0 or q_size % (cache.num_kv_heads * cache.head_size):
        raise ValueError(f"qkv has {size} columns, which do not fit the cache of {cache.name}")
    _expect("cos", cos, (rows, cache.head_size // 2))
    _expect("sin", sin, cos.shape)
    _expect("slot_mapping", slot_mapping, (rows,), "int64")
    if norms is not None:
        _expect("norms.q", norms.q, (cache.head_size,))
        _expect("norms.k", norms.k, (cache.head_size,))
    return (ArraySpec("q", (rows, q_size)),)


def _attention(
    q: Shaped,
    cache: KVCacheLayer,
    block_table: Shaped,
    query_start: Shaped,
    seq_lens: Shaped,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Specs:
    rows, size = _expect_matrix("q", q)
    if size % (cache.num_kv_heads * cache.head_size):
        raise ValueError(f"q has {size} columns, which do not fit the cache of {cache.name}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    requests = seq_lens.shape[0]
    _expect("seq_lens", seq_lens, (requests,), "int32")
    _expect("query_start", query_start, (requests + 1,), "int32")
    _expect("block_table", block_table, (requests, block_table.shape[-1]), "int32")
    return (ArraySpec("attended", (rows, size)),)


def _gather_rows(x: Shaped, rows: Shaped) -> Specs:
    _, hidden = _expect_matrix("x", x)
    _expect("rows", rows, rows.shape[:1], "int32")
    return (ArraySpec("gathered", (rows.shape[0], hidden)),)


def _softcap(x: Shaped, cap: float) -> Specs:
    return (ArraySpec("capped", _expect_matrix("x", x)),)


def _process_logits(logits: Shaped, rows: Shaped, hook: LogitsHook) -> Specs:
    _, vocab_size = _expect_matrix("logits", logits)
    _expect("rows", rows, rows.shape[:1], "int32")
    return (ArraySpec("processed", (rows.shape[0], vocab_size)),)


def _edit_logits(
    logits: Shaped,
    rows: Shaped | None,
    mask_index: Shaped,
    masks: Shaped,
    bias_start: Shaped,
    bias_ids: Shaped,
    bias: Shaped,
    penalty_start: Shaped,
    penalty_ids: Shaped,
    penalty_counts: Shaped,
    penalties: Shaped,
) -> Specs:
    _, vocab_size = _expect_matrix("logits", logits)
    num_edited = (logits if rows is None else rows).shape[0]
    if rows is not None:
        _expect("rows", rows, (num_edited,), "int32")
    _expect("mask_index", mask_index, (num_edited,), "int32")
    _expect("masks", masks, (masks.shape[0], mask_words(vocab_size)), "uint32")
    _expect("bias_start", bias_start, (num_edited + 1,), "int32")
    _expect("bias_ids", bias_ids, bias_ids.shape[:1], "int32")
    _expect("bias", bias, bias_ids.shape)
    _expect("penalty_start", penalty_start, (num_edited + 1,), "int32")
    _expect("penalty_ids", penalty_ids, penalty_ids.shape[:1], "int32")
    _expect("penalty_counts", penalty_counts, penalty_ids.shape, "int32")
    _expect("penalties", penalties, (num_edited, 3))
    return (ArraySpec("edited", (num_edited, vocab_size)),)


def _sample(
    logits: Shaped,
    edited: Shaped,
    edited_index: Shaped,
    warpers: Shaped,
    seed: Shaped,
    choice: Shaped,
    position: Shaped,
) -> Specs:
    rows, _ = _expect_warped(logits, edited, edited_index, warpers)
    _expect("seed", seed, (rows,), "uint64")
    _expect("choice", choice, (rows,), "int32")
    _expect("position", position, (rows,), "int32")
    return (ArraySpec("token_ids", (rows,), "int32"),)


def _warp_logits(logits: Shaped, edited: Shaped, edited_index: Shaped, warpers: Shaped) -> Specs:
    return (ArraySpec("warped", _expect_warped(logits, edited, edited_index, warpers)),)


def _expect_warped(logits: Shaped, edited: Shaped, edited_index: Shaped, warpers: Shaped) -> tuple[Dim | int, int]:
    """Rows with their warpers. -> shape of the logits."""
    rows, vocab_size = _expect_matrix("logits", logits)
    _expect("edited", edited, (edited.shape[0], vocab_size))
    _expect("edited_index", edited_index, (rows,), "int32")
    _expect("warpers", warpers, (rows, 4))
    return rows, vocab_size


def _logprobs(logits: Shaped, token_ids: Shaped, num_logprobs: Shaped, max_logprobs: int, normalize: bool) -> Specs:
    rows, vocab_size = _expect_matrix("logits", logits)
    _expect("token_ids", token_ids, (rows,), "int32")
    _expect("num_logprobs", num_logprobs, (rows,), "int32")
    if not 0 <= max_logprobs <= vocab_size:
        raise ValueError(f"max_logprobs must be within 0 and V = {vocab_size}, got {max_logprobs}")
    return (
        ArraySpec("sampled_logprob", (rows,)),
        ArraySpec("rank", (rows,), "int32"),
        ArraySpec("top_ids", (rows, max_logprobs), "int32"),
        ArraySpec("top_logprobs", (rows, max_logprobs)),
    )


EMBED = Operator("embed", _embed, reference.embed, generators.embed, _EXACT)
RMS_NORM = Operator("rms_norm", _rms_norm, reference.rms_norm, generators.rms_norm, _ELEMENTWISE)
LINEAR = Operator("linear", _linear, reference.linear, generators.linear, _LINEAR)
GATED_ACTIVATION = Operator(
    "gated_activation",
    _gated_activation,
    reference.gated_activation,
    generators.gated_activation,
    _ELEMENTWISE,
)
ROTARY = Operator("rotary", _rotary, reference.rotary, generators.rotary, _ELEMENTWISE)
ROPE_AND_CACHE = Operator(
    "rope_and_cache", _rope_and_cache, reference.rope_and_cache, generators.rope_and_cache, _ELEMENTWISE
)
ATTENTION = Operator("attention", _attention, reference.attention, generators.attention, _ATTENTION)
GATHER_ROWS = Operator("gather_rows", _gather_rows, reference.gather_rows, generators.gather_rows, _EXACT)
SOFTCAP = Operator("softcap", _softcap, reference.softcap, generators.softcap, _ELEMENTWISE)
PROCESS_LOGITS = Operator(
    "process_logits", _process_logits, reference.process_logits, generators.process_logits, _EXACT
)
EDIT_LOGITS = Operator("edit_logits", _edit_logits, reference.edit_logits, generators.edit_logits, _EDITED)
SAMPLE = Operator("sample", _sample, reference.sample, generators.sample, _EXACT)
WARP_LOGITS = Operator("warp_logits", _warp_logits, reference.warp_logits, generators.warp_logits, _ELEMENTWISE)
LOGPROBS = Operator("logprobs", _logprobs, reference.logprobs, generators.logprobs, _ELEMENTWISE)

OPERATORS = (
    EMBED,
    RMS_NORM,
    LINEAR,
    GATED_ACTIVATION,
    ROTARY,
    ROPE_AND_CACHE,
    ATTENTION,
    GATHER_ROWS,
    SOFTCAP,
    PROCESS_LOGITS,
    EDIT_LOGITS,
    SAMPLE,
    WARP_LOGITS,
    LOGPROBS,
)
