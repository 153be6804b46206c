"""A load on a server: sends requests when they are due, and ends early where it shall."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Protocol

from pelton.bench.serving.request_errors import CANCELLED
from pelton.bench.serving.request_result import RequestResult

WATCH_SECONDS = 0.1
"""How often is looked whether to end early."""
WATCH_SHARE = 0.02
"""Of the time, at most, for looking: with many requests it is done less often."""


class Sender(Protocol):
    """What sends requests: a `Client`, as a rule."""

    async def send(self, body: bytes, result: RequestResult, epoch: float) -> None:
        """Send a request and fill its result until the answer has ended; see `Client.send`."""


@dataclass
class LoadReport:
    """What came of a load."""

    results: list[RequestResult]
    """In the order of the requests; those that were not sent have an error too."""
    duration: float = 0.0
    """Seconds until the last answer had come, or until the end that was early."""
    client_cpu_seconds: float = 0.0
    """Processor time of this process meanwhile."""
    max_in_flight: int = 0
    """Most requests at once."""
    send_delays: list[float] = field(default_factory=list)
    """Seconds that the client itself was late, of each request that was sent."""
    waits: list[float] = field(default_factory=list)
    """Seconds that each of them waited for its turn, by the limit of requests at once."""
    stopped: str | None = None
    """Why the run ended early, if it did. Requests that were not answered then have an error of the kind `CANCELLED`,
    and are no failures; but with `max_seconds` they have failed."""


class Load:
    """One run."""

    def __init__(
        self, client: Sender, bodies: Sequence[bytes], due_times: Sequence[float], *, max_concurrency: int | None
    ) -> None:
        """`due_times`: seconds from the beginning, ascending, one per request."""
        self.results = [RequestResult(due) for due in due_times]
        self.in_flight: dict[int, asyncio.Task[None]] = {}
        """By index of the request."""
        self.num_failed = 0
        self.epoch = 0.0
        """When it began, by `perf_counter`."""
        self._client = client
        self._bodies = bodies
        self._max_concurrency = max_concurrency or len(self.results)
        self._waiting: deque[int] = deque()
        self._ready: dict[int, float] = {}
        """When each request that was started could have been sent by a client without delay."""
        self._answered: set[int] = set()
        self._broken: BaseException | None = None
        self._finished = asyncio.Event()
        self._report = LoadReport(self.results)

    def stop(self, reason: str) -> None:
        """End it now. What is under way is cancelled."""
        self._report.stopped = self._report.stopped or reason
        self._finished.set()

    async def run(
        self,
        *,
        max_seconds: float | None = None,
        on_answer: Callable[[RequestResult], None] | None = None,
        reason_to_stop: Callable[[], str | None] | None = None,
    ) -> LoadReport:
        """Until all requests are answered, `stop` is called, `reason_to_stop` gives a reason, or `max_seconds` have
        passed. What is not answered by the last has failed."""
        self._on_answer = on_answer
        spent = process_time()
        self.epoch = perf_counter()
        helpers = [self._task(self._dispatch())]
        if reason_to_stop is not None:
            helpers.append(self._task(self._watch(reason_to_stop)))
        unanswered = f"{CANCELLED}: the run was stopped"
        try:
            async with asyncio.timeout(max_seconds):
                await self._finished.wait()
        except TimeoutError:
            self._report.stopped = f"max_seconds: the run was ended after {max_seconds:g} s"
            unanswered = f"max_seconds: not answered when the run ended after {max_seconds:g} s"
        finally:
            self._report.duration = perf_counter() - self.epoch
            self._report.client_cpu_seconds = process_time() - spent
            await _cancelled([*helpers, *self.in_flight.values()])
        if self._broken is not None:
            raise self._broken
        self._finish_report(unanswered)
        return self._report

    def _finish_report(self, unanswered: str) -> None:
        for index, result in enumerate(self.results):
            if index not in self._answered:
                result.error = unanswered
            if result.start_time:
                self._report.send_delays.append(result.start_time - self._ready[index])
                self._report.waits.append(self._ready[index] - result.due_time)

    async def _dispatch(self) -> None:
        for index, result in enumerate(self.results):
            await asyncio.sleep(0)  # answers are read between requests that are due together
            while (seconds := self.epoch + result.due_time - perf_counter()) > 0.0:  # timers may be early
                await asyncio.sleep(seconds)
            if len(self.in_flight) < self._max_concurrency:
                self._start(index, result.due_time)
            else:
                self._waiting.append(index)

    def _start(self, index: int, ready: float) -> None:
        self._ready[index] = ready
        self.in_flight[index] = self._task(self._request(index))
        self._report.max_in_flight = max(self._report.max_in_flight, len(self.in_flight))

    async def _request(self, index: int) -> None:
        result = self.results[index]
        await self._client.send(self._bodies[index], result, self.epoch)
        now = perf_counter() - self.epoch
        self.num_failed += not result.success
        del self.in_flight[index]
        self._answered.add(index)
        if self._waiting:
            self._start(self._waiting.popleft(), now)
        elif len(self._answered) == len(self.results):
            self._finished.set()
        if self._on_answer is not None:
            self._on_answer(result)

    async def _watch(self, reason_to_stop: Callable[[], str | None]) -> None:
        while True:
            start = perf_counter()
            reason = reason_to_stop()
            if reason is not None:
                return self.stop(reason)
            await asyncio.sleep(max(WATCH_SECONDS, (perf_counter() - start) / WATCH_SHARE))

    def _task(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: "asyncio.Task[None]") -> None:
        """A mistake of the program ends the run."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self._finished.set()


async def _cancelled(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Once all of them have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
