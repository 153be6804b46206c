import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from pelton.loader import Checkpoint, GGUFCheckpoint
from pelton.loader.gguf import GGUFFile
from pelton.tokenizer import load_tokenizer

SCALARS: list[tuple[str, Any]] = [
    ("uint8", 255), ("int8", -128), ("uint16", 65535), ("int16", -32768), ("uint32", 2**32 - 1),
    ("int32", -(2**31)), ("uint64", 2**64 - 1), ("int64", -(2**63)), ("float32", 0.5), ("float64", 1e-300),
    ("bool", True), ("string", "Ġé 🙂"),
]  # fmt: skip


def preamble(num_tensors: int, num_metadata: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_metadata)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_reads_the_real_model_like_the_reference(smollm2: Checkpoint) -> None:
    reference = gguf.GGUFReader(smollm2.path)
    file = GGUFFile(smollm2.path)
    expected = {key: field.contents() for key, field in reference.fields.items() if key[:5] != "GGUF."}
    ours = {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in file.metadata.items()}
    assert ours == expected
    assert file.tensors.keys() == {info.name for info in reference.tensors}
    for info in reference.tensors:
        assert file.tensors[info.name].shape == tuple(info.shape.tolist())[::-1]
        assert file.tensors[info.name].offset == info.data_offset
    for info in [reference.tensors[i] for i in (1, 2, 7, 8, -1)]:
        np.testing.assert_array_equal(file.read(info.name), dequantize(info.data, info.tensor_type))


def test_reads_every_type(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in SCALARS:
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.strings", ["a", "", "é"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.bools", [True, False])
    values = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    tensors = {
        kind: quantize(values, kind) for kind in (gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0)
    }
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    for kind, data in tensors.items():
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(path)
    for kind, value in SCALARS:
        assert file.metadata[f"x.{kind}"] == value
        assert type(file.metadata[f"x.{kind}"]) is type(value)
    assert file.metadata["x.strings"] == ["a", "", "é"]
    np.testing.assert_array_equal(file.metadata["x.ints"], [1, -2, 3])
    np.testing.assert_array_equal(file.metadata["x.bools"], [True, False])
    np.testing.assert_array_equal(file.read("f32"), values)
    np.testing.assert_array_equal(file.read("f16"), values.astype(np.float16).astype(np.float32))
    for kind, data in tensors.items():
        np.testing.assert_array_equal(file.read(kind.name), dequantize(data, kind))


def test_reads_version_2_and_another_alignment(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    head = preamble(1, 1, version=2) + entry("general.alignment", 4, struct.pack("<I", 64)) + tensor("t", (2, 1))
    path.write_bytes(head.ljust(-(-len(head) // 64) * 64, b"\0") + struct.pack("<ff", 1.5, -2.0))
    np.testing.assert_array_equal(GGUFFile(path).read("t"), [[1.5, -2.0]])


def test_refuses_a_type_by_its_name_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(preamble(1, 0) + tensor("blk.0.w", (256,), kind=14) + bytes(300))
    file = GGUFFile(path)
    with pytest.raises(ValueError, match=r"tensor blk.0.w has type Q6_K, .*readable: F32, F16, Q4_1, Q8_0"):
        file.read("blk.0.w")


HUGE = 2**60
BROKEN = {
    "empty": (b"", "it is empty"),
    "short": (b"GG", "ends after the end"),
    "magic": (b"GGML" + bytes(40), "does not begin with GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version": (preamble(0, 0, version=4), "version 4"),
    "version 1": (preamble(0, 0, version=1), "version 1"),
    "metadata count": (preamble(0, HUGE), "too short"),
    "tensor count": (preamble(HUGE, 0), "too short"),
    "key length": (preamble(0, 1) + struct.pack("<Q", HUGE) + bytes(20), "a metadata key ends after"),
    "key not text": (preamble(0, 1) + string(b"\xff\xfe") + bytes(20), "not UTF-8"),
    "value type": (preamble(0, 1) + entry("k", 13, bytes(8)), "unknown type 13"),
    "boolean": (preamble(0, 1) + entry("k", 7, b"\2"), "neither 0 nor 1"),
    "array length": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 0, HUGE)), "'k' ends after"),
    "string array length": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 8, HUGE)), "'k' ends after"),
    "array type": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 99, 1)), "unknown type 99"),
    "nested array": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 9, 1)), "array of arrays"),
    "key twice": (preamble(0, 2) + entry("k", 0, b"\1") * 2, "'k' occurs twice"),
    "alignment": (preamble(0, 1) + entry("general.alignment", 4, struct.pack("<I", 48)), "power of two"),
    "alignment 0": (preamble(0, 1) + entry("general.alignment", 4, bytes(4)), "power of two"),
    "tensor twice": (preamble(2, 0) + tensor("t", (1,)) * 2 + bytes(64), "'t' occurs twice"),
    "dimensions": (preamble(1, 0) + tensor("t", (1,) * 5) + bytes(64), "5 dimensions"),
    "no dimensions": (preamble(1, 0) + tensor("t", ()) + bytes(64), "0 dimensions"),
    "empty shape": (preamble(1, 0) + tensor("t", (4, 0)) + bytes(64), "empty shape"),
    "tensor type": (preamble(1, 0) + tensor("t", (1,), kind=77) + bytes(64), "unknown type 77"),
    "partial block": (
        preamble(1, 0) + tensor("t", (33, 32), kind=8) + bytes(4096),
        "not whole blocks of Q8_0",
    ),
    "unaligned": (preamble(1, 0) + tensor("t", (1,), offset=4) + bytes(64), "not aligned"),
    "size": (preamble(1, 0) + tensor("t", (HUGE, HUGE)) + bytes(64), "'t' ends after"),
    "offset": (preamble(1, 0) + tensor("t", (1,), offset=HUGE) + bytes(64), "'t' ends after"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_refuses_broken_files(name: str, tmp_path: Path) -> None:
    content, problem = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=problem) as refusal:
        GGUFFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "broken.gguf" in str(refusal.value)
    assert peak < 2**20


def test_refuses_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        GGUFFile(tmp_path / "absent.gguf")


TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [chr(33 + i) for i in range(94)] + ["ab", "<s>"],
    "tokenizer.ggml.token_type": [1] * 95 + [3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 95,
    "tokenizer.ggml.add_bos_token": True,
}


def use(path: Path) -> None:
    """Everything that reads a GGUF file."""
    checkpoint = GGUFCheckpoint(path)
    for name in checkpoint.tensor_names():
        checkpoint.read(name)
    load_tokenizer(checkpoint).encode("ab")


@pytest.fixture
def tiny_with_tokenizer(make_gguf: Callable[..., Path]) -> Path:
    path = make_gguf(TOKENIZER, {"output.weight": None})
    use(path)
    return path


def test_truncated_files_raise_value_errors_only(tiny_with_tokenizer: Path, tmp_path: Path) -> None:
    content = tiny_with_tokenizer.read_bytes()
    path = tmp_path / "cut.gguf"
    lengths = [*range(0, 4500, 11), *range(4500, len(content) - 1, 997)]
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut\.gguf"):
            use(path)


def test_mutated_files_raise_value_errors_only(tiny_with_tokenizer: Path, tmp_path: Path) -> None:
    content = tiny_with_tokenizer.read_bytes()
    path = tmp_path / "mutated.gguf"
    rng = random.Random(0)
    num_refused = 0
    for _ in range(1500):
        mutated = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(4500)
            size = rng.choice((1, 1, 4, 8))
            mutated[at : at + size] = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
        path.write_bytes(mutated)
        try:
            use(path)
        except ValueError as error:
            assert "mutated.gguf" in str(error)  # noqa: PT017 - most mutations are refused, some are harmless
            num_refused += 1
    assert num_refused > 300
