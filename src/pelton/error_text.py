"""Names and values that come from others, users or files, in messages of errors."""

import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MAX_NAME = 256
_MAX_SHOWN = 120
_MAX_LISTED = 8
_MAX_TEXT = 300
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 80, 80


def check_name(name: str) -> None:
    """Refuse names that would make the messages unreadable which show them, with a ValueError that says no file."""
    if len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(f"the name {shown(name)} is longer than {_MAX_NAME} characters, or not printable")


@contextmanager
def in_file(path: Path) -> Iterator[None]:
    """Put the path before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def one_line(text: str) -> str:
    """Somebody else's message, printable and not long."""
    cut = text[:_MAX_TEXT]
    line = " ".join("".join(char if char.isprintable() else " " for char in cut).split())
    return line if len(cut) == len(text) else line + "..."


def shown(value: object) -> str:
    """A value for a message: on one line, printable, not long, however large or deeply nested it is."""
    text = _REPR.repr(value)
    return " ".join(text.split()) if len(text) <= _MAX_SHOWN else f"{' '.join(text[:_MAX_SHOWN].split())}..."


def listed(entries: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(entries) - _MAX_LISTED
    return ", ".join(map(one_line, entries[:_MAX_LISTED])) + (f" and {more} more" if more > 0 else "")
