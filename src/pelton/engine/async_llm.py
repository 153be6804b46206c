"""The asyncio front of the engine: any number of requests at once, each an iterator of its outputs."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from logging import getLogger
from typing import Any, TypeVar

from pelton.config import EngineArgs
from pelton.core.control_messages import CoreInfo, MetricsState
from pelton.core.messages import EngineCoreOutputs
from pelton.core.metrics import Metric
from pelton.core.outputs import RequestOutput
from pelton.engine.async_mp_client import AsyncMPClient, DPLBAsyncMPClient
from pelton.engine.chat import render_chat
from pelton.engine.constraint_checker import NUM_PROCESSES, ConstraintChecker
from pelton.engine.core_connections import CoreConnections
from pelton.engine.engine_front import EngineFront
from pelton.engine.errors import EngineDeadError, QueueFullError
from pelton.engine.input_processor import Prompt, TokensPrompt
from pelton.engine.metrics import merged, metrics_of
from pelton.engine.output_processor import OutputProcessor
from pelton.engine.request_stream import RequestStream
from pelton.engine.served_model import ServedModel
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer

logger = getLogger(__name__)

_T = TypeVar("_T")

_NUM_THREADS = 2
"""Tokenizing and rendering: two, so that a long prompt does not hold up all short ones."""
_SLICE = 64
"""Requests whose outputs are handled before the event loop gets a turn."""
_RETRY_SECONDS = 1


class AsyncLLM(EngineFront):
    """Input processor, client of the engine cores and output processor, for one event loop.

    Texts are tokenized and conversations rendered in threads. One task takes what the cores bring and hands it to the
    requests' streams.
    """

    def __init__(
        self,
        args: EngineArgs,
        model: ServedModel,
        client: AsyncMPClient,
        tokenizer: Tokenizer,
        *,
        max_num_queued_reqs: int | None = None,
    ) -> None:
        """After a core of `client` has become ready. `max_num_queued_reqs`: how many requests may wait for a place
        in a step; None: any number."""
        self.args = args
        self.model_name = args.model.model
        self.tokenizer = tokenizer
        self.core_infos: list[CoreInfo] = [core.info for core in client.connections.up if core.info is not None]
        """Of those that were ready at the start, by rank."""
        max_model_len = min(info.max_model_len for info in self.core_infos)
        self._checker = ConstraintChecker(args.structured_outputs.config.max_check_seconds)
        input_processor = model.make_input_processor(tokenizer, max_model_len, self._checker.resolve)
        super().__init__(input_processor, model.generation_defaults)
        self._output_processor = OutputProcessor(tokenizer)
        self._client = client
        self._max_num_queued = max_num_queued_reqs
        self._streams: dict[str, RequestStream] = {}
        """By the id that the core knows."""
        self._num_preparing = 0
        """Conversations, texts and requests that are being rendered or tokenized."""
        self._ids = count()
        # Front ends come and go, and ids of none may meet those of another in a core.
        self._id_prefix = f"{client.connections.addresses.index}-{os.urandom(4).hex()}-"
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "pelton-input")
        self._check_threads = ThreadPoolExecutor(NUM_PROCESSES, "pelton-check")
        """Which wait for the checker's processes, so that nothing else waits for those."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_shut_down = False
        client.connections.on_metrics_call = self._metrics_states
        self._task = asyncio.get_running_loop().create_task(self._handle_outputs(), name="pelton-outputs")

    @classmethod
    async def connect(
        cls,
        args: EngineArgs,
        model: ServedModel,
        connections: CoreConnections,
        *,
        stall_timeout: float = 60.0,
        max_num_queued_reqs: int | None = None,
        wait_for_all: bool = True,
    ) -> "AsyncLLM":
        """Load the tokenizer while the cores load the weights, and wait for them, or, without `wait_for_all`, for one.

        Raises ValueError if a core cannot start; without `wait_for_all` EngineDeadError, if all have ended for good.
        """
        kind = AsyncMPClient if connections.addresses.num_ranks == 1 else DPLBAsyncMPClient
        client = kind(connections, stall_timeout=stall_timeout)
        try:
            tokenizer = await asyncio.to_thread(model.load_tokenizer)
            await (client.wait_until_ready() if wait_for_all else client.wait_until_up())
            return cls(args, model, client, tokenizer, max_num_queued_reqs=max_num_queued_reqs)
        except BaseException:
            client.shutdown()
            raise

    async def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> RequestStream:
        """Queue a request, with all its choices. `request_id` comes back with the outputs; it need not be unique.

        Raises ValueError if prompt or parameters are not acceptable, QueueFullError, and EngineDeadError if no engine
        core can take it.
        """
        self._check_is_up()
        self._check_queue(params)
        internal_id = f"{self._id_prefix}{next(self._ids)}"
        process = partial(self._input_processor.process, prompt, params, request_id=internal_id, priority=priority)
        with self._preparation():
            if isinstance(params, SamplingParams) and params.structured_outputs is not None:
                await self._check_constraint(params)
            request = await self._in_thread(process)
            self._check_is_up()
            self._check_queue(params)  # others have come meanwhile
            rank = self._client.choose_rank(params.n, data_parallel_rank)
            messages = self._output_processor.add_request(request, rank)
            state = self._output_processor.state_of(internal_id)
            stream = RequestStream(request_id, request, state, partial(self._abort, internal_id))
            self._streams[internal_id] = stream
        try:
            self._client.add_requests(messages, rank)
        except BaseException:
            stream.close()
            raise
        return stream

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """`add_request` and its outputs; an iterator that is closed early ends the request."""
        stream = await self.add_request(
            prompt, params, request_id=request_id, priority=priority, data_parallel_rank=data_parallel_rank
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def abort(self, request_ids: Iterable[str]) -> None:
        """End all requests of these ids; unknown ids are ignored. Their streams end with an output."""
        wanted = set(request_ids)
        for internal_id, stream in list(self._streams.items()):
            if stream.request_id in wanted:
                self._abort(internal_id)
                stream.wake()

    async def wait_until_up(self) -> None:
        """Wait until an engine core takes requests. Raises EngineDeadError if none will."""
        self._check_is_up()
        await self._client.wait_until_up()

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> TokensPrompt:
        """`pelton.engine.chat.render_chat` with this model's tokenizer, in a thread. Raises ValueError as that does."""
        with self._preparation():
            return await self._in_thread(partial(render_chat, self.tokenizer, messages, **options))

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, made in a thread. Raises ValueError as `Tokenizer.encode`."""
        with self._preparation():
            return await self._in_thread(partial(self.tokenizer.encode, text, add_special_tokens))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, made in a thread. Raises ValueError as `Tokenizer.decode`."""
        return await self._in_thread(partial(self.tokenizer.decode, token_ids))

    @contextmanager
    def _preparation(self) -> Iterator[None]:
        """Of something that a request waits for."""
        self._num_preparing += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_preparing -= 1
            self._note_idle()

    @property
    def num_unfinished_requests(self) -> int:
        """Those that are being prepared count, too."""
        return len(self._output_processor) + self._num_preparing

    @property
    def is_healthy(self) -> bool:
        """Whether an engine core takes requests, and none that has some has been silent for too long."""
        return not (self._is_shut_down or self._task.done()) and self._client.is_healthy

    async def get_metrics(self) -> list[Metric]:
        """The figures of all engine cores, from all front ends, under Prometheus names."""
        states = merged(await self._client.collect_metrics())
        return [metric for state in states for metric in metrics_of(self.model_name, state)]

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix, of all engine cores; running requests are not affected."""
        return all((await self._client.call_utility("reset_prefix_cache")).values())

    async def start_profile(self) -> None:
        """Begin to measure where Python's time goes in every engine core. Raises ValueError if that has begun."""
        await self._client.call_utility("start_profile")

    async def stop_profile(self) -> dict[int, str]:
        """End what `start_profile` began. Returns the functions that took most time, as text, by rank."""
        return await self._client.call_utility("stop_profile")

    async def drain(self, timeout: float) -> bool:
        """Wait until no request is left, at most so many seconds. Returns whether none is."""
        try:
            async with asyncio.timeout(timeout):
                while not self._is_idle.is_set():  # a request that has been rendered is tokenized next
                    await self._is_idle.wait()
        except TimeoutError:
            return False
        return True

    async def shutdown(self) -> None:
        """End all requests, whose streams end with an output, and let go of the cores; the supervisor ends those."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for internal_id, stream in list(self._streams.items()):
            self._abort(internal_id)
            stream.wake()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._client.shutdown()
        self._checker.shutdown()
        for threads in (self._threads, self._check_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _check_is_up(self) -> None:
        if self._is_shut_down:
            raise EngineDeadError("the server is shutting down; send the request to another one")

    def _check_queue(self, params: SamplingParams) -> None:
        limit = self._max_num_queued
        if limit is None or not self._client.has_work:  # a request alone need not wait for others
            return
        num_queued = self._client.num_queued(params.n)
        if num_queued > limit:
            raise QueueFullError(
                f"{num_queued} requests would wait with this one, and the server lets {limit} wait; try again later",
                _RETRY_SECONDS,
            )

    async def _check_constraint(self, params: SamplingParams) -> None:
        """Those that are known wait for no others."""
        if not await self._in_thread(partial(self._input_processor.knows_constraint, params)):
            check = partial(self._input_processor.check_constraint, params)
            await self._in_thread(check, self._check_threads)

    async def _in_thread(self, function: Callable[[], _T], threads: ThreadPoolExecutor | None = None) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads or self._threads, function)
        except asyncio.CancelledError:
            self._check_is_up()  # what has not begun at the end does not begin any more
            raise

    def _abort(self, internal_id: str) -> None:
        core_ids = self._output_processor.core_ids([internal_id])
        self._output_processor.abort_requests([internal_id])
        self._client.abort_requests(core_ids)
        self._forget(internal_id)

    def _forget(self, internal_id: str) -> None:
        self._streams.pop(internal_id, None)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._streams and not self._num_preparing:
            self._is_idle.set()

    async def _handle_outputs(self) -> None:
        """Take what the cores bring, until cancelled."""
        while True:
            outputs = await self._client.next_outputs()
            try:
                await self._handle(outputs)
            except Exception:  # nobody would hear of it, and every stream would wait for ever
                logger.exception("outputs could not be handled; their requests end with an error")
                self._fail([output.request_id for output in outputs.outputs])

    async def _handle(self, outputs: EngineCoreOutputs) -> None:
        self._output_processor.metrics[outputs.rank].record_step(outputs.stats.num_scheduled_tokens)
        for start in range(0, len(outputs.outputs), _SLICE):
            if start:
                await asyncio.sleep(0)
            processed = self._output_processor.process(outputs.outputs[start : start + _SLICE])
            for request in processed.changed:
                stream = self._streams.get(request.id)
                if stream is not None:
                    stream.wake()
                if request.is_finished:
                    self._forget(request.id)
            if processed.aborts:
                self._client.abort_requests(processed.aborts, outputs.rank)

    def _fail(self, core_ids: Iterable[str]) -> None:
        for internal_id in {core_id.partition("/")[0] for core_id in core_ids}:
            stream = self._streams.get(internal_id)
            self._client.abort_requests(self._output_processor.core_ids([internal_id]))
            self._output_processor.fail(internal_id, "the output could not be read")
            self._forget(internal_id)
            if stream is not None:
                stream.wake()

    def _metrics_states(self) -> list[MetricsState]:
        return [
            self._output_processor.metrics[core.rank].state(core.rank, core.stats)
            for core in self._client.connections.cores
        ]
