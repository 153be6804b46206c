"""One request must not kill, hang or harm others: whatever comes, beside streams that must stay right (fault 17)."""

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from pelton.server.protocol import ChatCompletionRequest, CompletionRequest
from tests.support.http_client import (
    PATIENCE,
    STEP_CLOCK,
    check_error,
    check_leaks,
    connect,
    events_of,
    exchange,
    get,
    healthy_streams,
    is_idle,
    post,
    read_answer,
    request_bytes,
    vocabulary,
    wait_for,
)
from tests.support.served import Served
from tests.support.tiny_llama import VOCAB_SIZE

MAX_BYTES = 2 << 20
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [5, 6], "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5, 6]},
}
NESTED = b"[" * 10_000 + b"]" * 10_000
MANY_DIGITS = b"7" * 5_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Beside eight streams, one after the other, which must all be right; and it must rest when they have ended."""
    limits = ("--max-model-len", "256", "--max-request-bytes", str(MAX_BYTES))
    server = Served("smollm2", *STEP_CLOCK, *limits, environment={"PELTON_STRICT_INVARIANTS": "1"})
    with ExitStack() as held, server as served:
        with healthy_streams(served, num_tokens=100):
            yield served
        wait_for(lambda: is_idle(served), "rest")
        assert "Traceback" not in served.log, served.log
        for data in UNFINISHED:  # these clients stay until the server has ended
            held.enter_context(connect(served)).sendall(data)


UNFINISHED = (b"", b"GET /health", request_bytes("/v1/completions", b"{}")[:50])
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])

FIELDS: dict[str, dict[str, Any]] = {
    "empty prompt": {"prompt": ""},
    "no prompts": {"prompt": []},
    "no tokens": {"prompt": [[]]},
    "an empty one among others": {"prompt": [[5], []]},
    "an empty text among others": {"prompt": ["a", ""]},
    "null": {"prompt": None},
    "mixed": {"prompt": ["a", 5]},
    "token -1": {"prompt": [-1]},
    "token beyond the vocabulary": {"prompt": [VOCAB_SIZE]},
    "token 2^63": {"prompt": [5, 2**63]},
    "boolean token": {"prompt": [True]},
    "fractional token": {"prompt": [1.5]},
    "1 MB stop": {"stop": "x" * 1_000_000},
    "stop with nothing in it": {"stop": ""},
    "65 stops": {"stop": [str(n) for n in range(65)]},
    "n of a billion": {"n": 10**9},
    "n of 0": {"n": 0},
    "n of 2 without randomness": {"n": 2, "temperature": 0},
    "many choices in all": {"prompt": [[5]] * 100, "n": 100},
    "negative temperature": {"temperature": -1},
    "temperature in words": {"temperature": "hot"},
    "top_p of 0": {"top_p": 0},
    "logprobs of a million": {"logprobs": 1_000_000},
    "penalty of 5": {"presence_penalty": 5},
    "bias for a word": {"logit_bias": {"the": 1}},
    "bias that is a list": {"logit_bias": [1]},
    "nothing allowed": {"allowed_token_ids": []},
    "seed of 65 bits": {"seed": 2**64},
    "stream in words": {"stream": "yes"},
    "unknown priority": {"priority": 5},
    "unknown argument": {"vllm_xargs": {"a": 1}},
    "response format": {"response_format": {"type": "yaml"}},
    "two constraints": {"guided_regex": "a+", "guided_choice": ["a"]},
    "no regular expression": {"guided_regex": "("},
    "suffix": {"suffix": "x"},
    "best of": {"best_of": 3},
    "id with a line break": {"request_id": "a\nb"},
}
"""What a good completion becomes bad with."""


@STREAMED
@pytest.mark.parametrize("name", FIELDS)
def test_fields(served, name, streamed):
    error = check_error(post(served, "/v1/completions", {**GOOD["/v1/completions"], "stream": streamed} | FIELDS[name]))
    assert error["code"] == 400
    assert len(error["message"]) < 1000


BODIES = {
    "nothing": b"",
    "no JSON": b"prompt=Hi",
    "half": b'{"prompt": "Hi"',
    "a list": b"[]",
    "a text": b'"prompt"',
    "null": b"null",
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "-Infinity": b'{"prompt": "a", "logit_bias": {"5": -Infinity}}',
    "1e999": b'{"prompt": "a", "temperature": 1e999}',
    "NaN that nobody looks at": b'{"prompt": "a", "user_data": [NaN]}',
    "surrogate": b'{"prompt": "a\\ud800"}',
    "surrogate in stop": b'{"prompt": "a", "stop": ["\\udc00"]}',
    "surrogate in a name": b'{"prompt": "a", "vllm_xargs": {"\\udfff": 1}}',
    "surrogate that nobody looks at": b'{"prompt": "a", "other": "\\ud83d"}',
    "surrogates in bytes": b'{"prompt": "\xed\xa0\x80"}',
    "nested prompt": b'{"prompt": ' + NESTED + b"}",
    "nested elsewhere": b'{"prompt": "a", "other": ' + NESTED + b"}",
    "nested and open": b'{"prompt": ' + b"[" * 100_000,
    "nested objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "many digits": b'{"prompt": "a", "max_tokens": ' + MANY_DIGITS + b"}",
    "many digits as a token": b'{"prompt": [' + MANY_DIGITS + b"]}",
    "many digits as a seed": b'{"prompt": "a", "seed": -' + MANY_DIGITS + b"}",
    "many digits elsewhere": b'{"prompt": "a", "other": [' + MANY_DIGITS + b"]}",
    "a hundred digits": b'{"prompt": "a", "max_tokens": 1' + b"0" * 100 + b"}",
    "a float of many digits": b'{"prompt": "a", "max_tokens": 1.' + MANY_DIGITS + b"}",
    "no UTF-8": b'{"prompt": "\xff\xfe"}',
    "half a character": b'{"prompt": "\xf0\x9f"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
    "a name twice": b'{"prompt": "a", "n": 1, "n": 1}',
    "a name twice inside": b'{"prompt": "a", "logit_bias": {"5": 1, "5": 2}}',
    "a NUL": b'{"prompt": "a"}\0',
    "more than one": b'{"prompt": "a"}{"prompt": "b"}',
    "a raw line break": b'{"prompt": "a\nb"}',
}

SAMPLING = (  # nobody looks at these fields elsewhere
    "1e999",
    "a hundred digits",
    "a float of many digits",
)


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in PATHS for name in BODIES if path in PATHS[:2] or name not in SAMPLING]
)
def test_bodies(served, path, name):
    body = BODIES[name].replace(b'"prompt": "a"', json.dumps(GOOD[path]).encode()[1:-1])
    assert check_error(post(served, path, body))["code"] == 400


def test_conversations(served):
    user = {"role": "user", "content": "Hi"}
    bad: list[Any] = [
        [],
        None,
        "Hi",
        [[]],
        [None],
        ["Hi"],
        [{}],
        [{"content": "Hi"}],
        [{"role": "user", "content": 5}],
        [{"role": "", "content": "Hi"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": {"text": "Hi"}}],
        [{"role": ["user"], "content": "Hi"}],
        [user] * 5000,
    ]
    for messages in bad:
        answer = post(served, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert check_error(answer, 400)["message"], messages
    for fields in ({"tools": [{"type": "function"}]}, {"chat_template": "{{ 1 }}"}, {"logprobs": 5}):
        check_error(post(served, "/v1/chat/completions", {"messages": [user], **fields}), 400)


WRONG: list[Any] = [None, True, 0, -1, 1.5, "x", "", [], {}, [1], ["x"], {"a": 1}, 10**30, -(10**30), 1e300, [[["x"]]]]


@pytest.mark.parametrize(
    ("path", "model"), [(PATHS[0], CompletionRequest), (PATHS[1], ChatCompletionRequest)], ids=["completions", "chat"]
)
def test_any_type_in_any_field(served, path, model):
    """Is accepted or refused, and never an error of the server's own."""
    extra = {"stop_reason", "tools", "kv_transfer_params", "logprob_token_ids"}
    cases = [{**GOOD[path], name: value} for name in sorted({*model.model_fields, *extra}) for value in WRONG]
    url = urlsplit(served.url)
    num_refused = 0

    def run(start: int) -> int:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        refused = 0
        for body in cases[start::8]:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            check_leaks(content)
            assert response.status in (200, 400, 404), (body, content)
            if response.status == 404:
                assert "model" in body
            refused += response.status != 200
        connection.close()
        return refused

    with ThreadPoolExecutor(8) as threads:
        num_refused = sum(future.result() for future in [threads.submit(run, start) for start in range(8)])
    assert len(cases) / 2 < num_refused < len(cases)


# ------------------------------------------------------------------------------------------------- beneath JSON


@pytest.mark.parametrize("given", ["text/plain", "multipart/form-data; boundary=x", "", "application", "json"])
def test_content_types(served, given):
    answer = post(served, PATHS[0], GOOD[PATHS[0]], Content_Type=given)
    assert check_error(answer, 415)["code"] == 415


def test_paths_and_methods(served):
    check_error(get(served, "/v1/nothing"), 404)
    check_error(get(served, "/v1/models/../../etc/passwd"), 404)
    check_error(get(served, "/page/..%2f..%2fapp.py"), 404)
    check_error(get(served, "/v1/completions"), 405)
    check_error(post(served, "/v1/models", {}), 405)
    check_error(exchange(served, request_bytes("/v1/completions", b"{}", method="DELETE")), 405)
    check_error(exchange(served, request_bytes("//v1/completions", b"{}")), 404)
    check_error(get(served, "/v1/models/%ff%00"), 404)
    check_error(exchange(served, request_bytes("*", method="OPTIONS")), 404)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
INVALID = {
    "negative length": HEAD + b"Content-Length: -5\r\n\r\n{}",
    "length in words": HEAD + b"Content-Length: five\r\n\r\n{}",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length beyond 64 bits": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "garbage for a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk of negative size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "length and chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 100 + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a path in other letters": "GET /ä HTTP/1.1\r\n\r\n".encode(),
    "no path": b"GET HTTP/1.1\r\n\r\n",
    "connect": b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n",
    "a header with a NUL": b"GET /health HTTP/1.1\r\nHost: te\0st\r\n\r\n",
    "a header without a colon": b"GET /health HTTP/1.1\r\nHost\r\n\r\n",
}


@pytest.mark.parametrize("name", INVALID)
def test_what_is_no_valid_http(served, name):
    """Gets an answer in the usual shape, and the end of the connection."""
    with connect(served) as connection:
        connection.sendall(INVALID[name])
        answer = read_answer(connection)
        assert check_error(answer, 400)["code"] == 400
        assert answer.headers["connection"] == "close"
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_are_too_large(served, chunked):
    body = json.dumps({"prompt": "x" * (MAX_BYTES + 200_000)}).encode()
    if chunked:
        chunks = b"".join(b"10000\r\n" + body[i : i + 65536] + b"\r\n" for i in range(0, len(body) - 65536, 65536))
        data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    else:
        data = request_bytes("/v1/completions", body)
    assert str(MAX_BYTES) in check_error(exchange(served, data), 413)["message"]


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("size", [200_000, 2_000_000])
def test_heads_that_are_too_large(served, size, complete):
    """Refused, also before they have ended, so that they never fill the memory."""
    for data in (b"GET /health HTTP/1.1\r\nX-Large: " + b"x" * size, b"GET /health?" + b"x" * size):
        end = b" HTTP/1.1\r\n\r\n" if data.startswith(b"GET /health?") else b"\r\n\r\n"
        answer = exchange(served, data + end if complete else data)
        assert check_error(answer, 431)["code"] == 431


def test_large_heads_that_are_not_too_large(served):
    answer = get(served, "/health", X_Large="x" * 30_000)
    assert (answer.status, answer.body) == (200, b"")
    body = GOOD[PATHS[0]]
    large = request_bytes(PATHS[0], {**body, "user": "y" * 500_000}, X_Large="x" * 30_000)
    with connect(served) as connection:
        for _ in range(3):  # heads are counted anew for each request
            connection.sendall(large)
            assert read_answer(connection).status == 200


def test_a_body_that_ends_too_early(served):
    """Leaves nothing behind, whether the client closes the connection or its side of it."""
    data = request_bytes(PATHS[0], GOOD[PATHS[0]]).replace(b"Content-Length: ", b"Content-Length: 9")
    for _ in range(20):
        connection = connect(served)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
        connection.close()
        connection = connect(served)
        connection.sendall(data)
        connection.close()
    assert post(served, PATHS[0], GOOD[PATHS[0]]).status == 200


def test_http_1_0(served):
    """Is answered, and the connection ends."""
    body = json.dumps(GOOD[PATHS[0]]).encode()
    data = request_bytes(PATHS[0], body).replace(b"HTTP/1.1", b"HTTP/1.0")
    for content in (body, body[:-1] + b', "stream": true}'):
        head = data[: -len(body)].replace(str(len(body)).encode(), str(len(content)).encode())
        with connect(served) as connection:
            connection.sendall(head + content)
            answer = read_answer(connection)
            assert answer.status == 200
            assert connection.recv(1) == b""
        assert b'"text"' in answer.body


def test_pipelined_requests(served):
    """Are answered in order, the bad among the good."""
    good = request_bytes(PATHS[0], {**GOOD[PATHS[0]], "max_tokens": 3})
    bad = request_bytes(PATHS[0], b"{")
    requests = [good, bad, request_bytes("/health", method="GET"), good, bad, good]
    with connect(served) as connection:
        connection.sendall(b"".join(requests))
        reader = connection.makefile("rb")
        statuses = []
        for _ in requests:
            status_line = reader.readline()
            length = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            reader.read(length)
            statuses.append(int(status_line.split()[1]))
    assert statuses == [200, 400, 200, 200, 400, 200]


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_wishes_for_another_protocol_are_not_followed(served, protocol):
    """The request is answered as it stands, and so is the next one on its connection."""
    wish = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    with connect(served) as connection:
        for headers in (wish, {}, wish):
            connection.sendall(request_bytes(PATHS[0], GOOD[PATHS[0]], **headers))
            answer = read_answer(connection)
            assert answer.status == 200, answer
            assert answer.json()["choices"]


def test_clients_that_never_finish_their_request(served):
    """Hold their own connection and nothing else, also when the server ends."""
    data = request_bytes(PATHS[0], GOOD[PATHS[0]])
    head = data.index(b"\r\n\r\n") + 4
    slow = [connect(served) for _ in range(100)]
    for index, connection in enumerate(slow):
        connection.sendall((data[:head] if index % 2 else data[:20]) if index % 4 else data[:-1])
    for _ in range(20):
        assert post(served, PATHS[0], GOOD[PATHS[0]]).status == 200
    for connection in slow[::4]:
        connection.sendall(data[-1:])
        assert read_answer(connection).status == 200
    for connection in slow:
        connection.close()


def test_clients_that_ask_before_they_send_a_large_body(served):
    data = request_bytes(PATHS[0], {**GOOD[PATHS[0]], "user": "x" * 100_000}, Expect="100-continue")
    head = data.index(b"\r\n\r\n") + 4
    with connect(served) as connection:
        connection.sendall(data[:head])
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(data[head:])
        assert read_answer(connection).status == 200


def test_a_client_that_reads_late(served):
    """Holds up nobody, and finds everything when it reads."""
    number, num_tokens = 64, 200
    body = {"prompt": [5, 6], "n": number, "temperature": 1, "max_tokens": num_tokens, "ignore_eos": True}
    body |= {"stream": True, "logprobs": 5, "return_token_ids": True}
    with connect(served) as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        late.sendall(request_bytes(PATHS[0], body))
        wait_for(lambda: served.metric("num_requests_running") >= number, "the choices")
        wait_for(lambda: served.metric("num_requests_running") < number, "their end")
        assert post(served, PATHS[0], GOOD[PATHS[0]]).status == 200
        events = events_of(read_answer(late).body)
    tokens: dict[int, list[int]] = {index: [] for index in range(number)}
    for event in events:
        for choice in event["choices"]:
            assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
            tokens[choice["index"]] += choice["token_ids"]
    assert all(ids == vocabulary().expected_tokens([5, 6], num_tokens) for ids in tokens.values())


def test_requests_that_are_large_but_good(served):
    """Do what they should, or are refused with a reason."""
    assert post(served, "/tokenize", {"prompt": "word " * 100_000}).json()["count"] > 100_000
    check_error(post(served, PATHS[0], {"prompt": "word " * 100_000, "max_tokens": 1}), 400)
    check_error(post(served, PATHS[0], {"prompt": [5] * 200_000, "max_tokens": 1}), 400)
    answer = post(served, PATHS[0], {"prompt": [[5, n] for n in range(500)], "max_tokens": 1}).json()
    assert len(answer["choices"]) == 500
    many = post(served, PATHS[0], {"prompt": [5], "n": 300, "max_tokens": 2, "temperature": 1}).json()
    assert len(many["choices"]) == 300
    everything = {"prompt": [5, 6], "max_tokens": 1, "allowed_token_ids": list(range(VOCAB_SIZE))}
    assert post(served, PATHS[0], everything).status == 200


def test_pages_of_sites_whose_name_leads_here(served):
    body = {"prompt": [5], "max_tokens": 1}
    answer = post(served, "/v1/completions", body, Host="evil.example", Origin="http://evil.example")
    assert "--allowed-origins" in check_error(answer, 403)["message"]
    assert post(served, "/v1/completions", body, Host="evil.example", Origin=served.url).status == 200
