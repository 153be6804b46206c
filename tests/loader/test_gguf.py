import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from pelton.loader import Checkpoint
from pelton.loader.gguf.file import GGUFFile
from tests.support.downloads import gemma_gguf
from tests.support.gguf_file import dequantized

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


def check_against_reference(path: Path, chosen: Callable[[list[gguf.ReaderTensor]], list[gguf.ReaderTensor]]) -> None:
    """Compare everything but the tensors' values, and the values of the chosen tensors bit by bit."""
    reference = gguf.GGUFReader(path)
    file = GGUFFile(path)
    expected = {key: field.contents() for key, field in reference.fields.items() if key[:5] != "GGUF."}
    ours = {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in file.metadata.items()}
    assert ours == expected
    assert file.tensors.keys() == {info.name for info in reference.tensors}
    for info in reference.tensors:
        assert file.tensors[info.name].shape == tuple(info.shape.tolist())[::-1]
        assert file.tensors[info.name].offset == info.data_offset
    for info in chosen(reference.tensors):
        values = dequantize(info.data, info.tensor_type)
        np.testing.assert_array_equal(file.tensor(info.name).read().view(np.uint32), values.view(np.uint32))


def smallest_of_each_type(infos: list[gguf.ReaderTensor]) -> list[gguf.ReaderTensor]:
    largest_first = sorted(infos, key=lambda info: -info.n_elements)
    return list({info.tensor_type: info for info in largest_first}.values())


def test_reads_smollm2_like_the_reference(smollm2: Checkpoint) -> None:
    check_against_reference(smollm2.path, smallest_of_each_type)


def test_reads_the_quantized_tensors_of_gemma_like_the_reference() -> None:
    path = gemma_gguf()
    file = GGUFFile(path)
    smallest = {info.type_name: name for name, info in sorted(file.tensors.items(), key=lambda t: -np.prod(t[1].shape))}
    assert smallest.keys() == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}
    for name in smallest.values():
        values = dequantized(path, file.tensors[name])
        np.testing.assert_array_equal(file.tensor(name).read().view(np.uint32), values.view(np.uint32))


@pytest.mark.slow
def test_reads_all_of_smollm2_like_the_reference(smollm2: Checkpoint) -> None:
    check_against_reference(smollm2.path, list)


@pytest.mark.slow
def test_reads_all_of_gemma_like_the_reference() -> None:
    check_against_reference(gemma_gguf(), list)


def test_reads_every_type(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in SCALARS:
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.strings", ["a", "", "é"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.bools", [True, False])
    values = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    kinds = [gguf.GGMLQuantizationType[name] for name in ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
    tensors = {kind: quantize(values, kind) for kind in kinds}
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
    np.testing.assert_array_equal(file.tensor("f32").read(), values)
    np.testing.assert_array_equal(file.tensor("f16").read(), values.astype(np.float16).astype(np.float32))
    for kind, data in tensors.items():
        np.testing.assert_array_equal(file.tensor(kind.name).read(), dequantize(data, kind))


def test_reads_version_2_and_another_alignment(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    head = preamble(1, 1, version=2) + entry("general.alignment", 4, struct.pack("<I", 64)) + tensor("t", (2, 1))
    path.write_bytes(head.ljust(-(-len(head) // 64) * 64, b"\0") + struct.pack("<ff", 1.5, -2.0))
    np.testing.assert_array_equal(GGUFFile(path).tensor("t").read(), [[1.5, -2.0]])


@pytest.mark.parametrize(("kind", "name"), [(23, "IQ4_XS"), (31, "Q4_0_4_4"), (28, "F64"), (39, "MXFP4")])
def test_refuses_a_type_by_its_name_when_it_is_read(kind: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(preamble(1, 0) + tensor("blk.0.w", (256,), kind=kind) + bytes(300))
    file = GGUFFile(path)
    with pytest.raises(
        ValueError, match=rf"tensor 'blk.0.w' has type '{name}', .*readable: F32, F16, BF16, Q4_0, .* Q6_K"
    ):
        file.tensor("blk.0.w").read()


def test_names_the_tensor_whose_scale_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes((preamble(1, 0) + tensor("blk.0.w", (32,), kind=8)).ljust(64, b"\0") + b"\0\x7c" + bytes(32))
    with pytest.raises(ValueError, match=r"x\.gguf: tensor 'blk\.0\.w' is not usable: a block scale is not finite"):
        GGUFFile(path).tensor("blk.0.w").read()


def test_tensors_are_aligned_whatever_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    head = preamble(1, 1) + entry("general.alignment", 4, struct.pack("<I", 1))
    name = "t" * (1 + -len(head + tensor("", (2,))) % 4)
    path.write_bytes(head + tensor(name, (2,)) + struct.pack("<ff", 1.5, -2.0))
    assert GGUFFile(path).tensors[name].offset % 4
    values = GGUFFile(path).tensor(name).read()
    assert values.ctypes.data % 4 == 0
    np.testing.assert_array_equal(values, [1.5, -2.0])


HUGE = 2**60
BROKEN = {
    "empty": (b"", "it is empty"),
    "short": (b"GG", "does not begin with GGUF"),
    "nothing but the magic": (b"GGUF", "the version ends after the end of the file; it is cut short"),
    "magic": (b"GGML" + bytes(40), "does not begin with GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version": (preamble(0, 0, version=4), "version 4"),
    "version 1": (preamble(0, 0, version=1), "version 1"),
    "metadata count": (preamble(0, HUGE), "too short"),
    "tensor count": (preamble(HUGE, 0), "too short"),
    "key length": (preamble(0, 1) + struct.pack("<Q", HUGE) + bytes(20), "the metadata key ends after"),
    "key not text": (preamble(0, 1) + string(b"\xff\xfe") + bytes(20), "not UTF-8"),
    "value type": (preamble(0, 1) + entry("k", 13, bytes(8)), "unknown type 13"),
    "boolean": (preamble(0, 1) + entry("k", 7, b"\2"), "neither 0 nor 1"),
    "array length": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 0, HUGE)), "'k' ends after"),
    "string array length": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 8, HUGE)), "'k' ends after"),
    "array type": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 99, 1)), "unknown type 99"),
    "nested array": (preamble(0, 1) + entry("k", 9, struct.pack("<IQ", 9, 1)), "array of arrays"),
    "key with a line break": (preamble(0, 1) + entry("a\nb", 0, b"\1"), r"'a\\nb' is .* not printable"),
    "long key": (preamble(0, 1) + entry("k" * 10**6, 0, b"\1"), "longer than 256 characters"),
    "long tensor name": (preamble(1, 0) + tensor("k" * 10**6, (1,)) + bytes(64), "longer than 256 characters"),
    "key twice": (preamble(0, 2) + entry("k", 0, b"\1") * 2, "'k' occurs twice"),
    "alignment": (preamble(0, 1) + entry("general.alignment", 4, struct.pack("<I", 48)), "power of two"),
    "alignment 0": (preamble(0, 1) + entry("general.alignment", 4, bytes(4)), "power of two"),
    "part": (preamble(0, 1) + entry("split.count", 2, b"\2\0"), "one of 2 parts of a model"),
    "parts": (preamble(0, 1) + entry("split.count", 9, struct.pack("<IQ", 0, 0)), "parts of a model"),
    "alignment true": (preamble(0, 1) + entry("general.alignment", 7, b"\1"), "power of two"),
    "overlap": (
        preamble(2, 0) + tensor("a", (16,), offset=32) + tensor("b", (9,)) + bytes(192),
        "'b' and 'a' overlap",
    ),
    "same place": (preamble(2, 0) + tensor("a", (2,)) + tensor("b", (2,)) + bytes(192), "'a' and 'b' overlap"),
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
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < len(str(path)) + 300
    assert peak < 2**20 + 4 * len(content)


def test_refuses_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        GGUFFile(tmp_path / "absent.gguf")
