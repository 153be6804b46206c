"""Executors for tests of serving, which engine cores load by name, as `--distributed-executor-backend` has it.

None has a model: a token is a function of the token before it and its position, so a test knows what must come
(`expected_tokens`), whichever process, batch or restart it came from. Scheduler and KV cache are the real ones.

What they do besides is told by environment variables of the engine core's process, read when it starts:

- `FAKE_STEP_SECONDS`: how long a step of `StepClockExecutor` takes, 0.01 unless given;
- `FAKE_CRASH_STEP`: the step, from 1, that ends the process of every `CrashingExecutor`;
- `FAKE_EXECUTOR_FOLDER`: a folder in which a file's existence changes steps: `hang`, `fail`, `crash` or `kill`;
- `FAKE_BARRIER_PORT`: where the `LockstepBarrier` of `BlockingExecutor` listens.
"""

import os
import signal
import socket
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pelton.config import EngineArgs
from pelton.core.kv_spec import FullAttentionSpec, KVCacheGroup, KVCacheSpec
from pelton.core.messages import ModelRunnerOutput, NewRequest, SchedulerOutput, TokenLogprobs
from pelton.executor import UniprocExecutor
from pelton.loader import Checkpoint

FIRST_TOKEN = 1000
"""Of what is generated, if the vocabulary is large enough: tokens below are bytes and special ones."""
LOGPROB = -0.5
"""Of every token; the next likely ones have as much less each."""
POLL_SECONDS = 0.005
CRASH_CODE = 77


class Vocabulary:
    """What is generated: every token that is not among the first, and ends nothing."""

    def __init__(self, size: int, eos_token_ids: Collection[int]) -> None:
        first = min(FIRST_TOKEN, size // 2)
        self.size = size
        self.token_ids = [token_id for token_id in range(first, size) if token_id not in eos_token_ids]

    def next_token(self, last: int, position: int) -> int:
        """The token at a position, in a request's prompt and output, after the token `last`."""
        return self.token_ids[(last * 7919 + position * 104_729) % len(self.token_ids)]

    def expected_tokens(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for position in range(len(prompt), len(prompt) + num_tokens):
            tokens.append(self.next_token(tokens[-1], position))
        return tokens[len(prompt) :]

    def logprobs(self, token_id: int, num_top: int) -> TokenLogprobs:
        """Of a token that is the most likely one; -1 means the whole vocabulary."""
        num_top = self.size if num_top == -1 else num_top
        top = [(token_id + index) % self.size for index in range(num_top)]
        return TokenLogprobs([token_id, *top], [LOGPROB, *(LOGPROB * (index + 1) for index in range(num_top))], rank=1)


class _State:
    """What a worker keeps of a request."""

    def __init__(self, request: NewRequest) -> None:
        message = request.message
        self.tokens = [*message.prompt_token_ids, *request.output_token_ids]
        self.num_logprobs = message.sampling_params.logprobs
        self.num_prompt_logprobs = message.sampling_params.prompt_logprobs
        self.num_scored = request.num_prompt_logprobs
        self.num_to_score = 0 if self.num_prompt_logprobs is None else len(message.prompt_token_ids) - 1


class InstantWorker:
    """Computes nothing: a step's tokens are there at once."""

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        self.vocabulary = Vocabulary(checkpoint.config.vocab_size, checkpoint.config.eos_token_ids)
        self._block_size = args.cache.block_size
        self._requests: dict[str, _State] = {}
        self._masks: dict[str, NDArray[np.uint8]] = {}

    def describe(self) -> str:
        return "no kernels, instant tokens"

    def kv_specs(self) -> list[KVCacheSpec]:
        return [FullAttentionSpec(self._block_size, num_kv_heads=1, head_size=8, dtype="float32")]

    def available_memory(self) -> int:
        return 1 << 40  # nothing is allocated

    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None:
        pass

    def begin_step(self) -> None:
        """What happens before a step."""

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self.begin_step()
        for request_id in step.dropped_request_ids:
            self._requests.pop(request_id, None)
        for request in step.new_requests:
            self._requests[request.message.request_id] = _State(request)
        for request_id, forced in step.forced_tokens.items():
            self._requests[request_id].tokens[forced.position :] = forced.token_ids
        rows = np.array_split(np.frombuffer(step.bitmask, np.uint8), max(1, len(step.constrained_request_ids)))
        self._masks = dict(zip(step.constrained_request_ids, rows, strict=False))
        output = ModelRunnerOutput(step.step_id, [], {})
        chunks = zip(
            step.request_ids, step.num_computed_tokens, step.num_scheduled_tokens, step.num_logits, strict=True
        )
        for request_id, start, num_tokens, num_logits in chunks:
            self._run(request_id, start + num_tokens, num_logits, output)
        return output

    def _run(self, request_id: str, end: int, num_logits: int, output: ModelRunnerOutput) -> None:
        """A request whose tokens before the position `end` are in the cache after this step."""
        state = self._requests[request_id]
        if state.num_scored < state.num_to_score:
            scored = state.tokens[state.num_scored + 1 : min(end, state.num_to_score) + 1]
            state.num_scored += len(scored)
            output.prompt_logprobs[request_id] = [
                self.vocabulary.logprobs(token_id, state.num_prompt_logprobs) for token_id in scored
            ]
        if not num_logits:
            output.token_ids.append([])
            return
        token_id = self.vocabulary.next_token(state.tokens[end - 1], end)
        if request_id in self._masks:  # the next one that its constraint allows
            allowed = np.flatnonzero(np.unpackbits(self._masks[request_id], bitorder="little"))
            token_id = int(allowed[np.searchsorted(allowed, token_id) % len(allowed)])
        state.tokens[end:] = [token_id]
        output.token_ids.append([token_id])
        if state.num_logprobs is not None:
            output.logprobs[request_id] = [self.vocabulary.logprobs(token_id, state.num_logprobs)]

    def shutdown(self) -> None:
        self._requests.clear()


class InstantExecutor(UniprocExecutor):
    """Answers at once."""

    worker_class: ClassVar[type[InstantWorker]] = InstantWorker

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(self.worker_class(args, checkpoint))


class _StepClockWorker(InstantWorker):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._seconds = float(os.environ.get("FAKE_STEP_SECONDS", "0.01"))

    def begin_step(self) -> None:
        time.sleep(self._seconds)


class StepClockExecutor(InstantExecutor):
    """Every step takes the same time."""

    worker_class = _StepClockWorker


class _FolderWorker(InstantWorker):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._folder = Path(os.environ["FAKE_EXECUTOR_FOLDER"])


class _HangingWorker(_FolderWorker):
    def begin_step(self) -> None:
        while (self._folder / "hang").exists():
            time.sleep(POLL_SECONDS)


class HangingExecutor(InstantExecutor):
    """A step does not return while the folder has a file `hang`."""

    worker_class = _HangingWorker


class _CrashingWorker(InstantWorker):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._folder = Path(os.environ.get("FAKE_EXECUTOR_FOLDER", os.devnull))
        self._crash_step = int(os.environ.get("FAKE_CRASH_STEP", "0"))
        self._num_steps = 0

    def begin_step(self) -> None:
        self._num_steps += 1
        if self._num_steps == self._crash_step or self._takes("crash"):
            os._exit(CRASH_CODE)
        if self._takes("kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    def _takes(self, name: str) -> bool:
        """Whether the file was there, and it was this process that took it away."""
        try:
            (self._folder / name).unlink()
        except OSError:
            return False
        return True


class CrashingExecutor(InstantExecutor):
    """A step ends the process, without a word, by an exit with `CRASH_CODE` or by SIGKILL.

    Either the step `FAKE_CRASH_STEP` of every process exits, or the next one of whichever process finds a file `crash`
    (`kill`: SIGKILL) in the folder first, and takes it away.
    """

    worker_class = _CrashingWorker


class _FailingWorker(_FolderWorker):
    def begin_step(self) -> None:
        if (self._folder / "fail").exists():
            raise RuntimeError("the model broke")


class FailingExecutor(InstantExecutor):
    """Steps raise an exception while the folder has a file `fail`."""

    worker_class = _FailingWorker


class _BlockingWorker(InstantWorker):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._barrier = socket.create_connection(("127.0.0.1", int(os.environ["FAKE_BARRIER_PORT"])))

    def begin_step(self) -> None:
        self.arrive(b"s")

    def arrive(self, kind: bytes) -> None:
        self._barrier.sendall(kind)
        if not self._barrier.recv(1):
            raise RuntimeError("the barrier was closed")

    def shutdown(self) -> None:
        self._barrier.close()
        super().shutdown()


class BlockingExecutor(InstantExecutor):
    """A step waits until all data-parallel ranks have one, at a `LockstepBarrier`."""

    worker_class = _BlockingWorker
    needs_lockstep = True
    _worker: _BlockingWorker

    def execute_dummy(self) -> None:
        self._worker.arrive(b"d")
