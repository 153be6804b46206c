"""Recorded conversations, in the form of the ShareGPT dump: the dataset sharegpt."""

import re
from collections import Counter
from itertools import pairwise
from logging import getLogger
from pathlib import Path

import msgspec
import numpy as np

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.requests import BenchRequest
from pelton.error_text import message_of
from pelton.tokenizer import Tokenizer

_logger = getLogger(__name__)

FEWEST_TOKENS = 4
"""Of a prompt and of an answer. These three limits are the usual ones for this dataset."""
MOST_PROMPT_TOKENS = 1024
MOST_TOKENS = 2048
"""Of both together."""

_ASKING = ("human", "user")
_ANSWERING = ("gpt", "chatgpt", "assistant")
_NO_PAIR, _TOO_SHORT, _TOO_LONG = "without a question and its answer", "too short", "too long"
_BYTE = re.compile(r"\(byte ([0-9]+)\)")


class _Turn(msgspec.Struct, rename={"speaker": "from"}):
    speaker: str
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]


def sharegpt_requests(
    config: DatasetConfig, tokenizer: Tokenizer, rng: np.random.Generator, most: int
) -> list[BenchRequest]:
    """The first question and the length of its answer, of no more than `most` conversations, in random order.

    Logs how many were left out. Raises ValueError for a file that is none of this form, and if nothing of it is left.
    """
    assert config.dataset_path is not None
    path = Path(config.dataset_path)
    conversations = _read(path)
    requests: list[BenchRequest] = []
    left_out: Counter[str] = Counter()
    for index in rng.permutation(len(conversations)):
        if len(requests) == most:
            break
        made = _request(conversations[index].conversations, config.sharegpt_output_len, tokenizer)
        if isinstance(made, BenchRequest):
            requests.append(made)
        else:
            left_out[made] += 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    if not requests:
        raise ValueError(f"{path} has no usable conversation: {reasons or 'the list is empty'}")
    if left_out:
        seen = len(requests) + left_out.total()
        _logger.info("%s: %d of %d conversations were left out: %s", path, left_out.total(), seen, reasons)
    return requests


def _request(turns: list[_Turn], output_len: int | None, tokenizer: Tokenizer) -> BenchRequest | str:
    """The request, or why there is none."""
    pair = next(((a, b) for a, b in pairwise(turns) if a.speaker in _ASKING and b.speaker in _ANSWERING), None)
    if pair is None:
        return _NO_PAIR
    prompt, answer = pair[0].value, pair[1].value
    prompt_len = len(tokenizer.encode(prompt))
    if output_len is None:
        output_len = len(tokenizer.encode(answer, add_special_tokens=False))
        if output_len < FEWEST_TOKENS:
            return _TOO_SHORT
    if prompt_len < FEWEST_TOKENS:
        return _TOO_SHORT
    if prompt_len > MOST_PROMPT_TOKENS or prompt_len + output_len > MOST_TOKENS:
        return _TOO_LONG
    return BenchRequest(prompt, output_len, prompt_len=prompt_len)


def _read(path: Path) -> list[_Conversation]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _decode(content, path)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply for a list of conversations") from None


def _decode(content: bytes, path: Path) -> list[_Conversation]:
    try:
        return msgspec.json.decode(content, type=list[_Conversation])
    except msgspec.ValidationError as error:
        raise ValueError(
            f"{path}: {message_of(error)}; it must be a list of objects "
            '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}'
        ) from None
    except msgspec.DecodeError as error:
        line = _line(content, _position(content, error))
        raise ValueError(f"{path}, line {line}: {message_of(error)}") from None


def _position(content: bytes, error: msgspec.DecodeError) -> int:
    """Where the file stops to be JSON; its end where that is what is missing."""
    if found := _BYTE.search(str(error)):
        return int(found[1])
    try:
        content.decode()
    except UnicodeDecodeError as wrong:
        return wrong.start
    return len(content)


def _line(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1
