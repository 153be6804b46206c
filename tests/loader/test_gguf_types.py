import tracemalloc
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from pelton.loader.gguf.tensor_types import READABLE, TYPE_NAMES

GIVEN_UP = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip
"""Types that ggml has removed, and the gguf package does not list."""

QUANTIZED = [name for name, kind in READABLE.items() if kind.block.names]
SCALES = {name: sorted({"d", "m", "dmin"} & set(READABLE[name].block.names or ())) for name in QUANTIZED}
WRITABLE = [name for name in QUANTIZED if not name.endswith("_K")]
"""Types that the gguf package can also write."""


def random_blocks(name: str, num_blocks: int, seed: int = 0) -> NDArray[Any]:
    """Every bit random, but all scales finite: negative, subnormal and zero ones among them."""
    rng = np.random.default_rng(seed)
    block = READABLE[name].block
    blocks = np.frombuffer(rng.bytes(num_blocks * block.itemsize), block).copy()
    for field in SCALES[name]:
        bits = rng.integers(0, 2**16, num_blocks, dtype=np.uint16)
        bits[bits & 0x7C00 == 0x7C00] ^= 0x4000
        bits[::5] &= 0x83FF
        bits[::17] &= 0x8000
        blocks[field] = bits.view(np.float16)
    return blocks


def reference(name: str, blocks: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """What the gguf package makes of the blocks of a tensor of this shape."""
    rows = np.frombuffer(blocks.tobytes(), np.uint8).reshape(*shape[:-1], -1)
    return dequantize(rows, gguf.GGMLQuantizationType[name])


def assert_same_bits(ours: NDArray[Any], expected: NDArray[Any]) -> None:
    assert ours.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.uint32), expected.view(np.uint32))


def test_type_names_are_those_of_the_format() -> None:
    known = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert known.items() <= TYPE_NAMES.items()
    assert TYPE_NAMES.items() - known.items() <= GIVEN_UP.items()


def test_reads_the_common_types() -> None:
    assert list(READABLE) == [
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    ]  # fmt: skip


@pytest.mark.parametrize("name", READABLE)
def test_block_sizes_are_those_of_the_format(name: str) -> None:
    block_size, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (READABLE[name].block_size, READABLE[name].block.itemsize) == (block_size, num_bytes)


@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantizes_random_bits_like_the_reference(name: str) -> None:
    kind = READABLE[name]
    shape = (3, 37, 4 * kind.block_size)
    blocks = random_blocks(name, 3 * 37 * 4)
    assert_same_bits(kind.dequantize(blocks).reshape(shape), reference(name, blocks, shape))


@pytest.mark.parametrize("name", WRITABLE)
def test_dequantizes_what_the_reference_quantized(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    data = quantize(values, kind)
    ours = READABLE[name].dequantize(np.frombuffer(data.tobytes(), READABLE[name].block)).reshape(values.shape)
    assert_same_bits(ours, dequantize(data, kind))
    # Wrong bytes in, the same wrong numbers out, would pass so far.
    assert np.abs(ours - values).max() < 0.5


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_converts_every_value_like_the_reference(name: str) -> None:
    blocks = np.arange(2**16, dtype=np.uint16).view(READABLE[name].block)
    assert_same_bits(READABLE[name].dequantize(blocks), reference(name, blocks, (2**16,)))


def test_float32_is_not_copied() -> None:
    blocks = np.arange(5, dtype="<f4")
    assert READABLE["F32"].dequantize(blocks) is blocks


@pytest.mark.parametrize("name", [name for name in READABLE if name != "F32"])
def test_large_tensors_need_little_memory_beside_the_result(name: str) -> None:
    kind = READABLE[name]
    num_blocks = 3 * 2**20 // kind.block_size + 1
    zeros = np.zeros(num_blocks, kind.block)
    edge = random_blocks(name, 1)[0] if name in QUANTIZED else np.float16(1.5).view(kind.block)
    zeros[-1] = edge
    tracemalloc.start()
    values = kind.dequantize(zeros)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes + 4e6
    assert not values[: -kind.block_size].any()
    assert_same_bits(values[-kind.block_size :], reference(name, zeros[-1:], (kind.block_size,)))


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("name", "field"), [(name, field) for name in QUANTIZED for field in SCALES[name]])
def test_refuses_scales_that_are_not_finite(name: str, field: str, scale: float) -> None:
    blocks = random_blocks(name, 9000)
    READABLE[name].dequantize(blocks)
    blocks[field][8999] = scale
    with pytest.raises(ValueError, match="not finite"):
        READABLE[name].dequantize(blocks)
