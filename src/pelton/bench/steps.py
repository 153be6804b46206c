"""Steps of chosen shapes, run by a worker again and again, without a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreRequest, NewRequest, SchedulerOutput
from pelton.engine.kv_sizing import bytes_per_block
from pelton.kv import group_layers
from pelton.loader import open_checkpoint
from pelton.models import Model
from pelton.ops.backend import Backend
from pelton.runner import CPUWorker
from pelton.sampling_params import SamplingParams

_CACHED = 0.01
"""What all keys and values are. Memory that was never written would be read from one page of zeros, in the caches."""


@dataclass(frozen=True)
class StepShape:
    """Requests that get as many tokens each, the last of which is sampled from."""

    num_requests: int
    num_tokens: int
    """Of each request, in the step."""
    context: int
    """Tokens of each request that are in the KV cache before the step."""

    @property
    def length(self) -> int:
        return self.context + self.num_tokens


class StepBench:
    """A loaded model, with requests for steps of given shapes. Whoever makes one closes it."""

    def __init__(
        self, args: EngineArgs, shapes: Sequence[StepShape], params: SamplingParams, *, progress: bool = False
    ) -> None:
        """Every request has random tokens, and samples with `params`. The scheduler's limits are those of the shapes.

        Raises ValueError for a model that cannot be read, and for shapes that it, or the memory, has no room for.
        """
        checkpoint = open_checkpoint(args.model.model, args.model.revision, progress=progress)
        longest = max(shape.length for shape in shapes)
        if longest > checkpoint.config.max_position_embeddings:
            raise ValueError(
                f"a step at the end of {longest} tokens is asked for, but the model's context length is "
                f"{checkpoint.config.max_position_embeddings}; lower the context"
            )
        held = {length: max(one.num_requests for one in shapes if one.length == length) for length in _lengths(shapes)}
        limits = replace(
            args.scheduler,
            max_num_seqs=sum(held.values()),
            max_num_batched_tokens=max(shape.num_requests * shape.num_tokens for shape in shapes),
        )
        self._worker = CPUWorker(replace(args, scheduler=limits), checkpoint, progress=progress)
        try:
            self._bring_requests(held, args.cache.block_size, params)
        except BaseException:
            self.close()
            raise

    def _bring_requests(self, held: dict[int, int], block_size: int, params: SamplingParams) -> None:
        """`held`: number of requests of each length. Those of different lengths use the same blocks."""
        groups = group_layers(self._worker.kv_specs())
        most = max(num * _blocks_for(length, block_size) for length, num in held.items()) * len(groups)
        num_blocks = 1 + max(most, sum(held.values()))  # a worker has no more requests than blocks
        num_bytes, available = num_blocks * bytes_per_block(groups), self._worker.available_memory()
        if num_bytes > available:
            raise ValueError(
                f"the KV cache for these steps takes {num_bytes / 1e9:.2f} GB, but this process can still take "
                f"{available / 1e9:.2f} GB; lower the batch sizes or the context"
            )
        self._worker.initialize(groups, num_blocks, max(held) + 1)
        for layer in self.model.kv_layers:
            layer.array.fill(_CACHED)
        rng = np.random.default_rng(0)
        self._ids = {length: [f"{length}-{i}" for i in range(num)] for length, num in held.items()}
        new = []
        for length, ids in self._ids.items():
            blocks = np.arange(1, 1 + len(ids) * len(groups) * _blocks_for(length, block_size))
            for request_id, tables in zip(ids, blocks.reshape(len(ids), len(groups), -1).tolist(), strict=True):
                prompt = rng.integers(0, self.model.config.vocab_size, length).tolist()
                new.append(NewRequest(EngineCoreRequest(request_id, prompt, params, 0.0, []), [], tables))
        self._worker.execute(SchedulerOutput(0, [new[0].message.request_id], [1], [0], [1], new, {}, []))

    @property
    def model(self) -> Model:
        return self._worker.model

    @property
    def backend(self) -> Backend:
        return self._worker.backend

    def describe(self) -> str:
        """Kernels, weights and threads, for people."""
        return self._worker.describe()

    def run(self, shape: StepShape) -> float:
        """Run a step of one of the shapes. -> seconds."""
        num = shape.num_requests
        ids = self._ids[shape.length][:num]
        step = SchedulerOutput(1, ids, [shape.num_tokens] * num, [shape.context] * num, [1] * num, [], {}, [])
        start = perf_counter()
        self._worker.execute(step)
        return perf_counter() - start

    def close(self) -> None:
        self._worker.shutdown()


def _lengths(shapes: Sequence[StepShape]) -> list[int]:
    return sorted({shape.length for shape in shapes})


def _blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
