"""From what users write to what the engine core takes: checks, tokens, ids."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from pelton.checks import INTEGER_LIMIT, check_integer, check_unicode
from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreRequest
from pelton.engine.params_processor import ParamsProcessor, Resolve
from pelton.error_text import shown
from pelton.grammar.registry import resolve
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pelton.engine.reasoning import ReasoningFinder

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids. A text may come along; it only comes back with the outputs."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | list[int] | TextPrompt | TokensPrompt
"""Text, token ids, or a dict with either and optionally a `cache_salt`."""


@dataclass(slots=True)
class ProcessedRequest:
    """A request for the core, and what only the front end needs of it."""

    message: EngineCoreRequest
    prompt: str | None
    """The prompt's text, whole; None if it came as token ids alone."""


class InputProcessor:
    """Validates and tokenizes requests. Raises ValueError with a sentence that names what is wrong."""

    def __init__(
        self,
        args: EngineArgs,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        max_model_len: int,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        resolve: Resolve = resolve,
    ) -> None:
        """`resolve` finds a backend for a constraint, or raises ValueError."""
        self._tokenizer = tokenizer
        self.eos_token_ids = list(eos_token_ids)
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._has_priorities = args.scheduler.scheduling_policy == "priority"
        self._params_processor = ParamsProcessor(
            args.sampling,
            tokenizer,
            eos_token_ids,
            vocab_size,
            logits_processors,
            args.structured_outputs.config,
            resolve,
        )
        self._reasoning = _reasoning_finder(args.structured_outputs.reasoning_parser, tokenizer)
        self._request_ids = count()

    def next_request_id(self) -> str:
        """Counts up; whether a user chose the same id is for the caller to see."""
        return f"request-{next(self._request_ids)}"

    def knows_constraint(self, params: SamplingParams) -> bool:
        """Whether `process` need not find out anything about the constraint, or there is none."""
        return self._params_processor.knows_constraint(params)

    def check_constraint(self, params: SamplingParams) -> None:
        """Find out now what `process` needs to know of the constraint, if there is one; this may take a while.

        Raises ValueError if it cannot be kept.
        """
        self._params_processor.check_constraint(params)

    def process(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str, priority: int = 0
    ) -> ProcessedRequest:
        """The request's first choice; others differ only by `choice` and by the id."""
        if not isinstance(request_id, str) or not request_id:
            raise ValueError(f"request_id must be a non-empty string, got {shown(request_id)}")
        self._check_priority(priority)
        text, given_ids, cache_salt = _read_prompt(prompt)
        params, bad_words_token_ids = self._params_processor.process(params)
        if given_ids is None and params.truncate_prompt_tokens is None:
            self._check_can_fit(text or "")
        token_ids = self._encoded(text or "") if given_ids is None else given_ids
        self._check_tokens(token_ids)
        token_ids = self._truncated(token_ids, params, is_text=given_ids is None)
        self._check_length(len(token_ids))
        message = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=list(token_ids),
            sampling_params=params,
            arrival_time=time.monotonic(),
            eos_token_ids=self.eos_token_ids,
            priority=priority,
            cache_salt=cache_salt,
            bad_words_token_ids=bad_words_token_ids,
        )
        if self._reasoning is not None and params.structured_outputs is not None:
            message.reasoning = self._reasoning.tokens(token_ids)
            if message.reasoning.end in (params.stop_token_ids or ()):
                raise ValueError("stop_token_ids has the token that ends the model's reasoning; leave that out")
        return ProcessedRequest(message, text)

    def _check_priority(self, priority: Any) -> None:
        check_integer("priority", priority, low=-INTEGER_LIMIT)
        if priority and not self._has_priorities:
            raise ValueError(f"priority is {priority}, but only scheduling_policy='priority' looks at it")

    def _encoded(self, text: str) -> list[int]:
        token_ids = self._tokenizer.encode(text)
        if text and not token_ids:
            raise ValueError(f"the model has no tokens for the prompt {shown(text)}; give it one that it can read")
        return token_ids

    def _check_tokens(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise ValueError("the prompt is empty; give at least one token")
        for token_id in token_ids:
            if type(token_id) is not int:
                raise ValueError(f"prompt_token_ids must be integers, got {shown(token_id)}")
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            wrong = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            raise ValueError(
                f"token id {shown(wrong)} in the prompt is outside the vocabulary (0 to {self.vocab_size - 1})"
            )

    def _truncated(self, token_ids: list[int], params: SamplingParams, *, is_text: bool) -> list[int]:
        length = params.truncate_prompt_tokens
        if length is None:
            return token_ids
        longest = self.max_model_len - 1
        if length > longest:
            raise ValueError(
                f"truncate_prompt_tokens is {length}, but the context holds prompts of at most {longest} tokens; "
                "set it to at most that, or to -1"
            )
        if length == -1:
            wanted = params.max_tokens or 1
            length = self.max_model_len - wanted if wanted < self.max_model_len else longest
        if not is_text:
            return token_ids[-length:]
        try:
            return self._tokenizer.truncate(token_ids, length)
        except ValueError as error:
            raise ValueError(f"truncate_prompt_tokens is {params.truncate_prompt_tokens}: {error}") from None

    def _check_can_fit(self, text: str) -> None:
        """Before tokenizing, which takes long for what is far too long."""
        if len(text) >= self.max_model_len and (fewest := self._tokenizer.fewest_tokens(text)) >= self.max_model_len:
            self._check_length(fewest, "at least ")

    def _check_length(self, num_tokens: int, bound: str = "") -> None:
        if num_tokens >= self.max_model_len:
            raise ValueError(
                f"This model's maximum context length is {self.max_model_len} tokens, but the prompt has "
                f"{bound}{num_tokens} and at least one is needed for the output; shorten the prompt, or raise "
                "max_model_len or the KV cache's memory if that is what limits it"
            )


def _reasoning_finder(parser: str | None, tokenizer: Tokenizer) -> "ReasoningFinder | None":
    if parser is None:
        return None
    from pelton.chat_parsing import find_reasoning_parser
    from pelton.engine.reasoning import ReasoningFinder

    return ReasoningFinder(find_reasoning_parser(parser), tokenizer)


def _read_prompt(prompt: Any) -> tuple[str | None, list[int] | None, str | None]:
    """Text (or None), token ids, not yet checked (None: those of the text), and cache salt."""
    if isinstance(prompt, str):
        return prompt, None, None
    if isinstance(prompt, list):
        return None, prompt, None
    if not isinstance(prompt, Mapping):
        raise ValueError(
            "prompt must be a string, a list of token ids, or a dict with prompt or prompt_token_ids, "
            f"got {type(prompt).__name__}"
        )
    unknown = sorted(set(prompt) - set(_PROMPT_KEYS), key=str)
    if unknown:
        raise ValueError(f"unknown key {shown(unknown[0])} in prompt; there are {', '.join(_PROMPT_KEYS)}")
    salt = prompt.get("cache_salt")
    if salt is not None:
        if not isinstance(salt, str) or not salt:
            raise ValueError(f"cache_salt must be a non-empty string, got {shown(salt)}")
        check_unicode("cache_salt", salt)
    text = prompt.get("prompt")
    if "prompt" in prompt and not isinstance(text, str):
        raise ValueError(f"prompt must be a string, got {type(text).__name__}")
    if "prompt_token_ids" not in prompt:
        if text is None:
            raise ValueError("a prompt dict needs prompt or prompt_token_ids, and has neither")
        return text, None, salt
    if text is not None:
        check_unicode("prompt", text)
    token_ids = prompt["prompt_token_ids"]
    if not isinstance(token_ids, list):
        raise ValueError(f"prompt_token_ids must be a list of token ids, got {type(token_ids).__name__}")
    return text, token_ids, salt
