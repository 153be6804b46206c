"""litellm, LangChain and curl, unchanged, against a real server."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import openai
import pytest

from tests.support.clients import MODEL, PARIS, SKY, serve_smollm2
from tests.support.native import needs_native
from tests.support.served import Served

pytestmark = [
    needs_native,
    # litellm reads every attribute of its own chunks.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211:litellm[.].*"),
    # It leaves an event loop and its sockets to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <(socket|function BaseEventLoop).:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve_smollm2() as served:
        yield served


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
        yield client


# litellm


@pytest.fixture(scope="module")
def litellm():
    """Without its price list, which it would fetch. It asks for no host but ours."""
    asked = []
    find = socket.getaddrinfo

    def find_here(host, *arguments, **options):
        asked.append(host)
        if host not in ("127.0.0.1", b"127.0.0.1"):
            raise OSError("tests do without the network")
        return find(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(socket, "getaddrinfo", find_here)
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        yield litellm
        assert {"127.0.0.1"} >= {os.fsdecode(host) for host in asked}


@pytest.fixture
def through(server):
    return {"api_base": server.url + "/v1", "api_key": "EMPTY", "max_tokens": 6, "temperature": 0}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm(litellm, client, through, provider):
    model = f"{provider}/{MODEL}"
    expected = client.chat.completions.create(model=MODEL, messages=SKY, max_tokens=6, temperature=0)
    answer = litellm.completion(model, SKY, **through)
    assert answer.choices[0].message.content == expected.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 6
    streamed = litellm.completion(model, SKY, stream=True, stream_options={"include_usage": True}, **through)
    chunks = list(streamed)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == expected.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 6


def test_litellm_async(litellm, client, through):
    expected = client.chat.completions.create(model=MODEL, messages=SKY, max_tokens=6, temperature=0)

    async def main():
        whole = await litellm.acompletion(f"openai/{MODEL}", SKY, **through)
        text = ""
        async for chunk in await litellm.acompletion(f"openai/{MODEL}", SKY, stream=True, **through):
            text += chunk.choices[0].delta.content or ""
        return whole.choices[0].message.content, text

    assert asyncio.run(main()) == (expected.choices[0].message.content,) * 2


def test_litellm_text_completion(litellm, client, through):
    expected = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=6, temperature=0).choices[0].text
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=PARIS, **through)
    assert answer.choices[0].text == expected
    chunks = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=PARIS, stream=True, **through)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == expected


def test_litellm_errors(litellm, through):
    long = [{"role": "user", "content": "word " * 600}]
    for provider in ("openai", "hosted_vllm"):
        with pytest.raises(litellm.ContextWindowExceededError, match="maximum context length is 512 tokens"):
            litellm.completion(f"{provider}/{MODEL}", long, **through)
        with pytest.raises(litellm.NotFoundError):
            litellm.completion(f"{provider}/nobody", SKY, **through)
        with pytest.raises(litellm.BadRequestError, match="top_p"):
            litellm.completion(f"{provider}/{MODEL}", SKY, top_p=7, **through)


# LangChain


@pytest.fixture(scope="module")
def langchain():
    import langchain_openai

    return langchain_openai


def test_langchain_chat(langchain, client, server):
    chat = langchain.ChatOpenAI(
        model=MODEL, base_url=server.url + "/v1", api_key="EMPTY", temperature=0, max_tokens=6, stream_usage=True
    )
    question = SKY[0]["content"]
    expected = client.chat.completions.create(model=MODEL, messages=SKY, max_tokens=6, temperature=0)
    answer = chat.invoke(question)
    assert answer.content == expected.choices[0].message.content
    assert answer.usage_metadata["output_tokens"] == 6
    assert answer.usage_metadata["input_tokens"] == expected.usage.prompt_tokens
    assert answer.response_metadata["finish_reason"] == "length"
    chunks = list(chat.stream(question))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 6
    questions = [question, "What is 2 + 2?", [("system", "Be brief."), ("human", "Name a colour.")]]
    answers = chat.batch(questions)
    assert answers[0].content == answer.content
    assert [chat.invoke(one).content for one in questions] == [one.content for one in answers]


def test_langchain_completion(langchain, client, server):
    llm = langchain.OpenAI(model=MODEL, base_url=server.url + "/v1", api_key="EMPTY", temperature=0, max_tokens=6)
    expected = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=6, temperature=0).choices[0].text
    assert llm.invoke(PARIS) == expected
    assert "".join(llm.stream(PARIS)) == expected
    assert llm.batch([PARIS, "One, two,"])[0] == expected


# curl

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


def curl(*arguments: str) -> str:
    result = subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, timeout=120, check=True)
    assert result.stderr == ""
    return result.stdout


def posted(body: dict) -> list[str]:
    return ["-H", "Content-Type: application/json", "-d", json.dumps(body)]


@needs_curl
def test_curl_completion(server):
    body = {"model": MODEL, "prompt": "San Francisco is a", "max_tokens": 7, "temperature": 0}
    answer = json.loads(curl(server.url + "/v1/completions", *posted(body)))
    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["choices"][0]["text"] == server.complete("San Francisco is a", max_tokens=7)["choices"][0]["text"]


@needs_curl
def test_curl_chat_stream(server):
    body = {"model": MODEL, "messages": SKY, "max_tokens": 5, "temperature": 0, "stream": True}
    events = curl("-N", server.url + "/v1/chat/completions", *posted(body)).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    status, whole = server.post("/v1/chat/completions", body | {"stream": False})
    assert (status, text) == (200, whole["choices"][0]["message"]["content"])


@needs_curl
def test_curl_errors(server):
    output = curl("-w", "\n%{http_code}", server.url + "/v1/completions", *posted({"model": MODEL}))
    body, _, status = output.rpartition("\n")
    assert status == "400"
    assert json.loads(body)["error"]["param"] == "prompt"
    assert curl("-o", "/dev/null", "-w", "%{http_code}", server.url + "/health") == "200"
