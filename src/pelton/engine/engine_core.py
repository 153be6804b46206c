"""The engine core: schedule, execute, update, until nothing is left to do."""

from collections.abc import Callable, Iterable
from logging import getLogger

from pelton import envs
from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreOutput, EngineCoreRequest
from pelton.core.request import Request, RequestStatus
from pelton.engine.kv_sizing import longest_request, size_kv_cache
from pelton.executor import Executor
from pelton.kv import KVCacheCoordinator, group_layers
from pelton.kv.block_key import HASH_FUNCTIONS
from pelton.sched import Scheduler

logger = getLogger(__name__)


class EngineCore:
    """Owns the scheduler and drives the executor.

    Up to `num_steps_in_flight` steps overlap: the next is scheduled and launched while earlier ones run. With
    one, a step is launched and collected in one go.
    """

    def __init__(
        self, args: EngineArgs, executor: Executor, max_model_len: int, *, num_steps_in_flight: int = 1
    ) -> None:
        self._executor = executor
        self._num_steps_in_flight = num_steps_in_flight
        groups = group_layers(executor.kv_specs())
        num_blocks = size_kv_cache(args, groups, executor.available_memory(), max_model_len)
        limits = args.scheduler
        self.kv = KVCacheCoordinator(
            groups,
            num_blocks,
            longest_chunk=min(
                limits.max_num_batched_tokens,
                limits.long_prefill_token_threshold or max_model_len,
                max_model_len,
            ),
            enable_prefix_caching=args.cache.enable_prefix_caching,
            hash_function=HASH_FUNCTIONS[args.cache.prefix_caching_hash_algo],
        )
        # The last token of a request is never computed, so it needs no slot.
        self.max_model_len = longest_request(args, self.kv.longest_fitting() + 1, max_model_len)
        self.scheduler = Scheduler(limits, self.kv)
        self.num_integrity_failures = 0
        """How often the KV cache's bookkeeping could not be trusted any more and was rebuilt."""
        self._executing = False
        """Whether the executor is at work, rather than the bookkeeping."""
        self._unsent: list[EngineCoreOutput] = []
        """Outputs that came up between steps; the next step hands them over."""
        executor.initialize(groups, num_blocks, self.max_model_len)

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queue a request. Raises ValueError if it can never run."""
        self.scheduler.add_request(Request(message, self.max_model_len))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests; ids that are unknown or finished are ignored. No output is emitted for them."""

        def finish() -> list[EngineCoreOutput]:
            self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
            return [] if self.has_work else self._check_when_idle()

        self._unsent += self._guarded(finish)

    def step(self) -> list[EngineCoreOutput]:
        """Schedule and launch a step if there is room for one, collect the oldest in flight, apply its results.

        A step that fails ends its own requests with an error, and only those.
        """
        outputs, self._unsent = self._unsent, []
        outputs += self._guarded(self._step)
        if not self.has_work:
            outputs += self._guarded(self._check_when_idle)
        return outputs

    def _guarded(self, action: Callable[[], list[EngineCoreOutput]]) -> list[EngineCoreOutput]:
        """Do something with the bookkeeping; if it contradicts itself, no block can be trusted any more."""
        try:
            return action()
        except Exception as error:
            if envs.strict_invariants():
                raise
            return self._start_over(f"{type(error).__name__}: {error}")
        except BaseException:
            # Ctrl-C. While the model ran, it left a step that failed; elsewhere, bookkeeping that is half done.
            if not self._executing:
                self._unsent += self._start_over("interrupted while planning a step")
            raise
        finally:
            self._executing = False

    def _step(self) -> list[EngineCoreOutput]:
        if self.scheduler.num_steps_in_flight < self._num_steps_in_flight:
            scheduled = self.scheduler.schedule()
            if scheduled is not None:
                self._executing = True
                self._executor.launch(scheduled)
                self._executing = False
                if self.scheduler.num_steps_in_flight < self._num_steps_in_flight:
                    return []
        if self.scheduler.num_steps_in_flight:
            try:
                self._executing = True
                results = self._executor.collect()
                self._executing = False
            except Exception as error:  # whatever went wrong in a step must not end the others
                self._executing = False
                logger.exception("a step failed; its requests end with an error")
                return self.scheduler.fail_step(f"{type(error).__name__}: {error}")
            return self.scheduler.update(results)
        if self.scheduler.has_requests:
            raise AssertionError("requests wait, nothing runs, and none of them can be admitted")
        return []

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do: requests, steps in flight whose requests are gone, or outputs."""
        return self.scheduler.has_requests or self.scheduler.num_steps_in_flight > 0 or bool(self._unsent)

    def reset_prefix_cache(self) -> None:
        self.kv.reset_prefix_cache()

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _check_when_idle(self) -> list[EngineCoreOutput]:
        """Verify the KV cache's invariants while nothing runs."""
        problems = self.kv.integrity_problems()
        if not problems and self.kv.pool.num_free != self.kv.pool.num_usable:
            problems = [f"{self.kv.pool.num_usable - self.kv.pool.num_free} blocks are held without a request"]
        if not problems:
            return []
        if envs.strict_invariants():
            raise AssertionError("; ".join(problems))
        return self._start_over("; ".join(problems[:10]))

    def _start_over(self, problem: str) -> list[EngineCoreOutput]:
        """The KV cache's bookkeeping is damaged: fail what runs, and go on with an empty cache."""
        self.num_integrity_failures += 1
        logger.error("the KV cache is damaged, starting over with an empty one: %s", problem)
        outputs = self.scheduler.drop_all("the KV cache was damaged; please send the request again")
        self.kv.rebuild()
        return outputs
