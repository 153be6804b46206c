"""Files that benchmarks leave."""

import os
from pathlib import Path

import pytest

from pelton.bench.result_files import check_can_be_written, write_text


def test_what_is_there_stays_until_the_rest_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("before")

    def full(self, *arguments, **options):
        self.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            write_text(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path], "nothing is left over"
    write_text(path, "after")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_stay(tmp_path):
    path, link = tmp_path / "result.json", tmp_path / "link"
    path.write_text("before")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_written_where_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_can_be_written("--plot", str(pipe))
        write_text(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
