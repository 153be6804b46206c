"""The synchronous front of the engine: requests in, outputs out, one step at a time."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from pelton.config import EngineArgs
from pelton.core.messages import EngineStats
from pelton.core.metrics import Metric
from pelton.core.outputs import RequestOutput
from pelton.engine.core_client import InprocClient, SyncEngineCoreClient
from pelton.engine.engine_front import EngineFront
from pelton.engine.input_processor import InputProcessor, Prompt
from pelton.engine.output_processor import OutputProcessor
from pelton.engine.served_model import ServedModel
from pelton.engine.sync_mp_client import SyncMPClient
from pelton.error_text import shown
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer


class LLMEngine(EngineFront):
    """Input processor, engine-core client and output processor, wired up."""

    def __init__(
        self,
        client: SyncEngineCoreClient,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        tokenizer: Tokenizer,
        *,
        model_name: str = "",
        generation_defaults: Mapping[str, float | int] | None = None,
    ) -> None:
        """`model_name` labels the metrics."""
        super().__init__(input_processor, generation_defaults or {})
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.stats: EngineStats | None = None
        """The core's state after the last step."""
        self._client = client
        self._output_processor = output_processor
        self._is_shut_down = False

    @classmethod
    def from_engine_args(
        cls, args: EngineArgs, *, progress: bool = False, core_in_process: bool = False
    ) -> "LLMEngine":
        """Load the model and start an engine core: here, or with `core_in_process` in a process of its own.

        Raises ValueError for a model that cannot be read and for arguments that contradict it.
        """
        model = ServedModel(args, progress=progress)
        client: InprocClient | SyncMPClient
        if core_in_process:
            client = SyncMPClient(args, progress=progress)
        with ThreadPoolExecutor(1, "pelton-tokenizer") as beside:
            # While weights are read and packed, for the most part without Python's lock.
            loading = beside.submit(model.load_tokenizer)
            if not core_in_process:
                client = InprocClient(model.make_core(progress=progress))
        try:
            tokenizer = loading.result()
            input_processor = model.make_input_processor(tokenizer, client.wait_until_ready())
        except BaseException:
            client.shutdown()
            raise
        return cls(
            client,
            input_processor,
            OutputProcessor(tokenizer),
            tokenizer,
            model_name=args.model.model,
            generation_defaults=model.generation_defaults,
        )

    def next_request_id(self) -> str:
        """An id that no unfinished request has."""
        while (request_id := self._input_processor.next_request_id()) in self._output_processor:
            pass
        return request_id

    def add_request(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0
    ) -> str:
        """Queue a request, with all its choices, and return its id.

        Raises ValueError, with nothing queued, if prompt or parameters are not acceptable.
        """
        self.check_is_up()
        request_id = self.next_request_id() if request_id is None else request_id
        request = self._input_processor.process(prompt, params, request_id=request_id, priority=priority)
        messages = self._output_processor.add_request(request)
        try:
            for message in messages:
                self._client.add_request(message)
        except BaseException:
            # Refused, or interrupted. Nobody else has these ids, so whatever the core knows by them is not wanted.
            self.withdraw_requests([request_id])
            raise
        return request_id

    def abort_requests(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests and return their final outputs; ids that are unknown or finished are ignored.

        Raises ValueError if `request_ids` is not a collection of ids.
        """
        request_ids = _id_list(request_ids)
        core_ids = self._output_processor.core_ids(request_ids)
        # Ours first: should an interrupt come between, the core works for nobody, and nobody waits for nothing.
        ended = self._output_processor.abort_requests(request_ids)
        self._client.abort_requests(core_ids)
        return [request.make_output() for request in ended]

    def withdraw_requests(self, request_ids: Iterable[str]) -> None:
        """Take back requests that no step has seen, as if they had never been added: no output, no metric.

        Ids that are unknown are ignored. Raises ValueError as `abort_requests` does.
        """
        request_ids = _id_list(request_ids)
        core_ids = self._output_processor.core_ids(request_ids)
        for request_id in request_ids:
            self._output_processor.discard_request(request_id)
        self._client.abort_requests(core_ids)

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it brought."""
        self.check_is_up()
        core_outputs = self._client.get_outputs()
        self.stats = core_outputs.stats
        self._output_processor.metrics[0].record_step(core_outputs.stats.num_scheduled_tokens)
        processed = self._output_processor.process(core_outputs.outputs)
        if processed.aborts:
            self._client.abort_requests(processed.aborts)
        if len(self._output_processor) and not self._client.has_work:
            # An interrupt fell between the core's output and us. Nobody may wait for what will not come.
            processed.changed += self._output_processor.fail_all("the output was lost in an interrupt")
        return [request.make_output() for request in processed.changed]

    @property
    def description(self) -> str:
        """Kernels, weights and threads, for people."""
        return self._client.description

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._output_processor)

    def get_metrics(self) -> list[Metric]:
        """Counters, gauges and histograms, as of the last step."""
        stats = self.stats
        if stats is not None and not self._client.has_work:
            # Requests may have been aborted since.
            stats = msgspec.structs.replace(stats, num_running=0, num_waiting=0, kv_cache_usage=0.0)
        return self._output_processor.metrics[0].snapshot(self.model_name, stats)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; running requests are not affected. Returns whether that worked: always True."""
        self.check_is_up()
        self._client.reset_prefix_cache()
        return True

    def shutdown(self) -> None:
        """Release the model and the KV cache. The engine cannot be used afterwards; a second call does nothing."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._client.shutdown()

    def check_is_up(self) -> None:
        """Raise ValueError after `shutdown`."""
        if self._is_shut_down:
            raise ValueError("the engine has been shut down; make a new LLM")


def _id_list(request_ids: object) -> list[str]:
    if isinstance(request_ids, str) or not isinstance(request_ids, Iterable):
        raise ValueError(f"request_ids must be a list of request ids, got {shown(request_ids)}")
    checked = list(request_ids)
    for request_id in checked:
        if not isinstance(request_id, str):
            raise ValueError(f"request_ids must hold strings, got {shown(request_id)}")
    return checked
