"""What flags of `pelton serve` do to a whole server: keys, names, paths, logs, TLS, sockets, the queue's limit."""

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.http_client import (
    INSTANT,
    PATIENCE,
    STEP_CLOCK,
    Answer,
    check_error,
    connect,
    exchange,
    get,
    post,
    read_answer,
    request_bytes,
    stream,
    wait_for,
)
from tests.support.served import Served

KEY, OTHER_KEY = "sk-first-4711", "sk-second-0815"
BEARER = {"Authorization": f"Bearer {KEY}"}
ORIGIN = "https://example.org"
ROOT = "/models/small"
COMPLETION: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
SECRET = "a prompt that nobody else should read"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """With keys, two names, one allowed origin, a path before all others, and a log."""
    flags = ["--api-key", KEY, "--api-key", OTHER_KEY, "--served-model-name", "first", "--served-model-name", "second"]
    flags += ["--allowed-origins", ORIGIN, "--root-path", ROOT, "--log-requests", "--max-model-len", "256"]
    with Served("smollm2", *INSTANT, *flags) as served:
        yield served


# --------------------------------------------------------------------------------------------------------- keys

GUARDED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/first"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/load"),
    ("GET", "/v1/nothing"),
    ("DELETE", "/v1/models"),
]
HEADERS: dict[str, dict[str, str]] = {
    "none": {},
    "empty": {"Authorization": ""},
    "no key": {"Authorization": "Bearer"},
    "wrong": {"Authorization": "Bearer sk-wrong"},
    "longer": {"Authorization": f"Bearer {KEY}x"},
    "shorter": {"Authorization": f"Bearer {KEY[:-1]}"},
    "another scheme": {"Authorization": f"Basic {KEY}"},
    "not ASCII": {"Authorization": "Bearer sk-ä\xff"},
    "only in the query": {"X-Api-Key": KEY},
}


@pytest.mark.parametrize("root", ["", ROOT])
@pytest.mark.parametrize("name", HEADERS)
def test_nobody_gets_in_without_a_key(guarded, name, root):
    for method, path in GUARDED:
        data = request_bytes(f"{root}{path}?key={KEY}", COMPLETION, method=method, **HEADERS[name])
        answer = exchange(guarded, data)
        error = check_error(answer, 401)
        assert error["type"] == "AuthenticationError"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.body.decode()


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_each_key_lets_in(guarded, key, scheme):
    headers = {"Authorization": f"{scheme} {key}"}
    assert get(guarded, "/v1/models", **headers).status == 200
    assert post(guarded, "/v1/completions", COMPLETION, **headers).status == 200
    check_error(get(guarded, "/v1/nothing", **headers), 404)


@pytest.mark.parametrize("path", ["/health", "/ping", "/metrics", "/version", "/openapi.json", "/"])
def test_some_pages_are_open(guarded, path):
    root = guarded.url.removesuffix("/")[: -len(ROOT)] if guarded.url.endswith(ROOT) else guarded.url
    assert root.startswith("http://127.0.0.1:")
    assert get(guarded, path).status == 200


# ------------------------------------------------------------------------------------------- browsers, proxies, names


def preflight(origin: str) -> bytes:
    headers = {"Origin": origin, "Access_Control_Request_Method": "POST"}
    headers["Access_Control_Request_Headers"] = "authorization,content-type"
    return request_bytes("/v1/chat/completions", method="OPTIONS", **headers)


def test_browsers_ask_first(guarded):
    """Without a key, which browsers do not send then."""
    answer = exchange(guarded, preflight(ORIGIN))
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    answer = exchange(guarded, preflight("https://example.com"))
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers


def test_answers_say_which_pages_may_read_them(guarded):
    for headers in (BEARER, {}):  # pages may read why they are refused
        answer = get(guarded, "/v1/models", Origin=ORIGIN, **headers)
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
        assert "access-control-allow-origin" not in get(guarded, "/v1/models", Origin="null", **headers).headers


def test_the_path_of_a_proxy(guarded):
    """Whether the proxy takes it off or not."""
    for root in ("", ROOT):
        answer = post(guarded, f"{root}/v1/completions", COMPLETION, **BEARER)
        assert answer.status == 200
        assert get(guarded, f"{root}/health").status == 200
        description = get(guarded, f"{root}/openapi.json").json()
        assert description["servers"] == [{"url": ROOT}]
    check_error(get(guarded, f"{ROOT}{ROOT}/v1/models", **BEARER), 404)
    check_error(get(guarded, f"{ROOT}x/v1/models", **BEARER), 404)


def test_two_names(guarded):
    models = get(guarded, "/v1/models", **BEARER).json()["data"]
    assert [model["id"] for model in models] == ["first", "second"]
    for name in ("first", "second", None):
        assert post(guarded, "/v1/completions", {**COMPLETION, "model": name}, **BEARER).json()["model"] == "first"
        assert stream(guarded, "/v1/completions", {**COMPLETION, "model": name}, **BEARER)[0]["model"] == "first"
    for name in ("smollm2", "First", "first "):
        answer = post(guarded, "/v1/completions", {**COMPLETION, "model": name}, **BEARER)
        assert check_error(answer, 404)["param"] == "model"
    assert guarded.metric("request_success_total", model_name="first") > 0


# ------------------------------------------------------------------------------------------------- ids and the log


def log_of(served: Served, request_id: str) -> dict[str, Any]:
    """The line of a request, which is written when it has been answered."""
    wait_for(lambda: request_id in served.log, f"a line on {request_id}")
    (line,) = [line for line in served.log.splitlines() if f'"{request_id}"' in line]
    content: dict[str, Any] = json.loads(line[line.index("{") :])
    return content


def test_ids_and_the_log(guarded):
    """Ids come back, become part of the answer's id, and are in the log, of which every line is JSON."""
    for number, (path, body) in enumerate(
        [
            ("/v1/completions", COMPLETION),
            ("/v1/completions", {**COMPLETION, "stream": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}),
            ("/tokenize", {"prompt": SECRET}),
            ("/v1/completions", {"prompt": SECRET, "n": 0}),
        ]
    ):
        given = f"id-{number}.x/y:z"
        answer = post(guarded, path, body, X_Request_Id=given, **BEARER)
        assert answer.headers["x-request-id"] == given
        line = log_of(guarded, given)
        assert (line["method"], line["path"], line["status"]) == ("POST", path, answer.status)
        assert line["seconds"] >= 0
        if path.startswith("/v1") and answer.status == 200:
            assert f"-{given}".encode() in answer.body
    drawn = post(guarded, "/v1/completions", COMPLETION, **BEARER).headers["x-request-id"]
    assert log_of(guarded, drawn)["status"] == 200
    refused = get(guarded, "/v1/models", X_Request_Id="without-a-key")
    assert (refused.status, log_of(guarded, "without-a-key")["status"]) == (401, 401)


@pytest.mark.parametrize("given", ["a b", "", "x" * 129, "\xe4", 'a"b\\'])
def test_ids_that_could_forge_a_line(guarded, given):
    """Are replaced, or written so that the line stays one."""
    answer = get(guarded, "/health", X_Request_Id=given)
    returned = answer.headers["x-request-id"]
    assert returned.isascii()
    assert returned.isprintable()
    assert " " not in returned
    wait_for(lambda: json.dumps(returned) in guarded.log, "a line")


def test_a_body_may_name_its_request(guarded):
    answer = post(guarded, "/v1/completions", {**COMPLETION, "request_id": "mine"}, **BEARER)
    assert answer.json()["id"] == "cmpl-mine"


def test_secrets_are_in_no_log_and_in_no_process_list(guarded):
    """Neither keys, whether right or wrong, nor what clients send; after all of the requests above."""
    assert post(guarded, "/v1/completions", {"prompt": SECRET, "max_tokens": 1}, **BEARER).status == 200
    check_error(get(guarded, f"/v1/models?api_key={KEY}", Authorization="Bearer sk-mistyped"), 401)
    log = guarded.log
    for secret in (KEY, OTHER_KEY, "sk-mistyped", "sk-wrong", SECRET):
        assert secret not in log
    children = {pid: command for pid, command in guarded.tree().items() if pid != guarded.pid}
    assert children
    assert not any(KEY in command or OTHER_KEY in command for command in children.values())
    lines = [line for line in log.splitlines() if '"request_id"' in line]
    assert len(lines) > 20
    assert all(json.loads(line[line.index("{") :])["request_id"] for line in lines)


# ------------------------------------------------------------------------------------------------ TLS, Unix sockets


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    places = ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(["openssl", "req", "-x509", *new_key, *names, *places], check=True, capture_output=True)
    return files


def test_tls(certificate):
    """Clients that trust the certificate are served; those that speak without TLS harm nobody."""
    flags = ("--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1]))
    with Served("smollm2", *INSTANT, *flags) as served:
        url = urlsplit(served.url)
        assert url.scheme == "https"
        context = ssl.create_default_context(cafile=str(certificate[0]))
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=PATIENCE, context=context)
        for number in range(3):
            with connect(served) as plain:
                plain.sendall(request_bytes("/health", method="GET"))
                assert not plain.recv(100).startswith(b"HTTP/1.1 200")
            body = {**COMPLETION, "stream": number == 1}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert (response.status, b"text" in response.read()) == (200, True)
        connection.close()
        untrusting = http.client.HTTPSConnection(url.hostname, url.port, timeout=PATIENCE)
        with pytest.raises(ssl.SSLCertVerificationError):
            untrusting.request("GET", "/health")


def test_a_unix_socket(tmp_path):
    """Serves as a port does, and its file goes with the server."""
    path = tmp_path / "pelton.sock"
    with Served("smollm2", *INSTANT, "--uds", str(path)) as served:
        assert served.url == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(path))
            for streamed in (False, True):
                connection.sendall(request_bytes("/v1/completions", {**COMPLETION, "stream": streamed}))
                assert read_answer(connection).status == 200
    assert not path.exists()


# ---------------------------------------------------------------------------------------------------- full queues


def test_a_full_queue_turns_requests_away_until_there_is_room():
    """With status 503 and when to come again; nothing that was let in suffers."""
    flags = ("--max-num-seqs", "1", "--max-num-queued-reqs", "2", "--max-model-len", "256")
    body = {"prompt": [5, 6], "max_tokens": 5, "ignore_eos": True}

    def is_full(served: Served) -> bool:
        return (served.metric("num_requests_running"), served.metric("num_requests_waiting")) == (1, 2)

    with (
        ThreadPoolExecutor(2) as threads,
        Served("smollm2", *STEP_CLOCK, *flags, environment={"FAKE_STEP_SECONDS": "0.1"}) as served,
    ):
        first = connect(served)
        first.sendall(request_bytes("/v1/completions", {**body, "max_tokens": 250}))
        wait_for(lambda: served.metric("num_requests_running") == 1, "the first request")
        waiting = [threads.submit(post, served, "/v1/completions", body) for _ in range(2)]
        wait_for(lambda: is_full(served), "a full queue")
        for path, one in (
            ("/v1/completions", body),
            ("/v1/completions", {**body, "stream": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}),
        ):
            answer = post(served, path, one)
            assert check_error(answer, 503)["type"] == "ServiceUnavailableError"
            assert int(answer.headers["retry-after"]) >= 1
        assert get(served, "/health").status == 200
        assert post(served, "/tokenize", {"prompt": "Hi"}).status == 200
        first.close()  # makes room
        answers: list[Answer] = [future.result() for future in waiting]
        assert [answer.status for answer in answers] == [200] * 2
        assert all(answer.json()["usage"]["completion_tokens"] == 5 for answer in answers)
        assert post(served, "/v1/completions", body).status == 200
