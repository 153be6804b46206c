"""One request: times are those at which the server has sent, and no failure passes as an answer."""

import asyncio
import json
import random
import socket
import statistics
from itertools import pairwise
from time import perf_counter

import pytest

from pelton.bench.requests import BenchRequest
from pelton.bench.serving import client
from pelton.bench.serving.client import Client, error_message, open_session, refusal_message, request_body
from pelton.bench.serving.request_errors import error_kind
from pelton.bench.serving.request_result import RequestResult
from tests.support.event_server import DONE, Cut, EventServer, Refuse, Sleep, encoded, tokens

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BOTH = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])


def body_for(path, num_tokens=5):
    request = BenchRequest("What is a turbine?", num_tokens)
    return request_body(request, {"model": "stand-in"}, is_chat=path == CHAT, tokenizer=None)


def ask(url, path=COMPLETIONS, *, num_tokens=5, timeout=60.0, headers=None):
    """The result of one request, and the seconds that it took by a watch around it."""

    async def work():
        result = RequestResult(0.0)
        async with open_session(headers or ()) as session:
            epoch = perf_counter()
            await Client(session, url + path, timeout=timeout).send(body_for(path, num_tokens), result, epoch)
            return result, perf_counter() - epoch

    return asyncio.run(work())


def answer(script, path=COMPLETIONS, **options):
    """The result of one request to a server that answers so, and the server."""
    with EventServer(script) as server:
        return ask(server.url, path, **options)[0], server


@BOTH
def test_times_are_those_of_the_server(path):
    first, gap, num = 0.3, 0.06, 8
    with EventServer(tokens(first=first, gap=gap)) as server:
        result, seconds = ask(server.url, path, num_tokens=num)
    (received,) = server.received
    sent = received.sent_at[1:] if path == CHAT else received.sent_at  # the role says nothing
    assert result.success
    assert result.output_len == num
    assert len(result.itls) == num - 1
    # What is measured contains what the server waited, strictly; and the watch contains it.
    for index in range(num):
        assert result.ttft + sum(result.itls[:index]) >= first + index * gap
    assert result.ttft + sum(result.itls) == pytest.approx(result.e2el, abs=1e-6)
    assert result.start_time + result.e2el <= seconds
    assert result.tpot == pytest.approx((result.e2el - result.ttft) / (num - 1))
    # Roughly they are equal, however busy the machine is: both watch the same clock.
    assert result.ttft < 1.5 * (sent[0] - received.at) + 0.1
    assert 0.5 * gap < statistics.median(result.itls) < 1.5 * statistics.median(b - a for a, b in pairwise(sent[:num]))


@BOTH
def test_what_follows_the_last_token_is_in_no_latency(path):
    late = 1.0

    def script(request):
        if request.is_chat:
            yield request.role()
        yield request.event("one")
        yield request.event(" two", finish="stop")
        yield Sleep(late)
        yield request.usage(2)
        yield DONE

    with EventServer(script) as server:
        result, seconds = ask(server.url, path)
    assert seconds > late
    assert result.e2el < seconds - late / 2
    assert sum(result.itls) < late / 2
    assert len(result.itls) == 1


def test_the_end_may_come_in_an_event_of_its_own():
    def script(request):
        yield request.role()
        yield request.event("one")
        yield Sleep(0.2)
        yield encoded({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield request.usage(2)
        yield DONE

    result, _ = answer(script, CHAT)
    assert result.success
    assert result.text == "one"
    assert result.itls == []
    assert result.e2el >= 0.2
    assert result.ttft < result.e2el


def test_tokens_that_come_together_make_one_event():
    def script(request):
        yield request.event("a b c")
        yield Sleep(0.1)
        yield request.event(" d e", finish="length")
        yield request.usage(5)
        yield DONE

    result, _ = answer(script)
    assert result.output_len == 5
    assert len(result.itls) == 1
    assert result.tpot == pytest.approx((result.e2el - result.ttft) / 4)
    assert result.e2el >= 0.1


@BOTH
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_events_may_be_cut_anywhere(path, seed, line_end):
    rng = random.Random(seed)
    pieces = ["Grüße", " 水車", ' "q\\', "\n\ndata: x", " end"]

    def script(request):
        stream = request.role() if request.is_chat else b""
        stream += b": a comment\n\nevent: message\n"
        stream += b"".join(request.event(piece, finish="stop" if piece == " end" else None) for piece in pieces)
        stream = (stream + request.usage(7, num_prompt=9, num_cached=4) + DONE).replace(b"\n", line_end)
        while stream:
            size = rng.randint(1, 40 if seed else 1)
            yield stream[:size]
            yield Sleep(0.0005)
            stream = stream[size:]

    result, _ = answer(script, path)
    assert result.error == ""
    assert result.text == "".join(pieces)
    assert len(result.itls) == len(pieces) - 1
    assert (result.prompt_len, result.output_len, result.cached_len) == (9, 7, 4)


def test_a_stream_may_end_without_a_line_end():
    def script(request):
        yield request.event("a", finish="stop") + b"data: [DONE]"

    assert answer(script)[0].success


def test_what_reasoning_models_think_is_text_too():
    def script(request):
        yield request.role()
        yield Sleep(0.05)
        yield request.event(delta={"reasoning_content": "Hm. "})
        yield request.event(delta={"reasoning": "So: "})
        yield request.event("42", finish="stop")
        yield DONE

    result, _ = answer(script, CHAT)
    assert result.text == "Hm. So: 42"
    assert len(result.itls) == 2


def test_tokens_without_text_count_where_their_ids_are_told():
    def script(request):
        for index in range(3):
            yield Sleep(0.03)
            yield request.event("", token_ids=[index], finish="length" if index == 2 else None)
        yield request.usage(3)
        yield DONE

    result, _ = answer(script)
    assert len(result.itls) == 2
    assert result.ttft < result.e2el


def test_an_answer_without_any_text_has_its_first_token_at_its_end():
    def script(request):
        yield request.event("")
        yield Sleep(0.1)
        yield request.event("", finish="stop")
        yield request.usage(2)
        yield DONE

    result, _ = answer(script)
    assert result.success
    assert result.ttft == result.e2el >= 0.1
    assert result.output_len == 2


def test_usage_in_every_event_counts_once():
    def script(request):
        for index in range(4):
            finish = "stop" if index == 3 else None
            choices = [{"index": 0, "text": "x", "finish_reason": finish}]
            yield encoded({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": index + 1}})
        yield DONE

    result, _ = answer(script)
    assert (result.prompt_len, result.output_len) == (3, 4)


def test_without_usage_tokens_are_not_known():
    def script(request):
        yield request.event("a", finish="stop")
        yield DONE

    result, _ = answer(script)
    assert result.success
    assert result.output_len == 0
    assert result.text == "a"


def test_start_time_counts_from_the_epoch():
    async def work(url):
        result = RequestResult(0.0)
        async with open_session() as session:
            await Client(session, url + COMPLETIONS, timeout=60.0).send(
                body_for(COMPLETIONS), result, perf_counter() - 5
            )
        return result

    with EventServer(tokens()) as server:
        assert asyncio.run(work(server.url)).start_time >= 5.0


def mid_stream(*last):
    """An answer that begins well."""

    def script(request):
        yield request.event("a")
        yield request.event(" b")
        yield from last

    return script


ERROR = encoded({"error": {"message": "the engine is dead", "type": "Error", "code": 500}})


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        (lambda _: [Refuse(400, b'{"error": {"message": "too long", "code": 400}}')], "HTTP 400", "too long"),
        (lambda _: [Refuse(503, b"busy\nnow", "text/plain")], "HTTP 503", "busy now"),
        (lambda _: [Refuse(404)], "HTTP 404", "Reason"),
        (lambda _: [Refuse(307, b"elsewhere")], "HTTP 307", "elsewhere"),
        (mid_stream(ERROR, DONE), "error event", "the engine is dead"),
        (mid_stream(encoded({"error": "out of memory"})), "error event", "out of memory"),
        (mid_stream(Cut()), "stream cut", ""),
        (mid_stream(b"data: {\n\n"), "unreadable event", ""),
        (mid_stream(b'data: {"choices": 5}\n\n'), "unreadable event", "choices"),
        (mid_stream(b"data: \xff\n\n"), "unreadable event", ""),
        (mid_stream(), "no end", "text/event-stream"),
        (mid_stream(DONE), "no end", ""),
        (lambda _: [DONE], "no end", ""),
        (lambda _: [Refuse(200, b'{"choices": [{"text": "a", "finish_reason": "stop"}]}')], "no end", "json"),
        (lambda request: [request.event("a", finish="abort"), DONE], "finish_reason abort", ""),
        (lambda request: [request.event("a", finish="error"), DONE], "finish_reason error", ""),
        (lambda _: [Cut()], "connection lost", ""),
    ],
)  # fmt: skip
def test_failures_are_told_by_kind(script, kind, said):
    result, _ = answer(script)
    assert not result.success
    assert error_kind(result.error) == kind
    assert said in result.error


def test_what_came_before_a_failure_is_kept():
    result, _ = answer(mid_stream(Sleep(0.05), Cut()))
    assert result.text == "a b"
    assert len(result.itls) == 1
    assert 0.0 < result.ttft <= result.e2el


@pytest.mark.parametrize("before", [[], [b"data: "]])
def test_an_answer_that_takes_too_long_has_failed(before):
    result, _ = answer(lambda request: [*before, Sleep(60), request.event("a", finish="stop")], timeout=0.3)
    assert result.error == "timeout: no whole answer after 0.3 s"


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result, _ = ask(f"http://127.0.0.1:{port}")
    assert error_kind(result.error) == "cannot connect"
    assert result.ttft == result.e2el == 0.0


def test_what_is_asked_of_the_server():
    fields = {"model": "m", "temperature": 0.5, "min_p": 0.1, "max_tokens": 3}
    request = BenchRequest((5, 6), 9)
    body = json.loads(request_body(request, fields, is_chat=False, tokenizer=None))
    assert body == {
        "prompt": [5, 6],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "model": "m",
        "temperature": 0.5,
        "min_p": 0.1,
    }


def test_a_chat_has_messages():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    given = json.loads(request_body(BenchRequest(None, 9, messages=messages), {}, is_chat=True, tokenizer=None))
    assert given["messages"] == messages
    text = json.loads(request_body(BenchRequest("Hi", 9), {}, is_chat=True, tokenizer=None))
    assert text["messages"] == [{"role": "user", "content": "Hi"}]
    assert text["max_tokens"] == 9


def test_messages_need_a_chat():
    request = BenchRequest(None, 9, messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(ValueError, match="use --backend openai-chat"):
        request_body(request, {}, is_chat=False, tokenizer=None)


def test_headers_go_along():
    with EventServer(tokens()) as server:
        ask(server.url, headers=[("Authorization", "Bearer abc"), ("X-Team", "7")])
    headers = server.received[0].headers
    assert headers["authorization"] == "Bearer abc"
    assert headers["x-team"] == "7"
    assert headers["content-type"] == "application/json"
    assert "gzip" not in headers["accept-encoding"]


def test_headers_in_whatever_case_and_number():
    with EventServer(tokens()) as server:
        ask(server.url, headers=[("accept-ENCODING", "br"), ("X-Tag", "a"), ("x-tag", "b")])
    lines = [(name.lower(), value) for name, value in server.received[0].header_lines]
    assert [value for name, value in lines if name == "accept-encoding"] == ["br"]
    assert [value for name, value in lines if name == "x-tag"] == ["a", "b"]


def test_a_stream_that_stays_open_after_its_end(monkeypatch):
    """It is closed, and the next one finds a connection."""
    monkeypatch.setattr(client, "DRAIN_SECONDS", 0.2)

    def script(request):
        yield from tokens()(request)
        yield Sleep(60)

    with EventServer(script) as server:
        for _ in range(2):
            result, seconds = ask(server.url)
            assert result.success
            assert result.output_len == 5
            assert result.e2el < seconds
            assert seconds < 60


def test_a_connection_serves_one_request_after_the_other():
    async def work(url):
        async with open_session() as session:
            sender = Client(session, url + COMPLETIONS, timeout=60.0)
            for _ in range(3):
                await sender.send(body_for(COMPLETIONS), RequestResult(0.0), 0.0)
            assert len(session.connector._conns) == 1

    with EventServer(tokens()) as server:
        asyncio.run(work(server.url))
        assert server.num_connections == 1


def test_a_stream_that_stalls_after_its_first_token(monkeypatch):
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.2)

    def script(request):
        yield Sleep(0.6)  # the first token may take as long as it likes
        for _ in range(4):
            yield request.event("a")
            yield Sleep(0.1)  # each is in time
        yield Sleep(60)

    result, _ = answer(script)
    assert result.error == "stalled: nothing came for 0.2 s"
    assert result.text == "aaaa"
    assert result.seconds >= 0.6 + 4 * 0.1


def test_lines_are_bounded(monkeypatch):
    monkeypatch.setattr(client, "MAX_LINE_BYTES", 1000)
    fine, _ = answer(lambda request: [request.event("a" * 500, finish="stop"), DONE])
    assert fine.success
    result, _ = answer(mid_stream(b"data: ", *[b"a" * 400] * 4, Sleep(60)))
    assert result.error == "unreadable event: a line has more than 1000 bytes"


def test_how_long_a_failure_took():
    waited = answer(lambda _: [Sleep(0.3), Refuse(503)])[0]
    assert waited.e2el == 0.0
    assert waited.time_taken == waited.seconds >= 0.3
    cut, _ = answer(mid_stream(Sleep(0.3), Cut()))
    assert cut.e2el < 0.3 <= cut.time_taken
    whole, _ = answer(tokens())
    assert whole.time_taken == whole.e2el


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"error": "text"}', "text"),
        (b'{"message": "old"}', "old"),
        (b'{"detail": [1, 2]}', '{"detail":[1,2]}'),
        (b"[1]", "[1]"),
        (b"<html>\n<b>Bad</b>", "<html> <b>Bad</b>"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"", ""),
    ],
)
def test_what_refusals_say(content, message):
    assert refusal_message(content) == message


def test_what_errors_say():
    assert error_message({"message": None}) == '{"message":null}'
