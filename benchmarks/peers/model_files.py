"""Makes what other engines load of a model: GGUF files of several types, and a folder with safetensors.

All have the tensors of the GGUF file that Pelton runs, dequantized and, where the type is another one, quantized again.
Each is made under another name, and gets its own when it is whole.
"""

import os
import shutil
from pathlib import Path

import export
import gguf
import gguf_writing
import requantize
from engines import TORCH_DTYPES, UnavailableError

from pelton.loader import Checkpoint, GGUFCheckpoint, open_checkpoint


def stored_format(checkpoint: GGUFCheckpoint) -> str:
    """The file's own type, such as Q4_K_M; `unknown` if it does not tell."""
    number = checkpoint.metadata.get("general.file_type")
    if number not in list(gguf.LlamaFileType):
        return "unknown"
    kind = gguf.LlamaFileType(number)
    return kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")


def open_gguf(model: str) -> GGUFCheckpoint:
    """Raises ValueError for a model that is no GGUF file."""
    checkpoint: Checkpoint = open_checkpoint(model)
    if not isinstance(checkpoint, GGUFCheckpoint):
        raise ValueError(f"{model} is not a GGUF file: other engines' files are made of one")
    return checkpoint


def folder_name(path: Path) -> str:
    """Of what is made of that file: another file of its name, or a newer one, has another."""
    facts = path.stat()
    return f"{path.stem}-{facts.st_size}-{int(facts.st_mtime)}"


def make(checkpoint: GGUFCheckpoint, folder: Path, weight_format: str) -> None:
    """What an engine of this format loads, unless the folder has it. Raises UnavailableError if it cannot be made."""
    path = folder / ("hf" if weight_format in TORCH_DTYPES else f"{weight_format}.gguf")
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    _remove(unfinished)
    try:
        _write(checkpoint, unfinished, weight_format)
        unfinished.rename(path)
    except (gguf.quants.QuantError, NotImplementedError, ValueError, OSError) as error:
        raise UnavailableError(f"its model is not made: {error}") from None
    finally:
        _remove(unfinished)


def _write(checkpoint: GGUFCheckpoint, path: Path, weight_format: str) -> None:
    own = stored_format(checkpoint)
    if weight_format in TORCH_DTYPES:
        export.export(checkpoint, path)
    elif weight_format in ("stored", own):
        os.symlink(checkpoint.path.resolve(), path)
    elif weight_format in gguf_writing.FILE_TYPES:
        requantize.copy(checkpoint.path, path, weight_format)
    else:
        kinds = ", ".join(["stored", own, *gguf_writing.FILE_TYPES, *TORCH_DTYPES])
        raise UnavailableError(f"there is no file of type {weight_format}; this model's are {kinds}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
