"""Makes what other engines load of a model: GGUF files of several types, and a folder with safetensors.

All have the tensors of the GGUF file that Pelton runs, dequantized and, where the type is another one, quantized again.
"""

import os
from pathlib import Path

import export
import gguf
import gguf_writing
import requantize
from engines import TORCH_DTYPES, UnavailableError

from pelton.loader import Checkpoint, GGUFCheckpoint, open_checkpoint


def stored_format(checkpoint: GGUFCheckpoint) -> str:
    """The file's own type, such as Q4_K_M."""
    kind = gguf.LlamaFileType(checkpoint.metadata["general.file_type"])
    return kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")


def open_gguf(model: str) -> GGUFCheckpoint:
    """Raises ValueError for a model that is no GGUF file."""
    checkpoint: Checkpoint = open_checkpoint(model)
    if not isinstance(checkpoint, GGUFCheckpoint):
        raise ValueError(f"{model} is not a GGUF file: other engines' files are made of one")
    return checkpoint


def make(checkpoint: GGUFCheckpoint, folder: Path, weight_format: str) -> None:
    """What an engine of this format loads, unless the folder has it. Raises UnavailableError for other formats."""
    folder.mkdir(parents=True, exist_ok=True)
    if weight_format in TORCH_DTYPES:
        if not (folder / "hf" / "model.safetensors").exists():  # the last of its files
            export.export(checkpoint, folder / "hf")
        return
    path = folder / f"{weight_format}.gguf"
    if path.exists():
        return
    unfinished = path.with_suffix(".unfinished")
    if weight_format == stored_format(checkpoint):
        unfinished.unlink(missing_ok=True)
        os.symlink(checkpoint.path.resolve(), unfinished)
    elif weight_format in gguf_writing.FILE_TYPES:
        requantize.copy(checkpoint.path, unfinished, weight_format)
    else:
        kinds = ", ".join([stored_format(checkpoint), *gguf_writing.FILE_TYPES, *TORCH_DTYPES])
        raise UnavailableError(f"there is no file of type {weight_format}; this model's are {kinds}")
    unfinished.rename(path)
