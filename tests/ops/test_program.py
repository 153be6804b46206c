import numpy as np
import pytest

from pelton.ops import R1, Dim, KVCacheLayer, L, Program, QKNorm, R, Recorder, T, pack_linear
from pelton.ops.dims import concrete


def small_program() -> Program:
    op = Recorder("small")
    token_ids = op.input("token_ids", (T,), "int32")
    x = op.embed(token_ids, np.zeros((10, 6), np.float32))
    normed = op.rms_norm(x, np.ones(6, np.float32), 1e-5)
    return op.finish({"y": op.linear(normed, pack_linear(np.zeros((6, 6), np.float32)), x)})


def test_a_program_prints_itself() -> None:
    assert str(small_program()) == (
        "program small(%0 token_ids[T] int32)\n"
        "  %1 x[T, 6] = embed(%0, table[10, 6], scale=1.0)\n"
        "  %2 normed[T, 6] = rms_norm(%1, weight[6], eps=1e-05)\n"
        "  %3 y[T, 6] = linear(%2, weight[6, 6] fp32, %1)\n"
        "  return y=%3"
    )


def test_dimensions() -> None:
    assert R1 == R + 1 == Dim("R", 1)
    assert str(R1) == "R+1"
    assert concrete((T, 4, R1), {T: 5, R: 2}) == (5, 4, 3)
    assert small_program().dims == (T,)


def test_recording_names_what_does_not_fit() -> None:
    op = Recorder("bad")
    x = op.input("x", (T, 4))
    rows = op.input("rows", (L, 4))
    ids = op.input("ids", (L,), "int64")
    weight = pack_linear(np.zeros((4, 4), np.float32))
    with pytest.raises(ValueError, match=r"bad, launch 0, rms_norm: weight must be float32 \[4\], got"):
        op.rms_norm(x, np.ones(5, np.float32), 1e-5)
    with pytest.raises(ValueError, match=r"residual must be float32 \[T, 4\], got float32 \[L, 4\]"):
        op.linear(x, weight, rows)
    with pytest.raises(ValueError, match=r"rows must be int32 \[L\], got int64 \[L\]"):
        op.gather_rows(x, ids)
    with pytest.raises(ValueError, match="two inputs are called 'x'"):
        op.input("x", (T, 4))
    with pytest.raises(ValueError, match="even number of columns"):
        op.gated_activation(op.input("odd", (T, 3)), "silu")
    with pytest.raises(ValueError, match="max_logprobs must be within 0 and V = 4, got 5"):
        op.logprobs(rows, op.input("i", (L,), "int32"), op.input("n", (L,), "int32"), 5, True)
    cache = KVCacheLayer("kv", num_kv_heads=3, block_size=16, head_size=4)
    angles, slots = op.input("angles", (T, 2)), op.input("slots", (T,), "int64")
    with pytest.raises(ValueError, match="4 columns, which do not fit the cache of kv"):
        op.rope_and_cache(x, angles, angles, slots, cache)
    qkv = op.input("qkv", (T, 36))
    with pytest.raises(ValueError, match=r"cos must be float32 \[T, 2\], got float32 \[T, 4\]"):
        op.rope_and_cache(qkv, x, x, slots, cache)
    norms = QKNorm(np.ones(4, np.float32), np.ones(5, np.float32), 1e-5)
    with pytest.raises(ValueError, match=r"norms.k must be float32 \[4\], got float32 \[5\]"):
        op.rope_and_cache(qkv, angles, angles, slots, cache, norms)
    with pytest.raises(ValueError, match="activation must be one of silu, gelu_tanh, got 'relu'"):
        op.gated_activation(x, "relu")  # type: ignore[arg-type]


def test_packing_copies_only_what_is_laid_out_otherwise() -> None:
    array = np.zeros((3, 4), np.float32)
    assert pack_linear(array).array is array
    assert pack_linear(array.T).array.flags.c_contiguous
    with pytest.raises(ValueError, match="two dimensions"):
        pack_linear(array[0])
    bias = np.zeros(3, np.float32)
    assert pack_linear(array, bias).bias is bias
    assert str(pack_linear(array, bias)) == "[3, 4] fp32 + bias"
    with pytest.raises(ValueError, match=r"one element for each of 3 outputs, got shape \(4,\)"):
        pack_linear(array, np.zeros(4, np.float32))
