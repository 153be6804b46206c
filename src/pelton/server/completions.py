"""Completions of prompts."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from pelton.core.outputs import CompletionOutput, Logprob, RequestOutput
from pelton.engine.async_llm import AsyncLLM
from pelton.engine.input_processor import Prompt, TextPrompt, TokensPrompt
from pelton.engine.request_stream import RequestStream
from pelton.server.errors import check_choice
from pelton.server.logprobs import TextOffsets, completion_logprobs, prompt_logprobs, prompt_offsets, with_top
from pelton.server.models import ServedModels
from pelton.server.protocol import CompletionRequest
from pelton.server.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, PromptLogprobs, Usage
from pelton.server.sampling import completion_params
from pelton.server.streaming import (
    ChunkEncoder,
    EventStream,
    UsageCounter,
    closed_on_error,
    collect,
    encode_event,
    start_requests,
)
from pelton.server.structured_outputs import named_in_refusals
from pelton.tokenizer import Tokenizer

MAX_PROMPT_ENTRIES = 2_000_000
"""Log probabilities of prompts in one answer, which repeats them for each of a prompt's choices: some 150 MB of JSON.
A single choice may have more: the context and `max_logprobs` bound those."""


class CompletionHandler:
    """Answers requests for completions, wherever they come from."""

    def __init__(self, llm: AsyncLLM, models: ServedModels) -> None:
        self._llm = llm
        self._models = models

    async def create(
        self, request: CompletionRequest, *, request_id: str | None = None, data_parallel_rank: int | None = None
    ) -> CompletionResponse | EventStream:
        """The answer, or with `stream` its events; `request_id` becomes part of its id.

        Raises APIError for a model that is not served and for requests that failed, and what `AsyncLLM.add_request`
        raises: ValueError, QueueFullError, EngineDeadError. No event is made before everything has been accepted.
        """
        self._models.check(request.model)
        params = completion_params(request, self._llm.generation_defaults)
        prompts = [await self._prompt(request, prompt) for prompt in request.prompts]
        response_id = f"cmpl-{request_id or request.request_id or uuid4().hex}"
        with named_in_refusals(request.constraint):
            streams = await start_requests(
                self._llm,
                prompts,
                params,
                request_id=response_id,
                priority=request.priority or 0,
                data_parallel_rank=data_parallel_rank,
            )
        answer = _Answer(response_id, int(time.time()), self._models.name, request, self._llm.tokenizer)
        with closed_on_error(streams):
            num_entries = self._check_size(request, streams)
            if request.stream:
                return EventStream(streams, _CompletionChunks(answer, streams))
        outputs = await collect(streams)
        if num_entries <= _FEW_ENTRIES:
            return answer.response(streams, outputs)
        return await asyncio.to_thread(answer.response, streams, outputs)

    def _check_size(self, request: CompletionRequest, streams: Sequence[RequestStream]) -> int:
        """How many log probabilities of prompts the answer will have.

        Raises ValueError for too many of them: a small request could fill the memory.
        """
        wanted = [request.prompt_logprobs, request.logprobs if request.echo else None]
        per_token = sum(self._llm.vocab_size if number == -1 else number + 1 for number in wanted if number is not None)
        num_tokens = sum(len(stream.prompt_token_ids) for stream in streams)
        num_choices, num_entries = request.num_choices, num_tokens * request.num_choices * per_token
        if num_entries > MAX_PROMPT_ENTRIES and len(streams) * num_choices > 1:
            name = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
            raise ValueError(
                f"{name} is {getattr(request, name)}, which makes {num_entries} log probabilities of prompt tokens "
                f"({num_tokens} tokens, {num_choices} choices of each), and an answer has at most "
                f"{MAX_PROMPT_ENTRIES}; send several requests, or ask for fewer"
            )
        return num_entries

    async def _prompt(self, request: CompletionRequest, given: str | list[int]) -> Prompt:
        prompt: TextPrompt | TokensPrompt
        if not isinstance(given, str):
            prompt = {"prompt_token_ids": given}
        elif request.add_special_tokens is False:
            prompt = {"prompt_token_ids": await self._llm.encode(given, False), "prompt": given}
        else:
            prompt = {"prompt": given}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        return prompt


_FEW_ENTRIES = 20_000
"""More log probabilities than that are made into an answer in a thread: they take longer than others should wait."""

Positions = Sequence[Mapping[int, Logprob] | None]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all parts of an answer need."""

    id: str
    created: int
    model: str
    request: CompletionRequest
    tokenizer: Tokenizer

    def response(self, streams: Sequence[RequestStream], outputs: Sequence[RequestOutput]) -> CompletionResponse:
        usage = UsageCounter(streams)
        choices = []
        for index, (stream, output) in enumerate(zip(streams, outputs, strict=True)):
            usage.add(index, output)
            prompt = self._prompt(stream, output)
            first = index * self.request.num_choices
            choices += [self._choice(first, prompt, choice) for choice in output.outputs]
        return CompletionResponse(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage.usage
        )

    def _prompt(self, stream: RequestStream, output: RequestOutput) -> "_EchoedPrompt":
        request, scored = self.request, output.prompt_logprobs or ()
        text = self.prompt_text(stream)
        return _EchoedPrompt(
            stream.prompt_token_ids,
            text,
            self.echoed_logprobs(stream, text, scored) if request.echo and request.logprobs is not None else None,
            None if request.prompt_logprobs is None else prompt_logprobs(with_top(scored, request.prompt_logprobs)),
        )

    def _choice(self, first: int, prompt: "_EchoedPrompt", choice: CompletionOutput) -> CompletionChoice:
        request = self.request
        logprobs = None
        if request.logprobs is not None:
            logprobs = self.logprobs(self.offsets(prompt.text), choice)
            if prompt.echoed is not None:
                logprobs = joined(prompt.echoed, logprobs)
        # All parts have been checked, and there may be very many of them.
        return CompletionChoice.model_construct(
            index=first + choice.index,
            text=prompt.text + choice.text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=prompt.logprobs,
            prompt_token_ids=prompt.token_ids if request.return_token_ids else None,
            token_ids=choice.token_ids if request.return_token_ids else None,
        )

    def prompt_text(self, stream: RequestStream) -> str:
        """What is echoed."""
        if not self.request.echo:
            return ""
        if stream.prompt is not None and self.request.truncate_prompt_tokens is None:
            return stream.prompt
        skip_special = self.request.skip_special_tokens is not False
        return self.tokenizer.decode(stream.prompt_token_ids, skip_special, self._spaces)

    @property
    def _spaces(self) -> bool:
        return self.request.spaces_between_special_tokens is not False

    def offsets(self, prompt_text: str) -> TextOffsets:
        """Of a choice's own tokens."""
        return TextOffsets(
            self.tokenizer,
            len(prompt_text),
            skip_special=self.request.skip_special_tokens is not False,
            spaces_between_special=self._spaces,
        )

    def logprobs(self, offsets: TextOffsets, choice: CompletionOutput) -> CompletionLogprobs:
        """Of a choice's new tokens."""
        return self._logprobs(choice.token_ids, choice.logprobs or (), offsets.add(choice.token_ids))

    def echoed_logprobs(self, stream: RequestStream, text: str, positions: Positions) -> CompletionLogprobs:
        assert self.request.logprobs is not None
        token_ids, positions = stream.prompt_token_ids, with_top(positions, self.request.logprobs)
        offsets = prompt_offsets(self.tokenizer, token_ids, text, spaces=self._spaces)
        return self._logprobs(token_ids, positions, offsets)

    def _logprobs(self, token_ids: Sequence[int], positions: Positions, offsets: list[int]) -> CompletionLogprobs:
        as_ids = bool(self.request.return_tokens_as_token_ids)
        return completion_logprobs(self.tokenizer, token_ids, positions, offsets, as_ids=as_ids)


@dataclass(frozen=True, slots=True)
class _EchoedPrompt:
    """What each choice of a prompt has of it."""

    token_ids: list[int]
    text: str
    echoed: CompletionLogprobs | None
    logprobs: PromptLogprobs | None


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


class _ChunkChoice(msgspec.Struct, gc=False):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class _Chunk(msgspec.Struct, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


@dataclass(slots=True)
class _Prompt:
    """One of the prompts of a stream."""

    stream: RequestStream
    text: str
    """What is echoed."""
    echoed: CompletionLogprobs | None = None
    offsets: dict[int, TextOffsets] = field(default_factory=dict)
    """Of the choices whose first chunk has been made."""
    waiting: list[RequestOutput] = field(default_factory=list)
    """Outputs that came before the prompt's log probabilities, which stand before them in the answer."""


class _CompletionChunks(ChunkEncoder):
    def __init__(self, answer: _Answer, streams: Sequence[RequestStream]) -> None:
        request = answer.request
        self._answer = answer
        self._request = request
        super().__init__(request, streams)
        self._prompts = [_Prompt(stream, answer.prompt_text(stream)) for stream in streams]
        self._has_echoed_logprobs = bool(request.echo) and request.logprobs is not None

    def encode(self, prompt_index: int, output: RequestOutput) -> Iterator[bytes]:
        prompt = self._prompts[prompt_index]
        outputs = [output]
        if self._has_echoed_logprobs and prompt.echoed is None:
            for choice in output.outputs:
                check_choice(choice)  # a prompt that failed has not all of its log probabilities
            prompt.waiting.append(output)
            if output.prompt_logprobs is None:
                return
            prompt.echoed = self._answer.echoed_logprobs(prompt.stream, prompt.text, output.prompt_logprobs)
            outputs, prompt.waiting = prompt.waiting, []
        for ready in outputs:
            self.usage.add(prompt_index, ready)
            for choice in ready.outputs:
                yield self._event([self._choice(prompt_index, prompt, choice)])

    def finish(self) -> Iterator[bytes]:
        if self.has_usage:
            yield self._event([], is_last=True)

    def _choice(self, prompt_index: int, prompt: _Prompt, choice: CompletionOutput) -> _ChunkChoice:
        """Raises APIError if the choice failed."""
        if choice.finish_reason is not None:
            check_choice(choice)
        offsets = prompt.offsets.get(choice.index)
        is_first = offsets is None
        if offsets is None:
            offsets = prompt.offsets[choice.index] = self._answer.offsets(prompt.text)
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = self._answer.logprobs(offsets, choice)
            if is_first and prompt.echoed is not None:
                logprobs = joined(prompt.echoed, logprobs)
        chunk = _ChunkChoice(
            prompt_index * self._request.num_choices + choice.index,
            prompt.text + choice.text if is_first else choice.text,
            logprobs,
            choice.finish_reason,
            choice.stop_reason,
        )
        if self._request.return_token_ids:
            chunk.token_ids = choice.token_ids
            if is_first:
                chunk.prompt_token_ids = prompt.stream.prompt_token_ids
        return chunk

    def _event(self, choices: list[_ChunkChoice], *, is_last: bool = False) -> bytes:
        answer = self._answer
        chunk = _Chunk(answer.id, "text_completion", answer.created, answer.model, choices)
        chunk.usage = self.usage_of_chunk(is_last=is_last)
        return encode_event(chunk)
