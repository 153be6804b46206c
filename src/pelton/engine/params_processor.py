"""From the sampling parameters that users write to those that the engine core takes: checks, bad words as ids."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from pelton.config import SamplingConfig, StructuredOutputsConfig
from pelton.core.request import CONSTRAINT_FAILED
from pelton.error_text import described, listed, message_of, shown
from pelton.grammar.registry import check_installed, resolve
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import MAX_BAD_WORDS, SamplingParams, StructuredOutputsParams
from pelton.tokenizer import Tokenizer

_ENCODER = msgspec.msgpack.Encoder()
_SEED_BYTES = 8
"""Whatever is in them is below `SEED_LIMIT`."""
_NUM_CHECKED = 256
"""Constraints whose checks are remembered."""
_LISTS = ("stop_token_ids", "allowed_token_ids", "bad_words")


Resolve = Callable[[StructuredOutputsParams], StructuredOutputsParams]


class ParamsProcessor:
    """Makes every request's parameters its own, complete and fit for the model.

    Raises ValueError with a sentence that names the field, its value and the remedy.
    """

    def __init__(
        self,
        sampling: SamplingConfig,
        tokenizer: Tokenizer,
        eos_token_ids: Iterable[int],
        vocab_size: int,
        logits_processors: Sequence[type[LogitsProcessor]],
        structured_outputs: StructuredOutputsConfig,
        resolve: Resolve = resolve,
    ) -> None:
        """`resolve` finds a backend for a constraint, or raises ValueError."""
        self._sampling = sampling
        if structured_outputs.backend != "auto":
            check_installed(structured_outputs.backend)
        self._structured_outputs = structured_outputs
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._logits_processors = list(logits_processors)
        self._resolve = resolve
        self._checked: OrderedDict[bytes, dict[str, Any] | str] = OrderedDict()
        """Of the last constraints by their hashes: options with which they can be kept, or why they cannot."""
        self._word_forms = lru_cache(MAX_BAD_WORDS)(tokenizer.word_forms)

    def process(self, params: Any) -> tuple[SamplingParams, list[list[int]]]:
        """Parameters with a seed, and with numbers where log probabilities of the whole vocabulary are asked for;
        and the bad words' ids."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        params = _own_copy(params)
        if params.structured_outputs is not None:
            params.structured_outputs = self._resolved(params.structured_outputs)
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_vocabulary(name, getattr(params, name) or ())
        params.logprobs = self._num_logprobs("logprobs", params.logprobs)
        params.prompt_logprobs = self._num_logprobs("prompt_logprobs", params.prompt_logprobs)
        bad_words = self._bad_words(params.bad_words or ())
        self._check_something_is_allowed(params, bad_words)
        if params.extra_args is not None:
            self._check_argument_names(params.extra_args)
            params.extra_args = _as_sent(params.extra_args)
        for processor in self._logits_processors:
            _validate(processor, params)
        return params, bad_words

    def knows_constraint(self, params: SamplingParams) -> bool:
        """Whether `process` need not find out anything about the constraint, or there is none."""
        constraint = params.structured_outputs
        return constraint is None or _key(self._with_defaults(constraint)) in self._checked

    def check_constraint(self, params: SamplingParams) -> None:
        """Find out now what `process` needs to know of the constraint, if there is one; this may take a while.

        Raises ValueError if it cannot be kept.
        """
        if params.structured_outputs is not None:
            self._resolved(params.structured_outputs)

    def _resolved(self, constraint: StructuredOutputsParams) -> StructuredOutputsParams:
        """With the engine's own defaults, and a backend that can keep it."""
        constraint = self._with_defaults(constraint)
        found = self._find_options(constraint)
        if isinstance(found, str):
            raise ValueError(f"{CONSTRAINT_FAILED}{found}")
        return msgspec.structs.replace(constraint, **found)

    def _with_defaults(self, constraint: StructuredOutputsParams) -> StructuredOutputsParams:
        defaults = self._structured_outputs
        options: dict[str, Any] = {}
        if constraint.backend == "auto":
            options["backend"] = defaults.backend
        if defaults.disable_any_whitespace and constraint.whitespace_pattern is None:
            options["disable_any_whitespace"] = True
        if constraint.disable_additional_properties is None and not defaults.disable_additional_properties:
            options["disable_additional_properties"] = False
        return msgspec.structs.replace(constraint, **options)

    def _find_options(self, constraint: StructuredOutputsParams) -> dict[str, Any] | str:
        """With which a backend can keep it, or why none can. Threads may ask for the same at once."""
        key = _key(constraint)
        found = self._checked.get(key)
        if found is not None:
            self._checked[key] = self._checked.pop(key, found)  # used last
        else:
            try:
                resolved = self._resolve(constraint)
                found = {name: getattr(resolved, name) for name in ("backend", "disable_additional_properties")}
            except ValueError as error:
                found = str(error)
            self._checked[key] = found
            while len(self._checked) > _NUM_CHECKED:
                self._checked.popitem(last=False)
        return found

    def _check_vocabulary(self, name: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise ValueError(
                    f"token id {token_id} in {name} is outside the vocabulary (0 to {self._vocab_size - 1})"
                )

    def _num_logprobs(self, name: str, asked: int | None) -> int | None:
        if asked is None:
            return None
        number = self._vocab_size if asked == -1 else asked
        if number > self._vocab_size:
            raise ValueError(
                f"{name} is {asked}, but the vocabulary has {self._vocab_size} tokens; ask for fewer, or for -1, "
                "which means all"
            )
        if number > self._sampling.most_logprobs(self._vocab_size):
            meaning = f" (the whole vocabulary, {number} tokens)" if asked == -1 else ""
            raise ValueError(
                f"{name} is {asked}{meaning}, but max_logprobs allows {self._sampling.max_logprobs}; "
                "ask for fewer or start the engine with a larger max_logprobs"
            )
        return number

    def _bad_words(self, words: Iterable[str]) -> list[list[int]]:
        """All ways to write them, each once."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            # The model may have fewer rows than the tokenizer has tokens.
            forms = [tuple(form) for form in self._word_forms(word) if max(form) < self._vocab_size]
            if not forms:
                raise ValueError(f"bad_words has {shown(word)}, which the model has no tokens for; leave it out")
            found |= dict.fromkeys(forms)
        return [list(form) for form in found]

    def _check_something_is_allowed(self, params: SamplingParams, bad_words: Iterable[Sequence[int]]) -> None:
        if params.allowed_token_ids is None:
            return
        left = set(params.allowed_token_ids) - {form[0] for form in bad_words if len(form) == 1}
        if not left:
            raise ValueError(
                f"allowed_token_ids is {shown(params.allowed_token_ids)}, and bad_words rules out all of them; "
                "allow others or ban fewer words"
            )
        if params.min_tokens and left <= params.end_token_ids(self._eos_token_ids):
            raise ValueError(
                f"allowed_token_ids is {shown(params.allowed_token_ids)}, which leaves only tokens that end the "
                f"output, and min_tokens is {params.min_tokens}; allow others or set min_tokens to 0"
            )

    def _check_argument_names(self, names: Iterable[str]) -> None:
        known = sorted({name for processor in self._logits_processors for name in processor.arguments})
        for name in names:
            if name not in known:
                if not self._logits_processors:
                    remedy = "no logits processor is loaded; start the engine with logits_processors"
                else:
                    remedy = f"the logits processors know {listed(known) or 'none'}"
                raise ValueError(f"extra_args has {shown(name)}, but {remedy}")


def _key(constraint: StructuredOutputsParams) -> bytes:
    return sha256(_ENCODER.encode(constraint)).digest()


def _own_copy(params: SamplingParams) -> SamplingParams:
    """A copy, checked again, with a seed: the caller may change what is theirs."""
    copies = {name: list(value) for name in _LISTS if isinstance(value := getattr(params, name), list | tuple)}
    if isinstance(params.stop, list | tuple):
        copies["stop"] = list(params.stop)
    seed = int.from_bytes(os.urandom(_SEED_BYTES)) if params.seed is None else params.seed
    return msgspec.structs.replace(params, seed=seed, **copies)


def _validate(processor: type[LogitsProcessor], params: SamplingParams) -> None:
    """Code of the user's own: whatever it raises is about this request only."""
    try:
        processor.validate_params(params.clone())
    except ValueError as error:
        refusal = message_of(error) or f"the logits processor {processor.__name__} refuses the parameters"
        raise ValueError(refusal) from error
    except Exception as error:
        name, problem = processor.__name__, described(error)
        raise ValueError(f"the logits processor {name} cannot check the parameters: {problem}") from error


def _as_sent(extra_args: dict[str, Any]) -> dict[str, Any]:
    """A copy of the arguments, as they arrive in another process."""
    try:
        sent: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(extra_args))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"extra_args must hold plain data (numbers, strings, lists, dicts): {message_of(error)}"
        ) from None
    return sent
