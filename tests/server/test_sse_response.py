"""Streams over connections that end when they please."""

import asyncio

import pytest

from pelton.server.sse_response import ClientLeftError, EventStreamResponse, run_until_disconnected
from tests.server.running import PATIENCE, in_loop, running

BODY = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Events:
    """Gives items, and then waits forever, unless it ends."""

    def __init__(self, *items, ends=True, error=None):
        self.items = list(items)
        self.ends = ends
        self.error = error
        self.num_begun = 0
        self.num_closed = 0
        self.closed = asyncio.Event()
        self.cancelled = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.num_begun += 1
        if self.items:
            return self.items.pop(0)
        if self.error is not None:
            raise self.error
        if not self.ends:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        raise StopAsyncIteration

    async def aclose(self):
        self.num_closed += 1
        self.closed.set()


def app_of(events):
    async def app(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        await EventStreamResponse(events)(scope, receive, send)

    return app


def test_a_stream_to_its_end():
    async def main():
        events = Events(b"data: 1\n\n", b"data: 2\n\n")
        async with running(app_of(events)) as server:
            answer = await server.client.get("/")
        assert answer.content == b"data: 1\n\ndata: 2\n\n"
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert (events.num_closed, events.cancelled) == (1, False)

    in_loop(main)


def test_a_stream_of_nothing():
    async def main():
        events = Events()
        async with running(app_of(events)) as server:
            answer = await server.client.get("/")
        assert (answer.status_code, answer.content, events.num_closed) == (200, b"", 1)

    in_loop(main)


def test_each_event_is_sent_at_once():
    async def main():
        events = Events(b"data: 1\n\n", ends=False)
        async with running(app_of(events)) as server:
            reader, writer = await server.connect()
            writer.write(BODY)
            seen = await asyncio.wait_for(reader.readuntil(b"data: 1\n\n"), PATIENCE)
            assert seen.startswith(b"HTTP/1.1 200")
            assert not events.closed.is_set()
            writer.close()
            await asyncio.wait_for(events.closed.wait(), PATIENCE)
        assert events.cancelled

    in_loop(main)


@pytest.mark.parametrize("items", [[], [b"data: 1\n\n"]])
def test_a_client_that_leaves_ends_the_stream(items):
    async def main():
        events = Events(*items, ends=False)
        async with running(app_of(events)) as server:
            reader, writer = await server.connect()
            writer.write(BODY)
            while events.num_begun <= len(items):
                await asyncio.sleep(0)
            writer.transport.abort()
            await asyncio.wait_for(events.closed.wait(), PATIENCE)
            del reader
        assert (events.cancelled, events.num_closed) == (True, 1)

    in_loop(main)


def test_a_client_that_does_not_read_can_still_leave():
    """The server then waits for room to write, and not for events."""

    async def main():
        events = Events(*[b"x" * 65536] * 400)
        async with running(app_of(events)) as server:
            _, writer = await server.connect()
            writer.transport.pause_reading()
            writer.write(BODY)
            before = -1
            while before != len(events.items):
                before = len(events.items)
                await asyncio.sleep(0.3)
            assert before > 0
            writer.transport.abort()
            await asyncio.wait_for(events.closed.wait(), PATIENCE)
            assert events.num_closed == 1

    in_loop(main)


def test_the_answer_begins_before_its_first_event():
    async def main():
        events = Events(ends=False)
        async with running(app_of(events)) as server:
            reader, writer = await server.connect()
            writer.write(BODY)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"text/event-stream" in head
            assert not events.closed.is_set()
            writer.close()
            await asyncio.wait_for(events.closed.wait(), PATIENCE)

    in_loop(main)


def test_an_error_of_the_iterator_closes_it():
    async def main():
        events = Events(error=ValueError("too bad"))
        sent = []

        async def send(message):
            sent.append(message["type"])

        with pytest.raises(ValueError, match="too bad"):
            await EventStreamResponse(events)({"type": "http"}, forever, send)
        assert (sent, events.num_closed) == (["http.response.start"], 1)

    in_loop(main)


async def forever():
    await asyncio.Event().wait()


async def at_once():
    return {"type": "http.disconnect"}


async def value(result, *, after=0):
    for _ in range(after):
        await asyncio.sleep(0)
    return result


def test_work_that_ends_first():
    async def main():
        assert await run_until_disconnected(forever, value(5)) == 5
        assert await run_until_disconnected(at_once, value(5)) == 5, "it never waited"
        with pytest.raises(KeyError):
            await run_until_disconnected(forever, failing())
        assert asyncio.current_task().cancelling() == 0

    in_loop(main)


async def failing():
    raise KeyError


def test_work_that_is_cancelled_when_the_client_leaves():
    async def main():
        for after in (3, 1_000_000_000):
            with pytest.raises(ClientLeftError):
                await run_until_disconnected(at_once, value(5, after=after))
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)

    in_loop(main)


@pytest.mark.parametrize("after", range(6))
def test_a_client_that_leaves_just_when_work_ends(after):
    """Whatever comes first, no cancellation is left behind."""

    async def main():
        leaving = asyncio.Event()

        async def receive():
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def work():
            leaving.set()
            return await value(5, after=after)

        try:
            assert await run_until_disconnected(receive, work()) == 5
        except ClientLeftError:
            assert after > 0
        assert asyncio.current_task().cancelling() == 0
        for _ in range(10):
            await asyncio.sleep(0)

    in_loop(main)


def test_cancellation_from_outside_is_not_the_client():
    async def main():
        async def waiting():
            with pytest.raises(asyncio.CancelledError):
                await run_until_disconnected(forever, value(5, after=1_000_000_000))
            return "cancelled"

        task = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "cancelled"

    in_loop(main)


def test_other_messages_are_no_disconnect():
    async def main():
        messages = [{"type": "http.request"}, {"type": "http.request"}]

        async def receive():
            if messages:
                return messages.pop(0)
            return await forever()

        assert await run_until_disconnected(receive, value(5, after=20)) == 5
        assert not messages

    in_loop(main)
