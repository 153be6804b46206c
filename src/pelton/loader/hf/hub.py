"""Models in repositories of a hub: which files are needed, and where they lie once they are here.

huggingface_hub fetches them into its cache, under its own settings (HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE,
HF_ENDPOINT, HF_TOKEN). It is imported only when it is used, since that takes a moment.
"""

import os.path
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from logging import getLogger
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pelton.error_text import listed
from pelton.loader.hf.config import read_hf_config
from pelton.loader.hf.folder import (
    CONFIG,
    INDEX,
    PICKLES,
    SINGLE,
    check_has_weights,
    is_text_file,
    read_weight_map,
    shards,
)
from pelton.loader.hf.hub_errors import explain

logger = getLogger(__name__)

_NO_MODELS = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""GGUF files that accompany a model: projectors of images, statistics for quantization."""
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


class HubId(NamedTuple):
    """`organisation/name`, or `organisation/name:QUANT` for one of its GGUF files."""

    repository: str
    quant: str | None


def parse_hub_id(model: str) -> HubId | None:
    """None for what looks like a path, and for a single word."""
    if model.startswith(("/", "./", "../", "~")) or model.lower().endswith((".gguf", ".safetensors", *PICKLES)):
        return None
    repository, colon, quant = model.partition(":")
    if model.count("/") != 1 or not all(repository.split("/")) or bool(colon) != bool(quant):
        return None
    return HubId(repository, quant or None)


def fetch_model(hub_id: HubId, revision: str | None, *, progress: bool) -> Path:
    """Bring what is needed of a repository into the cache, and return its folder or its GGUF file there.

    If the hub cannot be reached, or does not want to be (HF_HUB_OFFLINE), the cache has to do. Raises one ValueError,
    before any weights are fetched where that is possible.
    """
    repository = _open(hub_id.repository, revision, progress)
    try:
        if hub_id.quant is None and ({SINGLE, INDEX} & repository.files or not _find_ggufs(repository)):
            return _fetch_folder(repository)
        name = _choose_gguf(repository, hub_id.quant)
        return repository.fetch([name]) / name
    except ValueError as error:
        if repository.limits is None:
            raise
        raise ValueError(f"{error}; only the cache was looked at, since {repository.limits}") from None


def fetch_texts(hub_id: HubId) -> Path | None:
    """The folder of all that Pelton reads of a repository but its weights, as `fetch_model` does it.

    None for a GGUF file, which has its texts with its weights.
    """
    repository = _open(hub_id.repository, None, progress=False)
    if hub_id.quant is not None or not {SINGLE, INDEX} & repository.files:
        return None
    return repository.fetch(_texts(repository))


class _Repository(ABC):
    """One revision of a repository. As text it is the repository's id."""

    files: frozenset[str]
    """Paths within the repository."""
    limits: str | None = None
    """Why `files` may not be all of them."""

    def __init__(self, name: str, files: Iterable[str]) -> None:
        self._name = name
        self.files = frozenset(files)
        for file in self.files:
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file or str(path) != file:
                raise ValueError(f"{name} lists a file {file!r}, which is no path within a repository")

    def __str__(self) -> str:
        return self._name

    @abstractmethod
    def fetch(self, names: Sequence[str]) -> Path:
        """Bring files into the cache. Returns the folder with all files of this revision that are here."""


class _CachedRepository(_Repository):
    """What a cache has of a repository whose hub cannot be asked."""

    def __init__(self, name: str, folder: Path, limits: str) -> None:
        paths = (path for path in folder.rglob("*") if path.is_file())
        super().__init__(name, (path.relative_to(folder).as_posix() for path in paths))
        self.limits = limits
        self._folder = folder

    def fetch(self, names: Sequence[str]) -> Path:
        for name in names:
            _check_is_inside(self._folder, name)
        return self._folder


class _HubRepository(_Repository):
    """A repository whose files the hub has listed."""

    def __init__(self, name: str, revision: str | None, commit: str, sizes: dict[str, int], progress: bool) -> None:
        super().__init__(name, sizes)
        self._revision = revision
        self._commit = commit
        self._sizes = sizes
        self._progress = progress
        self._folder: Path | None = None

    def fetch(self, names: Sequence[str]) -> Path:
        from huggingface_hub import hf_hub_download

        self._announce(names)
        with _explained(self._name, self._revision):
            for name in names:
                # The first download goes by the revision's name, so that the cache remembers what that stands for.
                revision = self._revision if self._folder is None else self._commit
                bar = None if self._progress else _no_bar()
                file = hf_hub_download(self._name, name, revision=revision, tqdm_class=bar, **_client())
                if self._folder is None:
                    self._folder = Path(file.removesuffix(name))
                    self._commit = self._folder.name
        assert self._folder is not None
        for name in names:
            _check_is_inside(self._folder, name)
        return self._folder

    def _announce(self, names: Sequence[str]) -> None:
        """Log what is about to be downloaded, if anything is."""
        from huggingface_hub import constants, try_to_load_from_cache

        cached = {name: try_to_load_from_cache(self._name, name, revision=self._commit) for name in names}
        if missing := [name for name in names if not isinstance(cached[name], str)]:
            size = sum(self._sizes[name] for name in missing) / 1e6
            logger.info("Downloading %s of %s from %s (%.1f MB)", listed(missing), self._name, constants.ENDPOINT, size)


def _open(name: str, revision: str | None, progress: bool) -> _Repository:
    """Ask the hub what there is; if it does not say, look into the cache."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RevisionNotFoundError

    try:
        info = HfApi(**_client()).model_info(
            name, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        if info.sha is None or info.siblings is None:
            raise ValueError("the answer names no commit or no files")
        sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings}
        if not all(isinstance(file, str) and isinstance(size, int) for file, size in sizes.items()):
            raise ValueError("the answer has files whose names are not text, or whose sizes are not numbers")
    except Exception as error:  # Anything: of the hub, of the network, of the HTTP client, which is none of ours.
        problem = explain(error, name, revision)
        cached = None
        if not isinstance(error, HFValidationError | RevisionNotFoundError):
            cached = _find_cached(name, revision)
        if cached is None:
            raise ValueError(problem.sentence) from None
        if not isinstance(error, OfflineModeIsEnabled):
            logger.warning("%s; using what the cache has of %s, commit %s", problem.reason, name, cached.name)
        return _CachedRepository(name, cached, problem.reason)
    return _HubRepository(name, revision, info.sha, sizes, progress)


def _find_cached(name: str, revision: str | None) -> Path | None:
    """The folder that the cache has for this revision, complete or not."""
    from huggingface_hub import snapshot_download

    try:
        # Of no files at all, so that nothing is missing.
        return Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=[]))
    except FileNotFoundError:
        return None


def _fetch_folder(repository: _Repository) -> Path:
    """Everything that Pelton reads of a folder with safetensors; the weights last, once all else is right."""
    names = repository.files
    check_has_weights(repository, names)
    if CONFIG not in names:
        raise ValueError(f"{repository} has no {CONFIG}")
    texts = _texts(repository)
    if SINGLE in names:
        read_hf_config(repository.fetch(texts))
        return repository.fetch([SINGLE])
    folder = repository.fetch([*texts, INDEX])
    weights = shards(repository, read_weight_map(folder / INDEX), names)
    read_hf_config(folder)
    return repository.fetch(weights)


def _texts(repository: _Repository) -> list[str]:
    return sorted(filter(is_text_file, repository.files))


def _find_ggufs(repository: _Repository) -> list[str]:
    return sorted(name for name in repository.files if name.lower().endswith(".gguf") and not _NO_MODELS.search(name))


def _choose_gguf(repository: _Repository, quant: str | None) -> str:
    """The one file that `quant` means. Raises ValueError, which lists what there is, if it is not one."""
    there = _find_ggufs(repository)
    if not there:
        raise ValueError(f"{repository} has no GGUF files; leave out :{quant}")
    found = there if quant is None else _matches(there, quant)
    if not found:
        raise ValueError(f"{repository} has no GGUF file with {quant} in its name; it has {', '.join(there)}")
    if split := [name for name in found if _SPLIT.search(name)]:
        whole = [name for name in there if name not in split and not _SPLIT.search(name)]
        if quant is not None or not whole:
            raise ValueError(
                f"{split[0]} of {repository} is a part of a split model, which Pelton cannot read; merge the parts "
                "(llama-gguf-split --merge) and give the file" + (f", or take {', '.join(whole)}" if whole else "")
            )
    if len(found) > 1:
        raise ValueError(
            f"{repository} has several GGUF files{f' with {quant} in their names' if quant else ''}: "
            f"{', '.join(found)}; give one as {repository}:QUANT, with a part of its name as QUANT"
        )
    return found[0]


def _matches(names: Sequence[str], quant: str) -> list[str]:
    """Names that contain `quant`, whatever its case; only those with it as a word of its own, if there are any.

    So F16 is not BF16, and Q4_K is not Q4_K_M.
    """
    wanted = re.compile(rf"(?<![a-z0-9_]){re.escape(quant.lower())}(?![a-z0-9_])")
    return [name for name in names if wanted.search(name.lower())] or [
        name for name in names if quant.lower() in name.lower()
    ]


def _check_is_inside(folder: Path, name: str) -> None:
    """Files of a snapshot are links to other places of the cache; they may lead nowhere else.

    huggingface_hub makes them to whatever name the server's ETag gives, a path to any file of this machine included.
    """
    from huggingface_hub import constants

    # Beside the repository's own folder, and its contents wherever they were moved to: the cache as a whole, where
    # repositories may share contents.
    repository = folder.parent.parent
    places = (repository, repository / "blobs", constants.HF_HUB_CACHE)
    allowed = [os.path.realpath(place) for place in places]
    real = Path(os.path.realpath(folder / name))
    if not any(real.is_relative_to(place) for place in allowed):
        raise ValueError(f"{folder / name} is a link that leads out of the cache {constants.HF_HUB_CACHE}; remove it")


def _client() -> dict[str, Any]:
    """What requests say about who makes them."""
    return {"library_name": "pelton", "library_version": version("pelton")}


def _no_bar() -> Any:
    """huggingface_hub's progress bar, never shown."""
    from huggingface_hub.utils.tqdm import tqdm

    return partial(tqdm, disable=True)


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """Turn whatever comes from huggingface_hub into a ValueError."""
    try:
        yield
    except Exception as error:  # See `_open`.
        raise ValueError(explain(error, name, revision).sentence) from None
