"""What tests of several commands need."""

import io
import sys

from tests.support.tiny_llama import tiny_llama

PELTON = [sys.executable, "-W", "error", "-m", "pelton.cli.main"]
"""The command as a process, with Python's warnings as errors."""


def on_tiny_llama(command, *arguments):
    return [command, "--model", tiny_llama(), "--temperature", "0", *arguments]


def give_stdin(monkeypatch, content, *, is_terminal=False):
    """Let standard input have this content, bytes."""
    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    stdin.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stdin", stdin)
