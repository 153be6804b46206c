"""Opening a checkpoint's files, and saying what a wrong one is."""

import mmap
import stat
from pathlib import Path
from typing import NoReturn

from pelton.error_text import shown

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

_CONVERT = "convert it to safetensors (transformers: model.save_pretrained(folder))"
PICKLE = f"a pickle, which can run code when it is opened; {_CONVERT}"
"""What such a file is, with the remedy."""

_OLD = "older than GGUF; download the model as GGUF, or convert it"
_KINDS = (
    (LFS_POINTER, "a Git LFS pointer, not the file itself; fetch that with git lfs pull, or download it again"),
    (b"GGUF", "a GGUF file"),
    (b"FUGG", "a big-endian GGUF file; convert it to little-endian"),
    (b"lmgg", f"a GGML file, {_OLD}"),
    (b"fmgg", f"a GGMF file, {_OLD}"),
    (b"tjgg", f"a GGJT file, {_OLD}"),
    (b"algg", f"a GGLA adapter, {_OLD}"),
    (b"PK\3\4", f"a zip archive; if torch.save wrote it, it holds pickles, which can run code: {_CONVERT}"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (bytes(16), "empty at its beginning (zeros), as after an interrupted download; download it again"),
)
"""How a file begins -> what it is, and the remedy."""
_WEB_PAGES = (b"<!doctype html", b"<html", b"<?xml")


def regular_size(path: Path) -> int:
    """The size of a file in bytes. Raises ValueError that names it: absent, not readable, or not a regular file."""
    try:
        # Before it is opened: opening a FIFO waits for a writer.
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} cannot be read: it is not a regular file")
    return status.st_size


def recognise(head: bytes) -> str | None:
    """What a file is that begins like this and is not what it should be, with a remedy. None: unknown."""
    for magic, what in _KINDS:
        if head.startswith(magic):
            return what
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5" and head[2:3] > b"\0":
        return PICKLE
    if head.lstrip().lower().startswith(_WEB_PAGES):
        return "a web page; download the file itself"
    return None


class MappedFile:
    """A binary file, mapped into memory: `data`.

    Raises ValueError that names the file and its `kind`, if it cannot be read or is empty. The file must not shrink
    while it is mapped: reading what is gone kills the process (SIGBUS), and no check can prevent that.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._kind = kind
        if not regular_size(path):
            self.fail("it is empty")
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None

    def fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{self.path} is not a usable {self._kind} file: {problem}")

    def fail_at_start(self, problem: str) -> NoReturn:
        """Refuse a file that does not begin as its kind does: say what it is instead, where that can be told."""
        head = self.data[:100]
        what = recognise(head)
        if what is not None:
            self.fail(f"it is {what}")
        text = head.decode("latin-1").replace("\n", " ")
        self.fail(f"{problem}; it is a text: {shown(text)}" if text.isascii() and text.isprintable() else problem)
