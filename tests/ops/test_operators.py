"""Every operator's reference against a plain computation in float64, over its own generated arguments."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pelton.ops import INVALID_LOGITS, NO_CANDIDATE, B, C, Dim, L, M, P, PackedLinear, R, T
from pelton.ops.operator import Operator
from pelton.ops.operators import OPERATORS
from pelton.ops.reference.philox import Purpose, uniform

SIZES: list[dict[Dim, int]] = [
    {T: 1, R: 1, L: 1, C: 0, M: 0, B: 0, P: 0},
    {T: 2, R: 2, L: 1, C: 1, M: 1, B: 0, P: 3},
    {T: 17, R: 5, L: 3, C: 3, M: 2, B: 9, P: 0},
    {T: 64, R: 1, L: 7, C: 5, M: 0, B: 40, P: 60},
    {T: 151, R: 3, L: 33, C: 20, M: 3, B: 70, P: 500},
]


def exact(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))


def product(x: Any, weight: Any) -> torch.Tensor:
    if weight.format in ("int8", "int4"):
        y = integer_product(x, weight)
    else:
        y = torch.einsum("tk,nk->tn", exact(x), exact(weight.array))
    return y if weight.bias is None else y + exact(weight.bias)


def integer_product(x: Any, weight: Any) -> torch.Tensor:
    """Group by group and input row by input row."""
    size = {"int8": 64, "int4": 32}[weight.format]
    y = torch.zeros(len(x), weight.num_rows, dtype=torch.float64)
    for t, row in enumerate(x.astype(np.float32)):
        for start in range(0, len(row), size):
            group = row[start : start + size]
            amax = np.abs(group).max()
            if not np.isfinite(amax):
                y[t] = np.nan
                continue
            values = [round(float(element * (np.float32(127) / amax))) for element in group]
            dots = weight.array[:, start : start + size].astype(np.int64) @ np.array(values)
            sums = exact(dots) * exact(weight.scales[:, start // size])
            if weight.minimums is not None:
                sums += exact(weight.minimums[:, start // size]) * sum(values)
            y[t] += sums * float(amax) / 127
    return y


def embed(token_ids: Any, table: Any, scale: float) -> list[Any]:
    rows = []
    for i in token_ids.tolist():
        row = table.array[i].astype(np.float32)
        if table.format == "int8":
            row = row.astype(np.float64) * np.repeat(table.scales[i], 64)[: len(row)]
        elif table.format == "int4":
            scales, minimums = (np.repeat(a[i].astype(np.float64), 32) for a in (table.scales, table.minimums))
            row = row * scales[: len(row)] + minimums[: len(row)]
        rows.append(row * row.dtype.type(scale))
    return [rows]


def rms_norm(x: Any, weight: Any, eps: float, residual: Any, out_dtype: str) -> list[Any]:
    normed = torch.nn.functional.rms_norm(exact(x), weight.shape, exact(weight), eps)
    return [normed if residual is None else normed + exact(residual)]


def linear(x: Any, weight: Any, residual: Any) -> list[Any]:
    y = product(x, weight)
    return [y if residual is None else y + exact(residual)]


def gated_linear(x: Any, weight: Any, activation: str) -> list[Any]:
    gate, up = product(x, weight).chunk(2, dim=-1)
    if activation == "gelu_tanh":
        return [torch.nn.functional.gelu(gate, approximate="tanh") * up]
    return [torch.nn.functional.silu(gate) * up]


def rotary(positions: Any, frequencies: Any, factor: float) -> list[Any]:
    angles = exact(positions.astype(np.float32)[:, None] * frequencies)  # rounded to float32, as told
    return [torch.cos(angles) * factor, torch.sin(angles) * factor]


def rope_and_cache(qkv: Any, cos: Any, sin: Any, slots: Any, cache: Any, norms: Any) -> list[Any]:
    """As complex numbers: dimension i is the real part, i + D / 2 the imaginary one."""
    k, d = cache.num_kv_heads, cache.head_size
    heads = exact(qkv).reshape(len(qkv), -1, d)
    straight = heads.clone()
    if norms is not None:
        straight[:, : -2 * k] = torch.nn.functional.rms_norm(heads[:, : -2 * k], (d,), exact(norms.q), norms.eps)
        straight[:, -2 * k : -k] = torch.nn.functional.rms_norm(heads[:, -2 * k : -k], (d,), exact(norms.k), norms.eps)
    rotation = torch.complex(exact(cos), exact(sin))[:, None]
    turned = torch.complex(straight[..., : d // 2], straight[..., d // 2 :]) * rotation
    rotated = torch.cat([turned.real, turned.imag], dim=-1)
    rtol = 2.0**-8 if cache.dtype == "bfloat16" else 4e-6
    for t, slot in enumerate(slots.tolist()):
        stored = cache.array[slot // cache.block_size, :, :, slot % cache.block_size]
        np.testing.assert_allclose(exact(stored[0]), rotated[t, -2 * k : -k], rtol=rtol, atol=1e-6)
        values = qkv[t].reshape(-1, d)[-k:].astype(cache.dtype)
        np.testing.assert_array_equal(stored[1].astype(np.float32), values.astype(np.float32))
    assert np.isfinite(cache.array).sum() == 2 * k * d * len(slots), "other slots were written"
    return [rotated[:, : -2 * k].flatten(1)]


def attention(
    q: Any,
    cache: Any,
    table: Any,
    query_start: Any,
    seq_lens: Any,
    scale: float,
    window: int | None,
    softcap: float | None,
    out_dtype: str,
) -> list[Any]:
    """Query by query, over gathered keys."""
    queries = exact(q).reshape(len(q), -1, cache.head_size)
    group = queries.shape[1] // cache.num_kv_heads
    out = torch.empty_like(queries)
    for r, seq_len in enumerate(seq_lens.tolist()):
        start, stop = query_start[r : r + 2].tolist()
        for t in range(start, stop):
            position = seq_len - stop + t
            low = 0 if window is None else max(0, position - window + 1)
            seen = np.arange(low, position + 1)
            blocks, offsets = table[r, seen // cache.block_size], seen % cache.block_size
            for h in range(queries.shape[1]):
                keys, values = exact(cache.array[blocks, :, h // group, offsets]).unbind(1)
                scores = keys @ queries[t, h] * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = torch.softmax(scores, dim=0)
                out[t, h] = weights @ values
    return [out.flatten(1)]


def gather_rows(x: Any, rows: Any) -> list[Any]:
    return [[x[i] for i in rows.tolist()]]


def logits(x: Any, weight: Any, softcap: float | None, is_wanted: Any) -> list[Any]:
    scores = product(x, weight)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    best = []
    for row in scores.tolist():
        if any(math.isnan(score) or score == math.inf for score in row):
            best.append(INVALID_LOGITS)
        else:
            best.append(NO_CANDIDATE if max(row) == -math.inf else row.index(max(row)))
    return [scores, best]


def process_logits(logits: Any, edit_index: Any, hook: Any) -> list[Any]:
    return [logits + edit_index[:, None].astype(np.float32)]


def edit_logits(
    logits: Any,
    edit_index: Any,
    mask_index: Any,
    masks: Any,
    bias_start: Any,
    bias_ids: Any,
    bias: Any,
    penalty_start: Any,
    penalty_ids: Any,
    penalty_counts: Any,
    penalties: Any,
) -> list[Any]:
    """Entry by entry, with the masks as Python's integers."""
    edited = np.full(logits.shape, 77.0)
    for row, e in enumerate(edit_index.tolist()):
        if e < 0:
            continue
        scores = logits[row].astype(np.float64)
        if np.isnan(scores).any() or np.inf in scores:
            edited[row] = np.nan
            continue
        if mask_index[e] >= 0:
            bits = sum(word << 32 * i for i, word in enumerate(masks[mask_index[e]].tolist()))
            scores = np.array([score if bits >> v & 1 else -np.inf for v, score in enumerate(scores)])
        for i in range(bias_start[e], bias_start[e + 1]):
            scores[bias_ids[i]] += bias[i]
        repetition, frequency, presence = penalties[e].tolist()
        for i in range(penalty_start[e], penalty_start[e + 1]):
            score, count = scores[penalty_ids[i]], penalty_counts[i]
            score = score / repetition if score > 0 else score * repetition
            scores[penalty_ids[i]] = score - frequency * count - presence * (count > 0)
        edited[row] = scores
    return [edited]


def chosen_rows(logits: Any, edited: Any, edit_index: Any) -> list[Any]:
    return [logits[row] if index == -1 else edited[row] for row, index in enumerate(edit_index.tolist())]


def is_broken(scores: Any) -> bool:
    return bool(np.isnan(scores).any() or np.isposinf(scores).any() or np.isneginf(scores).all())


def weights_of_candidates(scores: Any, warpers: Any) -> dict[int, float]:
    """By sorting: the tokens in order of likelihood, cut after top-k, min-p and top-p."""
    temperature, top_k, top_p, min_p = warpers
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if 0 < top_k < len(order):
        order = [i for i in order if scores[i] >= scores[order[int(top_k) - 1]]]
    weights = {i: np.exp((float(scores[i]) - float(scores[order[0]])) / float(temperature)) for i in order}
    weights = {i: weight for i, weight in weights.items() if weight >= float(min_p)}
    mass, kept = 0.0, {}
    for i, weight in weights.items():
        kept[i] = weight
        mass += weight
        if top_p < 1.0 and mass >= float(top_p) * sum(weights.values()):
            break
    return kept


def sample(
    logits: Any,
    best_ids: Any,
    edited: Any,
    edit_index: Any,
    warpers: Any,
    seed: Any,
    choice: Any,
    position: Any,
) -> list[Any]:
    """The candidates are walked through in order of id."""
    draws = uniform(seed, choice, position, Purpose.SAMPLE)
    tokens = []
    for row, scores in enumerate(chosen_rows(logits, edited, edit_index)):
        if edit_index[row] < 0 and warpers[row, 0] == 0.0:
            tokens.append(best_ids[row])
            continue
        if is_broken(scores):
            tokens.append(NO_CANDIDATE if np.isneginf(scores).all() else INVALID_LOGITS)
            continue
        if warpers[row, 0] == 0.0:
            tokens.append(scores.tolist().index(max(scores)))
            continue
        weights = weights_of_candidates(scores, warpers[row])
        left = draws[row] * sum(weights.values())
        for i in sorted(weights):
            left -= weights[i]
            if left < 0.0:
                break
        tokens.append(i)
    return [tokens]


def warp_logits(logits: Any, edited: Any, edit_index: Any, warpers: Any, num_logprobs: Any) -> list[Any]:
    warped = []
    for row, scores in enumerate(chosen_rows(logits, edited, edit_index)):
        if num_logprobs[row] < 0 or warpers[row, 0] == 0.0 or is_broken(scores):
            warped.append(scores)
            continue
        kept = weights_of_candidates(scores, warpers[row])
        quotients = scores.astype(np.float64) / float(warpers[row, 0])
        warped.append([quotient if i in kept else -np.inf for i, quotient in enumerate(quotients)])
    return [warped]


def logprobs(logits: Any, token_ids: Any, num_logprobs: Any, max_logprobs: int, normalize: bool) -> list[Any]:
    rows = len(logits)
    sampled, rank = np.zeros(rows), np.zeros(rows)
    top_ids, top = np.zeros((rows, max_logprobs)), np.zeros((rows, max_logprobs))
    for row, count in enumerate(num_logprobs.tolist()):
        if count < 0 or token_ids[row] < 0:
            continue
        if is_broken(logits[row]):
            sampled[row] = np.nan
            continue
        scores = exact(logits[row])
        scores = (torch.log_softmax(scores, dim=0) if normalize else scores).tolist()
        order = sorted(range(len(scores)), key=lambda i: (-logits[row, i], i))
        sampled[row] = scores[token_ids[row]]
        rank[row] = 1 + sum(x > logits[row, token_ids[row]] for x in logits[row])
        top_ids[row, :count] = order[:count]
        top[row, :count] = [scores[i] for i in order[:count]]
    return [sampled, rank, top_ids, top]


EXPECTED: dict[str, Callable[..., list[Any]]] = {
    f.__name__: f
    for f in (
        embed,
        rms_norm,
        linear,
        gated_linear,
        rotary,
        rope_and_cache,
        attention,
        gather_rows,
        logits,
        process_logits,
        edit_logits,
        sample,
        warp_logits,
        logprobs,
    )
}


def test_every_operator_has_an_independent_computation() -> None:
    assert sorted(EXPECTED) == sorted(operator.name for operator in OPERATORS)


@pytest.mark.parametrize(("operator", "weight_format"), [(op, f) for op in OPERATORS for f in op.formats], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_reference_is_within_tolerance(operator: Operator, weight_format: str, sizes: dict[Dim, int]) -> None:
    tolerance = operator.tolerances[weight_format]
    for seed in range(6):
        arguments = operator.generate(np.random.default_rng(seed), sizes, weight_format)
        specs = operator.infer(*arguments)
        outputs = [np.full(spec.shape, 99, spec.dtype) for spec in specs]
        operator.reference(*arguments, *outputs)
        expected = [np.asarray(array) for array in EXPECTED[operator.name](*arguments)]
        with np.errstate(all="raise", under="ignore"):
            operator.check(arguments, expected, outputs, tolerance)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_generated_arguments_have_the_formats_dtypes(operator: Operator) -> None:
    for weight_format in operator.formats:
        for seed in range(6):
            arguments = operator.generate(np.random.default_rng(seed), SIZES[2], weight_format)
            weights = [argument for argument in arguments if isinstance(argument, PackedLinear)]
            assert all((weight.format, weight.layout) == (weight_format, "rows") for weight in weights)
            arrays = [array for array in arguments if isinstance(array, np.ndarray)]
            is_half = "bfloat16" in [
                *(str(array.dtype) for array in arrays),
                *(spec.dtype for spec in operator.infer(*arguments)),
            ]
            assert is_half == (weight_format != "fp32" and operator.name != "embed")


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_tolerances_say_why(operator: Operator) -> None:
    assert "fp32" in operator.formats
    assert all(tolerance.reason for tolerance in operator.tolerances.values())
