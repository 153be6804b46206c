"""Continuous batching: which requests run in a step, and how many of their tokens."""

import time
from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pelton.config.scheduler import SchedulerConfig
from pelton.core.messages import EngineCoreOutput, ModelRunnerOutput, NewRequest, SchedulerOutput
from pelton.core.request import (
    CONSTRAINT_FAILED,
    Advance,
    ConstraintError,
    OutputConstraint,
    Request,
    RequestStatus,
    advance_in_turn,
)
from pelton.kv.coordinator import BlockIds, KVCacheCoordinator
from pelton.sched.waiting_queue import WaitingQueue


@dataclass(slots=True)
class _StepInFlight:
    """A step that has been scheduled and not yet collected."""

    step_id: int
    requests: list[Request] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    """`num_preemptions` of each request at scheduling: results are void if it has changed since."""
    dropped: list[str] = field(default_factory=list)
    """The requests that its message tells the workers to drop."""
    void: bool = False
    """An earlier step failed, so what this one computed is doubtful."""


class Scheduler:
    """One rule: every request catches up `num_computed_tokens` with `num_tokens`.

    There is no prefill phase and no decode phase. In each step running requests come first, then waiting ones,
    until token budget, sequence limit or blocks run out. A request that is far behind (a prompt) gets a chunk
    as large as the budget allows; one that is a single token behind (decoding) gets one. Whoever reaches its
    end samples its next token. When a running request finds no block, the last running request in the policy's
    order gives up its own and is recomputed later.

    `schedule` moves the counters itself, so the next step may be scheduled while earlier ones are in flight;
    tokens not sampled yet count as *pending*. `update` takes the results, in the order of scheduling.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheCoordinator, advance: Advance | None = None) -> None:
        """`advance` does `OutputConstraint.advance` for many at once; default: one after the other."""
        self.config = config
        self._advance = advance or advance_in_turn
        self.kv = kv
        self.requests: dict[str, Request] = {}
        """Every request that has not finished."""
        self.waiting = WaitingQueue(config.scheduling_policy)
        self.running: list[Request] = []
        """Sorted by the policy: the first is served first, the last is preempted first."""
        self.blocked: dict[str, Request] = {}
        """Not to be scheduled yet, and in nobody's way."""
        self.num_preemptions = 0
        self._in_flight: deque[_StepInFlight] = deque()
        self._last_step_id = 0
        self._dropped: list[str] = []

    # ------------------------------------------------------------------------------------------- requests

    def check_request(self, request: Request) -> None:
        """Raises ValueError if the request's id is taken or the KV cache can never hold it."""
        if request.id in self.requests:
            raise ValueError(f"request_id {request.id!r} is in use by a request that has not finished")
        if not self.kv.can_ever_fit(request.max_computed_tokens):
            raise ValueError(
                f"the request may need {request.max_computed_tokens} tokens of KV cache, more than its "
                f"{self.kv.pool.num_usable} blocks hold; lower max_tokens or raise kv_cache_memory_bytes"
            )

    def add_request(self, request: Request, *, is_blocked: bool = False) -> None:
        """Queue a request that `check_request` lets pass. A blocked one has its place by its arrival, too."""
        self.requests[request.id] = request
        if is_blocked:
            request.status = RequestStatus.BLOCKED
            self.waiting.enroll(request)
            self.blocked[request.id] = request
        else:
            self.waiting.push(request)

    def unblock(self, request_id: str) -> None:
        """Let a request be scheduled that was blocked."""
        request = self.blocked.pop(request_id)
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> list[Request]:
        """End requests from outside. Ids of unknown or finished requests are ignored. Returns those ended."""
        ended = [self.requests[i] for i in dict.fromkeys(request_ids) if i in self.requests]
        for request in ended:
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            elif request.status is RequestStatus.BLOCKED:
                del self.blocked[request.id]
            else:
                self.waiting.remove(request)
            request.status = status
        self._release_finished(ended)
        return ended

    def constraint_of(self, request_id: str) -> OutputConstraint:
        """Of a request that has one."""
        constraint = self.requests[request_id].constraint
        assert constraint is not None
        return constraint

    @property
    def has_requests(self) -> bool:
        return bool(self.requests)

    @property
    def num_waiting(self) -> int:
        """Requests that are not running, blocked ones included."""
        return len(self.waiting) + len(self.blocked)

    @property
    def has_runnable_requests(self) -> bool:
        """Whether there are requests that nothing blocks."""
        return len(self.requests) > len(self.blocked)

    @property
    def num_steps_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def oldest_step_in_flight(self) -> int:
        """Its id. There must be one."""
        return self._in_flight[0].step_id

    # ------------------------------------------------------------------------------------------- schedule

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step, or return None if there is nothing to compute now."""
        step_id = self._last_step_id + 1
        self.kv.begin_step(step_id)
        step = _StepInFlight(step_id)
        output = SchedulerOutput(
            step_id=step_id,
            request_ids=[],
            num_scheduled_tokens=[],
            num_computed_tokens=[],
            num_logits=[],
            new_requests=[],
            new_block_ids={},
            dropped_request_ids=[],
        )
        budget = self._schedule_running(step, output, self.config.max_num_batched_tokens)
        self._schedule_waiting(step, output, budget)
        if not output.request_ids:
            return None
        step.dropped = output.dropped_request_ids = self._dropped
        self._dropped = []
        self._last_step_id = step_id
        self._in_flight.append(step)
        return output

    def _schedule_running(self, step: _StepInFlight, output: SchedulerOutput, budget: int) -> int:
        """Serve running requests in order. Returns the budget left for others: none if blocks ran short."""
        num_preemptions = self.num_preemptions
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            index += 1
            target = min(request.num_tokens, request.max_computed_tokens)
            num_new = min(target - request.num_computed_tokens, self.config.longest_chunk, budget)
            if num_new <= 0 or (request.constraint is not None and request.num_pending_tokens):
                continue  # what may come next depends on the token that is being sampled
            block_ids = self._allocate(request, num_new)
            if block_ids is None:
                return 0
            if block_ids:
                output.new_block_ids[request.id] = block_ids
            self._add_to_step(step, output, request, num_new)
            budget -= num_new
        return budget if num_preemptions == self.num_preemptions else 0

    def _allocate(self, request: Request, num_new: int) -> BlockIds | None:
        """Find blocks for a running request, at the cost of those behind it if need be."""
        while (block_ids := self.kv.allocate_slots(request, num_new)) is None:
            if self.kv.has_pending_release:
                return None  # blocks come back when a step in flight ends
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return None
        return block_ids

    def _schedule_waiting(self, step: _StepInFlight, output: SchedulerOutput, budget: int) -> None:
        """Admit waiting requests in order; the first that does not fit holds up the others."""
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            hit = self.kv.find_prefix(request)
            num_new = min(request.num_tokens - hit.num_tokens, self.config.longest_chunk, budget)
            block_ids = self.kv.admit(request, hit, num_new, headroom=self._headroom(request))
            if block_ids is None:
                break
            self.waiting.pop()
            insort(self.running, request, key=_sort_key)
            if request.status is RequestStatus.WAITING:
                request.num_cached_tokens = hit.num_tokens
                request.scheduled_time = time.monotonic()
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = hit.num_tokens
            output_token_ids = request.token_ids[request.num_prompt_tokens :]
            request.untold = None
            output.new_requests.append(
                NewRequest(request.message, output_token_ids, block_ids, request.num_prompt_logprobs)
            )
            self._add_to_step(step, output, request, num_new)
            budget -= num_new

    def _headroom(self, request: Request) -> int:
        """Blocks that must stay free when `request` is admitted: one for each running request to grow into.

        Twice as many after every preemption, or the request would soon be preempted again (ping-pong), but not so
        many that the pool would have to drain first.
        """
        quarter = self.kv.pool.num_usable // (4 * len(self.kv.groups))
        return max(len(self.running), min(len(self.running) << min(request.num_preemptions, 16), quarter))

    def _add_to_step(self, step: _StepInFlight, output: SchedulerOutput, request: Request, num_new: int) -> None:
        computed = request.num_computed_tokens
        request.num_computed_tokens = computed + num_new
        samples = request.num_computed_tokens == request.num_tokens
        if samples:
            request.num_tokens += 1
            request.num_pending_tokens += 1
        output.request_ids.append(request.id)
        output.num_scheduled_tokens.append(num_new)
        output.num_computed_tokens.append(computed)
        output.num_logits.append(1 if samples else 0)
        if request.untold is not None:
            output.forced_tokens[request.id] = request.untold
            request.untold = None
        if samples and request.constraint is not None:
            output.constrained_request_ids.append(request.id)
        step.requests.append(request)
        step.epochs.append(request.num_preemptions)

    def _preempt(self, request: Request) -> None:
        """Take the blocks of a request that was running; it starts over when it is admitted again."""
        self.kv.free(request)
        request.forget_computed()
        request.status = RequestStatus.PREEMPTED
        self.num_preemptions += 1
        self._dropped.append(request.id)
        self.waiting.push(request)

    # --------------------------------------------------------------------------------------------- update

    def update(self, results: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Take the results of the oldest step in flight: append tokens, end what is complete."""
        step = self._in_flight.popleft()
        assert step.step_id == results.step_id, "steps are collected in the order of their launch"
        self.kv.end_step(step.step_id, failed=step.void)
        if step.void:
            return []
        progress: list[tuple[Request, EngineCoreOutput]] = []
        for request, epoch, sampled in zip(step.requests, step.epochs, results.token_ids, strict=True):
            if _counts(request, epoch) and (output := self._apply(request, sampled, results)) is not None:
                progress.append((request, output))
        self._follow_constraints(progress)
        finished: list[Request] = []
        for request, output in progress:
            if request.id in results.logprobs:
                output.logprobs = results.logprobs[request.id][: len(output.new_token_ids)]
            if request.status is not RequestStatus.RUNNING:
                output.finish_reason = request.status.value
                output.stop_reason = request.stop_reason
                output.is_complete = request.is_complete
                finished.append(request)
        if finished:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
            self._release_finished(finished)
        return [output for _, output in progress]

    def _apply(self, request: Request, sampled: list[int], results: ModelRunnerOutput) -> EngineCoreOutput | None:
        """Give a running request what a step brought it. Returns what its user is to learn, but how it ended."""
        prompt_logprobs = results.prompt_logprobs.get(request.id)
        error = results.errors.get(request.id)
        new_token_ids: list[int] = []
        if error is not None:
            request.fail(error.message)
            prompt_logprobs = None
            if error.is_damage:
                self.kv.withdraw_blocks(request)
        elif prompt_logprobs is None and not sampled:
            return None
        elif sampled:
            new_token_ids = sampled[: request.append_sampled(sampled)]
        if prompt_logprobs is not None:
            request.num_prompt_logprobs += len(prompt_logprobs)
        return EngineCoreOutput(
            request.id,
            new_token_ids,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=request.num_cached_tokens,
            scheduled_time=request.scheduled_time,
        )

    def _follow_constraints(self, progress: list[tuple[Request, EngineCoreOutput]]) -> None:
        """Tell constraints of the new tokens of their requests, and add the tokens that come with these."""
        running: list[tuple[Request, EngineCoreOutput]] = []
        followed: list[tuple[OutputConstraint, list[int]]] = []
        for request, output in progress:
            if request.constraint is not None and output.new_token_ids and request.status is RequestStatus.RUNNING:
                running.append((request, output))
                followed.append((request.constraint, output.new_token_ids))
        if not followed:
            return
        for (request, output), (constraint, _), forced in zip(running, followed, self._advance(followed), strict=True):
            try:
                if isinstance(forced, ConstraintError):
                    raise forced
                output.new_token_ids += request.append_forced(forced)
                _check_end(request, constraint)
            except ConstraintError as failure:
                request.fail(f"{CONSTRAINT_FAILED}{failure}")
                output.new_token_ids = []

    def fail_step(self, message: str) -> list[EngineCoreOutput]:
        """The oldest step in flight failed: its requests end with an error.

        Later steps in flight may have read what it should have written, so their results are void and their
        other requests start over.
        """
        step = self._in_flight.popleft()
        self.kv.end_step(step.step_id, failed=True)
        if step.void:
            return []
        # Nobody knows how far the workers got with it: they are told again.
        self._dropped = step.dropped + self._dropped
        culprits = [r.id for r, epoch in zip(step.requests, step.epochs, strict=True) if _counts(r, epoch)]
        ended = self.finish_requests(culprits, RequestStatus.FINISHED_ERROR)
        for request in self._void_in_flight():
            self.running.remove(request)
            self._preempt(request)
        return [error_output(request, message) for request in ended]

    def drop_all(self, message: str) -> list[EngineCoreOutput]:
        """End every request with an error and void every step in flight. Leaves the KV cache alone, for it is
        called when that is damaged and will be rebuilt."""
        self._void_in_flight()
        outputs = [error_output(request, message) for request in self.requests.values()]
        for request in self.requests.values():
            request.status = RequestStatus.FINISHED_ERROR
            self._dropped.append(request.id)
        self.requests.clear()
        self.running.clear()
        self.blocked.clear()
        self.waiting = WaitingQueue(self.config.scheduling_policy)
        return outputs

    def _void_in_flight(self) -> list[Request]:
        """Declare the results of all steps in flight void. Returns their requests that are running.

        Executors do not run what was launched before a failure was collected, so workers are told again what these
        steps told them to drop.
        """
        concerned: dict[str, Request] = {}
        told: list[str] = []
        for step in self._in_flight:
            step.void = True
            self.kv.withdraw(step.step_id)
            told += step.dropped
            concerned |= {r.id: r for r in step.requests if r.status is RequestStatus.RUNNING}
        self._dropped = told + self._dropped
        return list(concerned.values())

    def _release_finished(self, finished: list[Request]) -> None:
        """Forget requests that have finished. If their blocks cannot be freed, they still count as ours, so that
        whoever deals with the damage tells their users."""
        for request in finished:
            self.kv.free(request)
        for request in finished:
            del self.requests[request.id]
            self._dropped.append(request.id)


def _check_end(request: Request, constraint: OutputConstraint) -> None:
    """End a request whose constraint leaves nothing to follow. Raises ConstraintError if that is too early."""
    if request.status is not RequestStatus.RUNNING:
        return
    num_tokens, min_tokens = request.num_output_tokens, request.message.sampling_params.min_tokens
    if num_tokens < min_tokens and constraint.must_end:
        raise ConstraintError(
            f"the output is complete after {num_tokens} tokens, and min_tokens is {min_tokens}; lower min_tokens"
        )
    if constraint.is_complete:
        request.status, request.is_complete = RequestStatus.FINISHED_STOPPED, True


def error_output(request: Request, message: str) -> EngineCoreOutput:
    return EngineCoreOutput(
        request.id,
        [],
        finish_reason=RequestStatus.FINISHED_ERROR.value,
        stop_reason=message,
        num_cached_tokens=request.num_cached_tokens,
        scheduled_time=request.scheduled_time,
    )


def _counts(request: Request, epoch: int) -> bool:
    """Whether the result of a step scheduled in `epoch` still concerns the request."""
    return request.num_preemptions == epoch and request.status is RequestStatus.RUNNING


def _sort_key(request: Request) -> tuple[float, ...]:
    return request.sort_key
