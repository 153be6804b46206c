"""The files of commands that answer JSON lines, opened before a model is loaded."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from pelton.cli.messages import OUTPUT, system_errors_of
from pelton.cli.nonblocking_lines import NonblockingLines
from pelton.cli.prompts import STANDARD_INPUT

_STANDARD_OUTPUT = 1
"""Its descriptor."""


@contextmanager
def open_files(
    source_name: str, output: str | None, *, source_flag: str, output_flag: str
) -> Iterator[tuple[NonblockingLines, BinaryIO]]:
    """Where requests come from, and where answers go: standard output if `output` is None.

    What a file for answers has stays, until `empty`; one that was not there goes again if nothing was written. Raises
    ValueError for what cannot be read or written, and if both are the same file.
    """
    with _open_input(source_name, source_flag) as source:
        name = "standard input" if source_name == STANDARD_INPUT else source_name
        if output is None:
            if sys.stdout is None:
                raise ValueError(f"standard output is closed, so answers can go nowhere; give {output_flag} FILE")
            if _is_same_file(source, _STANDARD_OUTPUT):
                raise ValueError(f"standard output is the file that {source_flag} reads; send it to another one")
            yield NonblockingLines(source, name), sys.stdout.buffer
            return
        with _open_output(output) as target:
            if _is_same_file(source, target.fileno()):
                raise ValueError(f"output is {output!r}, which {source_flag} reads; name another file")
            yield NonblockingLines(source, name), target


def empty(target: BinaryIO) -> None:
    """Answers take the place of what a file has. Standard output keeps what others wrote to it."""
    if target is not sys.stdout.buffer and stat.S_ISREG(os.fstat(target.fileno()).st_mode):
        target.truncate()


@contextmanager
def _open_input(path: str, flag: str) -> Iterator[int]:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise ValueError(f"standard input is closed, so {flag} - has no requests")
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} cannot be read: it is a folder; {flag} takes one file")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _open_output(path: str) -> Iterator[BinaryIO]:
    is_new = not os.path.lexists(path)
    target = _open_for_writing(path)
    try:
        yield target
    except BaseException:
        if is_new and not os.fstat(target.fileno()).st_size:
            os.unlink(path)
        raise
    finally:
        with system_errors_of(OUTPUT):
            target.close()


def _open_for_writing(path: str) -> BinaryIO:
    try:
        return open(path, "wb", opener=lambda name, flags: os.open(name, flags & ~os.O_TRUNC, 0o666))
    except OSError as error:
        raise ValueError(f"output {path!r} cannot be written: {error.strerror}") from None


def _is_same_file(source: int, target: int) -> bool:
    """A terminal or a device may well be both."""
    status = os.fstat(source)
    return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(target))
