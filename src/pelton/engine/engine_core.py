"""The engine core: schedule, execute, update, until nothing is left to do."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from logging import getLogger
from time import monotonic

from pelton import envs
from pelton.config import EngineArgs
from pelton.core.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineStats,
    ModelRunnerOutput,
)
from pelton.core.request import CONSTRAINT_FAILED, ConstraintError, Request, RequestStatus
from pelton.engine.errors import SEND_AGAIN
from pelton.engine.kv_sizing import served_model_len, size_kv_cache
from pelton.error_text import described
from pelton.executor import Executor
from pelton.grammar import StructuredOutputManager
from pelton.kv import KVCacheCoordinator, group_layers
from pelton.kv.block_key import HASH_FUNCTIONS
from pelton.sched import Scheduler, error_output

logger = getLogger(__name__)

_WAIT_SECONDS = 0.02
"""For a constraint to be compiled, where there is nothing else to do; messages wait as long."""


class EngineCore:
    """Owns the scheduler and drives the executor.

    Up to `num_steps_in_flight` steps overlap: the next is scheduled and launched while earlier ones run. With
    one, a step is launched and collected in one go.
    """

    def __init__(
        self,
        args: EngineArgs,
        executor: Executor,
        max_model_len: int,
        *,
        grammars: StructuredOutputManager | None = None,
        num_steps_in_flight: int = 1,
        num_sharing: int = 1,
    ) -> None:
        """`grammars` are for requests with constraints on their output; without, there may be none.

        `num_sharing` engine cores, this one included, divide the memory among them.
        """
        self._executor = executor
        self._grammars = grammars
        self._num_steps_in_flight = num_steps_in_flight
        groups = group_layers(executor.kv_specs())
        num_blocks = size_kv_cache(args, groups, executor.available_memory() // num_sharing, max_model_len)
        limits = args.scheduler
        self.kv = KVCacheCoordinator(
            groups,
            num_blocks,
            longest_chunk=min(limits.longest_chunk, max_model_len),
            enable_prefix_caching=args.cache.enable_prefix_caching,
            hash_function=HASH_FUNCTIONS[args.cache.prefix_caching_hash_algo],
        )
        # The last token of a request is never computed, so it needs no slot.
        self.max_model_len = served_model_len(args, self.kv.longest_fitting() + 1, max_model_len)
        self.scheduler = Scheduler(limits, self.kv, None if grammars is None else grammars.advance)
        self.num_integrity_failures = 0
        """How often the KV cache's bookkeeping could not be trusted any more and was rebuilt."""
        self._is_changing = False
        """Whether scheduler and KV cache are being changed; True between changes if one was interrupted."""
        self._num_scheduled_tokens = 0
        self._outputs: list[EngineCoreOutput] = []
        """Outputs that the next `step` hands over."""
        executor.initialize(groups, num_blocks, self.max_model_len)

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queue a request. Raises ValueError if it can never run."""
        request = Request(message, self.max_model_len)
        self.scheduler.check_request(request)
        is_ready = True
        if message.sampling_params.structured_outputs is not None:
            is_ready = self._begin_constraint(request)
        with self._changing():
            self.scheduler.add_request(request, is_blocked=not is_ready)

    def abort_requests(self, request_ids: Collection[str]) -> None:
        """End requests; ids that are unknown or finished are ignored. No output is emitted for them."""
        if self._grammars is not None:
            self._grammars.forget(request_ids)
        with self._changing():
            self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
            self._check_when_idle()
        self._outputs = [output for output in self._outputs if output.request_id not in request_ids]

    def step(self) -> EngineCoreOutputs:
        """Schedule and launch a step if there is room for one, collect the oldest in flight, apply its results.

        A step that fails ends its own requests with an error, and only those.
        """
        if self.scheduler.blocked or (self._grammars is not None and self._grammars.is_compiling):
            self._unblock()
        if not self._launch_next():
            self._collect_oldest()
        outputs, self._outputs = self._outputs, []
        return EngineCoreOutputs(outputs, self.stats)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=self.scheduler.num_waiting,
            num_scheduled_tokens=self._num_scheduled_tokens,
            kv_cache_usage=self.kv.usage,
            num_preemptions=self.scheduler.num_preemptions,
            num_prefix_queries=self.kv.num_prefix_queries,
            num_prefix_hits=self.kv.num_prefix_hits,
            num_integrity_failures=self.num_integrity_failures,
            timestamp=monotonic(),
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do: requests, steps in flight whose requests are gone, or outputs."""
        return self.scheduler.has_requests or self.scheduler.num_steps_in_flight > 0 or bool(self._outputs)

    @property
    def description(self) -> str:
        """Kernels, weights and threads, for people."""
        return self._executor.describe()

    @property
    def needs_lockstep(self) -> bool:
        """Whether each step waits for one of every other data-parallel rank."""
        return self._executor.needs_lockstep

    def execute_dummy(self) -> None:
        """Run the model without a request, for the other ranks. A failure is logged: no request is concerned."""
        try:
            self._executor.execute_dummy()
        except Exception:  # as in a step: the ranks must go on
            logger.exception("a step without requests failed")

    def reset_prefix_cache(self) -> None:
        with self._changing():
            self.kv.reset_prefix_cache()

    def shutdown(self) -> None:
        """Release the model and the KV cache's memory. Nothing may be called afterwards."""
        if self._grammars is not None:
            self._grammars.shutdown()
        self._executor.shutdown()

    def _begin_constraint(self, request: Request) -> bool:
        """Returns whether the request has its constraint already."""
        if self._grammars is None:
            raise ValueError("this engine core has no grammars, so structured_outputs cannot be kept; leave it out")
        try:
            return self._grammars.start(request)
        except ConstraintError as error:
            raise ValueError(f"{CONSTRAINT_FAILED}{error}") from None

    def _unblock(self) -> None:
        """Let requests run whose constraints are compiled; if there is nothing else to do, wait for one."""
        assert self._grammars is not None
        is_busy = self.scheduler.has_runnable_requests or self.scheduler.num_steps_in_flight or self._outputs
        if not (is_busy or self.needs_lockstep):  # other ranks would wait as well
            self._grammars.wait(_WAIT_SECONDS)
        for request, failure in self._grammars.poll():
            if self.scheduler.blocked.get(request.id) is not request:
                continue  # all were dropped meanwhile
            with self._changing():
                if failure:
                    self.scheduler.finish_requests([request.id], RequestStatus.FINISHED_ERROR)
                    self._outputs.append(error_output(request, failure))
                    self._check_when_idle()
                else:
                    self.scheduler.unblock(request.id)

    def _launch_next(self) -> bool:
        """Launch a step if one may and can be. Returns whether there is room in flight for yet another."""
        self._num_scheduled_tokens = 0
        if self.scheduler.num_steps_in_flight == self._num_steps_in_flight:
            return False
        scheduled = None
        with self._changing():
            scheduled = self.scheduler.schedule()
        if scheduled is None:
            return False
        self._num_scheduled_tokens = scheduled.total_num_scheduled_tokens
        scheduled.bitmask = b"".join(
            self.scheduler.constraint_of(request_id).mask_bytes() for request_id in scheduled.constrained_request_ids
        )
        self._executor.launch(scheduled)
        return self.scheduler.num_steps_in_flight < self._num_steps_in_flight

    def _collect_oldest(self) -> None:
        """Wait for the oldest step in flight, if there is one, and apply what came of it."""
        results: ModelRunnerOutput | None = None
        failure = ""
        if self.scheduler.num_steps_in_flight:
            try:
                results = self._executor.collect(self.scheduler.oldest_step_in_flight)
            except Exception as error:  # whatever went wrong in a step must not end the others
                logger.exception("a step failed; its requests end with an error")
                failure = described(error)
        with self._changing():
            if failure:
                self._outputs += self.scheduler.fail_step(failure)
            elif results is not None:
                self._outputs += self.scheduler.update(results)
            elif self.scheduler.has_runnable_requests:
                raise AssertionError("requests wait, nothing runs, and none of them can be admitted")
            self._check_when_idle()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around every change of scheduler and KV cache.

        An exception in here means that they contradict each other. An interrupt (Ctrl-C) leaves a change half done,
        which whoever comes next finds out by the flag. Either way no block can be trusted: start over.
        """
        if self._is_changing:
            self._start_over("interrupted in the middle of a change")
        self._is_changing = True
        try:
            yield
        except Exception as error:
            if envs.strict_invariants():
                raise
            self._start_over(f"{type(error).__name__}: {error}")
        self._is_changing = False

    def _check_when_idle(self) -> None:
        """Verify the KV cache's invariants while nothing runs. Raises AssertionError on damage."""
        if self.scheduler.has_requests or self.scheduler.num_steps_in_flight:
            return
        problems = self.kv.integrity_problems()
        if self.kv.pool.num_free != self.kv.pool.num_usable:
            problems.append(f"{self.kv.pool.num_usable - self.kv.pool.num_free} blocks are held without a request")
        if problems:  # not an assert statement: production relies on it, whatever Python's flags
            raise AssertionError("; ".join(problems[:10]))

    def _start_over(self, problem: str) -> None:
        """Fail what runs, and go on with an empty KV cache."""
        self.num_integrity_failures += 1
        logger.error("the KV cache cannot be trusted, starting over with an empty one: %s", problem)
        self._outputs += self.scheduler.drop_all(f"the KV cache was damaged{SEND_AGAIN}")
        self.kv.rebuild()
