"""The layouts of the KV cache."""

import numpy as np
import pytest

from pelton.ops import KVCacheLayer
from pelton.ops.kv_cache import to_plain, to_tiled


def random_cache(block_size: int, head_size: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Elements of any bits, NaN among them."""
    words = {"float32": np.uint32, "bfloat16": np.uint16}[dtype]
    rng = np.random.default_rng(seed)
    shape = (3, 2, 2, block_size, head_size)
    return rng.integers(0, np.iinfo(words).max, shape, words, endpoint=True).view(dtype)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view({4: np.uint32, 2: np.uint16}[array.dtype.itemsize])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_size", [2, 6, 64])
@pytest.mark.parametrize("block_size", [1, 4, 8, 16, 24, 32, 48])
def test_there_and_back(block_size: int, head_size: int, dtype: str) -> None:
    plain = random_cache(block_size, head_size, dtype)
    before = plain.copy()
    tiled = to_tiled(plain)
    assert (tiled.shape, tiled.dtype, tiled.flags.c_contiguous) == (plain.shape, plain.dtype, True)
    assert np.array_equal(bits(plain), bits(before))
    assert np.array_equal(bits(to_plain(tiled)), bits(plain))
    assert np.array_equal(bits(to_tiled(to_plain(plain))), bits(plain))
    if block_size % 16:
        assert np.array_equal(bits(tiled), bits(plain))


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where_each_element_goes(block_size: int, dtype: str) -> None:
    d = 6
    plain = random_cache(block_size, d, dtype, seed=1)
    flat, source = bits(to_tiled(plain)).reshape(3, 2, 2, -1), bits(plain)
    for s in range(block_size):
        for i in range(d):
            if dtype == "float32":
                key, value = (s // 16 * d + i) * 16 + s % 16, s * d + i
            else:
                key, value = ((s // 16 * (d // 2) + i // 2) * 16 + s % 16) * 2 + i % 2, (s // 2 * d + i) * 2 + s % 2
            assert np.array_equal(flat[:, 0, :, key], source[:, 0, :, s, i])
            assert np.array_equal(flat[:, 1, :, value], source[:, 1, :, s, i])


def test_shapes_that_are_no_cache() -> None:
    for shape in ((2, 2, 1, 16, 3), (2, 1, 1, 16, 4), (2, 1, 16, 4)):
        for convert in (to_plain, to_tiled):
            with pytest.raises(ValueError, match=r"is \[num_blocks, 2, K, S, D\] with an even D, got"):
                convert(np.zeros(shape, np.float32))


def test_binding() -> None:
    cache = KVCacheLayer("layers.0.attention", num_kv_heads=2, block_size=16, head_size=8, dtype="bfloat16")
    assert str(cache) == "(layers.0.attention, bfloat16)"
    with pytest.raises(AssertionError, match=r"layers\.0\.attention: no KV cache is bound"):
        _ = cache.array
    shape = (3, 2, 2, 16, 8)
    with pytest.raises(ValueError, match=r"must be bfloat16 \[num_blocks, 2, 2, 16, 8\], got float32"):
        cache.bind(np.zeros(shape, np.float32))
    with pytest.raises(
        ValueError, match=r"must be bfloat16 \[num_blocks, 2, 2, 16, 8\], got bfloat16 \[3, 2, 2, 8, 8\]"
    ):
        cache.bind(np.zeros((3, 2, 2, 8, 8), "bfloat16"))
    array = np.zeros(shape, "bfloat16")
    cache.bind(array)
    assert cache.layout == "plain"
    assert cache.array is cache.plain_array is array
    cache.bind(array, "tiled")
    assert cache.layout == "tiled"
    assert cache.array is array
    with pytest.raises(AssertionError, match="the KV cache is tiled"):
        _ = cache.plain_array
    with pytest.raises(ValueError, match="a tiled KV cache must be C-ordered"):
        cache.bind(np.zeros((3, 2, 2, 8, 16), "bfloat16").swapaxes(-1, -2), "tiled")
