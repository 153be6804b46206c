"""Files that benchmarks leave."""

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


def write_json(path: str, result: Mapping[str, Any]) -> None:
    """Write the result as one JSON object; what the file has is overwritten.

    Raises ValueError for a number that is not finite, which JSON does not have.
    """
    Path(path).write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
