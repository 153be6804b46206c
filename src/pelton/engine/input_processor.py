"""From what users write to what the engine core takes: checks, tokens, ids."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypedDict

import msgspec

from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreRequest
from pelton.sampling_params import INTEGER_LIMIT, SEED_LIMIT, SamplingParams, has_lone_surrogate
from pelton.tokenizer import Tokenizer


class TextPrompt(TypedDict, total=False):
    """A prompt as text."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids."""

    prompt_token_ids: list[int]
    cache_salt: str


Prompt = str | list[int] | TextPrompt | TokensPrompt
"""Text, token ids, or a dict with either and optionally a `cache_salt`."""


@dataclass(slots=True)
class ProcessedRequest:
    """A request for the core, and what only the front end needs of it."""

    message: EngineCoreRequest
    prompt: str | None
    """The prompt's text; None if it came as token ids."""


class InputProcessor:
    """Validates and tokenizes requests. Raises ValueError with a sentence that names what is wrong."""

    def __init__(
        self,
        args: EngineArgs,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        max_model_len: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = list(eos_token_ids)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._has_priorities = args.scheduler.scheduling_policy == "priority"
        self._max_logprobs = args.model.max_logprobs
        self._request_ids = count()

    def next_request_id(self) -> str:
        """Counts up; whether a user chose the same id is for the caller to see."""
        return f"request-{next(self._request_ids)}"

    def process(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0
    ) -> ProcessedRequest:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError(f"priority must be an integer, got {priority!r}")
        if not -INTEGER_LIMIT <= priority < INTEGER_LIMIT:
            raise ValueError(f"priority must be in [-2**63, 2**63), got {priority}")
        if priority and not self._has_priorities:
            raise ValueError(f"priority is {priority}, but only scheduling_policy='priority' looks at it")
        if request_id is None:
            request_id = self.next_request_id()
        elif not isinstance(request_id, str) or not request_id:
            raise ValueError(f"request_id must be a non-empty string, got {request_id!r}")
        text, token_ids, cache_salt = self._read_prompt(prompt)
        if text is not None:
            token_ids = self._tokenizer.encode(text)
        self._check_tokens(token_ids)
        self._check_params(params)
        # A copy, checked again: the caller may change what is theirs.
        seed = secrets.randbelow(SEED_LIMIT) if params.seed is None else params.seed
        params = msgspec.structs.replace(params, seed=seed)
        message = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=list(token_ids),
            sampling_params=params,
            arrival_time=time.monotonic(),
            eos_token_ids=self._eos_token_ids,
            priority=priority,
            cache_salt=cache_salt,
        )
        return ProcessedRequest(message, text)

    def _read_prompt(self, prompt: Any) -> tuple[str | None, list[int], str | None]:
        """Text (or None), token ids (empty if there is text) and cache salt."""
        if isinstance(prompt, str):
            return prompt, [], None
        if isinstance(prompt, list):
            return None, prompt, None
        if not isinstance(prompt, Mapping):
            raise ValueError(
                "prompt must be a string, a list of token ids, or a dict with prompt or prompt_token_ids, "
                f"got {type(prompt).__name__}"
            )
        unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}, key=str)
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r} in prompt; there are prompt, prompt_token_ids, cache_salt")
        if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
            raise ValueError("a prompt dict needs exactly one of prompt and prompt_token_ids")
        salt = prompt.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise ValueError(f"cache_salt must be a non-empty string, got {salt!r}")
        if salt is not None and has_lone_surrogate(salt):
            raise ValueError(f"cache_salt must be valid Unicode without lone surrogates, got {salt!r}")
        if "prompt" not in prompt:
            return None, prompt["prompt_token_ids"], salt
        if not isinstance(prompt["prompt"], str):
            raise ValueError(f"prompt must be a string, got {type(prompt['prompt']).__name__}")
        return prompt["prompt"], [], salt

    def _check_tokens(self, token_ids: Any) -> None:
        if not isinstance(token_ids, list):
            raise ValueError(f"prompt_token_ids must be a list of token ids, got {type(token_ids).__name__}")
        if not token_ids:
            raise ValueError("the prompt is empty; give at least one token")
        for token_id in token_ids:
            if type(token_id) is not int:
                raise ValueError(f"prompt_token_ids must be integers, got {token_id!r}")
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            wrong = next(i for i in token_ids if not 0 <= i < self._vocab_size)
            raise ValueError(f"token id {wrong} in the prompt is outside the vocabulary (0 to {self._vocab_size - 1})")
        if len(token_ids) >= self._max_model_len:
            raise ValueError(
                f"This model's maximum context length is {self._max_model_len} tokens, but the prompt has "
                f"{len(token_ids)} and at least one is needed for the output; shorten the prompt, or raise "
                "max_model_len or the KV cache's memory if that is what limits it"
            )

    def _check_params(self, params: SamplingParams) -> None:
        if params.logprobs is not None and params.logprobs > self._max_logprobs:
            raise ValueError(
                f"logprobs is {params.logprobs}, but max_logprobs allows {self._max_logprobs}; "
                "ask for fewer or start the engine with a larger max_logprobs"
            )
        for token_id in params.stop_token_ids or ():
            if token_id >= self._vocab_size:
                raise ValueError(
                    f"token id {token_id} in stop_token_ids is outside the vocabulary (0 to {self._vocab_size - 1})"
                )
