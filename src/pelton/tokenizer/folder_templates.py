"""The chat templates of a Hugging Face folder, which may be in any of four places."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.error_text import shown
from pelton.loader.hf.folder import CHAT_TEMPLATE, LEGACY_CHAT_TEMPLATE, MORE_TEMPLATES, TOKENIZER_CONFIG
from pelton.loader.text_files import is_there, read_json, read_text

_MAX_NAMED_TEMPLATES = 100


def folder_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The template for plain conversations, and others by name.

    Later places go first: chat_template.jinja and additional_chat_templates/*.jinja, then chat_template in
    tokenizer_config.json (`config`), then chat_template.json, which older processors wrote.
    Raises ValueError that names the file.
    """
    templates = _files(folder)
    if not templates:
        templates = _entry(folder / TOKENIZER_CONFIG, config)
    legacy_path = folder / LEGACY_CHAT_TEMPLATE
    if not templates and is_there(legacy_path):
        templates = _entry(legacy_path, read_json(legacy_path))
    return templates.pop("default", None), templates


def _files(folder: Path) -> dict[str, str]:
    more = folder / MORE_TEMPLATES
    try:
        paths = sorted(path for path in more.iterdir() if path.suffix == ".jinja") if is_there(more) else []
    except OSError as error:
        raise ValueError(f"{more} cannot be read: {error.strerror}") from None
    if len(paths) > _MAX_NAMED_TEMPLATES:
        raise ValueError(f"{more} holds {len(paths)} templates, not chat templates")
    templates = {path.stem: read_text(path) for path in paths}
    default = folder / CHAT_TEMPLATE
    if is_there(default):
        templates["default"] = read_text(default)
    return templates


def _entry(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The `chat_template` of a JSON file: a template, or a list of them with names."""
    entry = config.get("chat_template")
    if entry is None:
        return {}
    named = isinstance(entry, list)
    if named and not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in entry):
        raise ValueError(f"{path}: chat_template must be a string or a list of objects with a name, got {shown(entry)}")
    templates = {item["name"]: item.get("template") for item in entry} if named else {"default": entry}
    for template in templates.values():
        if not isinstance(template, str):
            raise ValueError(f"{path}: chat_template must be a string, got {shown(template)}")
    return templates
