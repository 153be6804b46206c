"""Files that benchmarks leave. What is there stays until what replaces it is whole."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def check_can_be_written(flag: str, path: str | None) -> None:
    """Raise ValueError if no file can be written at `path`, before anything is measured; None is fine."""
    if path is None:
        return
    place = Path(path)
    if not path or place.is_dir():
        raise ValueError(f"{flag} must name a file, got {path!r}")
    if not place.parent.is_dir():
        raise ValueError(f"{flag} is {path!r}, but there is no folder {str(place.parent)!r}; make it first")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise ValueError(f"{flag} is {path!r}, which may not be written; name another file")


def write_text(path: Path | str, content: str) -> None:
    """Write a file as a whole, in place of what is there. Raises OSError."""
    place = Path(path).resolve()
    if place.exists() and not (place.is_file() and os.access(place.parent, os.W_OK)):
        place.write_text(content, encoding="utf-8")  # such as /dev/stdout
        return
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        part.write_text(content, encoding="utf-8")
        if place.exists():
            part.chmod(place.stat().st_mode & 0o777)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path | str, result: Mapping[str, Any]) -> None:
    """Write the result as one JSON object; what the file has is overwritten.

    Raises ValueError for a number that is not finite, which JSON does not have, and OSError.
    """
    write_text(path, json.dumps(result, indent=2, allow_nan=False) + "\n")


def json_line(result: Mapping[str, Any]) -> str:
    """Raises ValueError for a number that is not finite."""
    return json.dumps(result, allow_nan=False) + "\n"


def append_json(path: Path, result: Mapping[str, Any]) -> None:
    """Add the result to a file as one line. Raises as `write_json`."""
    line = json_line(result)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode())
