"""When requests are sent, how many at once, and how a run ends."""

import asyncio
import time
from itertools import pairwise
from time import perf_counter

import pytest

from pelton.bench.plots.serve import running_requests
from pelton.bench.serving.client import Client, open_session
from pelton.bench.serving.load import WATCH_SHARE, Load
from pelton.bench.serving.request_errors import CANCELLED, error_kind
from tests.support.event_server import EventServer, tokens


class FakeClient:
    """Answers after some seconds, which the body says."""

    def __init__(self):
        self.sent = []
        self.num_at_once = 0
        self.most_at_once = 0
        self.failing = set()

    async def send(self, body, result, epoch):
        start = perf_counter()
        result.start_time = start - epoch
        self.sent.append(body)
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            await asyncio.sleep(float(body.split()[1]))
            result.ttft = result.e2el = perf_counter() - start
            result.output_len = 1
            if body in self.failing:
                result.error = "HTTP 503: busy"
        finally:
            self.num_at_once -= 1


def bodies_of(*seconds):
    return [b"%d %f" % (index, value) for index, value in enumerate(seconds)]


def run(bodies, due_times=None, *, client=None, max_concurrency=None, **options):
    client = client or FakeClient()

    async def work():
        due = due_times or [0.0] * len(bodies)
        report = await Load(client, bodies, due, max_concurrency=max_concurrency).run(**options)
        assert client.num_at_once == 0, "nothing goes on"
        return report

    return asyncio.run(work()), client


def test_requests_are_sent_when_they_are_due_and_not_before():
    due = [0.0, 0.05, 0.06, 0.2]
    report, client = run(bodies_of(0.3, 0, 0, 0), due)
    assert client.sent == bodies_of(0.3, 0, 0, 0)
    for result, at in zip(report.results, due, strict=True):
        assert result.due_time == at
        assert result.start_time >= at
    assert report.duration >= 0.3
    assert report.duration >= max(result.start_time + result.e2el for result in report.results)
    assert report.stopped is None
    assert all(result.success for result in report.results)


def test_slow_answers_do_not_hold_back_what_is_due():
    """An open loop: the requests before are all still under way."""
    due = [0.01 * index for index in range(10)]
    report, client = run(bodies_of(*[1.0] * 10), due)
    assert report.max_in_flight == client.most_at_once == 10


def test_a_client_that_was_late_does_not_stretch_the_load():
    class Blocking(FakeClient):
        async def send(self, body, result, epoch):
            if body == bodies_of(0)[0]:
                time.sleep(1.0)  # nothing else runs meanwhile
            await super().send(body, result, epoch)

    due = [0.0, 0.2, 0.9, 1.2]
    report, _ = run(bodies_of(0, 0, 0, 0), due, client=Blocking())
    starts = [result.start_time for result in report.results]
    assert starts[1] >= 1.0
    assert starts[2] - starts[1] < 0.7, "what is late is sent at once"
    assert starts[3] >= 1.2
    assert max(report.send_delays) >= 0.8
    assert max(report.waits) == 0.0


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_the_limit_of_requests_at_once_is_reached_and_kept(limit):
    report, client = run(bodies_of(*[0.02] * 20), max_concurrency=limit)
    assert client.most_at_once == report.max_in_flight == limit
    assert client.sent == bodies_of(*[0.02] * 20), "first come, first served"


def test_the_server_sees_no_more_requests_than_the_limit():
    with EventServer(tokens(first=0.05, gap=0.01, num=3)) as server:

        async def work():
            async with open_session() as session:
                client = Client(session, server.url + "/v1/completions", timeout=60.0)
                return await Load(client, [b"{}"] * 24, [0.0] * 24, max_concurrency=6).run()

        report = asyncio.run(work())
    assert server.most_at_once == report.max_in_flight == 6
    assert len(server.received) == 24
    assert all(result.success for result in report.results)


def test_waiting_for_a_turn_is_told_and_is_no_latency():
    report, _ = run(bodies_of(0.2, 0.2, 0.2), max_concurrency=1)
    assert sorted(report.waits)[0] == 0.0
    assert sorted(report.waits)[1] >= 0.2
    assert sorted(report.waits)[2] >= 0.4
    assert report.results[2].start_time >= 0.4
    assert report.results[2].e2el < report.results[2].start_time
    for result, wait, delay in zip(report.results, report.waits, report.send_delays, strict=True):
        assert result.start_time - result.due_time == pytest.approx(wait + delay)


def test_after_the_time_is_up_everything_else_has_failed():
    report, client = run(bodies_of(0, 60, 60, 0), [0.0, 0.0, 0.0, 30.0], max_seconds=0.3)
    assert report.duration >= 0.3
    assert report.duration < 30.0
    assert [error_kind(result.error) for result in report.results] == ["", *["max_seconds"] * 3]
    assert len(client.sent) == 3
    assert report.stopped == "max_seconds: the run was ended after 0.3 s"


def test_a_run_that_ends_in_time_is_not_cut():
    report, _ = run(bodies_of(0, 0.1), max_seconds=60.0)
    assert report.duration < 60.0
    assert all(result.success for result in report.results)


def test_a_reason_to_stop_ends_the_run_at_once():
    client = FakeClient()
    report, _ = run(
        bodies_of(0.05, 60, 60),
        [0.0, 0.0, 50.0],
        client=client,
        reason_to_stop=lambda: "it is too slow" if len(client.sent) == 2 and client.num_at_once == 1 else None,
    )
    assert report.stopped == "it is too slow"
    assert [error_kind(result.error) for result in report.results] == ["", CANCELLED, CANCELLED]
    assert report.duration < 50.0


def test_no_reason_no_stop():
    report, _ = run(bodies_of(0.2, 0.2), reason_to_stop=lambda: None)
    assert report.stopped is None
    assert all(result.success for result in report.results)


def test_stopped_from_outside_with_the_first_reason():
    async def work():
        load = Load(FakeClient(), bodies_of(60), [0.0], max_concurrency=None)
        asyncio.get_running_loop().call_later(0.05, load.stop, "interrupted")
        asyncio.get_running_loop().call_later(0.05, load.stop, "something else")
        return await load.run()

    assert asyncio.run(work()).stopped == "interrupted"


def test_failures_are_counted_while_they_come():
    client = FakeClient()
    client.failing = set(bodies_of(0, 0, 0)[1:])
    seen = []

    async def work():
        load = Load(client, bodies_of(0, 0, 0), [0.0] * 3, max_concurrency=None)
        return await load.run(on_answer=lambda result: seen.append((result.success, load.num_failed)))

    asyncio.run(work())
    assert seen == [(True, 0), (False, 1), (False, 2)]


def test_a_mistake_in_the_client_ends_the_run():
    class Broken(FakeClient):
        async def send(self, body, result, epoch):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(bodies_of(0, 60), client=Broken())


def test_processor_time_is_that_of_the_run():
    class Busy(FakeClient):
        async def send(self, body, result, epoch):
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
            await super().send(body, result, epoch)

    idle, _ = run(bodies_of(0.3))
    busy, _ = run(bodies_of(0), client=Busy())
    assert busy.client_cpu_seconds >= 0.2
    assert idle.client_cpu_seconds < 0.2


def test_looking_for_a_reason_takes_a_small_part_of_the_time():
    looked = []

    def slow():
        looked.append(perf_counter())
        time.sleep(0.02)

    run(bodies_of(2.5), reason_to_stop=slow)
    assert len(looked) >= 2
    assert len(looked) * 0.02 < 0.1 * 2.5
    assert all(after - before >= 0.02 / WATCH_SHARE for before, after in pairwise(looked))


def test_running_requests_of_those_that_timed_out():
    """They ran until then, and not only until their last token, if they had one."""

    async def work(url):
        async with open_session() as session:
            sender = Client(session, url + "/v1/completions", timeout=0.4)
            return await Load(sender, [b"{}"] * 2, [0.0, 0.1], max_concurrency=None).run()

    with EventServer(tokens(first=60.0, num=3)) as server:
        report = asyncio.run(work(server.url))
    assert [error_kind(result.error) for result in report.results] == ["timeout"] * 2
    steps = running_requests(report.results)
    assert [number for _, number in steps] == [1, 2, 1, 0]
    assert steps[2][0] >= 0.4
    assert steps[3][0] >= 0.5
