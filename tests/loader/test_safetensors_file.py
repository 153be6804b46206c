import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pelton.loader.safetensors_file import SafetensorsFile


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
    assert file.read("x").dtype == np.float32
    np.testing.assert_array_equal(file.read("x"), tensor.float().numpy())
    assert file.read("empty").shape == (0, 3)


def test_refuses_other_types_by_name(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(3, dtype=torch.int64)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="tensor x has type I64"):
        SafetensorsFile(tmp_path / "x.safetensors").read("x")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "not a JSON object"),
        (b'{"x": 1, "x": 2}', "occurs twice"),
        ({"x": 1}, "malformed"),
        ({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "malformed"),
        ({"x": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "malformed"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "malformed"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "ends after the end"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [-4, 4]}}, "ends after the end"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "do not fit F32"),
    ],
)
def test_refuses_broken_headers(header: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem):
        SafetensorsFile(write(tmp_path / "x.safetensors", header, bytes(4)))


def test_damaged_files_raise_value_errors_only(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(3, 5), "y": torch.ones(4, dtype=torch.bfloat16)}, path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"x\.safetensors"):
            SafetensorsFile(path)
    rng = random.Random(0)
    for _ in range(1000):
        mutated = bytearray(content)
        mutated[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(mutated)
        try:
            file = SafetensorsFile(path)
            for name in file.tensors:
                file.read(name)
        except ValueError as error:
            assert "x.safetensors" in str(error)  # noqa: PT017 - some mutations are harmless
