"""Reading the text files of a checkpoint, which anybody may have written."""

import json
import stat
from pathlib import Path
from typing import Any

_MAX_BYTES = 64_000_000


def read_text(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """A UTF-8 text. Raises ValueError that names the file: unreadable, not a regular file, or too large."""
    try:
        # Before it is opened: opening a FIFO waits for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"{path} cannot be read: it is not a regular file")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise ValueError(f"{path} cannot be read: it is larger than {max_bytes / 1e6:g} MB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError that names the file."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content
