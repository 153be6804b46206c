"""How the tokens of one request are chosen, and when it stops."""

import math
from enum import IntEnum
from typing import Any

import msgspec

SEED_LIMIT = 2**64
"""Seeds are unsigned 64-bit integers: they key the counter-based random numbers of the sampler."""

INTEGER_LIMIT = 2**63
"""Messages between processes carry integers of 64 bits."""


class RequestOutputKind(IntEnum):
    """What the outputs of a request carry while it runs."""

    CUMULATIVE = 0
    """Every output holds all text and tokens so far."""
    DELTA = 1
    """Every output holds only what is new."""
    FINAL_ONLY = 2
    """One output, when the request has finished."""


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request, with the names and defaults of vLLM.

    Raises ValueError that names the field, its value and the remedy.
    """

    temperature: float = 1.0
    """Divides the logits; 0 means greedy decoding."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 or -1 means all."""
    top_p: float = 1.0
    """Sample from the smallest set of most likely tokens whose probability reaches this value, in (0, 1]."""
    seed: int | None = None
    """Key of the request's own random numbers; without one, every run differs."""
    max_tokens: int | None = 16
    """Most tokens to generate; None means the rest of the context."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    stop: list[str] | str | None = None
    """Strings that end the output; the output is cut before the first match."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output; the token itself stays in `token_ids`."""
    logprobs: int | None = None
    """Log probabilities of this many most likely tokens, and always of the sampled one; None means none."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What intermediate outputs carry."""

    def __post_init__(self) -> None:
        self.temperature = _float("temperature", self.temperature)
        if self.temperature < 0.0:
            raise ValueError(f"temperature must be at least 0 (0 means greedy), got {self.temperature}")
        self.top_p = _float("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1] (1 means all tokens), got {self.top_p}")
        _integer("top_k", self.top_k, low=-1)
        if self.seed is not None:
            _integer("seed", self.seed, low=0, high=SEED_LIMIT - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, low=1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, low=0)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos must be True or False, got {self.ignore_eos!r}")
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            raise ValueError(
                f"output_kind must be a RequestOutputKind (CUMULATIVE, DELTA or FINAL_ONLY), got {self.output_kind!r}"
            ) from None
        self._check_stops()

    def _check_stops(self) -> None:
        if self.stop is not None and not isinstance(self.stop, str | list | tuple):
            raise ValueError(f"stop must be a string or a list of strings, got {self.stop!r}")
        for string in self.stop_strings:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop must hold non-empty strings, got {string!r}")
            if has_lone_surrogate(string):
                raise ValueError(f"stop must hold valid Unicode without lone surrogates, got {string!r}")
        if self.stop_token_ids is not None:
            if not isinstance(self.stop_token_ids, list | tuple):
                raise ValueError(f"stop_token_ids must be a list of token ids, got {self.stop_token_ids!r}")
            for token_id in self.stop_token_ids:
                _integer("stop_token_ids", token_id, low=0)

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list, empty if there is none."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def has_lone_surrogate(text: str) -> bool:
    """Whether a text is not valid Unicode, so that no message can carry it."""
    return not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)


def _float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {number}")
    return number


def _integer(name: str, value: Any, *, low: int, high: int = INTEGER_LIMIT - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {value}")
