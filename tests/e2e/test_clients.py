"""The `openai` package, unchanged, against a real server: what it reads is what it expects."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import openai
import pytest

from tests.support.clients import MAX_MODEL_LEN, MODEL, PARIS, SKY, serve_smollm2
from tests.support.native import needs_native
from tests.support.served import Served

pytestmark = needs_native
ENDLESS = {"ignore_eos": True, "min_tokens": 400}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve_smollm2() as served:
        yield served


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
        yield client


@pytest.fixture
def run_async(server):
    """Runs a coroutine function that takes an `AsyncOpenAI`."""

    def run(function):
        async def main():
            async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
                return await function(client)

        return asyncio.run(main())

    return run


def wait_until_idle(server: Served) -> None:
    """Until the engine has no request left."""
    for _ in range(3000):
        if server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0:
            return
    raise AssertionError("requests of clients that have left still run")


# Completions


def test_completion(client):
    answer = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=5, temperature=0)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    (choice,) = answer.choices
    assert choice.text.startswith(" Paris")
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    usage = answer.usage
    assert (usage.completion_tokens, usage.total_tokens) == (5, usage.prompt_tokens + 5)
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_completion_stream(client):
    options = {"model": MODEL, "prompt": PARIS, "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_usage_on_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(
        model=MODEL, prompt=PARIS, max_tokens=6, temperature=0, stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_completion_of_several_prompts_with_several_choices(client):
    prompts = [PARIS, "One, two, three,"]
    options = {"model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 6, "temperature": 1, "seed": 4}
    answer = client.completions.create(**options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) > 2
    assert client.completions.create(**options).choices == answer.choices
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in answer.choices]
    alone = client.completions.create(**{**options, "prompt": prompts[1]})
    assert [choice.text for choice in alone.choices] == [choice.text for choice in answer.choices[2:]]


def test_completion_logprobs_and_echo(client):
    answer = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=3, temperature=0, logprobs=2, echo=True)
    (choice,) = answer.choices
    assert choice.text.startswith(PARIS + " Paris")
    logprobs = choice.logprobs
    number = answer.usage.total_tokens
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == number
    assert "".join(logprobs.tokens) == choice.text
    assert [choice.text[a:b] for a, b in pairwise([*logprobs.text_offset, None])] == logprobs.tokens
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    for token, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True))[
        1:
    ]:
        assert top[token] == logprob <= 0
        assert 2 <= len(top) <= 3
    scored = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=0, logprobs=2, echo=True)
    assert scored.choices[0].text == PARIS
    assert scored.choices[0].logprobs.token_logprobs == logprobs.token_logprobs[:-3], "as evaluations score texts"


def test_stop(client):
    options = {"model": MODEL, "prompt": PARIS, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**options).choices[0].text
    stop = whole[10:14]
    answer = client.completions.create(**options, stop=[stop, "never there"])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    assert client.completions.create(**options, stop=stop).choices == answer.choices
    streamed = client.completions.create(**options, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text
    kept = client.completions.create(**options, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == answer.choices[0].text + stop


def test_seed_and_logit_bias(client):
    options = {"model": MODEL, "prompt": PARIS, "max_tokens": 12, "temperature": 1.5}
    first, again, other = (client.completions.create(**options, seed=seed).choices[0].text for seed in (1, 1, 2))
    assert first == again != other
    biased = client.completions.create(**options, logit_bias={"284": 100}, extra_body={"return_token_ids": True})
    assert biased.choices[0].token_ids == [284] * 12
    assert client.completions.create(**options, seed=1, logit_bias={}).choices[0].text == first


def test_penalties_change_the_answer(client):
    options = {"model": MODEL, "prompt": "one two three one two three one two", "max_tokens": 20, "temperature": 0}
    plain = client.completions.create(**options).choices[0].text
    assert client.completions.create(**options, frequency_penalty=2, presence_penalty=2).choices[0].text != plain
    assert client.completions.create(**options, extra_body={"repetition_penalty": 1.8}).choices[0].text != plain


# Chat


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=SKY, max_tokens=8, temperature=0)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason, choice.index) == ("assistant", "length", 0)
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.logprobs is None
    assert answer.usage.completion_tokens == 8
    parts = [{"role": "user", "content": [{"type": "text", "text": SKY[0]["content"]}]}]
    same = client.chat.completions.create(model=MODEL, messages=parts, max_completion_tokens=8, temperature=0)
    assert same.choices == answer.choices


def test_chat_stream(client):
    options = {"model": MODEL, "messages": SKY, "max_tokens": 10, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    first = chunks[0].choices[0]
    assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert [delta.role for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_the_stream_helper_of_chat(client):
    """Which puts a message together from the events, strictly."""
    options = {"model": MODEL, "messages": SKY, "max_tokens": 100, "temperature": 0, "stop": "."}
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert kinds == {"chunk", "content.delta", "content.done"}
    whole = client.chat.completions.create(**options).choices[0]
    assert (whole.finish_reason, final.choices[0].message.content) == ("stop", whole.message.content)


def test_chat_with_several_choices(client):
    options = {"model": MODEL, "messages": SKY, "n": 2, "max_tokens": 8, "temperature": 1, "seed": 9}
    answer = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in answer.choices]
    assert texts[0] != texts[1]
    assert answer.usage.completion_tokens == 16
    streamed, roles, reasons = ["", ""], [0, 0], [0, 0]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role is not None
            reasons[choice.index] += choice.finish_reason is not None
    assert (streamed, roles, reasons) == (texts, [1, 1], [1, 1])


def test_chat_logprobs(client):
    options = {"model": MODEL, "messages": SKY, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    content = client.chat.completions.create(**options).choices[0].logprobs.content
    assert len(content) == 6
    for entry in content:
        assert entry.bytes == list(entry.token.encode())
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token, "greedy"
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
    chunks = client.chat.completions.create(**options, stream=True)
    found = [choice.logprobs for chunk in chunks for choice in chunk.choices]
    assert [entry for one in found if one is not None for entry in one.content] == content
    plain = client.chat.completions.create(**{**options, "top_logprobs": None}).choices[0].logprobs.content
    assert [(entry.token, entry.logprob) for entry in plain] == [(entry.token, entry.logprob) for entry in content]
    assert all(entry.top_logprobs == [] for entry in plain)


def test_a_conversation_that_fills_the_context(client):
    """Without max_tokens, the rest of the context is for the answer."""
    answer = client.chat.completions.create(model=MODEL, messages=SKY, temperature=0, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == MAX_MODEL_LEN


# Async, cancelled, late


def test_async(run_async):
    async def many(client):
        prompts = [f"{number}, {number + 1}, {number + 2}," for number in range(8)]
        options = {"model": MODEL, "max_tokens": 5, "temperature": 0}
        together = await asyncio.gather(*(client.completions.create(prompt=prompt, **options) for prompt in prompts))
        alone = [await client.completions.create(prompt=prompt, **options) for prompt in prompts]
        return [one.choices for one in together], [one.choices for one in alone]

    together, alone = run_async(many)
    assert together == alone


def test_async_streams(run_async):
    async def many(client):
        async def read(number):
            text = ""
            messages = [{"role": "user", "content": f"What is {number} + 1?"}]
            options = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
            async for chunk in await client.chat.completions.create(**options, stream=True):
                text += chunk.choices[0].delta.content or ""
            whole = await client.chat.completions.create(**options)
            return text, whole.choices[0].message.content

        return await asyncio.gather(*(read(number) for number in range(6)))

    for streamed, whole in run_async(many):
        assert streamed == whole
        assert whole


def test_a_stream_that_is_closed_ends_its_request(client, server):
    before = server.metric("request_success_total", finished_reason="abort")
    stream = client.completions.create(model=MODEL, prompt=PARIS, max_tokens=450, stream=True, extra_body=ENDLESS)
    next(iter(stream))
    stream.close()
    wait_until_idle(server)
    assert server.metric("request_success_total", finished_reason="abort") == before + 1


def test_a_cancelled_task_ends_its_request(run_async, server):
    before = server.metric("request_success_total", finished_reason="abort")

    async def cancel(client):
        task = asyncio.create_task(
            client.completions.create(model=MODEL, prompt=PARIS, max_tokens=450, n=4, temperature=1, extra_body=ENDLESS)
        )
        while not server.metric("num_requests_running"):
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_async(cancel)
    wait_until_idle(server)
    assert server.metric("request_success_total", finished_reason="abort") > before


def test_timeout(client, server):
    impatient = client.with_options(timeout=0.15, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        impatient.completions.create(
            model=MODEL, prompt=[PARIS] * 16, max_tokens=450, temperature=1, extra_body=ENDLESS
        )
    wait_until_idle(server)
    assert client.completions.create(model=MODEL, prompt=PARIS, max_tokens=1).choices


def test_many_clients_at_once(server, client):
    """Of several kinds, more than can run at a time: nobody gets the answer of another."""
    numbers = [f"{number}, {number + 1}, {number + 2}," for number in range(10, 34)]
    expected = {prompt: server.complete(prompt, max_tokens=4)["choices"][0]["text"] for prompt in numbers}
    assert len(set(expected.values())) > 12

    def ask(index: int, prompt: str) -> str:
        options = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0}
        if index % 3 == 0:
            return "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
        if index % 3 == 1:
            return client.completions.create(**options).choices[0].text
        return server.complete(prompt, max_tokens=4)["choices"][0]["text"]

    with ThreadPoolExecutor(len(numbers)) as threads:
        found = dict(zip(numbers, threads.map(ask, range(len(numbers)), numbers), strict=True))
    assert found == expected
