"""Prompts in JSON lines: the datasets custom, of a file, and builtin, which comes with Pelton."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from json import JSONDecodeError
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from pelton.bench.dataset_config import OWN_OUTPUT_LEN, DatasetConfig
from pelton.bench.requests import BenchRequest
from pelton.checks import check_integer, check_unicode
from pelton.error_text import listed, shown
from pelton.loader.text_files import decode_utf8, parse_json
from pelton.tokenizer.messages import check_messages

_logger = getLogger(__name__)
_KEYS = ("prompt", "messages", "output_tokens")
_BUILTIN = "builtin_prompts.jsonl"


@dataclass(frozen=True)
class _Line:
    prompt: str | None
    messages: list[dict[str, Any]] | None
    output_tokens: int | None
    unused: frozenset[str]
    """Other keys that it has."""


def builtin_requests(config: DatasetConfig, rng: np.random.Generator, most: int) -> list[BenchRequest]:
    """No more than `most`, in random order."""
    content = (files("pelton.bench") / _BUILTIN).read_bytes()
    lines = _read(_BUILTIN, content.splitlines())
    requests = [BenchRequest(line.prompt, config.builtin_output_len) for line in lines.values()]
    return _in_random_order(requests, rng, most)


def custom_requests(config: DatasetConfig, rng: np.random.Generator, most: int) -> list[BenchRequest]:
    """No more than `most` of a file, in random order. Logs what of its lines is not used.

    Raises ValueError for a file that cannot be read or has no requests, and for lines that are none: file and line are
    named.
    """
    assert config.dataset_path is not None
    path = Path(config.dataset_path)
    try:
        with path.open("rb") as file:
            lines = _read(str(path), file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not lines:
        raise ValueError(f'{path} has no requests; it needs a line such as {{"prompt": "..."}} for each')
    _tell_unused(path, lines.values(), config)
    requests = [
        BenchRequest(line.prompt, _output_len(line, config, path, number), messages=line.messages)
        for number, line in lines.items()
    ]
    return _in_random_order(requests, rng, most)


def _in_random_order(requests: list[BenchRequest], rng: np.random.Generator, most: int) -> list[BenchRequest]:
    return [requests[index] for index in rng.permutation(len(requests))[:most]]


def _output_len(line: _Line, config: DatasetConfig, path: Path, number: int) -> int:
    if config.custom_output_len != OWN_OUTPUT_LEN:
        return config.custom_output_len
    if line.output_tokens is None:
        raise ValueError(
            f"{path}, line {number}: there is no output_tokens, which custom_output_len {OWN_OUTPUT_LEN} takes; add "
            "it, or set custom_output_len to a number for all lines"
        )
    return line.output_tokens


def _tell_unused(path: Path, lines: Iterable[_Line], config: DatasetConfig) -> None:
    unused = set().union(*(line.unused for line in lines))
    if unused:
        _logger.warning("%s: only %s are used, and not %s", path, ", ".join(_KEYS), listed(sorted(unused)))
    if config.custom_output_len != OWN_OUTPUT_LEN and any(line.output_tokens is not None for line in lines):
        _logger.warning(
            "%s: output_tokens is not used, since custom_output_len is %d; -1 takes it", path, config.custom_output_len
        )


def _read(source: str, lines: Iterable[bytes]) -> dict[int, _Line]:
    """Lines that are not blank, by their numbers."""
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found[number] = _parse(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            except JSONDecodeError as error:
                raise ValueError(
                    f"{source}, line {number}: it is not valid JSON: {error.msg} at character {error.pos + 1}"
                ) from None
            except ValueError as error:
                raise ValueError(f"{source}, line {number}: {error}") from None
    return found


def _parse(line: bytes) -> _Line:
    """A null is as if the key were not there."""
    content = {key: value for key, value in parse_json(decode_utf8(line, "it")).items() if value is not None}
    prompt, messages, output_tokens = (content.get(key) for key in _KEYS)
    if (prompt is None) == (messages is None):
        raise ValueError(f"it must have either prompt or messages, and has {'none' if prompt is None else 'both'}")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f"prompt must be a text of at least one character, got {shown(prompt)}")
        check_unicode("prompt", prompt)
    if messages is not None:
        check_messages(messages)
    if output_tokens is not None:
        check_integer("output_tokens", output_tokens, low=1)
    return _Line(prompt, messages, output_tokens, frozenset(content).difference(_KEYS))
