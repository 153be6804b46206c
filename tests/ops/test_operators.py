"""Every operator's reference against a plain computation in float64, over its own generated arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pelton.ops import Dim, L, R, T
from pelton.ops.operator import Operator
from pelton.ops.operators import OPERATORS
from pelton.ops.reference.philox import Purpose, uniform

SIZES: list[dict[Dim, int]] = [
    {T: 1, R: 1, L: 1},
    {T: 2, R: 2, L: 1},
    {T: 17, R: 5, L: 3},
    {T: 64, R: 1, L: 7},
    {T: 151, R: 3, L: 33},
]


def exact(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).double()


def embed(token_ids: Any, table: Any, scale: float) -> list[Any]:
    return [[table[i] * np.float32(scale) for i in token_ids.tolist()]]


def rms_norm(x: Any, weight: Any, eps: float, residual: Any) -> list[Any]:
    normed = torch.nn.functional.rms_norm(exact(x), weight.shape, exact(weight), eps)
    return [normed if residual is None else normed + exact(residual)]


def linear(x: Any, weight: Any, residual: Any) -> list[Any]:
    y = torch.einsum("tk,nk->tn", exact(x), exact(weight.array))
    if weight.bias is not None:
        y += exact(weight.bias)
    return [y if residual is None else y + exact(residual)]


def gated_activation(gate_up: Any, activation: str) -> list[Any]:
    gate, up = exact(gate_up).chunk(2, dim=-1)
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
    for t, slot in enumerate(slots.tolist()):
        stored = cache.array[slot // cache.block_size, :, :, slot % cache.block_size]
        np.testing.assert_allclose(stored[0], rotated[t, -2 * k : -k], rtol=4e-6, atol=1e-6)
        np.testing.assert_array_equal(stored[1], heads[t, -k:].float())
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


def softcap(x: Any, cap: float) -> list[Any]:
    return [cap * torch.tanh(exact(x) / cap)]


def sample(logits: Any, temperature: Any, top_k: Any, top_p: Any, seed: Any, choice: Any, position: Any) -> list[Any]:
    """By sorting: the tokens in order of likelihood, cut, then walked through in order of id."""
    draws = uniform(seed, choice, position, Purpose.SAMPLE)
    tokens = []
    for row in range(len(logits)):
        order = sorted(range(logits.shape[1]), key=lambda i: (-logits[row, i], i))
        if temperature[row] == 0.0:
            tokens.append(order[0])
            continue
        if 0 < top_k[row] < len(order):
            order = order[: top_k[row]]
        best = float(logits[row, order[0]])
        weights = {i: np.exp((float(logits[row, i]) - best) / float(temperature[row])) for i in order}
        mass, kept = 0.0, []
        for i in order:
            kept.append(i)
            mass += weights[i]
            if mass >= float(top_p[row]) * sum(weights.values()):
                break
        left = draws[row] * mass
        for i in sorted(kept):
            left -= weights[i]
            if left < 0.0:
                break
        tokens.append(i)
    return [tokens]


def logprobs(logits: Any, token_ids: Any, num_logprobs: Any, max_logprobs: int) -> list[Any]:
    rows = len(logits)
    sampled, rank = np.zeros(rows), np.zeros(rows)
    top_ids, top = np.zeros((rows, max_logprobs)), np.zeros((rows, max_logprobs))
    for row, count in enumerate(num_logprobs.tolist()):
        if count < 0:
            continue
        all_logprobs = torch.log_softmax(exact(logits[row]), dim=0).tolist()
        order = sorted(range(len(all_logprobs)), key=lambda i: (-logits[row, i], i))
        sampled[row] = all_logprobs[token_ids[row]]
        rank[row] = 1 + sum(x > logits[row, token_ids[row]] for x in logits[row])
        top_ids[row, :count] = order[:count]
        top[row, :count] = [all_logprobs[i] for i in order[:count]]
    return [sampled, rank, top_ids, top]


EXPECTED: dict[str, Callable[..., list[Any]]] = {
    f.__name__: f
    for f in (
        embed,
        rms_norm,
        linear,
        gated_activation,
        rotary,
        rope_and_cache,
        attention,
        gather_rows,
        softcap,
        sample,
        logprobs,
    )
}


def test_every_operator_has_an_independent_computation() -> None:
    assert sorted(EXPECTED) == sorted(operator.name for operator in OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_reference_is_within_tolerance(operator: Operator, sizes: dict[Dim, int]) -> None:
    tolerance = operator.tolerances["fp32"]
    for seed in range(6):
        arguments = operator.generate(np.random.default_rng(seed), sizes)
        specs = operator.infer(*arguments)
        outputs = [np.full(spec.shape, 99, spec.dtype) for spec in specs]
        operator.reference(*arguments, *outputs)
        for spec, output, expected in zip(specs, outputs, EXPECTED[operator.name](*arguments), strict=True):
            np.testing.assert_allclose(
                output, np.asarray(expected), tolerance.rtol, tolerance.atol, err_msg=f"{spec.name}, {seed}"
            )


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_tolerances_say_why(operator: Operator) -> None:
    assert all(tolerance.reason for tolerance in operator.tolerances.values())
