"""What commands say: what was asked for on standard output, all else on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OUTPUT = "the output"


def show(text: str, end: str = "\n") -> None:
    """What was asked for."""
    with system_errors_of(OUTPUT):
        print(text, end=end, flush=True)


def note(text: str) -> None:
    """A remark, which is no error."""
    print(text, file=sys.stderr, flush=True)


def complain(problem: str) -> None:
    """One line, whatever characters it has from names of files and from what users write."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in problem)
    note(f"pelton: {line}")


@contextmanager
def system_errors_of(name: str) -> Iterator[None]:
    """Give an OSError this name, unless it has that of a file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or name
        raise
