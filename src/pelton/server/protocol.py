"""Requests, in the shapes of OpenAI's interface with vLLM's additions.

Null means "not set". Entries that are not listed here are accepted and not looked at, for clients send their own;
those of `not_supported` are refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from pelton.error_text import shown
from pelton.sampling_params import MAX_BAD_WORDS, MAX_CHOICES, MAX_STOP_STRINGS, MAX_STRING_LENGTH
from pelton.server.field_types import Flag, Integer, Number, one_of
from pelton.server.not_supported import check_support
from pelton.server.structured_outputs import ConstraintFields
from pelton.server.tool_use import ToolFields

MAX_PROMPTS = 2048
"""Prompts of one request: each is held, tokenized and answered on its own, and nothing is sent before all are in."""
MAX_TOTAL_CHOICES = 2048
"""Prompts times `n`: each is a sequence of its own for the engine."""
MAX_MESSAGES = 4096
"""Messages of one conversation: templates loop over them, some of them several times."""
MAX_PARTS = 4 * MAX_MESSAGES
"""Parts of all messages of a conversation: each becomes an object, which takes far more room than its text in JSON."""
MAX_REQUEST_ID = 256
"""Characters."""
MAX_ROLE = 64
"""Characters."""


def _check_num_prompts(prompt: Any) -> Any:
    """Before each of them is looked at."""
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int | float):
        raise ValueError(f"must hold at most {MAX_PROMPTS} prompts, got {len(prompt)}")
    return prompt


def _check_num_parts(messages: Any) -> Any:
    """Before each of them is looked at."""
    if isinstance(messages, list):
        contents = (message.get("content") for message in messages[:MAX_MESSAGES] if isinstance(message, Mapping))
        num_parts = sum(len(content) for content in contents if isinstance(content, list))
        if num_parts > MAX_PARTS:
            raise ValueError(
                f"must hold at most {MAX_PARTS} parts of contents in all, got {num_parts}; join their texts"
            )
    return messages


def _check_request_id(request_id: str) -> str:
    if not request_id.isprintable():
        raise ValueError(f"must be printable, got {shown(request_id)}")
    return request_id


TokenId = Annotated[int, Field(strict=True, ge=0)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
PromptTokens = Annotated[TokenIds, Field(min_length=1)]
Prompt = Annotated[
    str
    | Annotated[list[str], Field(fail_fast=True, min_length=1)]
    | PromptTokens
    | Annotated[list[PromptTokens], Field(fail_fast=True, min_length=1)],
    one_of("a string, a list of strings, a list of token ids, or a list of such lists, and not empty"),
    BeforeValidator(_check_num_prompts),
]
ShortString = Annotated[str, Field(min_length=1, max_length=MAX_STRING_LENGTH)]
Stop = Annotated[
    ShortString | Annotated[list[ShortString], Field(max_length=MAX_STOP_STRINGS)],
    one_of(f"a string of 1 to {MAX_STRING_LENGTH} characters, or a list of at most {MAX_STOP_STRINGS} such strings"),
]
Role = Annotated[str, Field(min_length=1, max_length=MAX_ROLE)]
RequestId = Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID), AfterValidator(_check_request_id)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _whole_numbers(cls, value: Any) -> Any:
        """5.0 is an integer in JSON, and some clients write all numbers so."""
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @model_validator(mode="before")
    @classmethod
    def _check_support(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            check_support(data)
        return data


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    include_usage: Flag | None = None
    """End with a chunk that has no choices, and the usage of the whole request."""
    continuous_usage_stats: Flag | None = None
    """Put the usage so far into every chunk."""


class GenerationRequest(ConstraintFields, _Request):
    """What completions and chat completions have in common."""

    model: str | None = None
    """The served model; without it, there is only one."""
    n: Integer | None = Field(None, ge=1, le=MAX_CHOICES)
    """Choices for every prompt; more than one needs a temperature above 0. Default: 1."""
    temperature: Number | None = Field(None, ge=0)
    """Divides the logits; 0 means greedy decoding. Default: the model's, or 1."""
    top_p: Number | None = Field(None, gt=0, le=1)
    """Sample from the most likely tokens whose probability reaches this value. Default: the model's, or 1."""
    top_k: Integer | None = Field(None, ge=-1)
    """Sample from so many most likely tokens; 0 or -1 means all. Default: the model's, or 0."""
    min_p: Number | None = Field(None, ge=0, le=1)
    """Rule out tokens whose probability is below this share of the most likely one's. Default: the model's, or 0."""
    presence_penalty: Number | None = Field(None, ge=-2, le=2)
    """Subtracted from the logit of every token in the output so far. Default: 0."""
    frequency_penalty: Number | None = Field(None, ge=-2, le=2)
    """Subtracted for each time that a token is in the output so far. Default: 0."""
    repetition_penalty: Number | None = Field(None, gt=0)
    """Divides the logits of tokens in prompt and output so far; 1 means none. Default: the model's, or 1."""
    seed: Integer | None = Field(None, ge=-(2**63), lt=2**64)
    """Makes the answer repeatable; -1 means none."""
    stop: Stop | None = None
    """Strings that end the output, which is cut before them."""
    stop_token_ids: TokenIds | None = None
    """Tokens that end the output."""
    include_stop_str_in_output: Flag | None = None
    """Cut the text after the stop string or stop token, not before."""
    bad_words: list[ShortString] | None = Field(None, max_length=MAX_BAD_WORDS)
    """Words that may not be generated."""
    ignore_eos: Flag | None = None
    """Go on after the model's end-of-sequence token."""
    max_tokens: Integer | None = Field(None, ge=0)
    """Most tokens to generate; what the context has no room for is not generated."""
    min_tokens: Integer | None = Field(None, ge=0)
    """Nothing ends the output before it has so many tokens."""
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]{1,10}$")], Number] | None = None
    """Token id -> what is added to its logit, -100 to 100."""
    allowed_token_ids: TokenIds | None = None
    """The only tokens that may be generated."""
    prompt_logprobs: Integer | None = Field(None, ge=-1)
    """Log probabilities of every token of the prompt and of so many most likely ones; with `stream` only 0, which then
    means none."""
    skip_special_tokens: Flag | None = None
    """Leave special tokens out of the text. Default: true."""
    spaces_between_special_tokens: Flag | None = None
    """Keep the space that some vocabularies put between special tokens. Default: true."""
    truncate_prompt_tokens: Integer | None = Field(None, ge=-1)
    """Keep only so many tokens of the prompt, the last ones; -1: as many as leave room for the output."""
    add_special_tokens: Flag | None = None
    """Put the tokens around the prompt that the model wants. Default: true for completions; false for chat
    completions, where the template does it."""
    echo: Flag | None = None
    """Begin the answer with the prompt (chat: with the final message, if the answer continues it)."""
    stream: Flag | None = None
    """Send the answer as server-sent events, while it is generated."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    return_token_ids: Flag | None = None
    """Send the ids of prompt and output tokens, too."""
    return_tokens_as_token_ids: Flag | None = None
    """Write tokens of log probabilities as `token_id:5`."""
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    """The prefix cache is shared only among requests of equal salt."""
    priority: Integer | None = Field(None, gt=-(2**63), lt=2**63)
    """Lower is more urgent; only with the priority scheduling policy."""
    request_id: RequestId | None = None
    """Becomes part of the response's id; a header X-Request-Id goes before it."""
    vllm_xargs: dict[str, Any] | None = None
    """Arguments of the engine's own logits processors."""
    user: Any = None
    """Not looked at."""

    @property
    def num_choices(self) -> int:
        """Of every prompt."""
        return self.n or 1

    @model_validator(mode="after")
    def _check_stream(self) -> "GenerationRequest":
        options = self.stream_options
        if not self.stream and options is not None and (options.include_usage or options.continuous_usage_stats):
            raise ValueError("stream_options is given, but stream is not true; leave it out")
        if self.stream and self.prompt_logprobs:
            raise ValueError("prompt_logprobs is given, but streams have no place for it; set stream to false")
        return self


class CompletionRequest(GenerationRequest):
    """Prompts to complete."""

    prompt: Prompt
    """One or several, as text or as token ids."""
    best_of: Integer | None = None
    """Only the number of choices itself."""
    logprobs: Integer | None = Field(None, ge=-1)
    """Log probabilities of the sampled token and of so many most likely ones; with `echo`, of the prompt, too."""

    @model_validator(mode="before")
    @classmethod
    def _check_tools(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("tools"):
            raise ValueError("tools are for chat completions; leave them out, or send messages there")
        return data

    @property
    def prompts(self) -> "list[str] | list[list[int]]":
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt

    @model_validator(mode="after")
    def _check_numbers(self) -> "CompletionRequest":
        num_prompts, num_choices = len(self.prompts), self.num_choices
        if num_prompts * num_choices > MAX_TOTAL_CHOICES:
            raise ValueError(
                f"n must be at most {MAX_TOTAL_CHOICES // num_prompts} with {num_prompts} prompts, got {num_choices}; "
                "send several requests"
            )
        self.check_copies(num_prompts * num_choices)
        if self.best_of is not None and self.best_of != num_choices:
            raise ValueError(
                f"best_of must be n, which is {num_choices}, for this version of Pelton does not choose among "
                f"answers, got {shown(self.best_of)}; leave it out"
            )
        return self


class TextPart(BaseModel):
    """A part of a message's content. Other entries, such as cache_control, are not looked at."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text"]
    text: str


def _check_content(content: Any) -> Any:
    """Messages that pydantic's union has not."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"must be a string or a list of parts, got {shown(content)}")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise ValueError(f'has part {index}, which must be {{"type": "text", "text": ...}}, got {shown(part)}')
        if part["type"] != "text":
            raise ValueError(f"has a part of type {shown(part['type'])}, but Pelton reads only parts of type 'text'")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"has part {index}, whose text must be a string, got {shown(part.get('text'))}")
    return content


class RequestMessage(BaseModel):
    """One message of a conversation. Other entries go to the chat template as they are."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    role: Role
    """Templates decide which there are. `developer` is what newer clients call `system`, and goes to the template under
    that name."""
    content: Annotated[str | list[TextPart] | None, BeforeValidator(_check_content)] = None
    """May be missing in messages of the assistant: it is empty, or there are `tool_calls`."""
    tool_calls: list[dict[str, Any]] | None = None
    """Of the assistant: functions that it called."""

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        message: dict[str, Any] = {name: value for name, value in self if value is not None}
        if not self.tool_calls:
            message.pop("tool_calls", None)  # templates look whether there are any by the name alone
        if (reasoning := message.get("reasoning")) is not None:
            message.setdefault("reasoning_content", reasoning)  # what templates call it
        if self.content is not None:
            message["content"] = self.text
        elif self.role == "assistant":
            message["content"] = ""  # also beside calls: templates that know none of them look at it
        if self.role == "developer":
            message["role"] = "system"
        return message


Messages = Annotated[
    list[RequestMessage], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(_check_num_parts)
]


class ConversationFields(_Request):
    """How a conversation becomes a prompt."""

    add_generation_prompt: Flag | None = None
    """Begin the assistant's message. Default: true, unless `continue_final_message`."""
    continue_final_message: Flag | None = None
    """Leave the final message open, for the model to go on with it."""
    chat_template: str | None = None
    """A Jinja template instead of the model's own; only if the server trusts those of requests."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the template."""
    documents: list[dict[str, Any]] | None = None
    """Documents that the template may show to the model."""
    reasoning_effort: str | None = None
    """For templates that know it."""

    @property
    def begins_message(self) -> bool:
        """Whether the prompt ends with the beginning of the assistant's message."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


class ChatCompletionRequest(ToolFields, GenerationRequest, ConversationFields):
    """A conversation to continue."""

    messages: Messages
    """What has been said so far, in order."""
    max_completion_tokens: Integer | None = Field(None, ge=0)
    """Most tokens to generate; goes before `max_tokens`. Default: the rest of the context."""
    logprobs: Flag | None = None
    """Log probabilities of every token of the output."""
    top_logprobs: Integer | None = Field(None, ge=-1)
    """Those of so many most likely tokens, too; only with `logprobs`."""

    @property
    def may_be_constrained_later(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @model_validator(mode="after")
    def _make_constraint_of_tools(self) -> "ChatCompletionRequest":
        if self.choice_of_tools.mode != "none" and self.continue_final_message and self.messages[-1].tool_calls:
            raise ValueError(
                "continue_final_message is true, but the final message has tool_calls, which cannot be continued; "
                "leave one of them out"
            )
        if (constraint := self.calls_constraint()) is not None:
            self.constrain(constraint)  # instead of one on the answer: there is none but a call
        self.check_copies(self.num_choices)
        return self

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> "ChatCompletionRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs is {self.top_logprobs}, but logprobs is not true; set it as well")
        return self


class TokenizeRequest(ToolFields, ConversationFields):
    """A text, or a conversation, to be turned into tokens."""

    model: str | None = None
    """The served model; without it, there is only one."""
    prompt: str | None = None
    """A text; instead of `messages`."""
    messages: Messages | None = None
    """A conversation; instead of `prompt`."""
    add_special_tokens: Flag | None = None
    """Put the tokens around it that the model wants. Default: true for a text, false for a conversation."""
    return_token_strs: Flag | None = None
    """Send the text of every token, too."""

    @model_validator(mode="after")
    def _check_input(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt or messages must be given, and not both")
        return self


class DetokenizeRequest(_Request):
    """Tokens to be turned into text."""

    model: str | None = None
    """The served model; without it, there is only one."""
    tokens: TokenIds
    """Their ids, in order."""
