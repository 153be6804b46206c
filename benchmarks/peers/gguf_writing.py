"""Writes GGUF files tensor by tensor, so that large ones need little memory. Matrices of one type, vectors float32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as TensorType

FILE_TYPES = {
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
}
TABLE = "token_embd.weight"
_ROWS = 8192
"""Quantized at a time."""


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    """float32"""


@dataclass(frozen=True)
class Entry:
    """A key of the metadata."""

    name: str
    value: Any
    kind: gguf.GGUFValueType
    item_kind: gguf.GGUFValueType | None = None


def read_entries(reader: gguf.GGUFReader) -> list[Entry]:
    """All but those that the writer makes itself."""
    return [
        Entry(field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
        for field in reader.fields.values()
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type")
    ]


def file_name(file_type: str, table_type: str | None) -> str:
    return f"{file_type}-table-{table_type}.gguf" if table_type else f"{file_type}.gguf"


def type_of(tensor: Tensor, file_type: str, table_type: str | None) -> TensorType:
    if len(tensor.shape) == 1:
        return TensorType.F32
    return TensorType[(table_type if tensor.name == TABLE else None) or file_type]


def write(
    path: Path,
    architecture: str,
    entries: Sequence[Entry],
    tensors: Sequence[Tensor],
    file_type: str,
    table_type: str | None = None,
) -> None:
    """`table_type` is another type for the embedding table, which is the head too if there is no head of its own."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(FILE_TYPES[file_type])
    for entry in entries:
        writer.add_key_value(entry.name, entry.value, entry.kind, entry.item_kind)
    types = [type_of(tensor, file_type, table_type) for tensor in tensors]
    for tensor, kind in zip(tensors, types, strict=True):
        num_bytes = prod(gguf.quant_shape_to_byte_shape(tensor.shape, kind))
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, kind in zip(tensors, types, strict=True):
        writer.write_tensor_data(_encoded(tensor.read(), kind))
    writer.close()


def _encoded(array: np.ndarray, kind: TensorType) -> np.ndarray:
    pieces = [gguf.quantize(array[row : row + _ROWS], kind) for row in range(0, len(array), _ROWS)]
    return np.concatenate(pieces)
