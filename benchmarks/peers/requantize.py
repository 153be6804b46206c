"""Writes a GGUF file anew, with matrices of one type.

    .venv/bin/python benchmarks/peers/requantize.py MODEL FOLDER Q4_0 Q8_0

MODEL is whatever Pelton takes that is a GGUF file. FOLDER gets TYPE.gguf for each type. --table Q8_0 gives the
embedding table, and with it a tied head, another type, as llama.cpp's own quantizer spends more bits on it; then the
file is TYPE-table-Q8_0.gguf. Needs the extra `test`.
"""

import argparse
from pathlib import Path

import gguf
import gguf_writing
import numpy as np

from pelton.loader import open_checkpoint


def copy(source: Path, target: Path, file_type: str, table_type: str | None = None) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    tensors = [
        gguf_writing.Tensor(
            tensor.name,
            tuple(int(size) for size in reversed(tensor.shape)),
            lambda tensor=tensor: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False),
        )
        for tensor in reader.tensors
    ]
    gguf_writing.write(target, architecture, gguf_writing.read_entries(reader), tensors, file_type, table_type)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("types", nargs="+", choices=list(gguf_writing.FILE_TYPES))
    parser.add_argument("--table", choices=list(gguf_writing.FILE_TYPES), help="type of the embedding table")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for file_type in options.types:
        target = options.folder / gguf_writing.file_name(file_type, options.table)
        copy(open_checkpoint(options.model).path, target, file_type, options.table)


if __name__ == "__main__":
    main()
