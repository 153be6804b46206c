"""Chat completions: from messages to prompts, the role, logprobs, and the order of what is streamed."""

import asyncio

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pelton.engine.errors import QueueFullError
from pelton.server.chat import ChatHandler
from pelton.server.errors import APIError
from pelton.server.protocol import ChatCompletionRequest
from tests.server.handlers import USER, chat, events, run, served, texts_of
from tests.support.fake_async_llm import LOGPROB, FakeAsyncLLM, Script

NAMES = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}[go]{% endif %}"
    "{{ mood }}{% for d in documents or [] %}<{{ d.title }}>{% endfor %}{{ reasoning_effort }}"
)
"""A template that shows what it gets."""


async def rendered(llm: FakeAsyncLLM | None = None, **fields):
    """The prompt of a request."""
    llm = llm or FakeAsyncLLM()
    await chat(llm, template={"chat_template": NAMES}, **fields)
    return llm.calls[-1].prompt["prompt"]


def test_an_answer_has_the_shape_of_openai() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await chat(llm)
        assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there!"},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ]
        ChatCompletion.model_validate(answer)
        (call,) = llm.calls
        assert call.prompt["prompt"].endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert answer["usage"]["prompt_tokens"] == len(call.prompt["prompt_token_ids"])
        assert call.params.max_tokens is None

    run(check())


def test_the_first_chunk_has_the_role_and_the_last_one_the_reason() -> None:
    async def check() -> None:
        chunks = await chat(FakeAsyncLLM(), stream=True)
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk)
        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
            {"role": "assistant", "content": ""},
            {"content": "Hello"},
            {"content": " there"},
            {"content": "!"},
            {"content": ""},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert chunks[-1]["choices"][0]["stop_reason"] is None
        assert not any("usage" in chunk or "error" in chunk for chunk in chunks)

    run(check())


def test_the_role_comes_with_the_first_token_and_not_before() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        hold = asyncio.Event()
        llm.play(Script(hold=hold))
        stream = await ChatHandler(llm, served(llm)).create(ChatCompletionRequest(messages=USER, stream=True))
        first = asyncio.ensure_future(anext(stream))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        hold.set()
        assert b'"delta":{"role":"assistant","content":""}' in await first
        assert texts_of(await events(stream)) == {0: "Hello there!"}

    run(check())


def test_each_choice_begins_with_its_role() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(("one", "two and more", "three")))
        chunks = await chat(llm, n=3, stream=True)
        assert texts_of(chunks) == {0: "one", 1: "two and more", 2: "three"}
        for index in range(3):
            own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            assert not any("role" in choice["delta"] for choice in own[1:])
            assert own[-1]["finish_reason"] == "stop"
        answer = await chat(llm, n=3)
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "two and more", "three"]

    run(check())


def test_usage_in_streams() -> None:
    async def check() -> None:
        chunks = await chat(FakeAsyncLLM(), stream=True, stream_options={"include_usage": True})
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 5
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 4
        ChatCompletionChunk.model_validate(chunks[-1])
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await chat(FakeAsyncLLM(), stream=True, stream_options=options)
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 3, 4, 4]

    run(check())


def test_token_ids() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await chat(llm, return_token_ids=True)
        assert answer["prompt_token_ids"] == llm.calls[0].prompt["prompt_token_ids"]
        assert answer["choices"][0]["token_ids"] == [19556, 665, 17, 2]
        chunks = await chat(llm, return_token_ids=True, stream=True)
        assert [chunk.get("prompt_token_ids") for chunk in chunks] == [answer["prompt_token_ids"], *[None] * 4]
        assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, [19556], [665], [17], [2]]

    run(check())


def test_logprobs() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script("Hi é", rank=4))
        (choice,) = (await chat(llm, logprobs=True, top_logprobs=2, max_tokens=1))["choices"]
        (token,) = choice["logprobs"]["content"]
        assert (token["token"], token["logprob"], token["bytes"]) == ("Hi", LOGPROB, list(b"Hi"))
        assert len(token["top_logprobs"]) == 3
        assert token["top_logprobs"][-1] == {"token": "Hi", "logprob": LOGPROB, "bytes": list(b"Hi")}
        values = [entry["logprob"] for entry in token["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
            answer = await chat(llm, **fields)
            assert [token["top_logprobs"] for token in answer["choices"][0]["logprobs"]["content"]] == [[]] * 3
            ChatCompletion.model_validate(answer)
        chunks = await chat(llm, logprobs=True, stream=True)
        assert chunks[0]["choices"][0]["logprobs"] is None
        assert [chunk["choices"][0]["logprobs"]["content"][0]["token"] for chunk in chunks[1:]] == [
            "Hi",
            " é",
            "<|im_end|>",
        ]

    run(check())


@pytest.mark.parametrize("number", [21, -1])
def test_too_many_logprobs_are_refused_by_the_name_that_the_client_used(number) -> None:
    with pytest.raises(ValueError, match=f"^top_logprobs is {number}, but max_logprobs allows 20"):
        run(chat(FakeAsyncLLM(), logprobs=True, top_logprobs=number))


def test_prompt_logprobs() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        answer = await chat(llm, prompt_logprobs=0)
        assert answer["prompt_logprobs"][0] is None
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]

    run(check())


def test_limits_of_the_output() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        llm.generation_defaults = {"max_tokens": 50, "temperature": 0.6}
        for fields, expected in (
            ({}, 50),
            ({"max_tokens": 3}, 3),
            ({"max_tokens": 3, "max_completion_tokens": 2}, 2),
            ({"max_tokens": 3, "max_completion_tokens": None}, 3),
        ):
            await chat(llm, **fields)
            assert llm.calls[-1].params.max_tokens == expected
            assert llm.calls[-1].params.temperature == 0.6

    run(check())


def test_contents_in_parts() -> None:
    async def check() -> None:
        parts = [
            {"type": "text", "text": "Look:", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "nothing"},
        ]
        assert await rendered(messages=[{"role": "user", "content": parts}]) == "[user:Look:\nnothing][go]"

    run(check())


def test_roles() -> None:
    async def check() -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hi", "name": "Ada"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "ok", "tool_call_id": "1"},
            {"role": "function", "name": "f", "content": "ok"},
        ]
        template = (
            "{% for m in messages %}[{{ m.role }}:{{ m.name }}{{ m.tool_call_id }}{% for c in m.tool_calls %}"
            "{{ c.function.arguments.x }}{% endfor %}{{ m.content }}]{% endfor %}"
        )
        llm = FakeAsyncLLM()
        await chat(llm, template={"chat_template": template}, messages=messages)
        assert llm.calls[0].prompt["prompt"] == "[system:Be brief.][user:AdaHi][assistant:1][tool:1ok][function:fok]"

    run(check())


def test_variables_of_the_template() -> None:
    async def check() -> None:
        text = await rendered(
            chat_template_kwargs={"mood": "glad"}, documents=[{"title": "A"}, {"title": "B"}], reasoning_effort="low"
        )
        assert text == "[user:Hi][go]glad<A><B>low"
        with pytest.raises(ValueError, match="documents is given twice"):
            await rendered(chat_template_kwargs={"documents": []}, documents=[])
        with pytest.raises(ValueError, match="chat_template_kwargs has tools"):
            await rendered(chat_template_kwargs={"tools": []})

    run(check())


def test_whose_message_it_is() -> None:
    async def check() -> None:
        messages = [*USER, {"role": "assistant", "content": "Well,"}]
        assert await rendered(messages=messages, add_generation_prompt=False) == "[user:Hi][assistant:Well,]"
        assert await rendered(messages=messages, continue_final_message=True) == "[user:Hi][assistant:Well,"
        with pytest.raises(ValueError, match="add_generation_prompt"):
            await rendered(messages=messages, continue_final_message=True, add_generation_prompt=True)
        llm = FakeAsyncLLM(answer=" hello")
        for stream in (False, True):
            for fields, role, text in (
                ({"messages": messages, "continue_final_message": True, "echo": True}, "assistant", "Well, hello"),
                ({"messages": messages, "continue_final_message": True}, "assistant", " hello"),
                ({"continue_final_message": True, "echo": True}, "user", "Hi hello"),
                ({"echo": True}, "assistant", " hello"),
            ):
                answer = await chat(llm, stream=stream, **fields)
                if stream:
                    assert answer[0]["choices"][0]["delta"] == {"role": role, "content": ""}
                    assert texts_of(answer) == {0: text}
                else:
                    assert answer["choices"][0]["message"] == {"role": role, "content": text}

    run(check())


def test_templates_of_requests_need_trust() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        with pytest.raises(ValueError, match=r"^chat_template is given, but this server takes no templates"):
            await chat(llm, chat_template="{{ 1 }}")
        trust = {"trust_request_chat_template": True}
        await chat(llm, chat_template="{{ messages[0].content }}!", template=trust)
        assert llm.calls[-1].prompt["prompt"] == "Hi!"
        await chat(llm, template=trust | {"chat_template": NAMES})
        assert llm.calls[-1].prompt["prompt"] == "[user:Hi][go]"

    run(check())


def test_the_template_of_a_request_is_never_a_file(tmp_path) -> None:
    path = tmp_path / "secret"
    path.write_text("{{ 'secret' }}")
    with pytest.raises(ValueError, match=r"^chat_template must be the text of a Jinja template, and has no \{$"):
        run(chat(FakeAsyncLLM(), chat_template=str(path), template={"trust_request_chat_template": True}))


def test_the_template_of_the_server_may_be_a_file_which_is_read_once(tmp_path) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        path = tmp_path / "template"
        path.write_text("{{ 'from file' }}")
        handler = ChatHandler(llm, served(llm), chat_template=str(path))
        path.unlink()
        await handler.create(ChatCompletionRequest(messages=USER))
        assert llm.calls[0].prompt["prompt"] == "from file"
        with pytest.raises(ValueError, match="cannot be read"):
            ChatHandler(llm, served(llm), chat_template=str(path))

    run(check())


def test_templates_may_refuse_messages() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="roles must alternate"):
        run(chat(FakeAsyncLLM(), template={"chat_template": template}))


def test_models_without_a_template(monkeypatch) -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        monkeypatch.setattr(llm.tokenizer, "_own_template", None)
        with pytest.raises(ValueError, match=r"no chat template; start the server with --chat-template, or send a "):
            await chat(llm)

    run(check())


def test_what_goes_beside_the_parameters() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(scheduling_policy="priority")
        answer = await chat(llm, priority=2, cache_salt="pepper", request_id="mine", add_special_tokens=True)
        (call,) = llm.calls
        assert answer["id"] == call.request_id == "chatcmpl-mine"
        assert call.priority == 2
        assert call.prompt["cache_salt"] == "pepper"
        answer = await chat(llm, request_id="mine", handler_args={"request_id": "header", "data_parallel_rank": 0})
        assert answer["id"] == "chatcmpl-header"
        assert llm.calls[-1].data_parallel_rank == 0

    run(check())


def test_nothing_is_left_running() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        stream = await ChatHandler(llm, served(llm)).create(ChatCompletionRequest(messages=USER, stream=True))
        assert llm.num_unfinished_requests == 1
        await stream.aclose()
        assert llm.num_unfinished_requests == 0
        llm.refusals.append(QueueFullError("full", 1))
        with pytest.raises(QueueFullError):
            await chat(llm)
        assert all(stream.is_closed for stream in llm.streams)

    run(check())


def test_a_request_that_fails_at_once_has_no_chunk() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM(answer=Script(fail_at=0))
        (error,) = await chat(llm, stream=True)
        assert error["error"]["code"] == 500
        with pytest.raises(APIError, match="the logits are not finite"):
            await chat(llm)

    run(check())


def test_other_models_are_not_here() -> None:
    with pytest.raises(APIError, match="does not exist"):
        run(chat(FakeAsyncLLM(), model="gpt-4"))
