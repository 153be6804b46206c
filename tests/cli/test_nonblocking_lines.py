"""Lines of a descriptor, with and without waiting."""

import os

import pytest

from pelton.cli.nonblocking_lines import NonblockingLines


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0) as file:
        yield NonblockingLines(reader, "the pipe"), file


def test_a_file(tmp_path):
    """Longer than one piece, with blank lines, and without a line end at its end."""
    lines = [b"a" * 200_000, b"", b"b\r", b"\xff", b"c" * 70_000]
    path = tmp_path / "file"
    path.write_bytes(b"\n".join(lines))
    with path.open("rb") as file:
        reader = NonblockingLines(file.fileno(), "the file")
        assert [reader.read_line(wait=True) for _ in range(4)] == lines[:4]
        assert reader.read_line(wait=False) == lines[4]
        assert reader.read_line(wait=True) is None


def test_what_is_not_there_yet(pipe):
    reader, writer = pipe
    assert reader.read_line(wait=False) is None
    writer.write(b"one\ntw")
    assert reader.read_line(wait=False) == b"one"
    assert reader.read_line(wait=False) is None, "half a line"
    writer.write(b"o\n\n")
    assert [reader.read_line(wait=False) for _ in range(3)] == [b"two", b"", None]
    writer.write(b"end")
    writer.close()
    assert reader.read_line(wait=True) == b"end"
    assert reader.read_line(wait=False) is None


def test_an_empty_file():
    with open(os.devnull, "rb") as file:
        reader = NonblockingLines(file.fileno(), "the file")
        assert reader.read_line(wait=True) is None


def test_a_failure_has_a_name(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError) as caught:
            NonblockingLines(descriptor, "the folder").read_line(wait=True)
    finally:
        os.close(descriptor)
    assert caught.value.filename == "the folder"


def test_a_line_without_an_end_takes_no_more_memory_than_is_allowed(tmp_path):
    """Its beginning comes, a byte longer than allowed, and the lines after it."""
    lines = [b"a" * 1000, b"b" * 300_000, b"c" * 1001, b"d", b"e" * 500_000]
    path = tmp_path / "file"
    path.write_bytes(b"\n".join(lines))
    with path.open("rb") as file:
        reader = NonblockingLines(file.fileno(), "the file", max_line_bytes=1000)
        found = []
        while (line := reader.read_line(wait=True)) is not None:
            found.append(line)
            assert len(reader._buffer) <= 1001 + (1 << 16)
    assert found == [line[:1001] for line in lines]
