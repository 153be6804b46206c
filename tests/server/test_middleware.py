"""What every request goes through, around applications of a few lines, over real connections."""

import asyncio
import json
import logging

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pelton.engine.errors import EngineDeadError, QueueFullError
from pelton.server.errors import APIError
from pelton.server.middleware import BodyLimit, ErrorAnswers, KeyCheck, OriginCheck, RequestContext
from tests.server.running import PATIENCE, in_loop, running


async def path_and_id(scope, receive, send):
    text = f"{scope['path']} {scope['state']['request_id']} {scope['state']['given_request_id']}"
    await PlainTextResponse(text)(scope, receive, send)


async def length(scope, receive, send):
    await PlainTextResponse(str(len(await Request(scope, receive).body())))(scope, receive, send)


def with_context(app, root_path="", log_requests=False):
    return RequestContext(app, root_path=root_path, log_requests=log_requests)


def get(app, path="/", **kwargs):
    async def main():
        async with running(app) as server:
            return await server.client.get(path, **kwargs)

    return in_loop(main)


def is_error(answer, status):
    error = answer.json()["error"]
    assert answer.status_code == status == error["code"]
    assert answer.headers["content-type"] == "application/json"
    assert error.keys() == {"message", "type", "param", "code"}
    return error["message"]


def test_a_client_names_its_request():
    answer = get(with_context(path_and_id), headers={"X-Request-Id": "my-1"})
    assert answer.text == "/ my-1 my-1"
    assert answer.headers["x-request-id"] == "my-1"


@pytest.mark.parametrize("given", [None, b"", b"a b", b"x" * 129, "é".encode(), b"a\tb"])
def test_other_requests_get_an_id(given):
    headers = {} if given is None else {"X-Request-Id": given}
    ids = {get(with_context(path_and_id), headers=headers).text.split()[1] for _ in range(2)}
    assert len(ids) == 2
    assert all(len(name) == 32 for name in ids)


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/health", "/health"),
        ("/models/health", "/health"),
        ("/models/", "/"),
        ("/modelsx", "/modelsx"),
        ("/models/models/health", "/models/health"),
    ],
)
def test_the_path_of_a_proxy_is_taken_off_once(path, seen):
    assert get(with_context(path_and_id, root_path="/models"), path).text.split()[0] == seen


@pytest.mark.parametrize("query", ["", "?a=b&c=%2F"])
def test_the_path_of_a_proxy_without_a_slash_leads_to_the_page(query):
    """Else the page would look for its files beside the path."""
    answer = get(with_context(path_and_id, root_path="/models"), "/models" + query)
    assert (answer.status_code, answer.headers["location"]) == (307, "/models/" + query)
    assert answer.headers["x-request-id"]


LOCAL = with_context(OriginCheck(path_and_id, allowed=["http://app.example:3000"]))
FRIENDS = [
    "http://localhost:8000",
    "http://a.localhost",
    "http://127.0.0.1:8000",
    "http://[::1]:8000",
    "http://192.168.1.5",
    "https://evil.example:8000",
    "http://app.example:3000",
    "vscode-webview://abc",
    "null",
]


@pytest.mark.parametrize("origin", FRIENDS)
def test_pages_that_no_name_can_forge_may_use_a_local_server(origin):
    assert get(LOCAL, headers={"Origin": origin}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example:8000", "HTTP://evil.example", "http://localhost.evil.example", "http://[x", "http://"],
)
def test_sites_whose_name_leads_here_may_not(origin):
    message = is_error(get(LOCAL, headers={"Origin": origin}), 403)
    assert origin in message
    assert "allow it with --allowed-origins" in message


def test_any_page_may_if_all_are_allowed():
    app = with_context(OriginCheck(path_and_id, allowed=["*"]))
    assert get(app, headers={"Origin": "http://evil.example"}).status_code == 200


def test_what_is_no_page_has_no_origin():
    assert get(LOCAL, headers={"Host": "evil.example"}).status_code == 200


def test_requests_are_logged_as_json(caplog):
    caplog.set_level(logging.INFO, "pelton.server.access")
    headers = {"X-Request-Id": "my-1"}
    answer = get(with_context(path_and_id, log_requests=True), '/a"b?secret=1', headers=headers)
    assert answer.status_code == 200
    (record,) = caplog.records
    line = json.loads(record.getMessage())
    assert line.keys() == {"time", "request_id", "client", "method", "path", "status", "seconds"}
    assert (line["request_id"], line["method"], line["path"], line["status"]) == ("my-1", "GET", '/a"b', 200)
    assert line["client"] == "127.0.0.1"
    assert line["seconds"] >= 0


def test_requests_are_not_logged_by_default(caplog):
    caplog.set_level(logging.INFO, "pelton")
    get(with_context(path_and_id))
    assert not caplog.records


KEYED = with_context(KeyCheck(path_and_id, keys=["key-1", "key-2"]))


@pytest.mark.parametrize("value", ["Bearer key-1", "Bearer key-2", "bearer key-1", "Bearer  key-1"])
def test_a_key_lets_in(value):
    assert get(KEYED, "/v1/models", headers={"Authorization": value}).status_code == 200


NO_KEYS = [b"", b"Bearer", b"Bearer ", b"Bearer key", b"Bearer key-11", b"Basic key-1", b"key-1", b"Bearer \xff\xfe"]


@pytest.mark.parametrize(
    "path", ["/v1/models", "/tokenize", "/nowhere", "/v1/../health", "//health", "/health/", "/%2fhealth"]
)
def test_others_stay_outside(path):
    async def main():
        async with running(KEYED) as server:
            for header in [b"", *(b"Authorization: %b\r\n" % value for value in NO_KEYS)]:
                request = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" % (path.encode(), header)
                head, _, body = (await server.send(request)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 401 ")
                assert b"\r\nwww-authenticate: Bearer\r\n" in head
                assert b"\r\nx-request-id: " in head
                assert "API key is missing or wrong" in json.loads(body)["error"]["message"]

    in_loop(main)


def test_two_keys_are_none():
    headers = [("Authorization", "Bearer key-1"), ("Authorization", "Bearer key-2")]
    assert get(KEYED, "/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("path", ["/", "/health", "/ping", "/metrics", "/version", "/openapi.json", "/page/style.css"])
def test_open_paths(path):
    assert get(KEYED, path).status_code == 200


def test_the_path_of_a_proxy_opens_nothing():
    """Neither the proxy's path twice nor a page below it leads past the key."""
    app = with_context(KeyCheck(path_and_id, keys=["k"]), root_path="/page")
    assert get(app, "/page/v1/models").status_code == 401
    assert get(app, "/page/page/v1/models").text.startswith("/page/v1/models "), "it is no other path for routes"


def failing_with(error):
    async def app(scope, receive, send):
        raise error

    return with_context(ErrorAnswers(app))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (APIError(404, "not here"), 404),
        (EngineDeadError("core 3 died at /tmp/x"), 503),
        (QueueFullError("as many wait as may", 7), 503),
        (ValueError("/a/path"), 500),
        (KeyError("secret"), 500),
        (RecursionError(), 500),
    ],
)
def test_errors_have_one_shape(error, status):
    answer = get(failing_with(error))
    message = is_error(answer, status)
    assert not any(word in answer.text for word in ("Traceback", "secret", "/tmp", "/a/path"))
    assert message
    assert answer.headers.get("retry-after") == ("7" if isinstance(error, QueueFullError) else None)
    assert answer.headers["x-request-id"]


def test_unexpected_errors_are_logged_with_the_id(caplog):
    get(failing_with(KeyError("secret")), headers={"X-Request-Id": "my-1"})
    assert any("my-1" in record.getMessage() for record in caplog.records)
    assert any(record.exc_info for record in caplog.records)


def test_an_error_after_the_beginning_ends_the_connection(caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise KeyError

    with pytest.raises(httpx.RemoteProtocolError):
        get(with_context(ErrorAnswers(app)))
    assert any(record.exc_info for record in caplog.records)


def limited(max_bytes=1000, app=length):
    return with_context(ErrorAnswers(BodyLimit(app, max_bytes=max_bytes)))


async def pieces(num_pieces, piece=b"x" * 100):
    for _ in range(num_pieces):
        yield piece


def post(app, **kwargs):
    async def main():
        async with running(app) as server:
            return await server.client.post("/", **kwargs)

    return in_loop(main)


def test_bodies_within_the_limit():
    assert post(limited(), content=b"x" * 1000).text == "1000"
    assert post(limited(), content=pieces(10)).text == "1000"
    assert post(limited()).text == "0"


@pytest.mark.parametrize("content", [lambda: b"x" * 1001, lambda: pieces(11), lambda: b"x" * 1_000_000])
def test_bodies_beyond_it(content):
    answer = post(limited(), content=content())
    assert "larger than 1000 bytes" in is_error(answer, 413)
    assert answer.headers["connection"] == "close"


def test_a_client_that_sends_without_reading_gets_its_answer():
    """As much again as may come is thrown away before the connection ends, so that the answer is not lost."""

    async def main():
        async with running(limited(1 << 20)) as server:
            return await server.client.post("/", content=pieces(20, b"x" * (1 << 16)))

    assert is_error(in_loop(main), 413)


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"])
def test_the_connection_ends_after_a_body_that_is_too_large(expect):
    async def main():
        async with running(limited()) as server:
            reader, writer = await server.connect()
            writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n{expect}\r\n".encode())
            if not expect:
                writer.write(b"x" * 5000)
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.count(b"HTTP/1.1") == 1, "nobody was told to go on"

    in_loop(main)


@pytest.mark.parametrize("value", ["1" * 30, "9" * 18])
def test_lengths_beyond_reason(value):
    async def main():
        async with running(limited()) as server:
            answer = await server.send(
                f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {value}\r\nExpect: 1\r\n\r\n".encode()
            )
        assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))

    in_loop(main)


def test_a_client_that_leaves_within_its_body_is_no_error(caplog):
    async def main():
        began = asyncio.Event()

        async def app(scope, receive, send):
            began.set()
            await length(scope, receive, send)

        async with running(limited(app=app)) as server:
            _, writer = await server.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\nabc")
            await asyncio.wait_for(began.wait(), PATIENCE)
            writer.transport.abort()

    in_loop(main)
    assert not caplog.records


def test_no_content_is_no_body():
    async def app(scope, receive, send):
        await Response(status_code=204)(scope, receive, send)

    assert get(limited(app=app)).status_code == 204
