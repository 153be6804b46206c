"""The waiting queue's order, and that removed requests leave nothing behind."""

import random

import pytest

from pelton.core.messages import EngineCoreRequest
from pelton.core.request import Request
from pelton.sampling_params import SamplingParams
from pelton.sched.waiting_queue import WaitingQueue


def make_request(number: int, priority: int = 0, arrival: float = 0.0) -> Request:
    message = EngineCoreRequest(str(number), [1], SamplingParams(), arrival, [], priority=priority)
    return Request(message, max_model_len=10)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_order(policy):
    rng = random.Random(3)
    queue = WaitingQueue(policy)
    requests = [make_request(n, rng.randrange(4), rng.randrange(5)) for n in range(200)]
    for request in requests:
        queue.push(request)
    removed = set(rng.sample(range(200), 120))
    for number in removed:
        queue.remove(requests[number])
    left = [number for number in range(200) if number not in removed]
    if policy == "priority":
        left.sort(key=lambda n: (requests[n].priority, requests[n].arrival_time, n))
    assert len(queue) == len(left)
    assert [int(queue.pop().id) for _ in left] == left


def test_a_returning_request_takes_its_old_place():
    queue = WaitingQueue("fcfs")
    requests = [make_request(n) for n in range(4)]
    for request in requests:
        queue.push(request)
    first = queue.pop()
    queue.push(first)
    assert [queue.pop().id for _ in range(4)] == ["0", "1", "2", "3"]


def test_removed_requests_do_not_pile_up():
    queue = WaitingQueue("fcfs")
    queue.push(make_request(-1))
    for number in range(10_000):
        request = make_request(number)
        queue.push(request)
        queue.remove(request)
    assert len(queue) == 1
    assert len(queue._heap) < 50
