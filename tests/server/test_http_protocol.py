import json

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pelton.server.http_protocol import MAX_HEAD_BYTES
from tests.server.running import in_loop, running


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
    async def forever(scope, receive, send):
        async def events():
            yield b"first"
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return

        await StreamingResponse(events())(scope, receive, send)

    async def test():
        async with running(forever) as server:
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b"first" in await reader.readuntil(b"first\r\n")
            writer.write(b"\0\0\0\r\n\r\n")
            assert await reader.read() == b""
            writer.close()

    in_loop(test)
