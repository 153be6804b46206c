"""The synchronous front of the engine: requests in, outputs out, one step at a time."""

from collections.abc import Iterable

from pelton.config import EngineArgs
from pelton.core.messages import EngineStats
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
        self.stats: EngineStats | None = None
        """The core's state after the last step."""
        self._client = client
        self._input_processor = input_processor
        self._output_processor = output_processor

    @classmethod
    def from_engine_args(cls, args: EngineArgs, *, progress: bool = False) -> "LLMEngine":
        """Load the model and start an engine core in this process.

        Raises ValueError for a model that cannot be read and for arguments that contradict it.
        """
        checkpoint = open_checkpoint(args.model.model, args.model.revision, progress=progress)
        config = checkpoint.config
        max_model_len = requested_model_len(args, config.max_position_embeddings)
        tokenizer = load_tokenizer(checkpoint)
        worker = CPUWorker(args, checkpoint, progress=progress)
        core = EngineCore(args, UniprocExecutor(worker), max_model_len)
        input_processor = InputProcessor(args, tokenizer, config.eos_token_ids, config.vocab_size, core.max_model_len)
        return cls(InprocClient(core), input_processor, OutputProcessor(tokenizer), tokenizer)

    def next_request_id(self) -> str:
        """An id that no unfinished request has."""
        while (request_id := self._input_processor.next_request_id()) in self._output_processor:
            pass
        return request_id

    def add_request(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0
    ) -> str:
        """Queue a request and return its id.

        Raises ValueError, with nothing queued, if prompt or parameters are not acceptable.
        """
        request_id = self.next_request_id() if request_id is None else request_id
        request = self._input_processor.process(prompt, params, request_id=request_id, priority=priority)
        self._output_processor.add_request(request)
        try:
            self._client.add_request(request.message)
        except ValueError:
            self._output_processor.abort_requests([request_id])
            raise
        return request_id

    def abort_requests(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests and return their final outputs; ids that are unknown or finished are ignored.

        Raises ValueError if `request_ids` is not a collection of ids.
        """
        if isinstance(request_ids, str) or not isinstance(request_ids, Iterable):
            raise ValueError(f"request_ids must be a list of request ids, got {request_ids!r}")
        request_ids = list(request_ids)
        for request_id in request_ids:
            if not isinstance(request_id, str):
                raise ValueError(f"request_ids must hold strings, got {request_id!r}")
        # Ours first: should an interrupt come between, the core works for nobody, and nobody waits for nothing.
        outputs = self._output_processor.abort_requests(request_ids)
        self._client.abort_requests(request_ids)
        return outputs

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it brought."""
        core_outputs = self._client.get_outputs()
        self.stats = core_outputs.stats
        processed = self._output_processor.process(core_outputs.outputs)
        if processed.aborts:
            self._client.abort_requests(processed.aborts)
        if len(self._output_processor) and not self._client.has_work:
            # An interrupt fell between the core's output and us. Nobody may wait for what will not come.
            processed.request_outputs += self._output_processor.fail_all("the output was lost in an interrupt")
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
