import numpy as np
import pytest

from pelton.ops import R1, Dim, KVCacheLayer, L, PackedLinear, Program, QKNorm, R, Recorder, T, pack_rows
from pelton.ops.dims import concrete


def weight(n: int, k: int, weight_format: str = "fp32", *, gated: bool = False) -> PackedLinear:
    return pack_rows([np.zeros((n, k), np.float32)], weight_format=weight_format, gated=gated)


def small_program(weight_format: str = "fp32") -> Program:
    op = Recorder("small")
    token_ids = op.input("token_ids", (T,), "int32")
    x = op.embed(token_ids, weight(10, 6, weight_format))
    normed = op.rms_norm(x, np.ones(6, np.float32), 1e-5, out_dtype=weight(1, 1, weight_format).input_dtype)
    activated = op.gated_linear(normed, weight(8, 6, weight_format, gated=True), "silu")
    return op.finish({"y": op.linear(activated, weight(6, 4, weight_format), x)})


def test_a_program_prints_itself() -> None:
    assert str(small_program()) == (
        "program small(%0 token_ids[T] int32)\n"
        "  %1 x[T, 6] = embed(%0, table[10, 6] fp32, scale=1.0)\n"
        "  %2 normed[T, 6] = rms_norm(%1, weight[6], eps=1e-05, out_dtype=float32)\n"
        "  %3 activated[T, 4] = gated_linear(%2, weight[8, 6] fp32 gated, activation=silu)\n"
        "  %4 y[T, 6] = linear(%3, weight[6, 4] fp32, %1)\n"
        "  return y=%4"
    )


def test_dtypes_other_than_float32_are_shown() -> None:
    lines = str(small_program("bf16")).splitlines()
    assert lines[1] == "  %1 x[T, 6] = embed(%0, table[10, 6] bf16, scale=1.0)"
    assert lines[2].startswith("  %2 normed[T, 6] bfloat16 = rms_norm(%1, ")
    assert lines[3] == "  %3 activated[T, 4] bfloat16 = gated_linear(%2, weight[8, 6] bf16 gated, activation=silu)"


def test_dimensions() -> None:
    assert R1 == R + 1 == Dim("R", 1)
    assert str(R1) == "R+1"
    assert concrete((T, 4, R1), {T: 5, R: 2}) == (5, 4, 3)
    assert small_program().dims == (T,)


def test_recording_names_what_does_not_fit() -> None:
    op = Recorder("bad")
    x = op.input("x", (T, 4))
    half = op.input("half", (T, 4), "bfloat16")
    rows = op.input("rows", (L, 4))
    ids = op.input("ids", (L,), "int64")
    with pytest.raises(ValueError, match=r"bad, launch 0, rms_norm: weight must be float32 \[4\], got"):
        op.rms_norm(x, np.ones(5, np.float32), 1e-5)
    with pytest.raises(ValueError, match="x must be a float32 matrix, got bfloat16"):
        op.rms_norm(half, np.ones(4, np.float32), 1e-5)
    with pytest.raises(ValueError, match="out_dtype must be one of float32, bfloat16, got 'float16'"):
        op.rms_norm(x, np.ones(4, np.float32), 1e-5, out_dtype="float16")
    with pytest.raises(ValueError, match=r"residual must be float32 \[T, 4\], got float32 \[L, 4\]"):
        op.linear(x, weight(4, 4), rows)
    with pytest.raises(ValueError, match=r"x must be float32 \[T, 4\], got bfloat16 \[T, 4\]"):
        op.linear(half, weight(4, 4))
    with pytest.raises(ValueError, match=r"x must be bfloat16 \[T, 4\], got float32 \[T, 4\]"):
        op.linear(x, weight(4, 4, "bf16"))
    with pytest.raises(ValueError, match=r"residual must be float32 \[T, 4\], got bfloat16 \[T, 4\]"):
        op.linear(half, weight(4, 4, "bf16"), half)
    with pytest.raises(ValueError, match=r"rows must be int32 \[L\], got int64 \[L\]"):
        op.gather_rows(x, ids)
    with pytest.raises(ValueError, match="two inputs are called 'x'"):
        op.input("x", (T, 4))
    with pytest.raises(ValueError, match="max_logprobs must be within 0 and V = 4, got 5"):
        op.logprobs(rows, op.input("i", (L,), "int32"), op.input("n", (L,), "int32"), 5, True)
    with pytest.raises(ValueError, match="activation must be one of silu, gelu_tanh, got 'relu'"):
        op.gated_linear(x, weight(4, 4, gated=True), "relu")  # type: ignore[arg-type]
    assert op.gather_rows(half, op.input("r", (L,), "int32")).dtype == "bfloat16"


def test_gated_weights_are_for_gated_layers_only() -> None:
    op = Recorder("bad")
    x, token_ids = op.input("x", (T, 4)), op.input("token_ids", (T,), "int32")
    gated = weight(6, 4, gated=True)
    with pytest.raises(ValueError, match=r"gated_linear: weight must be gated, got \[6, 4\] fp32$"):
        op.gated_linear(x, weight(6, 4), "silu")
    with pytest.raises(ValueError, match=r"linear: weight must not be gated, got \[6, 4\] fp32 gated"):
        op.linear(x, gated)
    with pytest.raises(ValueError, match="logits: weight must not be gated"):
        op.logits(x, gated, None, token_ids)
    with pytest.raises(ValueError, match="embed: table must not be gated"):
        op.embed(token_ids, gated)
    assert op.gated_linear(x, gated, "silu").shape == (T, 3)


def test_recording_names_what_does_not_fit_the_cache() -> None:
    op = Recorder("bad")
    x = op.input("x", (T, 4))
    cache = KVCacheLayer("kv", num_kv_heads=3, block_size=16, head_size=4, dtype="bfloat16")
    angles, slots = op.input("angles", (T, 2)), op.input("slots", (T,), "int64")
    with pytest.raises(ValueError, match="4 columns, which do not fit the cache of kv"):
        op.rope_and_cache(x, angles, angles, slots, cache)
    qkv = op.input("qkv", (T, 36))
    with pytest.raises(ValueError, match=r"cos must be float32 \[T, 2\], got float32 \[T, 4\]"):
        op.rope_and_cache(qkv, x, x, slots, cache)
    norms = QKNorm(np.ones(4, np.float32), np.ones(5, np.float32), 1e-5)
    with pytest.raises(ValueError, match=r"norms.k must be float32 \[4\], got float32 \[5\]"):
        op.rope_and_cache(qkv, angles, angles, slots, cache, norms)
    q = op.rope_and_cache(qkv, angles, angles, slots, cache)
    assert (q.shape, q.dtype) == ((T, 12), "bfloat16")
    table, starts, lens = (op.input(name, shape, "int32") for name, shape in (("t", (R, 3)), ("s", (R1,)), ("l", (R,))))
    options = {"scale": 1.0, "window": None, "softcap": None}
    with pytest.raises(ValueError, match="q must be a bfloat16 matrix, got float32"):
        op.attention(op.input("q", (T, 12)), cache, table, starts, lens, **options)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        op.attention(q, cache, table, starts, lens, **options | {"window": 0})
    assert op.attention(q, cache, table, starts, lens, **options).dtype == "float32"
    assert op.attention(q, cache, table, starts, lens, **options, out_dtype="bfloat16").dtype == "bfloat16"
