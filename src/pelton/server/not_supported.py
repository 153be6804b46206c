"""Entries of requests that other servers give a meaning, and Pelton does not."""

from collections.abc import Callable, Mapping
from typing import Any


def _is_unset(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _equals(name: str, *values: Any) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: data[name] in values


def _never(data: Mapping[str, Any]) -> bool:
    return False


_NOT_SUPPORTED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "audio": _never,
    "ec_transfer_params": _never,
    "function_call": _equals("function_call", "none"),
    "functions": _equals("function_call", "none"),
    "kv_transfer_params": _never,
    "length_penalty": _equals("length_penalty", 1),
    "logits_processors": _never,
    "logprob_token_ids": _never,
    "media_io_kwargs": _never,
    "mm_processor_kwargs": _never,
    "modalities": _equals("modalities", ["text"]),
    "prompt_embeds": _never,
    "repetition_detection": _never,
    "return_prompt_text": _never,
    "suffix": _never,
    "thinking_token_budget": _equals("thinking_token_budget", -1),
    "truncation_side": _equals("truncation_side", "left"),
    "use_beam_search": _never,
    "watermarking": _never,
    "web_search_options": _never,
}
"""Entries of requests that Pelton does not implement, and when they mean what it does anyway (beside being unset)."""

NOT_SUPPORTED = frozenset(_NOT_SUPPORTED)


def check_support(request: Mapping[str, Any]) -> None:
    """Raise ValueError for an entry that asks for something Pelton does not do."""
    for name in sorted(NOT_SUPPORTED.intersection(request)):
        if not _is_unset(request[name]) and not _means_nothing(name, request):
            raise ValueError(f"{name} is not supported by this version of Pelton; leave it out")


def _means_nothing(name: str, data: Mapping[str, Any]) -> bool:
    try:
        return _NOT_SUPPORTED[name](data)
    except KeyError:  # it depends on an entry that is not there
        return False
