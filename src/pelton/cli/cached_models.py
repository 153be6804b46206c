"""Models in the hub's cache."""

from typing import TYPE_CHECKING

from pelton.cli.messages import complain
from pelton.cli.model_details import size_text
from pelton.error_text import listed

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo


def cached_models() -> list[tuple[str, str]]:
    """Hub ids in order, each with what is there of it. What cannot be read is complained about."""
    from huggingface_hub import constants, scan_cache_dir  # takes a moment
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    for warning in cache.warnings:
        complain(f"the hub's cache has an entry that cannot be read: {warning}")
    found = [(repo.repo_id, _content(repo)) for repo in cache.repos if repo.repo_type == "model"]
    return sorted((name, content) for name, content in found if content)


def _content(repo: "CachedRepoInfo") -> str:
    """Empty where nothing looks like a model."""
    revisions = sorted(repo.revisions, key=lambda revision: -revision.last_modified)
    parts = list(dict.fromkeys(part for revision in revisions for part in _parts(revision)))
    return f"{size_text(repo.size_on_disk)}: {listed(parts)}" if parts else ""


def _parts(revision: "CachedRevisionInfo") -> list[str]:
    names = {file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files}
    parts = sorted(name for name in names if name.endswith(".gguf"))
    if "config.json" in names:
        has_weights = any(name.endswith(".safetensors") for name in names)
        parts.insert(0, "safetensors" if has_weights else "configuration without weights")
    return parts
