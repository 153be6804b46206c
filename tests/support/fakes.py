"""A fake model whose every token depends on everything the KV cache holds for the request.

Where a model keeps keys and values, it keeps a number that depends on the token and on all tokens before it, read from
the cache; what it generates is a hash of the numbers in view. A wrong block, a stale block, a block filled by a step
that read nonsense or reused too early changes the output, or is caught as poison. What it should generate is computed
by `expected_tokens` without any engine.
"""

import zlib
from collections import deque
from collections.abc import Sequence

import numpy as np

from pelton.config import EngineArgs
from pelton.core.kv_spec import FullAttentionSpec, KVCacheGroup, KVCacheSpec, SlidingWindowSpec
from pelton.core.messages import EngineCoreRequest, ModelRunnerOutput, SchedulerOutput
from pelton.engine.engine_core import EngineCore
from pelton.executor import UniprocExecutor
from pelton.kv.block import Block
from pelton.kv.block_pool import BlockPool
from pelton.ops import INVALID_LOGITS
from pelton.ops.arrays import Int32, Int64
from pelton.runner.input_batch import InputBatch, StepInputs
from pelton.runner.model_runner import ModelRunner
from pelton.runner.sampling_state import SamplingState
from pelton.runner.step_results import LogprobRows, StepResults
from pelton.sampling.logits_processor import make_logits_processors
from pelton.sampling_params import SamplingParams

VOCAB_SIZE = 1000
BREAKING = VOCAB_SIZE + 7
"""A prompt token that no output holds; after it the model's logits are broken."""
POISON = -1


def content(before: int, token_id: int) -> int:
    """What a slot holds, given what the slot of the position before holds (0 at the beginning)."""
    return zlib.crc32(token_id.to_bytes(8, "little"), before)


def expected_tokens(
    prompt: Sequence[int], max_tokens: int, windows: Sequence[int | None] = (None,), eos: Sequence[int] = ()
) -> list[int]:
    tokens: list[int] = []
    contents: list[int] = []
    for token in prompt:
        contents.append(content(contents[-1] if contents else 0, token))
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in eos):
        digest = 0
        for window in windows:
            seen = contents if window is None else contents[-window:]
            digest = zlib.crc32(np.asarray(seen, np.int64).tobytes(), digest)
        tokens.append(digest % VOCAB_SIZE)
        contents.append(content(contents[-1], tokens[-1]))
    return tokens


def expected_prompt_logprobs(prompt: Sequence[int], windows: Sequence[int | None] = (None,)) -> list[float]:
    """Of every prompt token but the first."""
    return [_logprob(expected_tokens(prompt[:length], 1, windows)[0]) for length in range(1, len(prompt))]


def _logprob(token_id: int) -> float:
    return -float(token_id % 50)


class FakeModel:
    """Writes through the slot mapping and reads through the block tables."""

    def __init__(self, groups: Sequence[KVCacheGroup], num_blocks: int) -> None:
        self.block_size = groups[0].spec.block_size
        self.windows = [group.spec.window if isinstance(group.spec, SlidingWindowSpec) else None for group in groups]
        self.store = np.full((num_blocks, self.block_size), POISON, np.int64)
        self.fails_next = False

    def poison(self, block: Block) -> None:
        self.store[block.id] = POISON

    def run(self, inputs: StepInputs) -> StepResults:
        if self.fails_next:
            self.fails_next = False
            raise RuntimeError("the model broke")
        for slots, table in zip(inputs.slot_mapping, inputs.block_tables, strict=True):
            assert slots.min(initial=self.block_size) >= self.block_size, "a write to the null block"
            assert len(np.unique(slots)) == len(slots), "two tokens in one slot"
            self._write(inputs, slots, table)
        sampled = [self._next_token(inputs, int(row)) for row in inputs.logits_rows]
        broken = inputs.token_ids[inputs.logits_rows] == BREAKING
        scored = None
        if inputs.scoring is not None:
            scored = _logprob_rows([_logprob(self._next_token(inputs, int(i))) for i in inputs.scoring.logits_rows])
        token_ids = np.where(broken, INVALID_LOGITS, np.array(sampled, np.int32)).astype(np.int32)
        return StepResults(token_ids, _logprob_rows([0.0] * len(sampled)), scored)

    def _write(self, inputs: StepInputs, slots: Int64, table: Int32) -> None:
        flat = self.store.reshape(-1)
        for request, start in enumerate(inputs.query_start[:-1].tolist()):
            position = int(inputs.positions[start])
            before = 0
            if position:
                block, offset = divmod(position - 1, self.block_size)
                before = int(self.store[table[request, block], offset])
                assert before != POISON, "the model read a slot that was freed or never written"
            for index in range(start, int(inputs.query_start[request + 1])):
                before = content(before, int(inputs.token_ids[index]))
                flat[slots[index]] = before

    def _next_token(self, inputs: StepInputs, row: int) -> int:
        request = int(np.searchsorted(inputs.query_start, row, side="right")) - 1
        length = int(inputs.positions[row]) + 1
        digest = 0
        for table, window in zip(inputs.block_tables, self.windows, strict=True):
            first = 0 if window is None else max(0, length - window)
            blocks = np.arange(first // self.block_size, -(-length // self.block_size))
            seen = self.store[table[request, blocks]].reshape(-1)
            offset = first - first // self.block_size * self.block_size
            seen = seen[offset : offset + length - first]
            assert (seen != POISON).all(), "the model read a slot that was freed or never written"
            digest = zlib.crc32(np.ascontiguousarray(seen).tobytes(), digest)
        return digest % VOCAB_SIZE


def _logprob_rows(logprobs: Sequence[float]) -> LogprobRows:
    num = len(logprobs)
    return LogprobRows(
        np.array(logprobs, np.float32),
        np.ones(num, np.int32),
        np.zeros((num, 1), np.int32),
        np.zeros((num, 1), np.float32),
    )


class FakeWorker:
    """A worker around the fake model, with the real batch and runner."""

    def __init__(self, args: EngineArgs, specs: Sequence[KVCacheSpec]) -> None:
        self._args = args
        self._specs = list(specs)
        self.trace: list[SchedulerOutput] = []
        self.failing_steps: set[int] = set()
        self.vocab_size = VOCAB_SIZE

    def kv_specs(self) -> list[KVCacheSpec]:
        return self._specs

    def available_memory(self) -> int:
        return 1 << 20

    def make_model(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> FakeModel:
        return FakeModel(groups, num_blocks)

    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None:
        self.model = self.make_model(groups, num_blocks, max_model_len)
        max_num_seqs = self._args.scheduler.max_num_seqs
        processors = make_logits_processors(self._args.sampling.logits_processors)
        sampling = SamplingState(max_num_seqs, self.vocab_size, processors)
        self.batch = InputBatch(groups, max_num_seqs, max_model_len, sampling)
        self._runner = ModelRunner(self.model, self.batch)

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Failing steps break by turns: before the batch knows of them, before the model writes, and after."""
        self.trace.append(step)
        fails = step.step_id in self.failing_steps
        if fails and step.step_id % 3 == 0:
            raise RuntimeError("the model broke")
        self.model.fails_next = fails and step.step_id % 3 == 1
        output = self._runner.execute(step)
        if fails:
            raise RuntimeError("the model broke")
        return output

    def shutdown(self) -> None:
        pass


class DelayedExecutor(UniprocExecutor):
    """Runs a step only when it is collected, as late as a real asynchronous worker might."""

    def __init__(self, worker: FakeWorker) -> None:
        super().__init__(worker)
        self._launched: deque[SchedulerOutput] = deque()

    def launch(self, step: SchedulerOutput) -> None:
        self._launched.append(step)

    def collect(self, step_id: int) -> ModelRunnerOutput:
        while self._launched and self._launched[0].step_id <= step_id:
            super().launch(self._launched.popleft())
        if isinstance(self._results.get(step_id), Exception):
            self._launched.clear()  # not run, as the interface demands
        return super().collect(step_id)


class PoisoningPool(BlockPool):
    """Destroys what a block held as soon as nobody may rely on it. Hands out blocks in shuffled order."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        super().__init__(num_blocks, num_groups)
        self.poison = lambda block: None
        fresh = [self.make_block() for _ in range(self.num_unused)]
        for index in np.random.default_rng(7).permutation(len(fresh)).tolist():
            self._free.append(fresh[index])

    def allocate(self) -> Block:
        block = super().allocate()
        self.poison(block)
        return block

    def release(self, blocks):
        blocks = list(blocks)
        super().release(blocks)
        for block in blocks:
            if block.ref_count == 0 and block.key is None:
                self.poison(block)


def full_spec(block_size: int = 4) -> FullAttentionSpec:
    return FullAttentionSpec(block_size, num_kv_heads=1, head_size=2, dtype="float32")


def sliding_spec(window: int, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size, num_kv_heads=1, head_size=2, dtype="float32", window=window)


class FakeEngine:
    """An engine core around the fake model, and the outputs that it has produced."""

    def __init__(
        self,
        monkeypatch,
        *,
        specs: Sequence[KVCacheSpec] | None = None,
        max_model_len: int = 64,
        num_steps_in_flight: int = 1,
        hash_function=None,
        eos: Sequence[int] = (),
        **engine_args,
    ) -> None:
        monkeypatch.setattr("pelton.kv.coordinator.BlockPool", PoisoningPool)
        engine_args = {"block_size": 4, "num_gpu_blocks_override": 24, "max_num_seqs": 8} | engine_args
        args = EngineArgs.create(max_model_len=max_model_len, **engine_args)
        self.worker = FakeWorker(args, specs or [full_spec(args.cache.block_size)])
        executor = DelayedExecutor(self.worker)
        self.core = EngineCore(args, executor, max_model_len, num_steps_in_flight=num_steps_in_flight)
        self.poison_from_now_on()
        if hash_function is not None:
            self.core.kv._hash_function = hash_function
        self.args = args
        self.eos = list(eos)
        self.prompts: dict[str, list[int]] = {}
        self.max_tokens: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finish_reasons: dict[str, str] = {}
        self.num_cached: dict[str, int] = {}
        self.is_scored: dict[str, bool] = {}
        self.prompt_logprobs: dict[str, list[float]] = {}

    def poison_from_now_on(self) -> None:
        self.core.kv.pool.poison = self.worker.model.poison

    @property
    def windows(self) -> list[int | None]:
        return self.worker.model.windows

    def add(
        self, request_id: str, prompt: Sequence[int], max_tokens: int, priority: int = 0, salt=None, **params
    ) -> None:
        self.core.add_request(
            EngineCoreRequest(
                request_id,
                list(prompt),
                SamplingParams(temperature=0.0, max_tokens=max_tokens, **params),
                arrival_time=float(len(self.prompts)),
                eos_token_ids=self.eos,
                priority=priority,
                cache_salt=salt,
            )
        )
        self.prompts[request_id] = list(prompt)
        self.is_scored[request_id] = params.get("prompt_logprobs") is not None
        self.max_tokens[request_id] = max_tokens
        self.tokens[request_id] = []

    def step(self) -> None:
        for output in self.core.step().outputs:
            self.tokens[output.request_id] += output.new_token_ids
            self.num_cached[output.request_id] = output.num_cached_tokens
            for entry in output.prompt_logprobs or ():
                assert entry.token_ids[0] == self.prompts[output.request_id][self._num_scored(output.request_id) + 1]
                self.prompt_logprobs.setdefault(output.request_id, []).append(entry.logprobs[0])
            if output.finish_reason is not None:
                assert output.request_id not in self.finish_reasons, "finished twice"
                self.finish_reasons[output.request_id] = output.finish_reason

    def _num_scored(self, request_id: str) -> int:
        return len(self.prompt_logprobs.get(request_id, ()))

    def run(self, max_steps: int = 20_000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def expected(self, request_id: str) -> list[int]:
        max_tokens = min(self.max_tokens[request_id], self.core.max_model_len - len(self.prompts[request_id]))
        return expected_tokens(self.prompts[request_id], max_tokens, self.windows, self.eos)

    def expected_prompt_logprobs(self, request_id: str) -> list[float]:
        return expected_prompt_logprobs(self.prompts[request_id], self.windows) if self.is_scored[request_id] else []

    def assert_as_expected(self, request_ids: Sequence[str] | None = None) -> None:
        for request_id in request_ids if request_ids is not None else self.prompts:
            assert self.tokens[request_id] == self.expected(request_id), request_id
            assert self.prompt_logprobs.get(request_id, []) == self.expected_prompt_logprobs(request_id), request_id
            assert self.finish_reasons[request_id] in ("stop", "length")
