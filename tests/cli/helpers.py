"""What tests of several commands need."""

import io
import json
import shutil
import sys

from tests.support.tiny_llama import tiny_llama

PELTON = [sys.executable, "-W", "error", "-m", "pelton.cli.main"]
"""The command as a process, with Python's warnings as errors."""


def on_tiny_llama(command, *arguments):
    return [command, "--model", tiny_llama(), "--temperature", "0", *arguments]


def without_chat_template(folder):
    """The tiny Llama once more, in a new folder inside this one."""
    model = folder / "without-template"
    shutil.copytree(tiny_llama(), model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return str(model)


def give_stdin(monkeypatch, content, *, is_terminal=False):
    """Let standard input have this content, bytes."""
    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    stdin.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stdin", stdin)
