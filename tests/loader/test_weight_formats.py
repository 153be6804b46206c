"""In which formats weights are kept, and what is read for them."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType
from transformers import LlamaForCausalLM

from pelton.loader import Checkpoint, load_weights, open_checkpoint
from pelton.loader.gguf.tensor_types import READABLE
from pelton.loader.weight_formats import int4_formats, stored_formats
from pelton.models import create_model
from pelton.ops.packed_linear import Int4Rows, packed_bytes
from tests.loader.conftest import HIDDEN
from tests.loader.test_weights import Collected, parameters
from tests.support.backends import numpy_target
from tests.support.gguf_writer import gguf_tensors

MakeGGUF = Callable[..., Path]
FORMATS = {
    "bf16": ["F32", "F16", "BF16"],
    "int4": ["Q4_0", "Q4_1", "Q4_K"],
    "int8": ["Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q5_K", "Q6_K"],
}


def test_every_type_has_a_format() -> None:
    assert {name: kind.weight_format for name, kind in READABLE.items()} == {
        name: weight_format for weight_format, names in FORMATS.items() for name in names
    }


@pytest.fixture
def make_checkpoint(make_gguf: MakeGGUF, tiny_model: LlamaForCausalLM) -> Callable[[dict[str, str]], Checkpoint]:
    """The tiny model with some tensors in other types."""

    def make(types: dict[str, str]) -> Checkpoint:
        arrays = gguf_tensors(tiny_model)
        typed: dict[str, Any] = {}
        for name, type_name in types.items():
            kind = TensorType[type_name]
            typed[name] = (gguf.quantize(arrays[name], kind), kind)
        return open_checkpoint(str(make_gguf(tensors=typed)))

    return make


def test_formats_are_those_that_are_stored(make_checkpoint: Callable[[dict[str, str]], Checkpoint]) -> None:
    checkpoint = make_checkpoint(
        {
            "token_embd.weight": "Q8_0",
            "output.weight": "Q4_0",
            "blk.0.attn_q.weight": "Q4_1",
            "blk.0.attn_k.weight": "Q4_0",
            "blk.0.attn_v.weight": "Q5_1",
            "blk.0.attn_output.weight": "Q4_0",
            "blk.0.ffn_up.weight": "F16",
            "blk.0.ffn_gate.weight": "Q4_0",
        }
    )
    target = replace(numpy_target("bf16"), part_format=stored_formats(checkpoint))
    model = create_model(checkpoint.config, target)
    formats = {name: parameter.format for name, parameter in model.parameters().items()}
    assert formats["embed_tokens"] == "int8"
    assert formats["lm_head"] == "int4"
    assert {formats[f"layers.0.attention.{part}"] for part in "qkv"} == {"int8"}, "the widest of the stack"
    assert formats["layers.0.attention.o"] == "int4"
    assert formats["layers.0.mlp.gate"] == formats["layers.0.mlp.up"] == "bf16"
    assert formats["layers.0.mlp.down"] == formats["layers.1.attention.q"] == "bf16"
    assert formats["norm"] == "fp32"
    load_weights(model.parameters(), checkpoint)


def test_int4_leaves_the_vocabulary_in_eight_bits(make_checkpoint: Callable[[dict[str, str]], Checkpoint]) -> None:
    part_format = int4_formats(make_checkpoint({"output.weight": "Q4_1"}))
    assert part_format("embed_tokens") == "int8"
    assert part_format("lm_head") == "int4", "stored so"
    assert part_format("layers.0.mlp.up") == "int4"


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
def test_stored_values_are_kept_in_four_bits(
    type_name: str,
    make_checkpoint: Callable[[dict[str, str]], Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interleaved ones in pieces that cut heads too."""
    monkeypatch.setattr("pelton.loader.weights._ROW_STEP", 1)
    monkeypatch.setattr("pelton.loader.weights._PIECE_ELEMENTS", 5 * HIDDEN)
    checkpoint = make_checkpoint({f"blk.0.{name}.weight": type_name for name in ("attn_q", "attn_k", "ffn_down")})
    kept, wide = parameters(checkpoint, "int4"), parameters(checkpoint)
    load_weights(kept, checkpoint)
    load_weights(wide, checkpoint)
    for name in ("layers.0.attention.q", "layers.0.attention.k", "layers.0.mlp.down"):
        assert len(kept[name].pieces) > 3
        assert all(isinstance(piece, Int4Rows) for piece in kept[name].pieces)
        widened = np.concatenate([piece.widened() for piece in kept[name].pieces])
        np.testing.assert_array_equal(widened, wide[name].array)
    assert kept["layers.0.attention.v"].array.dtype == np.float32, "stored in float32"


def blocks_of(type_name: str, num_blocks: int) -> np.ndarray:
    block = READABLE[type_name].block
    rng = np.random.default_rng(0)
    blocks = np.frombuffer(rng.bytes(num_blocks * block.itemsize), block).copy()
    for field in {"d", "m", "dmin"} & set(block.names or ()):
        blocks[field] = rng.uniform(-2, 2, num_blocks)
    return blocks


@pytest.mark.parametrize(("type_name", "bound"), [("Q4_0", 0.0), ("Q4_1", 0.0), ("Q4_K", 2.0**-10)])
def test_four_bits_are_what_the_blocks_hold(type_name: str, bound: float) -> None:
    """Of Q4_K, scale and minimum are rounded by up to 2**-11 each."""
    kind = READABLE[type_name]
    blocks = blocks_of(type_name, 21)
    rows = kind.int4_rows(blocks, 3)
    expected = kind.dequantize(blocks).reshape(3, -1)
    assert rows.shape == expected.shape
    assert rows.values.max() == 15
    groups = expected.reshape(3, -1, 32)
    off = np.abs(rows.widened() - expected).reshape(groups.shape).max(axis=2)
    assert (off <= bound * (np.abs(rows.scales) * 15.0 + np.abs(rows.minimums))).all()


@pytest.mark.parametrize(("field", "type_name"), [("d", "Q4_0"), ("d", "Q4_K"), ("dmin", "Q4_K")])
def test_scales_that_float16_cannot_hold_are_refused(field: str, type_name: str) -> None:
    blocks = blocks_of(type_name, 4)
    blocks[field] = 60000.0
    if type_name == "Q4_K":
        blocks["scales"] = 63
    with pytest.raises(ValueError, match="too large for the float16 scales of int4; set quantization to int8"):
        READABLE[type_name].int4_rows(blocks, 1)
    blocks[field] = np.nan
    with pytest.raises(ValueError, match="a block scale is not finite"):
        READABLE[type_name].int4_rows(blocks, 1)


NOT_USABLE = r"tiny\.gguf: tensor 'blk\.1\.ffn_up\.weight' is not usable"


def with_first_scale(checkpoint: Checkpoint, scale: float) -> Checkpoint:
    """Another scale in the first block of the tensor."""
    offset = checkpoint._file.tensors["blk.1.ffn_up.weight"].offset  # type: ignore[attr-defined]
    content = bytearray(checkpoint.path.read_bytes())
    content[offset : offset + 2] = np.float16(scale).tobytes()
    checkpoint.path.write_bytes(content)
    return open_checkpoint(str(checkpoint.path))


def test_a_damaged_scale_is_named(make_checkpoint: Callable[[dict[str, str]], Checkpoint]) -> None:
    checkpoint = with_first_scale(make_checkpoint({"blk.1.ffn_up.weight": "Q4_1"}), np.inf)
    loaded = {name: Collected(name, p.shape, "int4") for name, p in parameters(checkpoint).items()}
    with pytest.raises(ValueError, match=rf"{NOT_USABLE}: a block scale is not finite, so the file is damaged"):
        load_weights(loaded, checkpoint)


def test_a_sound_scale_that_does_not_fit_comes_with_the_remedy(
    make_checkpoint: Callable[[dict[str, str]], Checkpoint],
) -> None:
    """Q4_0 of 9000 has minimums of -72000."""
    checkpoint = with_first_scale(make_checkpoint({"blk.1.ffn_up.weight": "Q4_0"}), 9000.0)
    target = replace(numpy_target("bf16"), part_format=lambda name: "int4" if "mlp" in name else "bf16")
    with pytest.raises(ValueError, match=rf"{NOT_USABLE}: .* too large .*; set quantization to int8 or none instead$"):
        load_weights(create_model(checkpoint.config, target).parameters(), checkpoint)
    for weight_format in ("int8", "bf16"):
        load_weights(create_model(checkpoint.config, numpy_target(weight_format)).parameters(), checkpoint)


@pytest.mark.parametrize(("weight_format", "type_name"), [("bf16", "F32"), ("int8", "F32"), ("int8", "Q8_0")])
def test_loading_takes_little_more_than_the_packed_weights(
    weight_format: str, type_name: str, make_gguf: MakeGGUF, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces as small beside this embedding as real ones are beside a real one."""
    vocab_size = 64 * 1024
    monkeypatch.setattr("pelton.loader.weights._PIECE_ELEMENTS", 2**13)
    embedding = np.random.default_rng(0).standard_normal((vocab_size, HIDDEN), dtype=np.float32)
    kind = TensorType[type_name]
    tensor: Any = embedding if type_name == "F32" else (gguf.quantize(embedding, kind), kind)
    path = make_gguf(
        {"llama.vocab_size": vocab_size},
        {"token_embd.weight": tensor, "output.weight": np.zeros((vocab_size, HIDDEN), np.float32)},
    )
    checkpoint = open_checkpoint(str(path))
    model = create_model(checkpoint.config, numpy_target(weight_format))
    tracemalloc.start()
    load_weights(model.parameters(), checkpoint)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    num_bytes = sum(parameter.num_bytes for parameter in model.parameters().values())
    assert num_bytes > 2 * packed_bytes((vocab_size, HIDDEN), weight_format)
    assert num_bytes < peak < 1.2 * num_bytes
