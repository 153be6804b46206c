"""Chat completions: what the model says next in a conversation."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from pelton.chat_parsing import (
    CallArgumentsPart,
    CallBeginPart,
    ChatParser,
    ContentPart,
    Part,
    ReasoningPart,
    join_parts,
)
from pelton.core.outputs import CompletionOutput, RequestOutput
from pelton.engine.async_llm import AsyncLLM
from pelton.engine.input_processor import TokensPrompt
from pelton.engine.request_stream import RequestStream
from pelton.server.conversations import ConversationRenderer
from pelton.server.errors import check_choice
from pelton.server.logprobs import chat_logprobs, prompt_logprobs
from pelton.server.models import ServedModels
from pelton.server.protocol import ChatCompletionRequest
from pelton.server.responses import (
    CalledFunction,
    ChatChoice,
    ChatCompletionResponse,
    ChatLogprobs,
    MessageToolCall,
    ResponseMessage,
    Usage,
)
from pelton.server.sampling import chat_params
from pelton.server.streaming import ChunkEncoder, EventStream, UsageCounter, collect, encode_event, start_requests
from pelton.server.structured_outputs import named_in_refusals
from pelton.server.tool_use import AnswerReading, model_conventions
from pelton.tokenizer import Tokenizer


class ChatHandler:
    """Answers requests for chat completions, wherever they come from."""

    def __init__(
        self,
        llm: AsyncLLM,
        models: ServedModels,
        *,
        chat_template: str | None = None,
        trust_request_chat_template: bool = False,
        tool_call_parser: str = "auto",
        enable_auto_tool_choice: bool = True,
    ) -> None:
        """`chat_template`: text or path of a template, instead of the model's own. `trust_request_chat_template`: take
        templates from requests. `tool_call_parser`: how the model writes calls; auto: as its template tells.

        Raises ValueError for a template that cannot be read, and for a parser that there is not.
        """
        self._llm = llm
        self._models = models
        self._conventions = model_conventions(llm, chat_template, tool_call_parser, may_choose=enable_auto_tool_choice)
        self._renderer = ConversationRenderer(llm, chat_template, trust_request_chat_template)

    async def create(
        self, request: ChatCompletionRequest, *, request_id: str | None = None, data_parallel_rank: int | None = None
    ) -> ChatCompletionResponse | EventStream:
        """The answer, or with `stream` its events; `request_id` becomes part of its id.

        Raises APIError for a model that is not served and for requests that failed, and what `AsyncLLM.add_request`
        raises: ValueError, QueueFullError, EngineDeadError. No event is made before everything has been accepted.
        """
        self._models.check(request.model)
        self._check_top_logprobs(request)
        prompt: TokensPrompt = await self._renderer.render(
            request,
            request.messages,
            add_special_tokens=bool(request.add_special_tokens),
            tools=request.tools_for_template,
        )
        continued = request.messages[-1].text if request.continue_final_message else None
        reading = AnswerReading.of(request, self._conventions, prompt["prompt"], continued)
        free_parser = reading.free_parser
        if free_parser is not None:
            constraint = request.free_constraint(free_parser, request.constraint)
            if constraint is not None:
                request.constrain(constraint)
                request.check_copies(request.num_choices)
        request.check_options()
        if continued is not None and request.constraint is not None and reading.reasoning is not None:
            raise ValueError(
                f"continue_final_message is true, and {request.constraint.path} holds for what follows the reasoning, "
                "which the message may have begun; leave one of them out"
            )
        params = chat_params(request, self._llm.generation_defaults)
        if free_parser is not None and free_parser.needs_special_tokens:
            params.skip_special_tokens = False
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        response_id = f"chatcmpl-{request_id or request.request_id or uuid4().hex}"
        with named_in_refusals(request.constraint):
            streams = await start_requests(
                self._llm,
                [prompt],
                params,
                request_id=response_id,
                priority=request.priority or 0,
                data_parallel_rank=data_parallel_rank,
            )
        answer = _Answer(response_id, int(time.time()), self._models.name, request, self._llm.tokenizer, reading)
        if request.stream:
            return EventStream(streams, _ChatChunks(answer, streams))
        return answer.response(streams, await collect(streams))

    def _check_top_logprobs(self, request: ChatCompletionRequest) -> None:
        """The engine would call them logprobs."""
        if not request.logprobs or request.top_logprobs is None:
            return
        number = self._llm.vocab_size if request.top_logprobs == -1 else request.top_logprobs
        sampling = self._llm.args.sampling
        if number > sampling.most_logprobs(self._llm.vocab_size):
            raise ValueError(
                f"top_logprobs is {request.top_logprobs}, but max_logprobs allows {sampling.max_logprobs}; ask for "
                "fewer or start the server with a larger max_logprobs"
            )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all parts of an answer need."""

    id: str
    created: int
    model: str
    request: ChatCompletionRequest
    tokenizer: Tokenizer
    reading: AnswerReading

    @property
    def role(self) -> str:
        """Whose message it is: without a generation prompt, the model goes on with the final one."""
        request = self.request
        return "assistant" if request.begins_message else request.messages[-1].role

    @property
    def echoed(self) -> str:
        final = self.request.messages[-1]
        return final.text if self.request.echo and final.role == self.role else ""

    def response(self, streams: Sequence[RequestStream], outputs: Sequence[RequestOutput]) -> ChatCompletionResponse:
        (output,) = outputs
        usage = UsageCounter(streams)
        usage.add(0, output)
        request, scored = self.request, output.prompt_logprobs
        return ChatCompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(choice) for choice in output.outputs],
            usage=usage.usage,
            prompt_logprobs=None if scored is None else prompt_logprobs(scored),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
        )

    def _choice(self, choice: CompletionOutput) -> ChatChoice:
        parser = self.reading.new_parser()
        return ChatChoice(
            index=choice.index,
            message=self._message(choice.text, parser),
            logprobs=self.logprobs(choice),
            finish_reason=self.reading.finish_reason(choice.finish_reason, parser),
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self.request.return_token_ids else None,
        )

    def _message(self, text: str, parser: ChatParser | None) -> ResponseMessage:
        if parser is None:
            return ResponseMessage(role=self.role, content=self.echoed + text)
        parsed = join_parts([*parser.feed(text), *parser.finish()])
        content = self.echoed + parsed.content
        calls = [MessageToolCall(call.id, CalledFunction(call.name, call.arguments)) for call in parsed.tool_calls]
        return ResponseMessage(
            role=self.role,
            content=content or ("" if not (calls or parsed.reasoning) else None),
            reasoning=(parsed.reasoning or None) if self.wants_reasoning else None,
            tool_calls=calls or None,
        )

    @property
    def wants_reasoning(self) -> bool:
        return self.request.include_reasoning is not False

    def logprobs(self, choice: CompletionOutput) -> ChatLogprobs | None:
        """Of the tokens of an output."""
        request = self.request
        if not request.logprobs:
            return None
        return chat_logprobs(
            self.tokenizer,
            choice.token_ids,
            choice.logprobs or (),
            with_top=bool(request.top_logprobs),
            as_ids=bool(request.return_tokens_as_token_ids),
        )


class _FunctionDelta(msgspec.Struct, gc=False):
    name: str | UnsetType = UNSET
    arguments: str = ""


class _CallDelta(msgspec.Struct, gc=False):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: _FunctionDelta = msgspec.field(default_factory=_FunctionDelta)


class _Delta(msgspec.Struct, gc=False):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[_CallDelta] | UnsetType = UNSET


class _ChunkChoice(msgspec.Struct, gc=False):
    index: int
    delta: _Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class _Chunk(msgspec.Struct, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


_NOTHING = _Delta()


def _call_deltas(parts: Iterable[Part]) -> list[_CallDelta]:
    """One for each call that the parts are about."""
    deltas: dict[int, _CallDelta] = {}
    for part in parts:
        if isinstance(part, CallBeginPart):
            deltas[part.index] = _CallDelta(part.index, part.id, "function", _FunctionDelta(part.name))
        elif isinstance(part, CallArgumentsPart):
            deltas.setdefault(part.index, _CallDelta(part.index)).function.arguments += part.text
    return list(deltas.values())


class _ChatChunks(ChunkEncoder):
    def __init__(self, answer: _Answer, streams: Sequence[RequestStream]) -> None:
        request = answer.request
        self._answer = answer
        super().__init__(request, streams)
        self._prompt_token_ids = streams[0].prompt_token_ids
        self._parsers: dict[int, ChatParser | None] = {}
        """Of choices whose first chunk has been made."""
        self._has_logprobs = bool(request.logprobs)
        self._has_token_ids = bool(request.return_token_ids)

    def encode(self, prompt_index: int, output: RequestOutput) -> Iterator[bytes]:
        self.usage.add(prompt_index, output)
        for choice in output.outputs:
            if choice.finish_reason is not None:
                check_choice(choice)
            if choice.index not in self._parsers:
                self._parsers[choice.index] = self._answer.reading.new_parser()
                yield from self._beginning(choice.index)
            parser = self._parsers[choice.index]
            chunk = _ChunkChoice(choice.index, self._delta(choice, parser))
            if choice.finish_reason is not None:
                chunk.finish_reason = self._answer.reading.finish_reason(choice.finish_reason, parser)
                chunk.stop_reason = choice.stop_reason
            elif chunk.delta == _NOTHING and not (self._has_logprobs or self._has_token_ids):
                continue  # it may be the beginning of something
            if self._has_logprobs:
                chunk.logprobs = self._answer.logprobs(choice)
            if self._has_token_ids:
                chunk.token_ids = choice.token_ids
            yield self._event([chunk])

    def _delta(self, choice: CompletionOutput, parser: ChatParser | None) -> _Delta:
        """What an output adds to the message."""
        if parser is None:
            return _Delta(content=choice.text)
        parts = parser.feed(choice.text)
        if choice.finish_reason is not None:
            parts += parser.finish()
        delta = _Delta()
        if content := "".join([part.text for part in parts if isinstance(part, ContentPart)]):
            delta.content = content
        reasoning = "".join([part.text for part in parts if isinstance(part, ReasoningPart)])
        if reasoning and self._answer.wants_reasoning:
            delta.reasoning = reasoning
        if calls := _call_deltas(parts):
            delta.tool_calls = calls
        return delta

    def finish(self) -> Iterator[bytes]:
        if self.has_usage:
            yield self._event([], is_last=True)

    def _beginning(self, index: int) -> Iterator[bytes]:
        """Whose message it is, and what is echoed."""
        role = _ChunkChoice(index, _Delta(self._answer.role, ""))
        yield self._event([role], prompt_token_ids=self._prompt_token_ids if self._has_token_ids else UNSET)
        if echoed := self._answer.echoed:
            yield self._event([_ChunkChoice(index, _Delta(content=echoed))])

    def _event(
        self,
        choices: list[_ChunkChoice],
        *,
        is_last: bool = False,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> bytes:
        answer = self._answer
        chunk = _Chunk(answer.id, "chat.completion.chunk", answer.created, answer.model, choices)
        chunk.prompt_token_ids = prompt_token_ids
        chunk.usage = self.usage_of_chunk(is_last=is_last)
        return encode_event(chunk)
