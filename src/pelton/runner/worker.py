"""A worker: loads the model, owns the KV cache's memory, runs steps."""

from collections.abc import Sequence
from logging import getLogger

from pelton.config import EngineArgs
from pelton.core.kv_spec import KVCacheGroup, KVCacheSpec
from pelton.core.messages import ModelRunnerOutput, SchedulerOutput
from pelton.loader import Checkpoint, load_weights
from pelton.loader.weights import formats_by_size
from pelton.models import Model, create_model
from pelton.ops.backend import Backend
from pelton.runner.execution import choose_target, quantization_text, start_backend
from pelton.runner.head import ReplayedHead
from pelton.runner.input_batch import InputBatch
from pelton.runner.memory import available_memory
from pelton.runner.model_runner import ModelRunner
from pelton.runner.replay import ReplayedModel
from pelton.runner.sampling_state import SamplingState
from pelton.runner.step_limits import StepLimits
from pelton.sampling.logits_processor import make_logits_processors

logger = getLogger(__name__)


class CPUWorker:
    """Runs a checkpoint's model on the CPU."""

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint, *, progress: bool = False) -> None:
        self._args = args
        self._processors = make_logits_processors(args.sampling.logits_processors)
        self._runner: ModelRunner | None = None
        self._backend = start_backend(args.execution)
        try:
            self._model = self._load(checkpoint, progress)
        except BaseException:
            self._backend.close()
            raise

    def _load(self, checkpoint: Checkpoint, progress: bool) -> Model:
        target = choose_target(self._args, self._backend, checkpoint)
        model = create_model(checkpoint.config, target)
        weights = [parameter for parameter in model.parameters().values() if len(parameter.shape) == 2]
        formats, kv_format = " and ".join(formats_by_size(weights)), target.kv_cache_dtype
        self._description = f"{self._backend.name}; weights in {formats}, keys and values in {kv_format}"
        logger.info(
            "Kernels: %s; weights in %s (quantization: %s), keys and values in %s",
            self._backend.name,
            formats,
            quantization_text(self._args, self._backend),
            kv_format,
        )
        try:
            load_weights(model.parameters(), checkpoint, progress=progress)
        except MemoryError as error:
            raise ValueError(f"the memory does not suffice for the weights of {checkpoint.path} ({error})") from None
        return model

    @property
    def backend(self) -> Backend:
        return self._backend

    @property
    def model(self) -> Model:
        return self._model

    def describe(self) -> str:
        return self._description

    def kv_specs(self) -> list[KVCacheSpec]:
        return self._model.kv_specs()

    def available_memory(self) -> int:
        return available_memory()

    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None:
        limits = self._args.scheduler
        # Every running request holds a block of its own, so there are never more of them than blocks.
        max_num_seqs = min(limits.max_num_seqs, num_blocks)
        try:
            sampling = SamplingState(max_num_seqs, self._model.config.vocab_size, self._processors)
            batch = InputBatch(groups, max_num_seqs, max_model_len, sampling)
            step_limits = StepLimits(
                max_num_tokens=min(limits.max_num_batched_tokens, max_num_seqs * max_model_len),
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                max_blocks=batch.max_blocks,
            )
            head = ReplayedHead(self._backend, self._model, step_limits, self._args.sampling)
            model = ReplayedModel(self._backend, self._model, groups, num_blocks, step_limits, head)
        except MemoryError as error:
            raise ValueError(
                f"the memory does not suffice ({error}); lower max_num_batched_tokens (now "
                f"{limits.max_num_batched_tokens}), max_num_seqs ({limits.max_num_seqs}) or kv_cache_memory_bytes"
            ) from None
        self._runner = ModelRunner(model, batch)

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        assert self._runner is not None, "initialize comes first"
        return self._runner.execute(step)

    def shutdown(self) -> None:
        del self._model
        self._runner = None
        self._backend.close()
