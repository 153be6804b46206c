"""The application: its paths, what it refuses, and what it says of itself. The engine is played."""

import asyncio
import json
import logging

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pelton import __version__
from pelton.config import ServeConfig
from pelton.engine.errors import EngineDeadError, QueueFullError
from pelton.server.app import create_app
from pelton.server.middleware import OPEN_PATHS, PAGE_FILES
from tests.server.running import PATIENCE, in_loop, running
from tests.support.fake_async_llm import MODEL, FakeAsyncLLM, Script

JSON = {"Content-Type": "application/json"}
POSTS = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}
GETS = ["/v1/models", f"/v1/models/{MODEL}", "/health", "/ping", "/version", "/load", "/metrics", "/"]


def client_of(llm=None, is_local=False, **config):
    app = create_app(llm or FakeAsyncLLM(), ServeConfig(**config), is_local=is_local)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def ask(method, path, *, llm=None, config=None, **kwargs):
    """The answer to one request."""

    async def main():
        async with client_of(llm, **(config or {})) as client:
            return await client.request(method, path, **kwargs)

    return in_loop(main)


def is_error(answer, status):
    """The error in an answer."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == status
    return body["error"]["message"]


def test_every_path_that_answers():
    for path, body in POSTS.items():
        assert ask("POST", path, json=body).status_code == 200, path
    for path in GETS:
        assert ask("GET", path).status_code == 200, path


@pytest.mark.parametrize("path", GETS)
def test_heads_of_what_can_be_got(path):
    answer, whole = ask("HEAD", path), ask("GET", path)
    assert (answer.status_code, answer.headers.get("content-type")) == (200, whole.headers.get("content-type"))


def test_heads_are_guarded_too():
    assert ask("HEAD", "/v1/models", config={"api_key": ["k"]}).status_code == 401


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"is_local": True}, 403),
        ({"is_local": True, "allowed_origins": ["http://evil.example"]}, 200),
        ({"is_local": True, "api_key": ["k"]}, 200),
        ({}, 200),
    ],
)
def test_sites_that_pretend_to_be_here(config, status):
    """Where a key, or the way to the server, keeps others out, no origin matters."""
    headers = {"Origin": "http://evil.example", "Authorization": "Bearer k"}
    assert ask("POST", "/v1/completions", json={"prompt": "Hi"}, headers=headers, config=config).status_code == status


def test_keys_that_were_not_read_let_nobody_in():
    with pytest.raises(ValueError, match=r"^api_key_file is 'keys', but the keys are not in .*; read them first"):
        client_of(api_key_file="keys")


def test_a_completion():
    answer = ask("POST", "/v1/completions", json={"prompt": "Hi"}, headers={"X-Request-Id": "my-1"})
    assert answer.headers["x-request-id"] == "my-1"
    body = answer.json()
    assert (body["id"], body["object"], body["model"]) == ("cmpl-my-1", "text_completion", MODEL)
    assert body["choices"][0]["text"] == "Hello there!"


def test_a_chat():
    answer = ask("POST", "/v1/chat/completions", json=POSTS["/v1/chat/completions"]).json()
    assert answer["choices"][0]["message"]["content"] == "Hello there!"


def test_ids_of_answers_and_headers_are_one():
    answer = ask("POST", "/v1/completions", json={"prompt": "Hi"})
    assert answer.json()["id"] == "cmpl-" + answer.headers["x-request-id"]
    assert ask("POST", "/v1/completions", json={"prompt": "Hi", "request_id": "b"}).json()["id"] == "cmpl-b"
    headers = {"X-Request-Id": "h"}
    body = {"prompt": "Hi", "request_id": "b"}
    assert ask("POST", "/v1/completions", json=body, headers=headers).json()["id"] == "cmpl-h"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams(path):
    answer = ask("POST", path, json=POSTS[path] | {"stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for event in events:
        assert json.loads(event.removeprefix("data: "))["id"].endswith(answer.headers["x-request-id"])


def test_the_rank_of_an_engine_core():
    llm = FakeAsyncLLM()
    assert ask("POST", "/v1/completions", llm=llm, json={"prompt": "Hi"}, headers={"X-data-parallel-rank": "3"})
    assert llm.calls[0].data_parallel_rank == 3
    for rank in ("-1", "x", "", "1" * 20):
        answer = ask("POST", "/v1/completions", json={"prompt": "Hi"}, headers={"X-data-parallel-rank": rank})
        assert "X-data-parallel-rank must be the rank of an engine core" in is_error(answer, 400)


def test_names_of_the_model():
    config = {"served_model_name": ["a/b", "c"]}
    cards = ask("GET", "/v1/models", config=config).json()
    assert [(card["id"], card["root"]) for card in cards["data"]] == [("a/b", MODEL), ("c", MODEL)]
    assert ask("GET", "/v1/models/a/b", config=config).json()["id"] == "a/b"
    assert is_error(ask("GET", f"/v1/models/{MODEL}", config=config), 404)
    body = {"prompt": "Hi", "model": "c"}
    assert ask("POST", "/v1/completions", json=body, config=config).json()["model"] == "a/b"
    assert is_error(ask("POST", "/v1/completions", json=body | {"model": MODEL}, config=config), 404)


def test_health():
    llm = FakeAsyncLLM()
    for healthy, status in ((True, 200), (False, 503)):
        llm.healthy = healthy
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            answer = ask(method, path, llm=llm)
            assert (answer.status_code, answer.content) == (status, b"")


def test_what_the_server_says_of_itself():
    assert ask("GET", "/version").json() == {"version": __version__}
    assert ask("GET", "/load").json() == {"server_load": 0}
    page = ask("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in ("/docs", "/redoc"):
        assert is_error(ask("GET", path), 404)


def test_load_counts_requests():
    async def main():
        llm, hold = FakeAsyncLLM(), asyncio.Event()
        llm.play(Script(hold=hold))
        async with client_of(llm) as client:
            request = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi"}))
            while not llm.streams:
                await asyncio.sleep(0)
            assert (await client.get("/load")).json() == {"server_load": 1}
            hold.set()
            await request
            assert (await client.get("/load")).json() == {"server_load": 0}

    in_loop(main)


def test_metrics():
    answer = ask("GET", "/metrics", config={"metrics_prefix": "pelton"})
    assert answer.headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert names == {"pelton:num_requests_running", "pelton:generation_tokens"}


def test_administration_needs_a_flag(monkeypatch):
    llm = FakeAsyncLLM()
    assert is_error(ask("POST", "/reset_prefix_cache", llm=llm), 404)
    assert llm.num_prefix_resets == 0
    answer = ask("POST", "/reset_prefix_cache", llm=llm, config={"enable_admin_endpoints": True})
    assert (answer.status_code, answer.content, llm.num_prefix_resets) == (200, b"", 1)

    async def in_use():
        return False

    monkeypatch.setattr(llm, "reset_prefix_cache", in_use)
    assert is_error(ask("POST", "/reset_prefix_cache", llm=llm, config={"enable_admin_endpoints": True}), 409)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "it is not a JSON object"),
        (b'"x"', "it is not a JSON object"),
        (b"null", "it is not a JSON object"),
        (b"{} {}", "Extra data"),
        (b"\xff{}", "it is not UTF-8, at byte 0"),
        (b'{"prompt": "\xed\xa0\x80"}', "it is not UTF-8, at byte 12"),
        (b'{"prompt": "\\ud800"}', "lone surrogate"),
        (b'{"prompt": ["\\uDFFF"]}', "lone surrogate"),
        (b'{"\\ud83d": 1}', "not printable"),
        (b'{"x": [{"\\ud83dx": 1}]}', "lone surrogate"),
        (b'{"prompt": "a", "prompt": "b"}', "'prompt' occurs twice"),
        (b'{"x": {"a": 1, "a": 1}}', "'a' occurs twice"),
        (b'{"temperature": NaN}', "NaN is no number in JSON"),
        (b'{"x": [-Infinity]}', "-Infinity is no number in JSON"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "an integer of too many digits"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("path", POSTS)
def test_bodies_that_are_no_json_object(path, body, words):
    answer = ask("POST", path, content=body, headers=JSON)
    message = is_error(answer, 400)
    assert message.startswith("The request body is not a valid JSON object: ")
    assert words in message


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "Hi", "seed": ' + b"1" * 4000 + b"}",
        b'{"prompt": "Hi", "temperature": 1e999}',
        b'{"prompt": "Hi", "n": 1e400}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": [[]]}',
        b"{}",
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"prompt": "Hi", "logit_bias": ' + b'{"1":' * 500 + b"1" + b"}" * 500 + b"}",
    ],
)
def test_values_that_are_not_valid(body):
    answer = ask("POST", "/v1/completions", content=body, headers=JSON)
    assert len(is_error(answer, 400)) < 2100


def test_pairs_of_surrogates_are_text():
    body = b'{"prompt": "\\ud83d\\ude00 \\\\ud800", "echo": true}'
    answer = ask("POST", "/v1/completions", content=body, headers=JSON)
    assert answer.json()["choices"][0]["text"].startswith("\U0001f600 \\ud800")


@pytest.mark.parametrize(
    "given", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
def test_types_of_json(given):
    answer = ask("POST", "/tokenize", content=b'{"prompt": "Hi"}', headers={"Content-Type": given})
    assert answer.status_code == 200


@pytest.mark.parametrize("given", [None, "", "text/plain", "application/x-www-form-urlencoded", "text/json", "json"])
def test_other_types_are_refused(given):
    headers = {} if given is None else {"Content-Type": given}
    message = is_error(ask("POST", "/tokenize", content=b'{"prompt": "Hi"}', headers=headers), 415)
    assert "with curl, add -H 'Content-Type: application/json'" in message


def test_large_bodies_are_refused():
    config = {"max_request_bytes": 100}
    assert ask("POST", "/tokenize", json={"prompt": "Hi"}, config=config).status_code == 200
    message = is_error(ask("POST", "/tokenize", json={"prompt": "Hi" * 50}, config=config), 413)
    assert "larger than 100 bytes" in message


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/other", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/completions/", 404),
        ("DELETE", "/health", 405),
        ("OPTIONS", "/v1/models", 405),
    ],
)
def test_paths_and_methods_that_do_not_exist(method, path, status):
    answer = ask(method, path)
    is_error(answer, status)
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_refuses(path, stream):
    llm = FakeAsyncLLM()
    body = POSTS[path] | {"stream": stream}
    llm.refusals += [
        ValueError("max_tokens must be less"),
        QueueFullError("too many wait", 7),
        EngineDeadError("x"),
        KeyError("x"),
    ]
    assert is_error(ask("POST", path, llm=llm, json=body), 400) == "max_tokens must be less"
    answer = ask("POST", path, llm=llm, json=body)
    assert (is_error(answer, 503), answer.headers["retry-after"]) == ("too many wait", "7")
    assert "engine cannot serve" in is_error(ask("POST", path, llm=llm, json=body), 503)
    assert "x" not in is_error(ask("POST", path, llm=llm, json=body), 500).split()
    assert ask("POST", path, llm=llm, json=body).status_code == 200


def test_profiles():
    llm, flags = FakeAsyncLLM(), {"enable_admin_endpoints": True}
    assert is_error(ask("POST", "/start_profile", llm=llm), 404)
    assert is_error(ask("POST", "/stop_profile", llm=llm, config=flags), 409)
    assert ask("POST", "/start_profile", llm=llm, config=flags).status_code == 200
    assert is_error(ask("POST", "/start_profile", llm=llm, config=flags), 409)
    answer = ask("POST", "/stop_profile", llm=llm, config=flags)
    assert (answer.status_code, answer.text) == (200, "Engine core 0\nstep")
    assert answer.headers["content-type"].startswith("text/plain")


def test_only_open_paths_need_no_key():
    """Every route there is, so that a new one cannot be left open by mistake."""
    app = create_app(FakeAsyncLLM(), ServeConfig(api_key=["k"], enable_admin_endpoints=True))
    operations = {(method, path) for path, item in app.openapi()["paths"].items() for method in item}
    operations |= {("get", route.path) for route in app.routes}

    async def main():
        answers = {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for method, path in operations:
                url = path.replace("{model}", MODEL).replace("{model:path}", MODEL)
                answers[method, path] = (await client.request(method, url)).status_code
                with_key = await client.request(method, url, headers={"Authorization": "Bearer k"})
                assert with_key.status_code != 401
        return answers

    answers = in_loop(main)
    assert len(answers) > 15
    for (method, path), status in answers.items():
        is_open = path in OPEN_PATHS or path.startswith(PAGE_FILES)
        assert (status != 401) == is_open, (method, path)


def test_origins():
    preflight = {"Origin": "https://a.org", "Access-Control-Request-Method": "POST"}
    preflight["Access-Control-Request-Headers"] = "authorization,content-type"
    config = {"allowed_origins": ["https://a.org"], "api_key": ["k"]}
    answer = ask("OPTIONS", "/v1/completions", headers=preflight, config=config)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://a.org"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    refused = ask("POST", "/v1/completions", headers={"Origin": "https://a.org"}, config=config)
    assert is_error(refused, 401)
    assert refused.headers["access-control-allow-origin"] == "https://a.org", "pages can read why"
    other = ask("GET", "/version", headers={"Origin": "https://b.org"}, config=config)
    assert "access-control-allow-origin" not in other.headers


def test_no_other_origin_by_default():
    answer = ask("GET", "/version", headers={"Origin": "https://a.org"})
    assert "access-control-allow-origin" not in answer.headers


def test_below_a_path_of_a_proxy():
    config = {"root_path": "/models"}
    for path in ("/models/v1/models", "/v1/models"):
        assert ask("GET", path, config=config).json()["data"][0]["id"] == MODEL
    assert ask("GET", "/models/", config=config).headers["content-type"].startswith("text/html")
    assert ask("GET", "/models", config=config).headers["location"] == "/models/"
    assert ask("GET", "/openapi.json", config=config).json()["servers"] == [{"url": "/models"}]


def test_a_failure_within_the_server(caplog, monkeypatch):
    llm = FakeAsyncLLM()

    async def fail():
        raise OSError("/secret/path")

    monkeypatch.setattr(llm, "get_metrics", fail)
    assert "/secret" not in is_error(ask("GET", "/metrics", llm=llm), 500)
    assert any(record.exc_info for record in caplog.records)


def test_requests_are_logged(caplog):
    caplog.set_level(logging.INFO, "pelton.server.access")
    ask("POST", "/v1/completions", json={"prompt": "Hi"}, config={"log_requests": True}, headers={"X-Request-Id": "q"})
    (record,) = caplog.records
    assert json.loads(record.getMessage())["request_id"] == "q"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_clients_that_leave_withdraw_their_requests(path, stream):
    async def main():
        llm = FakeAsyncLLM()
        llm.play(Script(hold=asyncio.Event(), hold_at=1))
        body = json.dumps(POSTS[path] | {"stream": stream}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        async with running(create_app(llm, ServeConfig()), llm) as server:
            reader, writer = await server.connect()
            writer.write(head.encode() + body)
            if stream:
                await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE)
            while not llm.streams:
                await asyncio.sleep(0.001)
            writer.transport.abort()
            while llm.num_unfinished_requests:
                await asyncio.sleep(0.001)
            assert llm.streams[0].is_closed

    in_loop(main)


def test_the_server_ends_while_a_stream_runs():
    """The client gets the end of the stream, properly ended, although the request takes too long."""

    async def main():
        llm = FakeAsyncLLM()
        llm.play(Script(hold=asyncio.Event(), hold_at=1))
        async with running(create_app(llm, ServeConfig()), llm, shutdown_timeout=0.01) as server:
            body = {"prompt": "Hi", "stream": True}
            async with server.client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                server.stop.ask()
                rest = [line async for line in lines if line]
            assert await server.ended() == 0
        assert rest[-1] == "data: [DONE]"
        assert llm.is_shut_down

    in_loop(main)
