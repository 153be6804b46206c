"""The files of `pelton generate --jsonl`: what is refused before a model is loaded, and what is left of them."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from pelton.cli.main import main
from pelton.engine.llm_engine import LLMEngine
from tests.cli.helpers import PELTON, on_tiny_llama

REQUEST = '{"prompt": "Hello"}\n'
GENERATE = on_tiny_llama("generate", "--ignore-eos", "--max-tokens", "6")


@pytest.fixture
def requests(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(REQUEST)
    return path


@pytest.fixture
def no_model(monkeypatch):
    """Nothing here is worth the loading of one."""
    monkeypatch.setattr(LLMEngine, "from_engine_args", None)


def generate(*arguments):
    return main([*GENERATE, *map(str, arguments)])


def test_answers_take_the_place_of_what_was_there(requests, tmp_path, capsys):
    target = tmp_path / "answers.jsonl"
    target.write_text("what was there before, which is a long line\n" * 100)
    assert generate("--jsonl", requests, "--output", target) == 0
    assert capsys.readouterr().out == ""
    (line,) = target.read_text().splitlines()
    assert json.loads(line)["id"] == 1


def test_no_answers_are_an_empty_file(tmp_path):
    assert generate("--jsonl", os.devnull, "--output", tmp_path / "answers") == 0
    assert (tmp_path / "answers").read_text() == ""


def test_without_a_model_all_files_stay_as_they_are(requests, tmp_path, capsys):
    target = tmp_path / "answers.jsonl"
    assert generate("--jsonl", requests, "--output", target, "--model", "absent") == 2
    assert not target.exists()
    target.write_text("before")
    assert generate("--jsonl", requests, "--output", target, "--model", "absent") == 2
    assert "there is no model 'absent'" in capsys.readouterr().err
    assert target.read_text() == "before"


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_the_output_is_not_the_input(requests, tmp_path, capsys, no_model, link):
    target = tmp_path / "link"
    if link is None:
        target = requests
    else:
        link(requests, target)
    assert generate("--jsonl", requests, "--output", target) == 2
    assert capsys.readouterr().err == f"pelton: output is '{target}', which --jsonl reads; name another file\n"
    assert requests.read_text() == REQUEST


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--jsonl", "-", "--output", "requests.jsonl"], "output is 'requests.jsonl', which --jsonl reads"),
        (["--jsonl", "-"], "standard output is the file that --jsonl reads; send it to another one"),
        (["--jsonl", "requests.jsonl"], "standard output is the file that --jsonl reads; send it to another one"),
    ],
)
def test_neither_are_streams(requests, tmp_path, flags, words):
    """The file that a shell reads and appends to would grow without end."""
    with requests.open("rb") as source, requests.open("ab") as target:
        done = subprocess.run(
            [*PELTON, *GENERATE, *flags],
            cwd=tmp_path,
            stdin=source,
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"pelton: {words}")
    assert requests.read_text() == REQUEST


@pytest.mark.parametrize(
    ("jsonl", "output", "words"),
    [
        ("requests.jsonl", "no/file", "output 'no/file' cannot be written: No such file or directory"),
        ("requests.jsonl", ".", "output '.' cannot be written: Is a directory"),
        ("absent", None, "absent cannot be read: No such file or directory"),
        (".", None, ". cannot be read: it is a folder; --jsonl takes one file"),
    ],
)
def test_files_that_do_not_serve(requests, monkeypatch, capsys, no_model, jsonl, output, words):
    monkeypatch.chdir(requests.parent)
    assert generate("--jsonl", jsonl, *([] if output is None else ["--output", output])) == 2
    assert capsys.readouterr().err == f"pelton: {words}\n"


def test_pipes(requests, tmp_path):
    """As shells make them of `<(command)` and `>(command)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        assert generate("--jsonl", requests, "--output", pipe) == 0
        (line,) = reader.communicate(timeout=60)[0].splitlines()
    assert json.loads(line)["prompt"] == "Hello"


def test_standard_output_is_closed(requests, monkeypatch, capsys, no_model):
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", None)
        assert generate("--jsonl", requests) == 2
    assert "standard output is closed, so answers can go nowhere; give --output FILE" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux has a file whose beginning cannot be read")
def test_a_file_that_cannot_be_read_to_its_end():
    """It is not the output that fails."""
    command = [*PELTON, *GENERATE, "--jsonl", "/proc/self/mem"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"pelton: /proc/self/mem: {os.strerror(errno.EIO)}"
