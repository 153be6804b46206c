"""Checkpoints: a model's configuration and its tensors, under the names of their own format."""

import os.path
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pelton.config import DecoderConfig
from pelton.loader.aliases import known_aliases
from pelton.loader.gguf import MAGIC, GGUFFile, MetadataValue
from pelton.loader.gguf_config import read_gguf_config
from pelton.loader.hf_config import read_hf_config
from pelton.loader.safetensors_file import SafetensorsFile
from pelton.loader.text_files import read_json
from pelton.ops.arrays import Float32

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLE_REMEDY = (
    "a pickle, which can run code when it is opened; convert it to safetensors "
    "(transformers: model.save_pretrained(folder))"
)


class Checkpoint(ABC):
    """A model on disk, opened: its configuration is read and checked, its tensors are mapped."""

    format: ClassVar[str]
    """Key of the weight-name maps."""
    path: Path
    config: DecoderConfig

    @abstractmethod
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors, as this format spells them."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, outermost dimension first."""

    @abstractmethod
    def read(self, name: str) -> Float32:
        """A tensor as float32, possibly read-only. Raises ValueError for a type that Pelton cannot read."""


class GGUFCheckpoint(Checkpoint):
    """One GGUF file."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        self.config = read_gguf_config(path, self._file.metadata, self._file.tensors)

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The file's metadata, vocabulary included."""
        return self._file.metadata

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[name].shape

    def read(self, name: str) -> Float32:
        return self._file.read(name)


class SafetensorsCheckpoint(Checkpoint):
    """A Hugging Face folder: config.json, one or several safetensors files, and the tokenizer's files."""

    format = "hf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, SafetensorsFile] = {}
        for file_path in _safetensors_paths(path):
            file = SafetensorsFile(file_path)
            for name in file.tensors:
                if name in self._files:
                    twice = f"{self._files[name].path.name} and {file_path.name}"
                    raise ValueError(f"{path}: tensor {name} is in {twice}")
                self._files[name] = file
        self.config = read_hf_config(path, self._files)

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[name].tensors[name].shape

    def read(self, name: str) -> Float32:
        return self._files[name].read(name)


def open_checkpoint(model: str) -> Checkpoint:
    """Open a model by alias or by path; an alias wins over a path of the same name.

    Raises ValueError that says what is accepted, or what is wrong with the files.
    """
    aliases = known_aliases()
    if model in aliases:
        return GGUFCheckpoint(aliases[model].locate())
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:
        # `~name/...`, and there is no such user.
        raise ValueError(f"there is no model {model!r}: {error}") from None
    try:
        if path.is_dir():
            return SafetensorsCheckpoint(path)
        if path.is_file():
            return _open_file(path)
    except OSError as error:
        raise ValueError(f"the model {model!r} cannot be read: {error.strerror}") from None
    raise ValueError(
        f"there is no model {model!r}: give an alias ({', '.join(aliases)}), a GGUF file, "
        "or a folder with config.json, safetensors and tokenizer.json (models are never downloaded)"
    )


def _open_file(path: Path) -> GGUFCheckpoint:
    if path.suffix in _PICKLES:
        raise ValueError(f"{path} is {_PICKLE_REMEDY}")
    if path.suffix == ".safetensors":
        raise ValueError(f"{path} has no configuration; give the folder that also holds its config.json")
    with path.open("rb") as file:
        if path.suffix != ".gguf" and file.read(4) != MAGIC:
            raise ValueError(f"{path} is neither a GGUF file nor a folder with config.json and safetensors")
    return GGUFCheckpoint(path)


def _safetensors_paths(folder: Path) -> list[Path]:
    """The safetensors files of a folder; the shards exactly as its index has them."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        raise ValueError(f"{folder} {_why_no_safetensors(folder)}")
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index_path} has no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(
                f"{index_path} names {name!r} in weight_map, which is not a safetensors file of the folder"
            )
    paths = sorted(folder / name for name in set(weight_map.values()))
    # Unlike `Path.is_file`, this takes names that no file can have.
    if missing := [path.name for path in paths if not os.path.isfile(path)]:
        raise ValueError(f"{folder} lacks {', '.join(missing)}, which its index names")
    return paths


def _why_no_safetensors(folder: Path) -> str:
    files = sorted(folder.iterdir())
    if pickles := [file.name for file in files if file.suffix in _PICKLES]:
        return f"has no safetensors, only {pickles[0]}: {_PICKLE_REMEDY}"
    if ggufs := [file.name for file in files if file.suffix == ".gguf"]:
        return f"has no safetensors; give the GGUF file itself, such as {folder / ggufs[0]}"
    return "has no model.safetensors and no model.safetensors.index.json"
