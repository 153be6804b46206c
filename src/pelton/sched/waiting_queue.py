"""Requests that wait to run, in the order of the scheduling policy."""

import heapq
from itertools import count

from pelton.core.request import Request


class WaitingQueue:
    """A heap over the policy's sort key. A preempted request comes back to its old place.

    fcfs sorts by arrival order; priority by (priority, arrival time, arrival order).
    """

    def __init__(self, policy: str) -> None:
        self._by_priority = policy == "priority"
        self._arrivals = count()
        self._heap: list[tuple[tuple[float, ...], Request]] = []
        self._live: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._live)

    def enroll(self, request: Request) -> None:
        """Give a request its place by its arrival, though it will come later."""
        arrival = next(self._arrivals)
        request.sort_key = (request.priority, request.arrival_time, arrival) if self._by_priority else (arrival,)

    def push(self, request: Request) -> None:
        if not request.sort_key:
            self.enroll(request)
        heapq.heappush(self._heap, (request.sort_key, request))
        self._live[request.id] = request

    def peek(self) -> Request:
        """The request that is next. The queue must not be empty."""
        while self._live.get(self._heap[0][1].id) is not self._heap[0][1]:
            heapq.heappop(self._heap)  # removed meanwhile
        return self._heap[0][1]

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._live[request.id]
        return request

    def remove(self, request: Request) -> None:
        """Take out a request that will not run. Its heap entry goes when it comes up, or when such entries are many."""
        del self._live[request.id]
        if len(self._heap) > 2 * len(self._live) + 16:
            self._heap = [entry for entry in self._heap if self._live.get(entry[1].id) is entry[1]]
            heapq.heapify(self._heap)
