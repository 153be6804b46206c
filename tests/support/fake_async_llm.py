"""An `AsyncLLM` without a model: its answers are scripted; checks, tokens, text and log probabilities are real.

Requests pass the real `InputProcessor` and `OutputProcessor`; only the engine core is played. A step is played whenever
somebody waits for an output, so nothing runs in the background, and nothing depends on time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreOutput, EngineCoreRequest, TokenLogprobs
from pelton.core.metrics import Counter, Gauge, Metric
from pelton.core.outputs import RequestOutput
from pelton.engine.chat import render_chat
from pelton.engine.errors import EngineDeadError
from pelton.engine.input_processor import InputProcessor, Prompt, TokensPrompt
from pelton.engine.output_processor import OutputProcessor
from pelton.loader import open_checkpoint
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer, load_tokenizer

MODEL = "smollm2"
LOGPROB = -0.5
"""Of the sampled token, at every position; the k-th of the others has `LOGPROB - k`."""


@lru_cache(1)
def smollm2_tokenizer() -> Tokenizer:
    return load_tokenizer(open_checkpoint(MODEL))


@lru_cache(1)
def _config() -> Any:
    return open_checkpoint(MODEL).config


@dataclass
class Script:
    """What a request is answered."""

    answer: str | Sequence[int] | Sequence[str | Sequence[int]] = "Hello there!"
    """Text or token ids, for every choice; or a tuple with an answer for each choice. The end-of-sequence token
    follows, unless `max_tokens` or the context ends it before."""
    tokens_per_output: int = 1
    hold: asyncio.Event | None = None
    """Before the token number `hold_at`, every choice waits until it is set."""
    hold_at: int = 0
    fail_at: int | None = None
    """Every choice fails before this token, with finish_reason `error` and the `failure` as its message."""
    failure: str = "the logits are not finite"
    failing_choices: frozenset[int] | None = None
    """Which choices fail; None: all."""
    late_choices: frozenset[int] = frozenset()
    """These begin only when the others have had a step, as if they had waited for a place."""
    raises: Exception | None = None
    """Instead of failing, the stream raises this at `fail_at`."""
    num_cached_tokens: int = 0
    logprob: float = LOGPROB
    rank: int = 1
    """Of the sampled token: above 1, other tokens come before it."""


@dataclass
class Call:
    """Arguments of an `add_request`."""

    prompt: Prompt
    params: SamplingParams
    request_id: str
    priority: int
    data_parallel_rank: int | None


class FakeRequestStream:
    """The outputs of one request."""

    def __init__(
        self,
        llm: "FakeAsyncLLM",
        request_id: str,
        internal_id: str,
        messages: list[EngineCoreRequest],
        prompt: str | None,
        script: Script,
    ) -> None:
        self.request_id = request_id
        self.internal_id = internal_id
        """What the engine calls it: users' ids need not be unique."""
        self.prompt_token_ids = messages[0].prompt_token_ids
        self.prompt = prompt
        self.is_closed = False
        """Whether `close` has been called."""
        self.is_finished = False
        self._llm = llm
        self._script = script
        self._core = [_PlayedChoice(message, script, llm.max_model_len) for message in messages]
        self._outputs: deque[RequestOutput] = deque()
        self._has_begun = False
        self._ended = asyncio.Event()

    def __aiter__(self) -> "FakeRequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._outputs:
            if self.is_closed or self.is_finished:
                raise StopAsyncIteration
            await self._step()
        return self._outputs.popleft()

    async def _step(self) -> None:
        script = self._script
        position = min((c.num_tokens for c in self._core if not c.is_finished), default=0)
        if script.hold is not None and position >= script.hold_at and not script.hold.is_set():
            await _first_of(script.hold, self._ended)
        await asyncio.sleep(0)
        if self.is_closed or self.is_finished:
            return
        if script.raises is not None and position >= (script.fail_at or 0):
            self._llm.discard(self)
            raise script.raises
        is_first_step = not self._has_begun
        self._has_begun = True
        core_outputs = [
            choice.play()
            for choice in self._core
            if not (choice.is_finished or (is_first_step and choice.message.choice in script.late_choices))
        ]
        processed = self._llm.processor.process(core_outputs)
        for choice in self._core:
            choice.is_finished |= choice.message.request_id in processed.aborts
        for state in processed.changed:
            self.put(state.make_output())

    def put(self, output: RequestOutput) -> None:
        """Hand over an output; the last one ends the request."""
        output.request_id = self.request_id
        self._outputs.append(output)
        if output.finished:
            self.is_finished = True
            self._ended.set()
            self._llm.forget(self)

    def close(self) -> None:
        self.is_closed = True
        self._ended.set()
        if not self.is_finished:
            self._llm.discard(self)


class _PlayedChoice:
    """What the engine core does for one choice."""

    def __init__(self, message: EngineCoreRequest, script: Script, max_model_len: int) -> None:
        self.message = message
        self.is_finished = False
        self.num_tokens = 0
        params = message.sampling_params
        answer = script.answer
        if isinstance(answer, tuple):
            answer = answer[message.choice % len(answer)]
        token_ids = smollm2_tokenizer().encode(answer, False) if isinstance(answer, str) else list(answer)
        self._token_ids: list[int] = [*token_ids, message.eos_token_ids[0]]
        self._ends = params.end_token_ids(message.eos_token_ids)
        room = max_model_len - len(message.prompt_token_ids)
        self._max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        self._script = script

    def play(self) -> EngineCoreOutput:
        """The next step."""
        script, params = self._script, self.message.sampling_params
        output = EngineCoreOutput(self.message.request_id, [], num_cached_tokens=script.num_cached_tokens)
        if self.num_tokens == 0 and params.prompt_logprobs is not None:
            prompt = self.message.prompt_token_ids
            output.prompt_logprobs = [self._logprobs(token_id, params.prompt_logprobs) for token_id in prompt[1:]]
        if self._max_tokens == 0:
            output.finish_reason = "length"
        for _ in range(script.tokens_per_output):
            self._next_token(output)
        if params.logprobs is not None:
            output.logprobs = [self._logprobs(token_id, params.logprobs) for token_id in output.new_token_ids]
        self.is_finished = output.finish_reason is not None
        return output

    def _next_token(self, output: EngineCoreOutput) -> None:
        script, params = self._script, self.message.sampling_params
        if output.finish_reason is not None:
            return
        fails = script.failing_choices is None or self.message.choice in script.failing_choices
        if script.fail_at is not None and script.raises is None and fails and self.num_tokens >= script.fail_at:
            output.finish_reason, output.stop_reason = "error", script.failure
            return
        token_id = self._token_ids[self.num_tokens % len(self._token_ids)]
        output.new_token_ids.append(token_id)
        self.num_tokens += 1
        if token_id in self._ends and self.num_tokens >= params.min_tokens:
            output.finish_reason = "stop"
            output.stop_reason = token_id if token_id in (params.stop_token_ids or ()) else None
        elif self.num_tokens >= self._max_tokens:
            output.finish_reason = "length"

    def _logprobs(self, token_id: int, number: int) -> TokenLogprobs:
        """The sampled token first, then as many most likely ones: itself among them, if its rank allows."""
        script = self._script
        others = [other for other in range(100, 100 + number + 1) if other != token_id]
        best = [*others[: script.rank - 1], token_id, *others[script.rank - 1 :]][:number]
        values = [script.logprob + (script.rank - 1 - place) for place in range(number)]
        return TokenLogprobs([token_id, *best], [script.logprob, *values], script.rank)


class FakeAsyncLLM:
    """Answers every request with `answer`, unless `play` says otherwise."""

    def __init__(self, *, answer: str | Script = "Hello there!", max_model_len: int = 2048, **engine_args: Any) -> None:
        config = _config()
        self.args = EngineArgs.create(model=MODEL, **engine_args)
        self.model_name = MODEL
        self.tokenizer = smollm2_tokenizer()
        self.max_model_len = max_model_len
        self.vocab_size = config.vocab_size
        self.eos_token_ids = list(config.eos_token_ids)
        self.generation_defaults: dict[str, float | int] = {}
        self.calls: list[Call] = []
        self.streams: list[FakeRequestStream] = []
        self.refusals: deque[Exception | None] = deque()
        """What the next `add_request`s raise; None: nothing."""
        self.healthy = True
        self.is_shut_down = False
        self.num_prefix_resets = 0
        self.is_profiled = False
        self.num_waits_for_core = 0
        self.metrics: list[Metric] = [
            Gauge("vllm:num_requests_running", {"model_name": MODEL, "engine": "0"}, 0.0),
            Counter("vllm:generation_tokens", {"model_name": MODEL, "engine": "0"}, 7),
        ]
        self.processor = OutputProcessor(self.tokenizer)
        self._input_processor = InputProcessor(
            self.args, self.tokenizer, self.eos_token_ids, self.vocab_size, max_model_len
        )
        self._script = answer if isinstance(answer, Script) else Script(answer)
        self._scripts: deque[Script] = deque()
        self._ids = count()
        self._unfinished: dict[str, FakeRequestStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def play(self, *scripts: Script) -> None:
        """The next requests are answered so, one script each."""
        self._scripts.extend(scripts)

    def default_sampling_params(self) -> SamplingParams:
        return SamplingParams(**self.generation_defaults)  # type: ignore[arg-type]

    async def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> FakeRequestStream:
        self.calls.append(Call(prompt, params, request_id, priority, data_parallel_rank))
        await asyncio.sleep(0)
        if self.refusals and (refusal := self.refusals.popleft()) is not None:
            raise refusal
        internal_id = f"fake-{next(self._ids)}"
        request = self._input_processor.process(prompt, params, request_id=internal_id, priority=priority)
        messages = self.processor.add_request(request)
        script = self._scripts.popleft() if self._scripts else self._script
        stream = FakeRequestStream(self, request_id, internal_id, messages, request.prompt, script)
        self.streams.append(stream)
        self._unfinished[internal_id] = stream
        self._idle.clear()
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
        stream = await self.add_request(
            prompt, params, request_id=request_id, priority=priority, data_parallel_rank=data_parallel_rank
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def abort(self, request_ids: Iterable[str]) -> None:
        wanted = set(request_ids)
        internal_ids = [i for i, stream in self._unfinished.items() if stream.request_id in wanted]
        for state in self.processor.abort_requests(internal_ids):
            self._unfinished[state.id].put(state.make_output())

    async def wait_until_up(self) -> None:
        self.num_waits_for_core += 1
        if not self.healthy:
            raise EngineDeadError("every engine core has ended for good")

    async def render_chat(self, messages: Any, **kwargs: Any) -> TokensPrompt:
        return await asyncio.to_thread(render_chat, self.tokenizer, messages, **kwargs)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await asyncio.to_thread(self.tokenizer.decode, token_ids)

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._unfinished)

    @property
    def is_healthy(self) -> bool:
        return self.healthy

    async def get_metrics(self) -> list[Metric]:
        return self.metrics

    async def reset_prefix_cache(self) -> bool:
        self.num_prefix_resets += 1
        return True

    async def start_profile(self) -> None:
        if self.is_profiled:
            raise ValueError("a profile is being taken already; stop it first")
        self.is_profiled = True

    async def stop_profile(self) -> dict[int, str]:
        if not self.is_profiled:
            raise ValueError("no profile is being taken; start one first")
        self.is_profiled = False
        return {0: "step"}

    async def drain(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def shutdown(self) -> None:
        self.is_shut_down = True
        await self.abort([stream.request_id for stream in self._unfinished.values()])

    def discard(self, stream: FakeRequestStream) -> None:
        """Nobody waits for it any more."""
        self.processor.discard_request(stream.internal_id)
        self.forget(stream)

    def forget(self, stream: FakeRequestStream) -> None:
        self._unfinished.pop(stream.internal_id, None)
        if not self._unfinished:
            self._idle.set()


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
