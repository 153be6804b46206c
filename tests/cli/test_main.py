"""The `pelton` command as a process: exit statuses, streams, and what help costs."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pelton import __version__
from pelton.cli.main import COMMANDS, main
from tests.cli.helpers import PELTON, on_tiny_llama
from tests.support.tiny_llama import tiny_llama


def pelton(*arguments, **kwargs):
    """Run the command with Python's warnings as errors."""
    return subprocess.run([*PELTON, *arguments], capture_output=True, text=True, timeout=120, **kwargs)


def generate(*arguments):
    return on_tiny_llama("generate", "--max-tokens", "4", *arguments)


def test_help_does_without_the_engine():
    """Help is quick: neither numpy nor the tokenizer nor the engine is imported."""
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'huggingface_hub', 'jinja2', 'tqdm', 'msgspec', 'pelton.llm',\n"
        "    'pelton.engine', 'pelton.config'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: pelton" in done.stdout


def test_the_first_token_needs_no_more_than_it_uses():
    """A text continued by a model in a GGUF file: what other formats, chats, bars and downloads need stays unloaded."""
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "assert main(['generate', '--max-tokens', '1', 'Hello']) == 0\n"
        "heavy = {'huggingface_hub', 'jinja2', 'tqdm', 'torch', 'transformers', 'safetensors', 'httpx', 'regex',\n"
        "    'zipfile', 'secrets', 'importlib.metadata', 'importlib.resources', 'numpy.random', 'pelton.llm',\n"
        "    'pelton.cli.chat', 'pelton.cli.jsonl_batch', 'pelton.loader.hf.config', 'pelton.loader.hf.hub',\n"
        "    'pelton.tokenizer.from_folder', 'pelton.ops.generators'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, (_, does) in COMMANDS.items():
        assert f"{name}: {does}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: pelton {command}" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"pelton {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "arguments are required: COMMAND"),
        (["bake"], "invalid choice: 'bake'"),
        (["--frobnicate"], "arguments are required: COMMAND"),
        (["chat", "Hello"], "unrecognized arguments: Hello"),
        (["models", "a", "b"], "unrecognized arguments: b"),
        (["generate", "--frobnicate", "Hi"], "unrecognized arguments: --frobnicate"),
        (["generate", "--max-tokens", "many", "Hi"], "invalid int value: 'many'"),
        (["generate", "--scheduling-policy", "lifo", "Hi"], "invalid choice: 'lifo'"),
        (["generate", "--max-token", "5", "Hi"], "unrecognized arguments: --max-token"),
    ],
)
def test_mistakes_on_the_command_line(capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("pelton: ")
    assert words in line


def test_a_process_streams_to_standard_output():
    done = pelton(*generate("Hello", "The sun"))
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    *warnings, kernels, loaded, cache, figures = done.stderr.splitlines()
    assert [line.partition(", so numpy")[0] for line in warnings] in ([], ["this installation has no native kernels"])
    assert kernels.startswith("Kernels: ")
    assert tiny_llama() in loaded
    assert cache.startswith("KV cache: ")
    assert "output tokens in" in figures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "--model", "no-such-model", "Hi"], "no-such-model"),
        (["generate", "--model", "a\n\x1b[1m", "Hi"], r"a\n\x1b[1m"),
        (["generate", "--model", "", "Hi"], "model must be a string: an alias, a path or a hub id"),
        (
            ["generate", "--max-tokens", "1", "--revision", "v1", "Hi"],
            "revision is 'v1', but the model 'smollm2' is an alias",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments, words):
    done = pelton(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("pelton: ")
    assert words in line


def test_bytes_that_are_no_text():
    """A prompt that is not valid UTF-8 arrives with lone surrogates."""
    command = [*PELTON, *generate()]
    done = subprocess.run([*map(os.fsencode, command), b"caf\xe9"], capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert lines[-1].startswith("pelton: the text has a lone surrogate")
    assert "Traceback" not in done.stderr.decode()


def test_a_reader_that_has_gone():
    """`pelton generate ... | head`: no traceback, no complaint at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [*PELTON, *generate("Hello")]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk():
    command = [*PELTON, *generate("Hello")]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"pelton: the output: {os.strerror(errno.ENOSPC)}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_for_a_list():
    with open("/dev/full", "wb") as full:
        command = [*PELTON, "models", tiny_llama()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, f"pelton: the output: {os.strerror(errno.ENOSPC)}\n")


def test_a_failure_of_the_system(monkeypatch, capsys):
    """Only what has the output's name is about the output."""

    def fail(options):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("pelton.cli.generate.run", fail)
    monkeypatch.setattr("os.dup2", lambda *descriptors: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert main(["generate", "Hi"]) == 1
    assert capsys.readouterr().err == f"pelton: the system says: {os.strerror(errno.ENOMEM)}\n"


def test_a_module_is_the_command():
    command = [sys.executable, "-W", "error", "-m", "pelton", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"pelton {__version__}\n")


def test_what_pelton_logs_is_shown_once_and_nothing_else(monkeypatch, capsys):
    def log(options):
        for name in ("pelton.loader", "pelton", "httpx", "huggingface_hub"):
            logging.getLogger(name).info("%s says", name)
        logging.getLogger("pelton").debug("in detail")
        return 0

    monkeypatch.setattr("pelton.cli.generate.run", log)
    for _ in range(2):
        assert main(["generate", "Hi"]) == 0
        assert capsys.readouterr() == ("", "pelton.loader says\npelton says\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("model must be something else")])
def test_exit_statuses(monkeypatch, capsys, error):
    def fail(options):
        raise error

    monkeypatch.setattr("pelton.cli.generate.run", fail)
    status = main(["generate", "Hi"])
    captured = capsys.readouterr()
    if isinstance(error, ValueError):
        assert (status, captured.err) == (2, "pelton: model must be something else\n")
    else:
        assert (status, captured.err) == (130, "")


def test_too_little_memory(monkeypatch, capsys):
    def fail(options):
        raise MemoryError("745 GiB for an array")

    monkeypatch.setattr("pelton.cli.generate.run", fail)
    assert main(["generate", "Hi"]) == 1
    assert capsys.readouterr().err == (
        "pelton: the memory does not suffice (745 GiB for an array); ask for less at a time\n"
    )


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(closed):
    """libuv would abort when a socket took the place of one. Nobody listens at the port."""
    arguments = "bench serve --port 9 --num-prompts 1 --ready-check-timeout-sec 0 --model none --dataset-name builtin"
    command = ["sh", "-c", f"exec {' '.join(PELTON)} {arguments} {closed}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
