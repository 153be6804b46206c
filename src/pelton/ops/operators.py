"""The operator set: shapes, references, generators and tolerances, in one table.

Shape inference works on value handles and on arrays alike.
"""

from pelton.ops import comparison, reference
from pelton.ops.dims import Dim, Shape, mask_words, shape_str
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.logits_hook import LogitsHook
from pelton.ops.operator import ArraySpec, Operator, Shaped, Tolerance
from pelton.ops.packed_linear import FORMATS, PackedLinear
from pelton.ops.qk_norm import QKNorm

Specs = tuple[ArraySpec, ...]

_FLOATS = ("float32", "bfloat16")
_HALF_ULP = 2.0**-8
"""Of bfloat16, which has 8 significant bits: the most that rounding a number to it changes it by, relatively."""
_EXACT = Tolerance(0.0, 0.0, "copies, or integers that follow from comparisons")
_ELEMENTWISE = Tolerance(4e-6, 1e-6, "some ten roundings and one exp of a few ulp, 2**-23 each")
_LINEAR = Tolerance(1e-5, 1e-4, "up to 576 products of order 1: sums up to 64, rounded by 2**-18, sqrt(576) times")
_GATED = Tolerance(1e-5, 5e-5, "576 products that sum to order 1, rounded by 2**-24, times factors of order 10")
_ATTENTION = Tolerance(
    1e-5, 1e-5, "scores of order 10 err by some 1e-6, so do the weights, relatively; values are averaged"
)
_EDITED = Tolerance(1e-6, 1e-5, "up to four roundings of numbers below 100, which may cancel each other")
_LOGPROBS = Tolerance(4e-6, 4e-6, "a logit and the logarithm of a sum, up to 30, rounded by 2**-20; they may cancel")


def _rounded(tolerance: Tolerance) -> Tolerance:
    """Of float32 arithmetic whose result is rounded to bfloat16."""
    reason = f"half an ulp of bfloat16 is up to 2**-8, on top of: {tolerance.reason}"
    return Tolerance(tolerance.rtol + _HALF_ULP, tolerance.atol, reason)


_ROUNDED_ATTENTION = Tolerance(
    _HALF_ULP + 1e-5,
    5.0 * _HALF_ULP,
    "the output is rounded to bfloat16 by up to 2**-8; so are weights, all the same way at worst, of values up to 5",
)
_FP32_EXACT = {"fp32": _EXACT}
_FP32_ELEMENTWISE = {"fp32": _ELEMENTWISE}


def _expect(name: str, value: Shaped, shape: Shape, dtype: str = "float32") -> None:
    if value.shape != shape or value.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} {shape_str(shape)}, got {value.dtype} {shape_str(value.shape)}")


def _expect_matrix(name: str, value: Shaped, dtypes: tuple[str, ...] = ("float32",)) -> tuple[Dim | int, int]:
    if len(value.shape) != 2 or not isinstance(value.shape[1], int) or str(value.dtype) not in dtypes:
        kind = " or ".join(dtypes)
        raise ValueError(f"{name} must be a {kind} matrix, got {value.dtype} {shape_str(value.shape)}")
    return value.shape[0], value.shape[1]


def _expect_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _expect_weight(name: str, weight: PackedLinear, *, gated: bool) -> None:
    if weight.gated != gated:
        raise ValueError(f"{name} must {'' if gated else 'not '}be gated, got {weight}")


def _embed(token_ids: Shaped, table: PackedLinear, scale: float) -> Specs:
    _expect_weight("table", table, gated=False)
    _expect("token_ids", token_ids, token_ids.shape[:1], "int32")
    return (ArraySpec("x", (token_ids.shape[0], table.in_features)),)


def _rms_norm(x: Shaped, weight: Shaped, eps: float, residual: Shaped | None, out_dtype: str) -> Specs:
    rows, hidden = _expect_matrix("x", x)
    _expect("weight", weight, (hidden,))
    if residual is not None:
        _expect("residual", residual, (rows, hidden))
    _expect_one_of("out_dtype", out_dtype, _FLOATS)
    return (ArraySpec("normed", (rows, hidden), out_dtype),)


def _linear(x: Shaped, weight: PackedLinear, residual: Shaped | None) -> Specs:
    _expect_weight("weight", weight, gated=False)
    rows = x.shape[0]
    _expect("x", x, (rows, weight.in_features), weight.input_dtype)
    if residual is not None:
        _expect("residual", residual, (rows, weight.out_features))
    return (ArraySpec("y", (rows, weight.out_features)),)


def _gated_linear(x: Shaped, weight: PackedLinear, activation: str) -> Specs:
    _expect_one_of("activation", activation, reference.ACTIVATIONS)
    _expect_weight("weight", weight, gated=True)
    rows = x.shape[0]
    _expect("x", x, (rows, weight.in_features), weight.input_dtype)
    return (ArraySpec("activated", (rows, weight.out_features), weight.input_dtype),)


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
    return (ArraySpec("q", (rows, q_size), cache.dtype),)


def _attention(
    q: Shaped,
    cache: KVCacheLayer,
    block_table: Shaped,
    query_start: Shaped,
    seq_lens: Shaped,
    scale: float,
    window: int | None,
    softcap: float | None,
    out_dtype: str,
) -> Specs:
    rows, size = _expect_matrix("q", q, (cache.dtype,))
    if size % (cache.num_kv_heads * cache.head_size):
        raise ValueError(f"q has {size} columns, which do not fit the cache of {cache.name}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    requests = seq_lens.shape[0]
    _expect("seq_lens", seq_lens, (requests,), "int32")
    _expect("query_start", query_start, (requests + 1,), "int32")
    _expect("block_table", block_table, (requests, block_table.shape[-1]), "int32")
    _expect_one_of("out_dtype", out_dtype, _FLOATS)
    return (ArraySpec("attended", (rows, size), out_dtype),)


def _gather_rows(x: Shaped, rows: Shaped) -> Specs:
    _, hidden = _expect_matrix("x", x, _FLOATS)
    _expect("rows", rows, rows.shape[:1], "int32")
    return (ArraySpec("gathered", (rows.shape[0], hidden), str(x.dtype)),)


def _logits(x: Shaped, weight: PackedLinear, softcap: float | None, is_wanted: Shaped) -> Specs:
    _expect_weight("weight", weight, gated=False)
    rows = x.shape[0]
    _expect("x", x, (rows, weight.in_features), weight.input_dtype)
    _expect("is_wanted", is_wanted, (rows,), "int32")
    return (ArraySpec("logits", (rows, weight.out_features)), ArraySpec("best_ids", (rows,), "int32"))


def _process_logits(logits: Shaped, edit_index: Shaped, hook: LogitsHook) -> Specs:
    rows, vocab_size = _expect_matrix("logits", logits)
    _expect("edit_index", edit_index, (rows,), "int32")
    return (ArraySpec("processed", (rows, vocab_size)),)


def _edit_logits(
    logits: Shaped,
    edit_index: Shaped,
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
    rows, vocab_size = _expect_matrix("logits", logits)
    num_edits = mask_index.shape[0]
    _expect("edit_index", edit_index, (rows,), "int32")
    _expect("mask_index", mask_index, (num_edits,), "int32")
    _expect("masks", masks, (masks.shape[0], mask_words(vocab_size)), "uint32")
    _expect("bias_start", bias_start, (num_edits + 1,), "int32")
    _expect("bias_ids", bias_ids, bias_ids.shape[:1], "int32")
    _expect("bias", bias, bias_ids.shape)
    _expect("penalty_start", penalty_start, (num_edits + 1,), "int32")
    _expect("penalty_ids", penalty_ids, penalty_ids.shape[:1], "int32")
    _expect("penalty_counts", penalty_counts, penalty_ids.shape, "int32")
    _expect("penalties", penalties, (num_edits, 3))
    return (ArraySpec("edited", (rows, vocab_size)),)


def _sample(
    logits: Shaped,
    best_ids: Shaped,
    edited: Shaped,
    edit_index: Shaped,
    warpers: Shaped,
    seed: Shaped,
    choice: Shaped,
    position: Shaped,
) -> Specs:
    rows, _ = _expect_warped(logits, edited, edit_index, warpers)
    _expect("best_ids", best_ids, (rows,), "int32")
    _expect("seed", seed, (rows,), "uint64")
    _expect("choice", choice, (rows,), "int32")
    _expect("position", position, (rows,), "int32")
    return (ArraySpec("token_ids", (rows,), "int32"),)


def _warp_logits(logits: Shaped, edited: Shaped, edit_index: Shaped, warpers: Shaped, num_logprobs: Shaped) -> Specs:
    shape = _expect_warped(logits, edited, edit_index, warpers)
    _expect("num_logprobs", num_logprobs, shape[:1], "int32")
    return (ArraySpec("warped", shape),)


def _expect_warped(logits: Shaped, edited: Shaped, edit_index: Shaped, warpers: Shaped) -> tuple[Dim | int, int]:
    """Rows with their warpers. -> shape of the logits."""
    rows, vocab_size = _expect_matrix("logits", logits)
    _expect("edited", edited, (rows, vocab_size))
    _expect("edit_index", edit_index, (rows,), "int32")
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


EMBED = Operator(
    "embed",
    _embed,
    reference.embed,
    {
        "fp32": _EXACT,
        "bf16": Tolerance(0.0, 0.0, "one product of numbers that float32 has exactly"),
        "int8": Tolerance(3e-7, 0.0, "two products, rounded by 2**-24 each"),
        "int4": Tolerance(3e-7, 3e-7, "a sum of order 1 that may cancel, and a product, rounded by 2**-24 each"),
    },
)
RMS_NORM = Operator(
    "rms_norm",
    _rms_norm,
    reference.rms_norm,
    {"fp32": _ELEMENTWISE, "bf16": _rounded(_ELEMENTWISE)},
)
LINEAR = Operator("linear", _linear, reference.linear, dict.fromkeys(FORMATS, _LINEAR))
GATED_LINEAR = Operator(
    "gated_linear",
    _gated_linear,
    reference.gated_linear,
    {"fp32": _GATED, "bf16": _rounded(_GATED), "int8": _rounded(_GATED), "int4": _rounded(_GATED)},
)
ROTARY = Operator("rotary", _rotary, reference.rotary, _FP32_ELEMENTWISE)
ROPE_AND_CACHE = Operator(
    "rope_and_cache",
    _rope_and_cache,
    reference.rope_and_cache,
    {"fp32": _ELEMENTWISE, "bf16": _rounded(_ELEMENTWISE)},
)
ATTENTION = Operator(
    "attention",
    _attention,
    reference.attention,
    {"fp32": _ATTENTION, "bf16": _ROUNDED_ATTENTION},
)
GATHER_ROWS = Operator("gather_rows", _gather_rows, reference.gather_rows, {"fp32": _EXACT, "bf16": _EXACT})
LOGITS = Operator(
    "logits",
    _logits,
    reference.logits,
    dict.fromkeys(FORMATS, _LINEAR),
    lambda x, weight, softcap, is_wanted: (is_wanted != 0, None),
    comparison.compare_logits,
)
PROCESS_LOGITS = Operator(
    "process_logits",
    _process_logits,
    reference.process_logits,
    _FP32_EXACT,
    lambda logits, edit_index, hook: (edit_index >= 0,),
    is_callback=True,
)
EDIT_LOGITS = Operator(
    "edit_logits",
    _edit_logits,
    reference.edit_logits,
    {"fp32": _EDITED},
    lambda logits, edit_index, *edits: (edit_index >= 0,),
)
SAMPLE = Operator("sample", _sample, reference.sample, _FP32_EXACT, compare=comparison.compare_sampled)
WARP_LOGITS = Operator(
    "warp_logits",
    _warp_logits,
    reference.warp_logits,
    _FP32_ELEMENTWISE,
    lambda logits, edited, edit_index, warpers, num_logprobs: (num_logprobs >= 0,),
    comparison.compare_warped,
)
LOGPROBS = Operator("logprobs", _logprobs, reference.logprobs, {"fp32": _LOGPROBS})

OPERATORS = (
    EMBED,
    RMS_NORM,
    LINEAR,
    GATED_LINEAR,
    ROTARY,
    ROPE_AND_CACHE,
    ATTENTION,
    GATHER_ROWS,
    LOGITS,
    PROCESS_LOGITS,
    EDIT_LOGITS,
    SAMPLE,
    WARP_LOGITS,
    LOGPROBS,
)
