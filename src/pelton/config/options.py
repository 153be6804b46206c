"""Configuration fields that carry their own documentation."""

import math
from dataclasses import Field, field
from typing import Any, TypeVar

_T = TypeVar("_T")


def option(default: _T, doc: str, **cli: Any) -> _T:
    """A dataclass field whose `doc` is its `--help` text; `cli` is passed to `add_argument`."""
    return field(default=default, metadata={"doc": doc, "cli": cli})


def doc_of(declared: "Field[Any]") -> str:
    return str(declared.metadata["doc"])


def check_positive(section: object, *names: str) -> None:
    """Raise ValueError unless these fields of `section` are finite numbers above 0."""
    for name in names:
        value = getattr(section, name)
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
