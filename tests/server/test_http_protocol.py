import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pelton.server import http_protocol
from pelton.server.http_protocol import MAX_HEAD_BYTES
from tests.server.running import PATIENCE, in_loop, running


async def echo(scope, receive, send):
    """Answers with what came."""
    request = Request(scope, receive)
    body = await request.body()
    headers = {name: value for name, value in request.headers.items() if name.startswith("x-")}
    seen = {"method": scope["method"], "path": scope["path"], "body": body.decode(), "headers": headers}
    await Response(json.dumps(seen), media_type="application/json")(scope, receive, send)


def answers(data: bytes) -> list[tuple[int, dict]]:
    """Status and content of all answers in these bytes."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        found.append((int(lines[0].split()[1]), json.loads(rest[:length])))
        data = rest[length:]
    return found


def sent(data: bytes) -> list[tuple[int, dict]]:
    async def test():
        async with running(echo) as server:
            return answers(await server.send(data))

    return in_loop(test)


def refusal(data: bytes) -> int:
    """The status of the only answer, which is an error."""
    ((status, content),) = sent(data)
    assert content["error"]["code"] == status
    assert content["error"]["message"]
    return status


FIRST_LINE = b"GET / HTTP/1.1\r\n"
LAST = b"Connection: close\r\n\r\n"


@pytest.mark.parametrize("wish", [b"websocket", b"h2c"])
def test_wishes_for_another_protocol_are_ignored(wish):
    """The body is read, and so are later requests of the connection."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + wish + b"\r\nHTTP2-Settings: AA\r\nX-A: 1\r\n"
    first = b"POST /a HTTP/1.1\r\n" + upgrade + b"Content-Length: 2\r\n\r\nhi"
    second = b"GET /b HTTP/1.1\r\n" + upgrade + b"\r\n"
    third = b"POST /c HTTP/1.1\r\nX-B: 2\r\nContent-Length: 3\r\n" + LAST + b"you"
    assert [content for _, content in sent(first + second + third)] == [
        {"method": "POST", "path": "/a", "body": "hi", "headers": {"x-a": "1"}},
        {"method": "GET", "path": "/b", "body": "", "headers": {"x-a": "1"}},
        {"method": "POST", "path": "/c", "body": "you", "headers": {"x-b": "2"}},
    ]


def test_a_wish_that_comes_in_pieces():
    async def test():
        async with running(echo) as server:
            reader, writer = await server.connect()
            data = b"POST /a HTTP/1.1\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nbody"
            for index in range(len(data)):
                writer.write(data[index : index + 1])
                await writer.drain()
            answer = await reader.read()
            writer.close()
            return answers(answer)

    assert in_loop(test) == [(200, {"method": "POST", "path": "/a", "body": "body", "headers": {}})]


def test_this_is_no_proxy():
    assert refusal(b"CONNECT test:80 HTTP/1.1\r\nHost: test:80\r\n\r\n") == 400


@pytest.mark.parametrize("data", [b"\0" * 10, b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/3.0\r\n\r\n"])
def test_what_is_no_http(data):
    assert refusal(data) == 400


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES, 20 * MAX_HEAD_BYTES])
@pytest.mark.parametrize(
    "beginning", [b"GET /", b"GET / HTTP/1.1\r\nX-A: ", b"GET / HTTP/1.1\r\n" + b"X-A: 1\r\n" * 9000]
)
def test_heads_that_are_too_large(beginning, size):
    """Whether they end or not."""

    async def test():
        async with running(echo) as server:
            for end in (b"", b"\r\n\r\n" if b"X-A" in beginning else b" HTTP/1.1\r\n\r\n"):
                reader, writer = await server.connect()
                writer.write(beginning + b"a" * size + end)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
                assert b"connection: close" in head.lower()
                writer.close()

    in_loop(test)


def test_bodies_count_for_no_head():
    request = b"POST /a HTTP/1.1\r\nX-A: " + b"a" * 40_000 + b"\r\nContent-Length: 100000\r\n"
    found = sent(request + b"\r\n" + b"b" * 100_000 + request + LAST + b"c" * 100_000)
    assert [(status, len(content["body"])) for status, content in found] == [(200, 100_000)] * 2


def test_garbage_behind_a_request_does_not_get_into_its_answer():
    async def test():
        async with running(forever) as server:
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b"first" in await reader.readuntil(b"first\r\n")
            writer.write(b"\0\0\0\r\n\r\n")
            assert await reader.read() == b""
            writer.close()

    in_loop(test)


async def forever(scope, receive, send):
    """Begins an answer that ends with the connection, unless the path is for one that never begins."""

    async def events():
        yield b"first"
        while (await receive())["type"] != "http.disconnect":
            pass

    if scope["path"] != "/silent":
        await StreamingResponse(events())(scope, receive, send)
        return
    while (await receive())["type"] != "http.disconnect":
        pass
    scope["state"]["ended"].set()


CHUNKED = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"


def test_trailers_are_no_headers():
    data = CHUNKED + b"X-A: 1\r\nTrailer: x-b\r\n\r\n2\r\nhi\r\n0\r\nX-B: 2\r\nAuthorization: Bearer k\r\n\r\n"
    found = sent(data + FIRST_LINE + b"X-C: 3\r\n" + LAST)
    assert [content["headers"] for _, content in found] == [{"x-a": "1"}, {"x-c": "3"}]
    assert found[0][1]["body"] == "hi"


@pytest.mark.parametrize("endless", [b"0\r\nX-B: ", b"0\r\n" + b"X-B: 2\r\n" * 9000, b"2;x="])
def test_what_is_no_piece_of_a_body_is_limited(endless):
    """However it is cut into packets."""

    async def test():
        async with running(echo) as server:
            reader, writer = await server.connect()
            writer.write(CHUNKED + b"\r\n2\r\nhi\r\n" + endless)
            for _ in range(8):
                writer.write(b"a" * (MAX_HEAD_BYTES // 4))
                await writer.drain()
                await asyncio.sleep(0)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 431 ")
            writer.close()

    in_loop(test)


def test_many_pieces_of_a_body_count_for_nothing():
    pieces = b"8;x=1\r\n12345678\r\n" * 20_000
    ((status, content),) = sent(CHUNKED + LAST + pieces + b"0\r\n\r\n")
    assert (status, len(content["body"])) == (200, 160_000)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_only_clients_that_know_chunks_get_them(version):
    async def stream(scope, receive, send):
        async def events():
            yield b"first,"
            yield b"second"

        await StreamingResponse(events())(scope, receive, send)

    async def test():
        async with running(stream) as server:
            return await server.send(b"GET / HTTP/%b\r\n" % version + LAST)

    head, _, body = in_loop(test).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert (b"transfer-encoding" in head, body == b"first,second") == (version == b"1.1", version == b"1.0")


def test_answers_of_known_length_to_old_clients():
    ((status, content),) = sent(b"POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
    assert (status, content["body"]) == (200, "hi")


HEADS = [b"G", FIRST_LINE, b"\r\n", FIRST_LINE + b"\r\n" + FIRST_LINE, CHUNKED + b"\r\n0\r\n\r\n\r\n\r\nGET"]
BODIES = [CHUNKED + b"\r\n2\r\nhi\r\n", CHUNKED + b"\r\n0\r\nX-B: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhi"]


@pytest.mark.parametrize("data", HEADS + BODIES)
def test_who_does_not_go_on_is_told_after_a_while(monkeypatch, data):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05 if data in HEADS else PATIENCE)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.05 if data in BODIES else PATIENCE)
    status, content = sent(data)[-1]
    assert (status, content["error"]["code"]) == (408, 408)
    assert "did not come in whole in time" in content["error"]["message"]


def test_who_asks_nothing_is_sent_away_without_a_word(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
    assert sent(b"") == []


def test_slow_bodies_may_come_in_piece_by_piece(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.5)

    async def test():
        async with running(echo) as server:
            reader, writer = await server.connect()
            writer.write(b"POST /a HTTP/1.1\r\nContent-Length: 12\r\n" + LAST)
            for _ in range(12):
                await asyncio.sleep(0.05)
                writer.write(b"a")
            answer = await reader.read()
            writer.close()
            return answers(answer)

    ((status, content),) = in_loop(test)
    assert (status, content["body"]) == (200, "a" * 12)


def test_time_does_not_end_an_answer(monkeypatch):
    """A head that stops behind a request that takes long, and a client that only waits."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.05)

    async def late(scope, receive, send):
        await asyncio.sleep(0.4)
        await echo(scope, receive, send)

    async def test():
        async with running(late) as server:
            for behind in (b"", b"GET /b HT"):
                reader, writer = await server.connect()
                writer.write(FIRST_LINE + b"\r\n" + behind)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                writer.close()

    in_loop(test)


def test_a_body_that_stops_behind_its_answer_gets_no_second_one(monkeypatch):
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.05)

    async def test():
        async with running(Response("no", status_code=401)) as server:
            return await server.send(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhi")

    answer = in_loop(test)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("bad", [b"GET /" + b"a" * 20 * MAX_HEAD_BYTES, b"\0\r\n\r\n"])
def test_a_refusal_ends_the_request_before_it(bad):
    async def test():
        ended = asyncio.Event()

        async def app(scope, receive, send):
            await forever({**scope, "state": {"ended": ended}}, receive, send)
            await Response("too late")(scope, receive, send)

        async with running(app) as server:
            reader, writer = await server.connect()
            writer.write(b"GET /silent HTTP/1.1\r\n\r\n" + bad)
            await asyncio.wait_for(ended.wait(), PATIENCE)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
            writer.write_eof()
            assert b"too late" not in await reader.read()
            writer.close()

    in_loop(test)
