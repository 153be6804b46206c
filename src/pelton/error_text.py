"""Names and values that come from others, users or files, in messages of errors."""

import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MAX_NAME = 256
_MAX_SHOWN = 120
_MAX_LISTED = 8
_MAX_TEXT = 300
_MAX_BITS = 4096


class _Repr(reprlib.Repr):
    """Python refuses to write out integers of very many digits."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= _MAX_BITS else f"<int of {x.bit_length()} bits>"


_REPR = _Repr()
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


@contextmanager
def in_tensor(path: Path, name: str) -> Iterator[None]:
    """Put a tensor, and where it is, before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: tensor {name!r} is not usable: {error}") from None


def one_line(text: str) -> str:
    """Somebody else's message, printable and not long."""
    cut = text[:_MAX_TEXT]
    line = " ".join("".join(char if char.isprintable() else " " for char in cut).split())
    return line if len(cut) == len(text) else line + "..."


def shown(value: object) -> str:
    """A value for a message: on one line, printable, not long, however large or deeply nested it is, and whatever its
    own methods do."""
    try:
        text = _REPR.repr(value)
        line = one_line(text[:_MAX_SHOWN])
        return line if len(text) <= _MAX_SHOWN else line + "..."
    except Exception:  # code of the value's class
        return f"<{one_line(type(value).__name__)}>"


def message_of(error: BaseException) -> str:
    """The message of somebody else's exception, printable and not long; empty if it has none that can be read."""
    try:
        return one_line(str(error))
    except Exception:  # code of the exception's class
        return ""


def described(error: BaseException) -> str:
    """Somebody else's exception: its type, and its message if there is one."""
    name, message = one_line(type(error).__name__), message_of(error)
    return f"{name}: {message}" if message else name


def listed(entries: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(entries) - _MAX_LISTED
    return ", ".join(map(one_line, entries[:_MAX_LISTED])) + (f" and {more} more" if more > 0 else "")
