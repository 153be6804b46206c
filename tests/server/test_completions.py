"""Completions: answers at once and as events, every form of prompt, and that nothing is left running."""

import asyncio
import logging

import pytest
from openai.types import Completion

from pelton.engine.errors import EngineDeadError, QueueFullError
from pelton.sampling_params import RequestOutputKind
from pelton.server import completions
from pelton.server.completions import CompletionHandler
from pelton.server.errors import APIError, parse_request, to_api_error
from pelton.server.protocol import CompletionRequest
from tests.server.handlers import complete, events, run, served, texts_of
from tests.support.fake_async_llm import LOGPROB, FakeAsyncLLM, Script, smollm2_tokenizer


def test_an_answer_has_the_shape_of_openai() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await complete(llm, prompt="Say hello", model="smollm2", max_tokens=100)
        assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
        assert answer["id"].startswith("cmpl-")
        assert answer["model"] == "smollm2"
        assert answer["choices"] == [
            {"index": 0, "text": "Hello there!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ]
        assert answer["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        Completion.model_validate(answer, strict=False)
        (call,) = llm.calls
        assert call.params.output_kind is RequestOutputKind.FINAL_ONLY
        assert llm.num_unfinished_requests == 0

    run(check())


def test_a_stream_says_the_same_in_pieces() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        chunks = await complete(llm, prompt="Say hello", stream=True)
        assert texts_of(chunks) == {0: "Hello there!"}
        assert len(chunks) == 4
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
        assert not any("usage" in chunk or "error" in chunk for chunk in chunks)
        assert llm.calls[0].params.output_kind is RequestOutputKind.DELTA

    run(check())


def test_merged_tokens_are_one_chunk() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script("Hello there!", tokens_per_output=3))
        chunks = await complete(llm, prompt="a", stream=True, return_token_ids=True)
        assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == [3, 1]

    run(check())


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("Hi", [[26843]]),
        (["Hi", "Hi Hi"], [[26843], [26843, 21041]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["Hi"], [[26843]]),
    ],
)
def test_forms_of_prompts(prompt, token_ids) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await complete(llm, prompt=prompt, return_token_ids=True)
        assert [choice["prompt_token_ids"] for choice in answer["choices"]] == token_ids
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(token_ids)))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, token_ids))

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts_are_numbered_through(stream) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        llm.play(Script(("a0", "a1")), Script(("b0", "b1")), Script(("c0", "c1")))
        answer = await complete(llm, prompt=["a", "b", "c"], n=2, stream=stream)
        expected = dict(enumerate(["a0", "a1", "b0", "b1", "c0", "c1"]))
        if stream:
            assert texts_of(answer) == expected
        else:
            assert {choice["index"]: choice["text"] for choice in answer["choices"]} == expected
            assert [choice["index"] for choice in answer["choices"]] == list(range(6))
            assert answer["usage"]["prompt_tokens"] == 3

    run(check())


def test_no_prompt_waits_for_another_one() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        hold = asyncio.Event()
        llm.play(Script("slow", hold=hold, hold_at=0), Script("quick"))
        stream = await CompletionHandler(llm, served(llm)).create(
            CompletionRequest(prompt=["a", "b"], stream=True, return_token_ids=True)
        )
        first = [await anext(stream) for _ in range(2)]
        assert all(b'"index":1' in event for event in first)
        hold.set()
        assert texts_of(await events(stream))[0] == "slow"

    run(check())


def test_usage_in_streams() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script("Hello there!", num_cached_tokens=1))
        chunks = await complete(llm, prompt=["a", "b c"], stream=True, stream_options={"include_usage": True})
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 8
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 8,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await complete(llm, prompt="a", stream=True, stream_options=options)
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 4]
        chunks = await complete(llm, prompt="a", stream=True, stream_options={"continuous_usage_stats": True})
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4]

    run(check())


def test_defaults_of_the_model_and_of_the_interface() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        await complete(llm, prompt="a")
        assert llm.calls[-1].params.max_tokens == 16
        assert llm.calls[-1].params.temperature == 1.0
        llm.generation_defaults = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 40}
        await complete(llm, prompt="a", top_p=0.5)
        params = llm.calls[-1].params
        assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.5, 40)

    run(check())


def test_what_goes_beside_the_parameters() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(scheduling_policy="priority")
        arguments = {"request_id": "from-header", "data_parallel_rank": 1}
        answer = await complete(
            llm, prompt="a", priority=-3, cache_salt="pepper", request_id="from-body", handler_args=arguments
        )
        (call,) = llm.calls
        assert answer["id"] == call.request_id == "cmpl-from-header"
        assert (call.priority, call.data_parallel_rank) == (-3, 1)
        assert call.prompt == {"prompt": "a", "cache_salt": "pepper"}
        assert (await complete(llm, prompt="a", request_id="from-body"))["id"] == "cmpl-from-body"

    run(check())


def test_text_without_the_tokens_around_it() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await complete(llm, prompt="Hi", add_special_tokens=False, echo=True, cache_salt="pepper")
        assert llm.calls[0].prompt == {"prompt_token_ids": [26843], "prompt": "Hi", "cache_salt": "pepper"}
        assert answer["choices"][0]["text"] == "HiHello there!"

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_echo(stream) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        for prompt, echoed in (("Say hello", "Say hello"), (smollm2_tokenizer().encode("Hi, é"), "Hi, é")):
            answer = await complete(llm, prompt=prompt, echo=True, n=2, stream=stream)
            texts = texts_of(answer) if stream else {c["index"]: c["text"] for c in answer["choices"]}
            assert texts == {0: echoed + "Hello there!", 1: echoed + "Hello there!"}
        answer = await complete(llm, prompt="one two three", echo=True, truncate_prompt_tokens=1, stream=stream)
        texts = texts_of(answer) if stream else {c["index"]: c["text"] for c in answer["choices"]}
        assert texts == {0: " threeHello there!"}

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_scoring_a_prompt_without_completing_it(stream) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await complete(llm, prompt="one two three", echo=True, max_tokens=0, logprobs=1, stream=stream)
        (choice,) = answer[0]["choices"] if stream else answer["choices"]
        assert choice["text"] == "one two three"
        assert choice["finish_reason"] == "length"
        assert choice["logprobs"] == {
            "tokens": ["one", " two", " three"],
            "token_logprobs": [None, LOGPROB, LOGPROB],
            "top_logprobs": [None, {" two": LOGPROB}, {" three": LOGPROB}],
            "text_offset": [0, 3, 7],
        }
        assert "prompt_logprobs" not in choice

    run(check())


def test_streams_have_the_same_logprobs() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script("Hello 👩‍🚀!", tokens_per_output=2))
        fields = {"prompt": ["one two", "three"], "n": 2, "logprobs": 2, "max_tokens": 50}
        for echo in (False, True):
            whole = await complete(llm, **fields, echo=echo)
            chunks = await complete(llm, **fields, echo=echo, stream=True)
            for choice in whole["choices"]:
                parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
                merged = {key: [entry for part in parts for entry in part[key]] for key in parts[0]}
                assert merged == choice["logprobs"]
                num_tokens = len(choice["logprobs"]["tokens"])
                assert {len(entries) for entries in choice["logprobs"].values()} == {num_tokens}

    run(check())


def test_choices_that_come_before_the_logprobs_of_the_prompt_wait_for_them() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(late_choices=frozenset({0})))
        chunks = await complete(llm, prompt="one two", n=2, logprobs=0, echo=True, stream=True)
        firsts = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                firsts.setdefault(choice["index"], choice["logprobs"]["tokens"])
        assert firsts == {0: ["one", " two", "Hello"], 1: ["one", " two", "Hello"]}

    run(check())


def test_prompt_logprobs() -> None:
    async def check() -> None:
        answer = await complete(FakeAsyncLLM(), prompt="one two", prompt_logprobs=2)
        first, second = answer["choices"][0]["prompt_logprobs"]
        assert first is None
        (token_id,) = smollm2_tokenizer().encode(" two")
        assert second[str(token_id)] == {"logprob": LOGPROB, "rank": 1, "decoded_token": " two"}
        assert len(second) == 2

    run(check())


def test_token_ids_in_streams() -> None:
    async def check() -> None:
        chunks = await complete(FakeAsyncLLM(), prompt="Hi", stream=True, return_token_ids=True, n=2)
        for index in range(2):
            own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert own[0]["prompt_token_ids"] == [26843]
            assert not any("prompt_token_ids" in choice for choice in own[1:])
            assert [choice["token_ids"] for choice in own] == [[19556], [665], [17], [2]]

    run(check())


def test_stop_reasons() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        (choice,) = (await complete(llm, prompt="a", stop=["there"]))["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello ", "stop", "there")
        chunks = await complete(llm, prompt="a", stop_token_ids=[665], stream=True)
        assert chunks[-1]["choices"][0]["stop_reason"] == 665
        (choice,) = (await complete(llm, prompt="a", max_tokens=1))["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)

    run(check())


@pytest.mark.parametrize("refusal", [QueueFullError("full", 3), EngineDeadError("dead"), None])
def test_if_one_prompt_is_refused_none_stays(refusal) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        llm.refusals.extend([None, None, refusal])
        third = "c" if refusal is not None else ""
        with pytest.raises(type(refusal) if refusal is not None else ValueError):
            await complete(llm, prompt=["a", "b", third, "d"], stream=True)
        assert len(llm.calls) == 3
        assert [stream.is_closed for stream in llm.streams] == [True, True]
        assert llm.num_unfinished_requests == 0

    run(check())


def test_whatever_fails_before_the_first_event_ends_the_requests(monkeypatch) -> None:
    def broken(*arguments) -> str:
        raise RuntimeError("broken")

    async def check() -> None:
        llm = FakeAsyncLLM()
        monkeypatch.setattr("pelton.tokenizer.Tokenizer.decode", broken)
        for stream in (False, True):
            with pytest.raises(RuntimeError, match="broken"):
                await complete(llm, prompt=[5], echo=True, stream=stream)
        assert llm.num_unfinished_requests == 0
        assert all(stream.is_closed for stream in llm.streams)

    run(check())


def test_a_failure_is_told_although_logprobs_of_the_prompt_are_missing() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(fail_at=0, late_choices=frozenset({0})))
        *_, error = await complete(llm, prompt="one two", n=2, logprobs=0, echo=True, stream=True)
        assert error["error"]["message"] == "The request failed: the logits are not finite"

    run(check())


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_an_abandoned_stream_ends_its_requests(prompt) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        handler = CompletionHandler(llm, served(llm))
        request = CompletionRequest(prompt=prompt, stream=True)
        unread = await handler.create(request)
        await unread.aclose()
        assert llm.num_unfinished_requests == 0
        begun = await handler.create(request)
        await anext(begun)
        assert llm.num_unfinished_requests
        await begun.aclose()
        await begun.aclose()
        assert llm.num_unfinished_requests == 0
        with pytest.raises(StopAsyncIteration):
            await anext(begun)
        assert all(stream.is_closed for stream in llm.streams)

    run(check())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_whoever_waits_may_be_cancelled(prompt, stream) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        hold = asyncio.Event()
        llm.play(Script(hold=hold), Script(hold=hold))
        handler = CompletionHandler(llm, served(llm))

        async def answer() -> None:
            answer = await handler.create(CompletionRequest(prompt=prompt, stream=stream))
            try:
                await anext(answer)
            finally:
                await answer.aclose()

        others = asyncio.all_tasks()
        task = asyncio.create_task(answer())
        while llm.num_unfinished_requests < len(prompt):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert llm.num_unfinished_requests == 0
        assert all(s.is_closed for s in llm.streams)
        assert asyncio.all_tasks() == others

    run(check())


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_a_request_that_fails_is_a_server_error(prompt) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(fail_at=2, failure="the logits are not finite"))
        with pytest.raises(APIError, match="the logits are not finite") as raised:
            await complete(llm, prompt=prompt)
        assert raised.value.status == 500
        *chunks, error = await complete(llm, prompt=prompt, stream=True)
        assert chunks
        assert error == {
            "error": {
                "message": "The request failed: the logits are not finite",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
        }
        assert llm.num_unfinished_requests == 0
        assert all(stream.is_closed for stream in llm.streams)

    run(check())


def test_one_failing_choice_fails_the_request() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(fail_at=1, failing_choices=frozenset({1})))
        with pytest.raises(APIError):
            await complete(llm, prompt="a", n=2)
        *chunks, error = await complete(llm, prompt="a", n=2, stream=True)
        assert error["error"]["code"] == 500
        assert texts_of(chunks)[0].startswith("Hello")

    run(check())


@pytest.mark.parametrize("failure", [EngineDeadError("core 3 at /tmp/socket"), ValueError("x"), RuntimeError("/home")])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_streams_that_raise_say_nothing_of_the_machine(prompt, failure, caplog) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(raises=failure, fail_at=1))
        status = 503 if isinstance(failure, EngineDeadError) else 500
        with caplog.at_level(logging.ERROR, "pelton.server"):
            with pytest.raises(APIError) as raised:
                await complete(llm, prompt=prompt)
            *chunks, error = await complete(llm, prompt=prompt, stream=True)
        assert raised.value.status == error["error"]["code"] == status
        assert raised.value.message == error["error"]["message"]
        assert str(failure) not in error["error"]["message"]
        assert (str(failure) in caplog.text) == (status == 500)
        assert chunks
        assert llm.num_unfinished_requests == 0

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_a_shutdown_cuts_requests_off(stream) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(hold=asyncio.Event(), hold_at=1))
        task = asyncio.create_task(complete(llm, prompt="a", stream=stream))
        while not llm.num_unfinished_requests:
            await asyncio.sleep(0)
        await llm.shutdown()
        if stream:
            error = (await task)[-1]["error"]
            assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
        else:
            with pytest.raises(APIError, match="shutting down") as raised:
                await task
            assert raised.value.status == 503

    run(check())


def test_other_models_are_not_here() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        with pytest.raises(
            APIError, match=r"^The model 'gpt-4' does not exist; /v1/models lists those that do\.$"
        ) as raised:
            await complete(llm, prompt="a", model="gpt-4")
        assert (raised.value.status, raised.value.param) == (404, "model")
        assert not llm.calls

    run(check())


def test_the_first_name_is_in_the_answer() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        handler = CompletionHandler(llm, served(llm, "large", "small"))
        answer = await handler.create(parse_request(CompletionRequest, {"prompt": "a", "model": "small"}))
        assert answer.model == "large"

    run(check())


def test_prompts_that_are_too_long() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(max_model_len=8)
        with pytest.raises(ValueError, match="This model's maximum context length is 8 tokens"):
            await complete(llm, prompt=[1] * 8)
        answer = await complete(llm, prompt=[1] * 6, max_tokens=1000)
        assert answer["usage"]["completion_tokens"] == 2

    run(check())


def test_prompts_that_are_certainly_too_long_cost_no_tokenizing() -> None:
    with pytest.raises(
        ValueError, match="This model's maximum context length is 2048 tokens, but the prompt has at least"
    ):
        run(complete(FakeAsyncLLM(), prompt="the cat " * 100_000))


@pytest.mark.parametrize(
    ("fields", "num_entries"),
    [
        ({"n": 2, "prompt_logprobs": 2}, 2 * 3 * 3),
        ({"n": 2, "logprobs": 1, "echo": True}, 2 * 3 * 2),
        ({"n": 2, "logprobs": 0, "echo": True, "stream": True}, 2 * 3),
        ({"n": 2, "prompt_logprobs": 0, "logprobs": 1, "echo": True}, 2 * 3 * 3),
        ({"prompt": ["one two three", "four"], "prompt_logprobs": 1}, 4 * 2),
    ],
)
def test_logprobs_of_prompts_are_limited_where_a_request_multiplies_them(monkeypatch, fields, num_entries) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        fields.setdefault("prompt", "one two three")
        monkeypatch.setattr(completions, "MAX_PROMPT_ENTRIES", num_entries)
        await complete(llm, **fields)
        monkeypatch.setattr(completions, "MAX_PROMPT_ENTRIES", num_entries - 1)
        with pytest.raises(ValueError, match=f"logprobs is ., which makes {num_entries} log probabilities") as refused:
            await complete(llm, **fields)
        assert to_api_error(refused.value).param in ("logprobs", "prompt_logprobs")
        assert llm.num_unfinished_requests == 0
        assert all(stream.is_closed for stream in llm.streams)

    run(check())


def test_one_choice_may_have_as_many_logprobs_as_the_context_allows(monkeypatch) -> None:
    monkeypatch.setattr(completions, "MAX_PROMPT_ENTRIES", 0)
    answer = run(complete(FakeAsyncLLM(), prompt="one two", prompt_logprobs=2))
    assert len(answer["choices"][0]["prompt_logprobs"]) == 2


def test_large_answers_are_the_same(monkeypatch) -> None:
    """They are made in a thread."""
    fields = {"prompt": ["one two", "three"], "n": 2, "echo": True, "logprobs": 1, "prompt_logprobs": 2}
    small = run(complete(FakeAsyncLLM(), **fields))
    monkeypatch.setattr(completions, "_FEW_ENTRIES", 0)
    assert run(complete(FakeAsyncLLM(), **fields))["choices"] == small["choices"]


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(3, 0), (0, 3), (2, 2), (1, -1), (-1, 1)])
def test_logprobs_of_echo_and_of_the_prompt_have_each_its_number(logprobs, prompt_logprobs) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(max_logprobs=-1)
        fields = {"prompt": "one two", "echo": True, "max_tokens": 2}
        answer = await complete(llm, **fields, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
        (choice,) = answer["choices"]
        alone = await complete(llm, **fields, logprobs=logprobs)
        assert choice["logprobs"] == alone["choices"][0]["logprobs"]
        scored = await complete(llm, prompt="one two", prompt_logprobs=prompt_logprobs)
        assert choice["prompt_logprobs"] == scored["choices"][0]["prompt_logprobs"]

    run(check())


def test_a_prompt_that_fails_ends_the_others_at_once() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        llm.play(Script("slow", hold=asyncio.Event()), Script(fail_at=0, failure="broken"))
        with pytest.raises(APIError, match="broken"):
            await complete(llm, prompt=["one", "two"])
        assert llm.num_unfinished_requests == 0

    run(check())
