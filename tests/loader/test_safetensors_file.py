import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from pelton.loader.hf.safetensors_file import SafetensorsFile


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reads_like_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(5, 7).to(dtype)
    tensor[0, :3] = torch.tensor([0.0, -0.0, float("inf")])
    save_file({"x": tensor, "empty": torch.zeros(0, 3, dtype=dtype)}, tmp_path / "x.safetensors", {"a": "b"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.tensors.keys() == {"x", "empty"}
    assert file.tensor("x").read().dtype == np.float32
    np.testing.assert_array_equal(file.tensor("x").read(), tensor.float().numpy())
    assert file.tensor("empty").read().shape == (0, 3)


def test_refuses_other_types_by_name(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(3, dtype=torch.int64)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="tensor 'x' has type 'I64'"):
        SafetensorsFile(tmp_path / "x.safetensors").tensor("x").read()


def test_tensors_are_aligned_whatever_the_file_says(tmp_path: Path) -> None:
    entries = {
        "a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    data = struct.pack("<bff", 1, 1.5, -2.0)
    for padding in range(4):
        header = json.dumps(entries).encode() + b" " * padding
        values = SafetensorsFile(write(tmp_path / "x.safetensors", header, data)).tensor("b").read()
        assert values.ctypes.data % 4 == 0
        np.testing.assert_array_equal(values, [1.5, -2.0])


def f32(begin: int, end: int, shape: list[int] | None = None) -> dict[str, Any]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"{", "not usable JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "not usable JSON"),
        ('{"x": 1}'.encode("utf-16"), "not usable JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not usable JSON"),
        ([], "not a JSON object"),
        (b'{"x": 1, "x": 2}', "'x' occurs twice"),
        (b'{"x": {"dtype": "F32", "dtype": "F16", "shape": [1], "data_offsets": [0, 4]}}', "'dtype' occurs twice"),
        ({"__metadata__": 1}, "__metadata__"),
        ({"x": 1}, "malformed"),
        ({"x": f32(0, 4, [-1])}, "malformed"),
        ({"x": f32(0, 4, [True])}, "malformed"),
        ({"x": f32(0, 4, [1.0])}, "malformed"),
        ({"x": f32(0, True, [0])}, "malformed"),
        ({"x": f32(-4, 4)}, "malformed"),
        ({"x": f32(0, 2**63)}, "malformed"),
        ({"x": {**f32(0, 4), "codec": "zstd"}}, "malformed"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "malformed"),
        ({"x": f32(0, 0, [0, 2**62, 2**62])}, "more than 8 dimensions or"),
        ({"x": f32(0, 4, [1] * 9)}, "more than 8 dimensions"),
        ({"x": f32(0, 4, [10**9] * 10**4)}, "more than 8 dimensions"),
        ({"x": f32(0, 8)}, "'x' ends after the end"),
        ({"x": f32(0, 4, [2])}, r"has 4 bytes, which do not fit F32 \[2\]"),
        ({"x": f32(0, 4), "y": f32(0, 4)}, "'y' has bytes 0 to 4 .* begin at 4"),
        ({"y": f32(0, 4), "x": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, "'x' has bytes 2 to 4"),
        ({"x": {"dtype": "U8", "shape": [2], "data_offsets": [4, 2]}}, "'x' has bytes 4 to 2"),
        ({"x": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, "'x' has bytes 2 to 4 .* begin at 0"),
        ({"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, "2 bytes before the end of the file"),
        ({}, "4 bytes before the end of the file"),
        ({"a\nb": f32(0, 4)}, r"'a\\nb' is .* not printable"),
        ({"k" * 10**6: f32(0, 4)}, "longer than 256 characters"),
    ],
)
def test_refuses_broken_headers(header: Any, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", header, bytes(4))
    with pytest.raises(ValueError, match=problem) as refusal:
        SafetensorsFile(path)
    assert "x.safetensors" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < len(str(path)) + 300


@pytest.mark.parametrize("size", [5, 2**40, 2**64 - 1])
def test_refuses_headers_that_do_not_fit(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", size) + b"{}  ")
    with pytest.raises(ValueError, match=f"its header of {size} bytes ends after the end"):
        SafetensorsFile(path)


def test_refuses_the_files_that_the_reference_refuses(tmp_path: Path) -> None:
    """Holes and overlaps are damage for the format's own library too."""
    for header in ({"x": f32(0, 4), "y": f32(0, 4)}, {}, {"x": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}):
        content = write(tmp_path / "x.safetensors", header, bytes(4)).read_bytes()
        with pytest.raises(SafetensorError):
            load(content)
