import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from pelton.loader.gguf.file import GGUFFile
from pelton.loader.hf.safetensors_file import SafetensorsFile
from pelton.loader.model_files import recognise
from pelton.loader.text_files import read_any_text, read_json, read_text

LFS_POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""
OPENERS: list[Callable[[Path], Any]] = [GGUFFile, SafetensorsFile]


def torch_saved(path: Path, *, as_zip: bool) -> bytes:
    torch.save({"weight": torch.zeros(300)}, path, _use_new_zipfile_serialization=as_zip)
    return path.read_bytes()


def safetensors_content(num_bytes: int = 8) -> bytes:
    return save({"x": np.zeros(num_bytes // 4, np.float32)})


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (LFS_POINTER, "it is a Git LFS pointer, .*git lfs pull"),
        (b"\n <!DOCTYPE html>\n<html></html>", "it is a web page; download the file"),
        (b"<html lang='en'>", "it is a web page"),
        (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "it is a web page"),
        (b"Entry not found", "text: 'Entry not found'"),
        (b'{"error":\n"Repository not found"}', 'text: .*"Repository not found"'),
        (b"lmgg" + bytes(100), "it is a GGML file, older than GGUF"),
        (b"fmgg" + struct.pack("<I", 1) + bytes(100), "it is a GGMF file, older"),
        (b"tjgg" + struct.pack("<I", 3) + bytes(100), "it is a GGJT file, older"),
        (b"FUGG" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"\x1f\x8b\x08\x00" + bytes(range(1, 100)), "compressed with gzip"),
        (bytes(1000), "zeros"),
        (b"", "it is empty"),
    ],
)
def test_says_what_a_wrong_file_is(opener: Callable[[Path], Any], content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"model\.gguf is not a usable \w+ file: .*{what}") as refusal:
        opener(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("as_zip", [True, False])
def test_knows_what_torch_saves(opener: Callable[[Path], Any], as_zip: bool, tmp_path: Path) -> None:
    path = tmp_path / "model"
    torch_saved(path, as_zip=as_zip)
    with pytest.raises(
        ValueError, match="it is a zip archive.*safetensors" if as_zip else "it is a pickle.*safetensors"
    ):
        opener(path)


def test_knows_one_format_where_the_other_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    GGUFFile(path)
    with pytest.raises(ValueError, match="not a usable safetensors file: it is a GGUF file"):
        SafetensorsFile(path)
    path.write_bytes(safetensors_content())
    SafetensorsFile(path)
    with pytest.raises(ValueError, match="not a usable GGUF file: it does not begin with GGUF"):
        GGUFFile(path)


def test_takes_no_safetensors_header_for_a_pickle() -> None:
    for size in (0x280, 0x380, 0x480, 0x580):
        assert recognise(struct.pack("<Q", size) + b"{") is None


@pytest.mark.parametrize("opener", [*OPENERS, read_text, read_json])
def test_refuses_what_is_no_regular_file(opener: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent cannot be read: No such file"):
        opener(tmp_path / "absent")
    with pytest.raises(ValueError, match="cannot be read: it is not a regular file"):
        opener(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="fifo cannot be read: it is not a regular file"):
        opener(tmp_path / "fifo")


def test_users_may_name_pipes(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, "\ufeffé\ufeff".encode())
    os.close(writer)
    try:
        assert read_any_text(Path(f"/dev/fd/{reader}")) == "é\ufeff"
    finally:
        os.close(reader)
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_any_text(tmp_path)
    with pytest.raises(ValueError, match="absent cannot be read: No such file"):
        read_any_text(tmp_path / "absent")
    with pytest.raises(ValueError, match="/dev/zero cannot be read: it is larger than 16 MB"):
        read_any_text(Path("/dev/zero"))
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="latin is not UTF-8"):
        read_any_text(tmp_path / "latin")


def test_knows_lfs_pointers_and_web_pages_among_texts(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(LFS_POINTER)
    for reader in (read_text, read_json):
        with pytest.raises(ValueError, match=r"config\.json is a Git LFS pointer"):
            reader(path)
    path.write_text("<!doctype html>")
    assert read_text(path) == "<!doctype html>"
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON: it is a web page"):
        read_json(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not valid JSON"),
        (b'{"a": ', "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[]", "it is not a JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON: it has an integer of too many digits"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_refuses_broken_json(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"config\.json .*{problem}"):
        read_json(path)


def test_refuses_large_texts_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"12345")
    assert read_text(path, 5) == "12345"
    with pytest.raises(ValueError, match=r"config\.json cannot be read: it is larger than 4e-06 MB"):
        read_text(path, 4)
