"""Prompts as the command line names them: texts, files, standard input."""

import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pelton.cli.messages import system_errors_of
from pelton.loader.text_files import decode_utf8, read_any_text

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt, and what to call it among others."""

    name: str
    text: str


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> list[NamedPrompt]:
    """The texts, of which `-` stands for standard input, then the files.

    Without any, standard input is the prompt, unless it is a terminal. One line end at the end of a file or of
    standard input is not part of the prompt. Raises ValueError if there is no prompt or a file cannot be read.
    """
    if not texts and not files:
        if not _has_piped_input():
            raise ValueError(
                "there is no prompt; give a PROMPT, --file FILE, --jsonl FILE, or a text on standard input"
            )
        texts = [STANDARD_INPUT]
    if (num_reads := texts.count(STANDARD_INPUT)) > 1:
        raise ValueError(f"standard input can be read only once, but - is given {num_reads} times")
    prompts = [_standard_input() if text == STANDARD_INPUT else NamedPrompt(text, text) for text in texts]
    return prompts + [NamedPrompt(file, read_any_text(Path(file)).removesuffix("\n")) for file in files]


def _standard_input() -> NamedPrompt:
    if sys.stdin is None:
        raise ValueError("standard input is closed, so - has no prompt")
    name = "standard input"
    with system_errors_of(name):
        content = sys.stdin.buffer.read().removeprefix(BOM_UTF8)
    text = decode_utf8(content, name).removesuffix("\n")
    if not text:
        raise ValueError(f"{name} is empty; write the prompt there, or give it as PROMPT or --file FILE")
    return NamedPrompt(name, text)


def _has_piped_input() -> bool:
    """Whether standard input is open and no terminal."""
    return sys.stdin is not None and not sys.stdin.isatty()
