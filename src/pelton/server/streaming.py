"""Outputs of requests: all of them at the end, or as server-sent events while they come."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pelton.core.outputs import RequestOutput
from pelton.engine.async_llm import AsyncLLM
from pelton.engine.input_processor import Prompt
from pelton.engine.request_stream import RequestStream
from pelton.sampling_params import SamplingParams
from pelton.server.errors import APIError, check_choice, to_server_error
from pelton.server.protocol import GenerationRequest
from pelton.server.responses import PromptTokensDetails, Usage

MEDIA_TYPE = "text/event-stream"

_DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()
_MAX_WAITING = 2
"""Outputs of several prompts that wait to be encoded; a stream merges what nobody has taken yet."""


def encode_event(content: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _ENCODER.encode(content) + b"\n\n"


async def start_requests(
    llm: AsyncLLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    request_id: str,
    priority: int,
    data_parallel_rank: int | None,
) -> list[RequestStream]:
    """Queue a request for every prompt: all, or none if one is refused; the engine may know them by one id.

    Raises what `AsyncLLM.add_request` raises.
    """
    streams: list[RequestStream] = []
    with closed_on_error(streams):
        for prompt in prompts:
            stream = await llm.add_request(
                prompt, params, request_id=request_id, priority=priority, data_parallel_rank=data_parallel_rank
            )
            streams.append(stream)
    return streams


@contextmanager
def closed_on_error(streams: Iterable[RequestStream]) -> Iterator[None]:
    """Withdraw the requests if something is raised."""
    try:
        yield
    except BaseException:
        close_all(streams)
        raise


async def collect(streams: Sequence[RequestStream]) -> list[RequestOutput]:
    """The final outputs, in order. Raises APIError as soon as a request fails; in any case, none is left running."""
    tasks = [asyncio.create_task(_final_output(stream)) for stream in streams]
    try:
        return await asyncio.gather(*tasks)
    except Exception as error:
        # The request was fine when it was accepted, so even a ValueError is the server's.
        raise to_server_error(error) from error
    finally:
        close_all(streams)
        await _cancelled(tasks)


async def _final_output(stream: RequestStream) -> RequestOutput:
    last: RequestOutput | None = None
    async for output in stream:
        last = output
    if last is None:
        raise APIError(503, "The request was cut off before it was answered; try again later.")
    for choice in last.outputs:
        check_choice(choice)
    return last


async def _cancelled(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Once all of them have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def close_all(streams: Iterable[RequestStream]) -> None:
    """Withdraw the requests that have not finished."""
    for stream in streams:
        stream.close()


class UsageCounter:
    """Tokens of a request, whose prompts are known and whose output grows."""

    def __init__(self, streams: Sequence[RequestStream]) -> None:
        self._num_prompt_tokens = sum(len(stream.prompt_token_ids) for stream in streams)
        self._num_cached = [0] * len(streams)
        self._num_output_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Count the tokens of an output, which are all new."""
        self._num_cached[prompt_index] = output.num_cached_tokens
        for choice in output.outputs:
            self._num_output_tokens += len(choice.token_ids)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            total_tokens=self._num_prompt_tokens + self._num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(self._num_cached)),
        )


class ChunkEncoder(ABC):
    """Makes events of outputs, for one stream."""

    def __init__(self, request: GenerationRequest, streams: Sequence[RequestStream]) -> None:
        options = request.stream_options
        self.has_usage = options is not None and bool(options.include_usage)
        """Whether a last chunk, without choices, tells it."""
        self._has_usage_everywhere = options is not None and bool(options.continuous_usage_stats)
        self.usage = UsageCounter(streams)

    def usage_of_chunk(self, *, is_last: bool) -> Usage | UnsetType | None:
        """What stands in a chunk, the last one or another; UNSET if chunks have no such entry."""
        if self._has_usage_everywhere or (is_last and self.has_usage):
            return self.usage.usage
        return None if self.has_usage else UNSET

    @abstractmethod
    def encode(self, prompt_index: int, output: RequestOutput) -> Iterator[bytes]:
        """Events of what is new. Raises APIError when it comes to a choice that failed."""

    @abstractmethod
    def finish(self) -> Iterator[bytes]:
        """Events after the last output."""


class EventStream(AsyncIterator[bytes]):
    """Server-sent events of one HTTP response, the last of which is `[DONE]`; errors are events as well.

    Whoever has one must call `aclose`, even if nothing was read: it withdraws requests that have not finished.
    """

    def __init__(self, streams: Sequence[RequestStream], encoder: ChunkEncoder) -> None:
        self._streams = streams
        self._events = self._generate(encoder)

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        close_all(self._streams)
        await self._events.aclose()

    async def _generate(self, encoder: ChunkEncoder) -> AsyncGenerator[bytes, None]:
        try:
            if len(self._streams) == 1:
                async for output in self._streams[0]:
                    for event in encoder.encode(0, output):
                        yield event
            else:
                async with aclosing(_merge(self._streams)) as outputs:
                    async for prompt_index, output in outputs:
                        for event in encoder.encode(prompt_index, output):
                            yield event
            for event in encoder.finish():
                yield event
        except Exception as error:
            # The status has been sent: whatever goes wrong has to be said in the stream.
            yield encode_event(to_server_error(error).body())
        finally:
            close_all(self._streams)
        yield _DONE


async def _merge(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of several requests as they come, each with the place of its stream."""
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(_MAX_WAITING)

    async def forward(index: int, stream: RequestStream) -> None:
        end: Exception | None = None
        try:
            async for output in stream:
                await queue.put((index, output))
        except Exception as error:
            # For the reader to raise.
            end = error
        await queue.put((index, end))

    tasks = [asyncio.create_task(forward(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_running = len(tasks)
        while num_running:
            index, output = await queue.get()
            if output is None:
                num_running -= 1
            elif isinstance(output, Exception):
                raise output
            else:
                yield index, output
    finally:
        await _cancelled(tasks)
