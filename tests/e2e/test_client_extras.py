"""vLLM's additions to requests, as its users send them, what its benchmark relies on, and the bytes of streams."""

import json
import socket
import urllib.parse
from collections.abc import Iterator

import openai
import pytest

from tests.support.clients import MODEL, PARIS, SKY, serve_smollm2
from tests.support.native import needs_native
from tests.support.served import Served

pytestmark = needs_native


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve_smollm2() as served:
        yield served


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
        yield client


def ids_of(client, **options) -> list[int]:
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    given = {"model": MODEL, "prompt": PARIS, "max_tokens": 8, "temperature": 0, **options}
    return client.completions.create(**given, extra_body=extra).choices[0].token_ids


def test_sampling_additions(client):
    greedy = ids_of(client)
    hot = {"temperature": 2, "seed": 3}
    assert ids_of(client, **hot) != greedy
    assert ids_of(client, **hot, extra_body={"top_k": 1}) == greedy
    assert ids_of(client, **hot, extra_body={"min_p": 1.0}) == greedy
    assert ids_of(client, **hot, extra_body={"top_k": 0, "min_p": 0.0}) == ids_of(client, **hot)
    assert ids_of(client, **hot, extra_body={"top_k": -1}) == ids_of(client, **hot)
    assert set(ids_of(client, **hot, extra_body={"allowed_token_ids": [504, 505]})) <= {504, 505}


def test_how_outputs_end(client):
    greedy = ids_of(client)
    stopped = client.completions.create(
        model=MODEL, prompt=PARIS, max_tokens=8, temperature=0, extra_body={"stop_token_ids": [greedy[-1]]}
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].stop_reason == greedy[-1]
    assert stopped.usage.completion_tokens == greedy.index(greedy[-1]) + 1
    assert ids_of(client, extra_body={"stop_token_ids": [greedy[0]], "min_tokens": 8}) != greedy[:1]
    eos = client.chat.completions.create(model=MODEL, messages=SKY, temperature=0, max_tokens=400)
    number = eos.usage.completion_tokens + 5
    on = client.chat.completions.create(
        model=MODEL, messages=SKY, temperature=0, max_tokens=number, extra_body={"ignore_eos": True}
    )
    assert eos.choices[0].finish_reason == "stop"
    assert on.usage.completion_tokens == number
    assert on.choices[0].message.content.startswith(eos.choices[0].message.content)


def test_bad_words(client):
    assert " Paris" in client.completions.create(model=MODEL, prompt=PARIS, max_tokens=8, temperature=0).choices[0].text
    without = client.completions.create(
        model=MODEL, prompt=PARIS, max_tokens=8, temperature=0, extra_body={"bad_words": ["Paris"]}
    )
    assert "Paris" not in without.choices[0].text


def test_token_ids_and_prompt_logprobs(client):
    extra = {"return_token_ids": True, "prompt_logprobs": 2}
    answer = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=3, temperature=0, extra_body=extra)
    (choice,) = answer.choices
    assert len(choice.prompt_token_ids) == len(choice.prompt_logprobs) == answer.usage.prompt_tokens
    assert len(choice.token_ids) == 3
    assert choice.prompt_logprobs[0] is None
    for token_id, entries in zip(choice.prompt_token_ids[1:], choice.prompt_logprobs[1:], strict=True):
        entry = entries[str(token_id)]
        assert entry["logprob"] <= 0
        assert entry["rank"] >= 1
        assert isinstance(entry["decoded_token"], str)
        assert len(entries) in (2, 3)
    by_ids = client.completions.create(
        model=MODEL, prompt=choice.prompt_token_ids, max_tokens=3, temperature=0, extra_body=extra
    )
    assert by_ids.choices == answer.choices
    chunks = list(
        client.completions.create(
            model=MODEL, prompt=PARIS, max_tokens=3, temperature=0, stream=True, extra_body={"return_token_ids": True}
        )
    )
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == choice.token_ids
    assert chunks[0].choices[0].prompt_token_ids == choice.prompt_token_ids
    chat = client.chat.completions.create(model=MODEL, messages=SKY, max_tokens=3, temperature=0, extra_body=extra)
    assert len(chat.prompt_token_ids) == len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert len(chat.choices[0].token_ids) == 3


def test_priority(client):
    """Under fcfs there is none; 0 says nothing."""
    assert ids_of(client, extra_body={"priority": 0}) == ids_of(client)
    with pytest.raises(openai.BadRequestError, match="priority"):
        ids_of(client, extra_body={"priority": -1})


def test_cache_salt(client):
    """Who does not know the salt does not learn what is in the cache."""

    def cached(salt):
        answer = client.completions.create(
            model=MODEL, prompt=list(range(1000, 1100)), max_tokens=1, extra_body={"cache_salt": salt}
        )
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached("mine"), cached("mine"), cached("yours"), cached("mine")] == [0, 96, 0, 96]


def test_truncate_prompt_tokens(client):
    extra = {"truncate_prompt_tokens": 3, "return_token_ids": True}
    answer = client.completions.create(model=MODEL, prompt=list(range(1000, 1100)), max_tokens=1, extra_body=extra)
    assert answer.choices[0].prompt_token_ids == [1097, 1098, 1099]
    assert answer.usage.prompt_tokens == 3


def test_fields_of_others_are_let_pass(client):
    extra = {"some_proxy_field": {"a": 1}, "metadata": {"b": "c"}, "response_format": {"type": "text"}}
    assert ids_of(client, extra_body=extra, user="me") == ids_of(client)


# The wire


def raw_stream(server: Served, path: str, body: dict) -> tuple[str, dict[str, str], list[bytes]]:
    """Status line, headers and the chunks of the body, of HTTP/1.1 as it comes."""
    address = urllib.parse.urlsplit(server.url)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
        connection.sendall(head.encode() + data)
        file = connection.makefile("rb")
        status = file.readline().decode().strip()
        headers = {}
        while (line := file.readline().decode().strip()) != "":
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        assert headers["transfer-encoding"] == "chunked"
        chunks = []
        while size := int(file.readline(), 16):
            chunks.append(file.read(size))
            assert file.readline() == b"\r\n"
        assert file.readline() == b"\r\n"
        file.close()
    return status, headers, chunks


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_wire_format_of_streams(server, path):
    what = {"prompt": '"Ä\n\n日本" \\ data: '} if path == "/v1/completions" else {"messages": SKY}
    options = {"model": MODEL, "max_tokens": 20, "temperature": 1, "seed": 1, "n": 2, "logprobs": 1, "stream": True}
    if path != "/v1/completions":
        options["logprobs"] = True
    status, headers, chunks = raw_stream(server, path, {**what, **options, "stream_options": {"include_usage": True}})
    assert status == "HTTP/1.1 200 OK"
    assert headers["content-type"].split(";")[0] == "text/event-stream"
    body = b"".join(chunks)
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks), "whole events are sent"
    assert body.endswith(b"data: [DONE]\n\n")
    events = body.split(b"\n\n")
    assert events.pop() == b""
    assert events.pop() == b"data: [DONE]"
    for event in events:
        assert event.startswith(b"data: {")
        assert b"\n" not in event
        assert b"\r" not in event
        assert "error" not in json.loads(event[len(b"data: ") :])
    last = json.loads(events[-1][len(b"data: ") :])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] <= 40
    assert all(json.loads(event[len(b"data: ") :])["usage"] is None for event in events[:-1])


def test_what_a_benchmark_relies_on(server):
    """Of `vllm bench serve`: the model's names, when the first chunk comes, and the usage at the end."""
    assert server.get("/health") == (200, "")
    models = json.loads(server.get("/v1/models")[1])
    assert (models["data"][0]["id"], models["data"][0]["root"]) == (MODEL, MODEL)
    common = {"model": MODEL, "temperature": 0.0, "repetition_penalty": 1.0, "stream": True, "ignore_eos": True}
    common["stream_options"] = {"include_usage": True}
    body = {**common, "prompt": PARIS, "max_tokens": 9, "logprobs": None}
    _, _, chunks = raw_stream(server, "/v1/completions", body)
    events = [json.loads(event[6:]) for event in b"".join(chunks).split(b"\n\n")[:-2]]
    assert events[0]["choices"][0]["text"].startswith(" Paris"), "the first chunk has the first token"
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]).startswith(" Paris")
    assert events[-1]["usage"]["completion_tokens"] == 9
    messages = [{"role": "user", "content": [{"type": "text", "text": SKY[0]["content"]}]}]
    body = {**common, "messages": messages, "max_completion_tokens": 9}
    _, _, chunks = raw_stream(server, "/v1/chat/completions", body)
    events = [json.loads(event[6:]) for event in b"".join(chunks).split(b"\n\n")[:-2]]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[1]["choices"][0]["delta"]["content"], "the first token comes with it"
    assert events[-1]["usage"]["completion_tokens"] == 9
