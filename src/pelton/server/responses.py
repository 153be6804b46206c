"""Responses, in the shapes of OpenAI's interface with vLLM's additions.

What streams hold as well are dataclasses, which both pydantic and msgspec encode.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field


def _is_none(value: Any) -> bool:
    return value is None


def _optional() -> Any:
    """An entry that is left out where there is nothing to say."""
    return Field(default=None, exclude_if=_is_none)


@dataclass(slots=True)
class PromptTokensDetails:
    """What is known of the prompt's tokens."""

    cached_tokens: int


@dataclass(slots=True)
class Usage:
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(slots=True)
class CompletionLogprobs:
    """Log probabilities of a completion: four lists with an entry for every token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


@dataclass(slots=True)
class TopLogprob:
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(slots=True)
class ChatTokenLogprob:
    """A token of the output, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


@dataclass(slots=True)
class ChatLogprobs:
    """Log probabilities of a chat completion."""

    content: list[ChatTokenLogprob]


@dataclass(slots=True)
class PromptLogprob:
    """Log probability of a token in the prompt's place."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class CompletionChoice(BaseModel):
    """One completion of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = _optional()
    prompt_token_ids: list[int] | None = _optional()
    token_ids: list[int] | None = _optional()


class CompletionResponse(BaseModel):
    """Completions of all prompts: those of the first prompt, then those of the second, and so on."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage

    def to_json(self) -> bytes:
        """One choice after the other, so that other threads run in between: they may be very large."""
        rest = self.model_dump_json(exclude={"choices"}).removesuffix("}")
        choices = ",".join([choice.model_dump_json() for choice in self.choices])
        return f'{rest},"choices":[{choices}]}}'.encode()


@dataclass(slots=True)
class CalledFunction:
    """A function, and the arguments that it is to be called with, as JSON text."""

    name: str
    arguments: str


@dataclass(slots=True)
class MessageToolCall:
    """A tool that the model calls."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ResponseMessage(BaseModel):
    """What the model says."""

    role: str
    content: str | None
    reasoning: str | None = _optional()
    tool_calls: list[MessageToolCall] | None = _optional()


class ChatChoice(BaseModel):
    """One answer to the conversation."""

    index: int
    message: ResponseMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = _optional()


class ChatCompletionResponse(BaseModel):
    """All answers to a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = _optional()
    prompt_token_ids: list[int] | None = _optional()


class TokenizeResponse(BaseModel):
    """Tokens of a text or conversation."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(BaseModel):
    """Text of tokens."""

    prompt: str


class ModelPermission(BaseModel):
    """What may be done with a model; some clients look for it."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(BaseModel):
    """A name under which a model is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pelton"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetails(BaseModel):
    """What went wrong, and where."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorResponse(BaseModel):
    """The body of every answer that is none."""

    error: ErrorDetails
