"""The synchronous front of the engine: requests in, outputs out, one step at a time."""

import time
from collections.abc import Sequence
from logging import getLogger

from pelton.config import EngineArgs
from pelton.core.outputs import RequestOutput
from pelton.engine.core_client import EngineCoreClient, InprocClient
from pelton.engine.engine_core import EngineCore
from pelton.engine.input_processor import InputProcessor, Prompt
from pelton.engine.kv_sizing import requested_model_len
from pelton.engine.output_processor import OutputProcessor
from pelton.executor import UniprocExecutor
from pelton.loader import open_checkpoint
from pelton.runner import CPUWorker
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer, load_tokenizer

logger = getLogger(__name__)


class LLMEngine:
    """Input processor, engine-core client and output processor, wired up."""

    def __init__(
        self,
        client: EngineCoreClient,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        tokenizer: Tokenizer,
    ) -> None:
        self.tokenizer = tokenizer
        self._client = client
        self._input_processor = input_processor
        self._output_processor = output_processor

    @classmethod
    def from_engine_args(cls, args: EngineArgs, *, progress: bool = False) -> "LLMEngine":
        """Load the model and start an engine core in this process.

        Raises ValueError for a model that cannot be read and for arguments that contradict it.
        """
        start = time.perf_counter()
        checkpoint = open_checkpoint(args.model.model)
        config = checkpoint.config
        max_model_len = requested_model_len(args, config.max_position_embeddings)
        tokenizer = load_tokenizer(checkpoint)
        worker = CPUWorker(args, checkpoint, max_model_len, progress=progress)
        core = EngineCore(args, UniprocExecutor(worker), max_model_len)
        logger.info("engine ready in %.2f s", time.perf_counter() - start)
        input_processor = InputProcessor(args, tokenizer, config.eos_token_ids, config.vocab_size, core.max_model_len)
        return cls(InprocClient(core), input_processor, OutputProcessor(tokenizer), tokenizer)

    def add_request(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0
    ) -> str:
        """Queue a request and return its id.

        Raises ValueError, with nothing queued, if prompt or parameters are not acceptable.
        """
        request = self._input_processor.process(prompt, params, request_id=request_id, priority=priority)
        self._output_processor.add_request(request)
        try:
            self._client.add_request(request.message)
        except ValueError:
            self._output_processor.abort_requests([request.message.request_id])
            raise
        return request.message.request_id

    def abort_requests(self, request_ids: Sequence[str]) -> list[RequestOutput]:
        """End requests and return their final outputs; ids that are unknown or finished are ignored."""
        self._client.abort_requests(request_ids)
        return self._output_processor.abort_requests(request_ids)

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it brought."""
        processed = self._output_processor.process(self._client.get_outputs())
        if processed.aborts:
            self._client.abort_requests(processed.aborts)
        return processed.request_outputs

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._output_processor)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running requests are not affected."""
        self._client.reset_prefix_cache()

    def shutdown(self) -> None:
        """Release the model and the KV cache. The engine cannot be used afterwards."""
        self._client.shutdown()
