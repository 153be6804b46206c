"""How the tokens of one request are chosen, and when it stops."""

from collections.abc import Iterable
from copy import copy, deepcopy
from enum import IntEnum
from typing import Any

import msgspec

from pelton.checks import check_flag, check_integer, finite_float, has_lone_surrogate
from pelton.error_text import shown
from pelton.structured_outputs_params import GuidedDecodingParams, StructuredOutputsParams

__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]

SEED_LIMIT = 2**64
"""Seeds are unsigned 64-bit integers: they key the counter-based random numbers of the sampler."""

MAX_CHOICES = 1024
"""Each of `n` choices is a sequence of its own for the engine."""

MAX_STOP_STRINGS = 64
MAX_STRING_LENGTH = 512
"""Characters. Every new piece of text is compared with every stop string, at the cost of everybody's time."""

MAX_BAD_WORDS = 4096

MAX_LOGIT_BIASES = 1024
"""The sampler has room for so many in each row."""


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

    docs/sampling.md says in which order they act. Raises ValueError that names the field, its value and the remedy.
    """

    n: int = 1
    """Choices to generate. They differ by their random numbers, so there must be some: temperature above 0."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token in the output so far; -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that a token is in the output so far; -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens in the prompt and in the output so far."""
    temperature: float = 1.0
    """Divides the logits; 0 means greedy decoding."""
    top_p: float = 1.0
    """Sample from the smallest set of most likely tokens whose probability reaches this value, in (0, 1]."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 or -1 means all."""
    min_p: float = 0.0
    """Rule out tokens whose probability is below this share of the most likely one's, in [0, 1]."""
    seed: int | None = None
    """Key of the request's own random numbers; without one (None or -1), every run differs."""
    stop: list[str] | str | None = None
    """Strings that end the output; it is cut before the first match."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output; the token itself stays in `token_ids`."""
    include_stop_str_in_output: bool = False
    """Cut the text after the stop string or stop token, not before."""
    bad_words: list[str] | None = None
    """Words that may not be generated: the last token of each way to write one, after its other tokens."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    max_tokens: int | None = 16
    """Most tokens to generate; None means the rest of the context. 0: process the prompt only."""
    min_tokens: int = 0
    """End-of-sequence tokens, stop tokens and stop strings do not count before there are so many tokens."""
    logprobs: int | None = None
    """Log probabilities of this many most likely tokens, and always of the sampled one; -1 means the whole
    vocabulary, None means none."""
    prompt_logprobs: int | None = None
    """The same for every token of the prompt but the first."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these tokens, at most 1,024; -100 to 100."""
    allowed_token_ids: list[int] | None = None
    """The only tokens that may be generated."""
    detokenize: bool = True
    """Whether to make text of the tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Whether added tokens next to each other have the space between them that the vocabulary's decoder may put."""
    truncate_prompt_tokens: int | None = None
    """Keep only so many tokens of the prompt, the last ones; -1: as many as leave room for the output."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the output must look like: only tokens that keep to it are candidates."""
    guided_decoding: GuidedDecodingParams | None = None
    """An older name of `structured_outputs`, which it becomes."""
    extra_args: dict[str, Any] | None = None
    """Arguments of the engine's own logits processors."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What intermediate outputs carry."""

    def __post_init__(self) -> None:
        self._check_numbers()
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        self._check_output_kind()
        self._check_lists()
        self._check_logit_bias()
        self._check_structured_outputs()
        if self.extra_args is not None and not (
            isinstance(self.extra_args, dict) and all(isinstance(name, str) for name in self.extra_args)
        ):
            raise ValueError(f"extra_args must be a dict of argument names and values, got {shown(self.extra_args)}")
        self._check_contradictions()

    def clone(self) -> "SamplingParams":
        """A deep copy, not checked again."""
        cloned = copy(self)
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias"):
            setattr(cloned, name, copy(getattr(self, name)))
        cloned.extra_args = deepcopy(self.extra_args)
        cloned.structured_outputs = deepcopy(self.structured_outputs)
        return cloned

    def _check_output_kind(self) -> None:
        kind = self.output_kind
        if not isinstance(kind, int) or kind not in list(RequestOutputKind):
            raise ValueError(
                f"output_kind must be a RequestOutputKind (CUMULATIVE, DELTA or FINAL_ONLY), got {shown(kind)}"
            )
        self.output_kind = RequestOutputKind(kind)

    def _check_numbers(self) -> None:
        check_integer("n", self.n, low=1, high=MAX_CHOICES)
        for name in ("presence_penalty", "frequency_penalty"):
            self._check_float(name, low=-2.0, high=2.0)
        self.repetition_penalty = finite_float("repetition_penalty", self.repetition_penalty)
        if self.repetition_penalty <= 0.0:
            raise ValueError(f"repetition_penalty must be above 0 (1 means none), got {self.repetition_penalty}")
        self.temperature = finite_float("temperature", self.temperature)
        if self.temperature < 0.0:
            raise ValueError(f"temperature must be at least 0 (0 means greedy), got {self.temperature}")
        self.top_p = finite_float("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1] (1 means all tokens), got {self.top_p}")
        check_integer("top_k", self.top_k, low=-1)
        self._check_float("min_p", low=0.0, high=1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, low=-1, high=SEED_LIMIT - 1)
            self.seed = None if self.seed == -1 else self.seed
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, low=0)
        check_integer("min_tokens", self.min_tokens, low=0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), low=-1)
        length = self.truncate_prompt_tokens
        if length is not None:
            check_integer("truncate_prompt_tokens", length, low=-1)
            if length == 0:
                raise ValueError("truncate_prompt_tokens must be at least 1, or -1 for what the context holds, got 0")

    def _check_float(self, name: str, *, low: float, high: float) -> None:
        value = finite_float(name, getattr(self, name))
        if not low <= value <= high:
            raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value}")
        setattr(self, name, value)

    def _check_lists(self) -> None:
        if self.stop is not None and not isinstance(self.stop, str | list | tuple):
            raise ValueError(f"stop must be a string or a list of strings, got {shown(self.stop)}")
        _check_strings("stop", self.stop_strings, MAX_STOP_STRINGS)
        if self.bad_words is not None:
            _check_is_list("bad_words", self.bad_words, "strings")
            _check_strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        for name in ("stop_token_ids", "allowed_token_ids"):
            if (token_ids := getattr(self, name)) is not None:
                _check_is_list(name, token_ids, "token ids")
                for token_id in token_ids:
                    check_integer(name, token_id, low=0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids must allow at least one token, got []; None allows all")

    def _check_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, dict):
            raise ValueError(f"logit_bias must be a dict of token ids and numbers, got {shown(self.logit_bias)}")
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise ValueError(
                f"logit_bias must hold at most {MAX_LOGIT_BIASES} tokens, got {len(self.logit_bias)}; "
                "allowed_token_ids rules out any number"
            )
        checked = {}
        for token_id, bias in self.logit_bias.items():
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise ValueError(f"the keys of logit_bias must be token ids (integers), got {shown(token_id)}")
            check_integer("the keys of logit_bias", token_id, low=0)
            checked[token_id] = finite_float(f"logit_bias of token {token_id}", bias)
            if not -100.0 <= checked[token_id] <= 100.0:
                raise ValueError(f"logit_bias of token {token_id} must be in [-100, 100], got {shown(bias)}")
        self.logit_bias = checked

    def _check_structured_outputs(self) -> None:
        for name in ("structured_outputs", "guided_decoding"):
            given: Any = getattr(self, name)
            if isinstance(given, dict):
                setattr(self, name, given := _constraint_of(name, given))
            if not isinstance(given, StructuredOutputsParams | None):
                raise ValueError(f"{name} must be StructuredOutputsParams, or a dict of its fields, got {shown(given)}")
        if self.guided_decoding is not None:
            if self.structured_outputs is not None:
                raise ValueError("structured_outputs and guided_decoding mean the same; leave out one of them")
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None

    def _check_contradictions(self) -> None:
        if self.n > 1 and self.is_greedy:
            raise ValueError(
                f"n must be 1 with greedy sampling, for all choices would be the same, got {self.n}; "
                "set temperature above 0"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens, which is {self.max_tokens}, got {self.min_tokens}"
            )
        if self.stop_strings and not self.detokenize:
            raise ValueError("stop needs text to look at, but detokenize is False; use stop_token_ids, or detokenize")

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list, empty if there is none."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def end_token_ids(self, eos_token_ids: Iterable[int]) -> set[int]:
        """The tokens that end the output of a model with these end-of-sequence tokens."""
        return {*(self.stop_token_ids or ()), *(() if self.ignore_eos else eos_token_ids)}

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


class BeamSearchParams(msgspec.Struct, kw_only=True):
    """Parameters of `LLM.beam_search`, with vLLM's names. Raises ValueError as `SamplingParams` does."""

    beam_width: int
    """Sequences that are kept after every token."""
    max_tokens: int
    """Most tokens to generate."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence token."""
    temperature: float = 0.0
    """Divides the logits before they become log probabilities; 0 means as they are, like 1."""
    length_penalty: float = 1.0
    """A sequence's score is its log probability divided by its length to this power."""
    include_stop_str_in_output: bool = False
    """Keep the end-of-sequence token in the sequence."""

    def __post_init__(self) -> None:
        check_integer("beam_width", self.beam_width, low=1)
        check_integer("max_tokens", self.max_tokens, low=1)
        check_flag("ignore_eos", self.ignore_eos)
        check_flag("include_stop_str_in_output", self.include_stop_str_in_output)
        self.temperature = finite_float("temperature", self.temperature)
        if self.temperature < 0.0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        self.length_penalty = finite_float("length_penalty", self.length_penalty)


_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def _constraint_of(name: str, fields: dict[Any, Any]) -> StructuredOutputsParams:
    known = StructuredOutputsParams.__struct_fields__
    for field in fields:
        if field not in known:
            raise ValueError(f"{name} has no field {shown(field)}; there are {', '.join(known)}")
    try:
        return StructuredOutputsParams(**fields)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_is_list(name: str, value: Any, what: str) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list of {what}, got {shown(value)}")


def _check_strings(name: str, strings: Iterable[Any], most: int) -> None:
    strings = list(strings)
    if len(strings) > most:
        raise ValueError(f"{name} must hold at most {most} strings, got {len(strings)}")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"{name} must hold non-empty strings, got {shown(string)}")
        if len(string) > MAX_STRING_LENGTH:
            raise ValueError(f"{name} must hold strings of at most {MAX_STRING_LENGTH} characters, got {len(string)}")
        if has_lone_surrogate(string):
            raise ValueError(f"{name} must hold valid Unicode without lone surrogates, got {shown(string)}")
