"""GGUF files, written and decoded by the format's own library."""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as TensorType

from pelton.loader.gguf.file import GGUFFile, TensorInfo

TypedData = tuple[np.ndarray, TensorType]
"""A tensor's blocks as bytes, and what they are."""


def write_file(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, np.ndarray | TypedData]
) -> Path:
    """Numbers are written in 32 bits, and None leaves a key out. A tensor without a type has that of its array."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        data, tensor_type = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantized(path: Path, info: TensorInfo) -> np.ndarray:
    """One tensor in float32, in its own shape.

    Only where it lies comes from our reader, which tests/loader/test_gguf.py compares with `gguf.GGUFReader`: that one
    takes seconds for a large vocabulary.
    """
    tensor_type = TensorType[info.type_name]
    shape = gguf.quant_shape_to_byte_shape(info.shape, tensor_type)
    data = np.fromfile(path, np.uint8, prod(shape), offset=info.offset).reshape(shape)
    return np.array(gguf.dequantize(data, tensor_type), np.float32).reshape(info.shape)


def dequantized_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    for name, info in GGUFFile(path).tensors.items():
        yield name, dequantized(path, info)
