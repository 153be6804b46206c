import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from pelton.loader.gguf_types import READABLE, TYPE_NAMES


def test_type_names_are_those_of_the_format() -> None:
    assert TYPE_NAMES.items() <= {kind.value: kind.name for kind in gguf.GGMLQuantizationType}.items()


@pytest.mark.parametrize("name", READABLE)
def test_block_sizes_are_those_of_the_format(name: str) -> None:
    block_size, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (READABLE[name].block_size, READABLE[name].block.itemsize) == (block_size, num_bytes)


@pytest.mark.parametrize("name", READABLE)
def test_dequantizes_like_the_reference(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    data = quantize(values, kind)
    ours = READABLE[name].dequantize(np.frombuffer(data.tobytes(), READABLE[name].block))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours.reshape(values.shape), dequantize(data, kind))


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_dequantizes_every_bit_pattern_like_the_reference(name: str) -> None:
    rng = np.random.default_rng(1)
    blocks = np.frombuffer(rng.bytes(READABLE[name].block.itemsize * 512), READABLE[name].block).copy()
    for field in {"d", "m"} & set(blocks.dtype.names):
        blocks[field] = rng.normal(size=512)
    raw = np.frombuffer(blocks.tobytes(), np.uint8).reshape(512, -1)
    expected = dequantize(raw, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(READABLE[name].dequantize(blocks), expected.reshape(-1))


@pytest.mark.parametrize("scale", [np.inf, np.nan])
@pytest.mark.parametrize(("name", "field"), [("Q4_1", "d"), ("Q4_1", "m"), ("Q8_0", "d")])
def test_refuses_scales_that_are_not_finite(name: str, field: str, scale: float) -> None:
    blocks = np.zeros(4, READABLE[name].block)
    blocks[field][2] = scale
    with pytest.raises(ValueError, match="not finite"):
        READABLE[name].dequantize(blocks)
