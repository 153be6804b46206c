"""The format of `pelton generate --jsonl`: a line to a request, an output to a line."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pelton.checks import check_unicode
from pelton.cli.chat_template_flag import render_messages
from pelton.cli.sampling_flags import SAMPLING_FLAGS
from pelton.core.outputs import CompletionOutput, Logprob, RequestOutput
from pelton.engine.input_processor import Prompt
from pelton.error_text import shown
from pelton.loader.text_files import decode_utf8, parse_json
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer

_PROMPTS = ("prompt", "prompt_token_ids", "messages")
_KEYS = (*_PROMPTS, "id", "cache_salt", "priority", *SAMPLING_FLAGS)
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

Json = dict[str, Any]


@dataclass(frozen=True)
class LineRequest:
    """What a line asks for."""

    prompt: Prompt
    params: SamplingParams
    priority: int


def parse_line(line: bytes) -> Json:
    """The object in a line. Raises ValueError that says what is wrong with it."""
    text = decode_utf8(line, "the line")
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the line is not valid JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError as error:
        raise ValueError(f"the line is not a request: {error}") from None


def read_id(content: Json, default: int) -> str | int:
    """The id that a line gives its answer; null is as none.

    Raises ValueError for what is neither a string nor an integer.
    """
    given = content.get("id")
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ValueError(f"id must be a string or an integer, got {shown(given)}")
    if isinstance(given, str):
        check_unicode("id", given)
    return given


def read_request(
    content: Json, defaults: SamplingParams, tokenizer: Tokenizer, chat_template: str | None
) -> LineRequest:
    """A null is as if the key were not there: many clients write them.

    Raises ValueError for unknown keys, and for what parameters and chat templates refuse.
    """
    for key in content:
        if key not in _KEYS:
            raise ValueError(f"unknown key {shown(key)}; there are {', '.join(_KEYS)}")
    content = {key: value for key, value in content.items() if value is not None}
    given = [key for key in _PROMPTS if key in content]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ValueError(f"a line needs exactly one of {', '.join(_PROMPTS)}, got {found}")
    prompt: Json = {given[0]: content[given[0]]}
    if "messages" in content:
        prompt = {**render_messages(tokenizer, content["messages"], chat_template)}
    if "cache_salt" in content:
        prompt["cache_salt"] = content["cache_salt"]
    changes = {key: content[key] for key in SAMPLING_FLAGS if key in content}
    if isinstance(changes.get("logit_bias"), dict):
        changes["logit_bias"] = _with_integer_keys(changes["logit_bias"])
    params = msgspec.structs.replace(defaults, **changes)
    return LineRequest(prompt, params, content.get("priority", 0))  # type: ignore[arg-type]


def _with_integer_keys(bias: Json) -> dict[int | str, Any]:
    """JSON's keys are strings. What is no token id stays one, and is refused as such."""
    return {int(key) if _TOKEN_ID.fullmatch(key) else key: value for key, value in bias.items()}


def answer(output: RequestOutput, request_id: str | int, number: int, params: SamplingParams) -> Json:
    """The answer to a request that was accepted; `number` is its line's."""
    content: Json = {
        "id": request_id,
        "line": number,
        "prompt": output.prompt,
        "outputs": [_completion(completion, params.logprobs) for completion in output.outputs],
    }
    if params.prompt_logprobs is not None and output.prompt_logprobs is not None:
        content["prompt_logprobs"] = [
            entries and _position(token_id, entries, params.prompt_logprobs)
            # A request that failed has those that came.
            for token_id, entries in zip(output.prompt_token_ids, output.prompt_logprobs, strict=False)
        ]
    content["usage"] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": sum(len(completion.token_ids) for completion in output.outputs),
        "cached_tokens": output.num_cached_tokens,
    }
    return content


def error(message: str, request_id: str | int, number: int) -> Json:
    """What stands in the place of an answer; `number` is the line's."""
    return {"id": request_id, "line": number, "error": {"message": message}}


def to_line(content: Json) -> bytes:
    """UTF-8, with a line end. What UTF-8 does not have is escaped as JSON escapes it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace") + b"\n"


def _completion(completion: CompletionOutput, num_logprobs: int | None) -> Json:
    content: Json = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if num_logprobs is not None and completion.logprobs is not None:
        content["logprobs"] = [
            _position(token_id, entries, num_logprobs)
            for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    return content


def _position(token_id: int, entries: Mapping[int, Logprob], num_top: int) -> Json:
    """`entries` has the chosen token first; that is one of the likeliest if there is no entry beyond their number."""
    ranked = list(entries.items())
    top = ranked[1:] if 0 <= num_top < len(ranked) else sorted(ranked, key=lambda item: item[1].rank)
    return {**_token(token_id, entries[token_id]), "top": [_token(*item) for item in top]}


def _token(token_id: int, entry: Logprob) -> Json:
    # JSON has no infinity: null is the logarithm of probability 0.
    logprob = entry.logprob if math.isfinite(entry.logprob) else None
    return {"token_id": token_id, "token": entry.decoded_token, "logprob": logprob, "rank": entry.rank}
