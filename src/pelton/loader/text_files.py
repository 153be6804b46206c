"""Reading text files: of a checkpoint, which anybody may have written, and such as users name."""

import json
import os.path
from pathlib import Path
from typing import Any

from pelton.error_text import check_name, shown
from pelton.loader.model_files import LFS_POINTER, recognise, regular_size

_MAX_BYTES = 16_000_000
"""Real ones have up to 3 MB. Parsed JSON may take forty times the memory of its text."""


def is_there(path: Path) -> bool:
    """Whether there is such a name: a link that leads nowhere is there, and cannot be read."""
    return os.path.lexists(path)


def read_text(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """A UTF-8 text. Raises ValueError that names the file: unreadable, not a regular file, too large, or no text."""
    size = regular_size(path)
    _check_size(path, size, max_bytes)
    return _decode(path, _read(path, size))


def read_any_text(path: Path) -> str:
    """A UTF-8 text without its byte order mark, of whatever can be opened: for files that users name, pipes among them.

    Raises ValueError that names the file: unreadable, larger than 16 MB, or no text.
    """
    content = _read(path, _MAX_BYTES + 1)
    _check_size(path, len(content), _MAX_BYTES)
    return _decode(path, content).removeprefix("\ufeff")


def _check_size(path: Path, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ValueError(f"{path} cannot be read: it is larger than {max_bytes / 1e6:g} MB")


def _read(path: Path, size: int) -> bytes:
    """What there is, up to a size."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _decode(path: Path, content: bytes) -> str:
    if content.startswith(LFS_POINTER):
        raise ValueError(f"{path} is {recognise(content)}")
    return decode_utf8(content, str(path))


def decode_utf8(content: bytes, source: str) -> str:
    """Raises ValueError that names the source of what is no UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError that names the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        what = recognise(text[:100].encode())
        raise ValueError(f"{path} is not valid JSON: {error if what is None else f'it is {what}'}") from None


def parse_json(text: str, *, finite: bool = False) -> dict[str, Any]:
    """A JSON object in which no name occurs twice, with names that can be shown; `finite`: without NaN and Infinity.

    Raises ValueError that says no file. Only the names of the outermost object are checked to be short and printable:
    others may be tokens.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):  # Python's advice is not for whoever wrote the text
            raise ValueError("it has an integer of too many digits") from None
        raise
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    for name in content:
        check_name(name)
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"the name {shown(name)} occurs twice")
        entries[name] = value
    return entries
