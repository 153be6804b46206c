"""Checkpoints: a model's configuration and its tensors, under the names of their own format."""

import os.path
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pelton.config import DecoderConfig
from pelton.error_text import listed
from pelton.loader.aliases import known_aliases
from pelton.loader.gguf.config import read_gguf_config
from pelton.loader.gguf.file import MAGIC, GGUFFile, MetadataValue
from pelton.loader.hf.folder import INDEX, PICKLES, SINGLE, check_has_weights, read_weight_map, shards
from pelton.loader.model_files import PICKLE
from pelton.loader.stored_tensor import StoredTensor

if TYPE_CHECKING:
    from pelton.loader.hf.hub import HubId


class Checkpoint(ABC):
    """A model on disk, opened: its configuration is read and checked, its tensors are mapped."""

    format: ClassVar[Literal["gguf", "hf"]]
    """Key of the weight-name maps."""
    config: DecoderConfig

    def __init__(self, path: Path, name: str | None) -> None:
        self.path = path
        self.name = str(path) if name is None else name
        """What to call the model: as the user named it."""
        self.num_bytes = 0
        """Size of the files that hold tensors."""

    @abstractmethod
    def generation_defaults(self) -> dict[str, float | int]:
        """What the model's authors recommend for sampling, by `SamplingParams`' names; most recommend nothing.

        Raises ValueError that names the file and the key for a value that no request could have.
        """

    @abstractmethod
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors, as this format spells them."""

    @abstractmethod
    def tensor(self, name: str) -> StoredTensor:
        """One of them."""


class GGUFCheckpoint(Checkpoint):
    """One GGUF file."""

    format = "gguf"

    def __init__(self, path: Path, name: str | None = None) -> None:
        super().__init__(path, name)
        self._file = GGUFFile(path)
        self.num_bytes = path.stat().st_size
        self.config = read_gguf_config(path, self._file.metadata, self._file.tensors)

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The file's metadata, vocabulary included."""
        return self._file.metadata

    def generation_defaults(self) -> dict[str, float | int]:
        return {}  # the format has no keys for them

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._file.tensors)

    def tensor(self, name: str) -> StoredTensor:
        return self._file.tensor(name)


class SafetensorsCheckpoint(Checkpoint):
    """A Hugging Face folder: config.json, one or several safetensors files, and the tokenizer's files."""

    format = "hf"

    def __init__(self, path: Path, name: str | None = None) -> None:
        # Modules of one format are loaded for its models only.
        from pelton.loader.hf.config import read_hf_config
        from pelton.loader.hf.safetensors_file import SafetensorsFile

        super().__init__(path, name)
        names = {entry.name for entry in path.iterdir()}
        check_has_weights(path, names)
        weight_map = None if SINGLE in names else read_weight_map(path / INDEX)
        self._files: dict[str, SafetensorsFile] = {}
        for file_name in [SINGLE] if weight_map is None else shards(path, weight_map, names):
            file = SafetensorsFile(path / file_name)
            self.num_bytes += file.path.stat().st_size
            for tensor in file.tensors:
                if tensor in self._files:
                    raise ValueError(f"{path}: tensor {tensor} is in {self._files[tensor].path.name} and {file_name}")
                self._files[tensor] = file
        if weight_map is not None:
            self._check_index(weight_map)
        self.config = read_hf_config(path)

    def _check_index(self, weight_map: Mapping[str, str]) -> None:
        """Raise ValueError unless every tensor is where the index has it."""
        problems = []
        for tensor, file_name in sorted(weight_map.items()):
            if tensor not in self._files:
                problems.append(f"{tensor}, which {file_name} lacks")
            elif (found := self._files[tensor].path.name) != file_name:
                problems.append(f"{tensor} in {file_name}, but it is in {found}")
        if problems:
            raise ValueError(f"{self.path / INDEX} has {listed(problems)}")
        if unnamed := sorted(self._files.keys() - weight_map.keys()):
            raise ValueError(f"{self.path / INDEX} does not name {listed(unnamed)}, which its files hold")

    def generation_defaults(self) -> dict[str, float | int]:
        from pelton.loader.hf.generation_config import read_generation_defaults

        return read_generation_defaults(self.path)

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._files)

    def tensor(self, name: str) -> StoredTensor:
        return self._files[name].tensor(name)


def open_checkpoint(model: str, revision: str | None = None, *, progress: bool = False) -> Checkpoint:
    """Open a model by alias, path or hub id. An alias wins over a path of the same name, and a path over a hub id.

    `revision` is of a hub's repository. With `progress`, downloads show bars if standard error is a terminal.
    Raises ValueError that says what is accepted, or what is wrong with the files.
    """
    if (found := _open_here(model, revision)) is not None:
        return found
    from pelton.loader.hf.hub import fetch_model

    fetched = _open_path(fetch_model(_hub_id_of(model), revision, progress=progress), model)
    assert fetched is not None
    return fetched


def open_for_texts(model: str) -> Checkpoint | Path:
    """As `open_checkpoint`, for who needs no weights: a folder is returned as it is, and of a hub's repository with
    safetensors the folder of all other files, which are fetched."""
    if model not in known_aliases() and os.path.isdir(folder := os.path.expanduser(model)):
        return Path(folder)
    if (found := _open_here(model, None)) is not None:
        return found
    from pelton.loader.hf.hub import fetch_texts

    return fetch_texts(_hub_id_of(model)) or open_checkpoint(model)


def _open_here(model: str, revision: str | None) -> Checkpoint | None:
    """None if it is neither an alias nor a path."""
    aliases = known_aliases()
    if model in aliases:
        _refuse_revision(revision, model, "an alias")
        return GGUFCheckpoint(aliases[model].locate(), model)
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:
        # `~name/...`, and there is no such user.
        raise ValueError(f"there is no model {model!r}: {error}") from None
    try:
        if path.exists():
            _refuse_revision(revision, model, "a path on this machine")
        if found := _open_path(path, model):
            return found
    except OSError as error:
        raise ValueError(f"the model {model!r} cannot be read: {error.strerror}") from None
    return None


def _hub_id_of(model: str) -> "HubId":
    """Of what is neither an alias nor a path. Raises ValueError that says what is accepted."""
    from pelton.loader.hf.hub import parse_hub_id

    hub_id = parse_hub_id(model)
    if hub_id is None:
        is_path = model.endswith(".gguf") or Path(model).expanduser().is_absolute()
        raise ValueError(
            f"there is no model {model!r}: {'there is nothing at this path; ' if is_path else ''}give an alias "
            f"({', '.join(known_aliases())}), a GGUF file, a folder with config.json, safetensors and tokenizer.json, "
            "or a hub id, which has the form organisation/name"
        )
    if hub_id.quant is not None and os.path.exists(hub_id.repository):
        raise ValueError(
            f"the model {model!r}: {hub_id.repository} is a path on this machine, and :{hub_id.quant} is for "
            "repositories of a hub; give the path of the GGUF file"
        )
    return hub_id


def _refuse_revision(revision: str | None, model: str, what: str) -> None:
    if revision is not None:
        raise ValueError(
            f"revision is {revision!r}, but the model {model!r} is {what}; only models of a hub have revisions"
        )


def _open_path(path: Path, name: str) -> Checkpoint | None:
    """None where nothing is. Raises ValueError for anything else than a model, and OSError."""
    if path.is_dir():
        return SafetensorsCheckpoint(path, name)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        is_gguf = file.read(len(MAGIC)) == MAGIC
    if is_gguf or path.suffix == ".gguf":
        return GGUFCheckpoint(path, name)
    if path.suffix in PICKLES:
        raise ValueError(f"{path} is {PICKLE}")
    if path.suffix in (".safetensors", ".json"):
        raise ValueError(f"{path} is a part of a model; give the folder that holds it")
    raise ValueError(f"{path} is neither a GGUF file nor a folder with config.json and safetensors")
