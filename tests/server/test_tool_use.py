"""Tools in chat: what the prompt tells, what the output must be, and how it is read, streamed and not."""

import json
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pelton.server.errors import APIError
from tests.server.handlers import chat, run
from tests.support.fake_async_llm import FakeAsyncLLM, Script

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
HERMES = (
    "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.city }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[go]{% endif %}"
)
"""A template that tells of calls as Hermes writes them."""
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["fine"]}}}
UNKEPT = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
    },
}


def ask(answer, *, settings=None, engine=None, template=HERMES, **fields):
    """The answer, and the call that the engine got."""

    async def answered():
        llm = FakeAsyncLLM(answer=answer, **(engine or {}))
        said = await chat(llm, template={"chat_template": template} | (settings or {}), **fields)
        return said, llm.calls[-1]

    return run(answered())


def refused(**fields):
    with pytest.raises((APIError, ValueError)) as caught:
        ask("", **fields)
    return str(caught.value)


def message_of(answer):
    ChatCompletion.model_validate(answer)
    (choice,) = answer["choices"]
    for call in choice["message"].get("tool_calls") or ():
        assert call.pop("id").startswith("call_")
    return choice["message"], choice["finish_reason"]


def streamed(chunks):
    """The message that the deltas of a stream amount to, and how it ended."""
    message, reason = {}, None
    calls: dict[int, dict] = {}
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        (choice,) = chunk["choices"]
        assert reason is None, "nothing comes after the end"
        reason = choice["finish_reason"]
        for name, value in choice["delta"].items():
            if name != "tool_calls":
                message[name] = message.get(name, "") + value
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["id"].startswith("call_")
                assert delta["index"] == len(calls)
                calls[delta["index"]] = {
                    "function": {"name": delta["function"]["name"], "arguments": ""},
                    "type": delta["type"],
                }
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    if calls:
        message["tool_calls"] = list(calls.values())
        message["content"] = message["content"] or None
    return message, reason


def called(city="Bern"):
    return {"function": {"name": "get_weather", "arguments": json.dumps({"city": city})}, "type": "function"}


CASES = {
    "one call": (CALL, {"content": None, "tool_calls": [called()]}, "tool_calls"),
    "text and calls": (
        f"Let me see.\n{CALL}\n{CALL.replace('Bern', 'Rom')}",
        {"content": "Let me see.", "tool_calls": [called(), called("Rom")]},
        "tool_calls",
    ),
    "no call": ("It is fine.", {"content": "It is fine."}, "stop"),
    "malformed": (CALL.replace("}}", "}"), {"content": CALL.replace("}}", "}")}, "stop"),
    "text that looks like it": ("a <tool> b <tool_cal", {"content": "a <tool> b <tool_cal"}, "stop"),
}


@pytest.mark.parametrize("tokens_per_output", [1, 3, 1000])
@pytest.mark.parametrize("case", CASES)
def test_calls_that_the_model_chose(case, tokens_per_output):
    """Streams say the same, however many tokens come at once."""
    text, expected, reason = CASES[case]
    script = Script(text, tokens_per_output=tokens_per_output)
    expected = {"role": "assistant"} | expected
    answer, call = ask(script, tools=TOOLS)
    assert message_of(answer) == (expected, reason)
    assert call.params.structured_outputs is None
    assert call.prompt["prompt"] == "<get_weather><clock>Hi[go]"
    assert streamed(ask(script, tools=TOOLS, stream=True)[0]) == (expected, reason)


REQUIRED = '[{"name": "get_weather", "parameters": {"city": "Bern"}}, {"name": "clock", "parameters": {}}]'
CLOCK_CALL = {"function": {"name": "clock", "arguments": "{}"}, "type": "function"}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_are_required(stream):
    answer, call = ask(REQUIRED, tools=TOOLS, tool_choice="required", stream=stream)
    message, reason = streamed(answer) if stream else message_of(answer)
    assert message == {"role": "assistant", "content": None, "tool_calls": [called(), CLOCK_CALL]}
    assert reason == "tool_calls"
    schema = call.params.structured_outputs.json
    assert (schema["type"], schema["minItems"]) == ("array", 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_that_is_named(stream):
    """As in OpenAI's interface, such an answer ends with `stop`."""
    answer, call = ask('{"city": "Bern"}', tools=TOOLS, tool_choice=NAMED, stream=stream)
    message, reason = streamed(answer) if stream else message_of(answer)
    assert message == {"role": "assistant", "content": None, "tool_calls": [called()]}
    assert reason == "stop"
    assert call.params.structured_outputs.json["required"] == ["city"]


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_are_cut_off(stream):
    answer, _ = ask('{"city": "Bern"}', tools=TOOLS, tool_choice=NAMED, stream=stream, max_tokens=3)
    message, reason = streamed(answer) if stream else message_of(answer)
    (call,) = message["tool_calls"]
    assert '{"city": "Bern"}'.startswith(call["function"]["arguments"])
    assert 0 < len(call["function"]["arguments"]) < 16
    assert reason == "length"


def test_one_call_only():
    two = f"{CALL}{CALL.replace('Bern', 'Rom')}"
    answer, _ = ask(two, tools=TOOLS, parallel_tool_calls=False)
    assert message_of(answer)[0]["tool_calls"] == [called()]
    _, call = ask(REQUIRED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert call.params.structured_outputs.json["maxItems"] == 1


def test_choices_are_read_apart():
    answer, _ = ask(Script((CALL, "No.")), tools=TOOLS, n=2, temperature=1.0)
    first, second = answer["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert second["message"] == {"role": "assistant", "content": "No."}
    chunks, _ = ask(Script((CALL, "No.")), tools=TOOLS, n=2, temperature=1.0, stream=True)
    assert streamed([c for c in chunks if c["choices"][0]["index"] == 1])[0]["content"] == "No."
    assert streamed([c for c in chunks if c["choices"][0]["index"] == 0])[0]["tool_calls"] == [called()]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_of_all_tokens(stream):
    answer, _ = ask(CALL, tools=TOOLS, logprobs=True, stream=stream)
    entries = [
        choice["logprobs"]["content"]
        for one in (answer if stream else [answer])
        for choice in one["choices"]
        if choice["logprobs"]
    ]
    text = "".join(entry["token"] for content in entries for entry in content)
    assert text.startswith(CALL)


def test_no_tools():
    for fields in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tools": None, "tool_choice": None}):
        answer, call = ask(CALL, **fields)
        assert message_of(answer) == ({"role": "assistant", "content": CALL}, "stop")
        assert call.prompt["prompt"] == "Hi[go]"


def test_a_template_that_tells_nothing_of_calls():
    message = refused(tools=TOOLS, template="{{ messages[0].content }}")
    assert message.startswith("tool_choice is 'auto', but how the model writes calls is not known")
    answer, _ = ask(CALL, tools=TOOLS, template="{{ messages[0].content }}", settings={"tool_call_parser": "hermes"})
    assert message_of(answer)[1] == "tool_calls"


def test_the_template_among_the_examples():
    template = (Path(__file__).parents[2] / "examples" / "tool_calls_chatml.jinja").read_text()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "So:", "tool_calls": [{"id": "1", **called()} for _ in range(2)]},
        {"role": "tool", "content": "Rain", "tool_call_id": "1"},
    ]
    answer, call = ask(f"So:\n{CALL}", tools=[CLOCK], template=template, messages=messages)
    assert message_of(answer) == ({"role": "assistant", "content": "So:", "tool_calls": [called()]}, "tool_calls")
    prompt = call.prompt["prompt"]
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert '\n{"name": "clock"}\n' in prompt
    assert f"<|im_end|>\n<|im_start|>assistant\nSo:\n{CALL}\n{CALL}<|im_end|>\n" in prompt
    assert prompt.endswith(
        "<|im_start|>user\n<tool_response>\nRain\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    _, call = ask("Hm.", template=template)
    assert call.prompt["prompt"] == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_server_on_which_models_do_not_choose():
    settings = {"enable_auto_tool_choice": False}
    assert refused(tools=TOOLS, settings=settings).startswith("tool_choice is 'auto', which this server does not take")
    answer, _ = ask('{"city": "Bern"}', tools=TOOLS, tool_choice=NAMED, settings=settings)
    assert message_of(answer)[0]["tool_calls"] == [called()]


def test_a_parser_that_there_is_not():
    with pytest.raises(ValueError, match="tool_call_parser must be one of"):
        ask("", settings={"tool_call_parser": "unheard-of"})


def test_special_tokens_are_shown_where_calls_need_them():
    _, call = ask("", tools=TOOLS, settings={"tool_call_parser": "mistral"})
    assert call.params.skip_special_tokens is False
    _, call = ask("", tools=TOOLS)
    assert call.params.skip_special_tokens is True


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": 5}, ["tools must be"]),
        ({"tools": [{"type": "function"}]}, ["tools[0].function"]),
        ({"tools": [WEATHER, WEATHER]}, ["tools[1].function.name must differ"]),
        ({"tools": TOOLS, "tool_choice": "any"}, ["tool_choice must be none, auto, required"]),
        ({"tools": TOOLS, "tool_choice": 5}, ["tool_choice must be none, auto, required"]),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, ["tool_choice", "'x'"]),
        ({"tool_choice": "required"}, ["tool_choice is 'required', but there are no tools"]),
        (
            {"tools": TOOLS, "guided_grammar": 'root ::= "a"'},
            ["tool_choice is 'auto', but guided_grammar leaves no room for a call", "set tool_choice to 'none'"],
        ),
        ({"tools": TOOLS, "structured_outputs": {"whitespace_pattern": " "}}, ["without a constraint"]),
    ],
)
def test_what_is_refused(fields, words):
    message = refused(**fields)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {},
        {"response_format": FORMAT},
        {"response_format": FORMAT, "settings": {"tool_call_parser": "llama3_json"}},
    ],
)
def test_refusals_name_the_tool(fields):
    message = refused(tools=[CLOCK, UNKEPT], **fields)
    expected = "tools[1].function.parameters: the keyword uniqueItems at /properties/a/uniqueItems cannot be kept by"
    assert message.startswith(expected)


def test_a_round_trip():
    """Calls and their results come back as messages."""
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer, call = ask("It is sunny.", tools=TOOLS, messages=messages)
    assert message_of(answer) == ({"role": "assistant", "content": "It is sunny."}, "stop")
    assert call.prompt["prompt"] == "<get_weather><clock>Hi<tool_call>Bern</tool_call>sunny[go]"


THOUGHT = "<think>\nHm.\n</think>\n\n"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_apart(stream):
    answer, _ = ask(f"{THOUGHT}Bern.", engine={"reasoning_parser": "qwen3"}, stream=stream)
    message, reason = streamed(answer) if stream else message_of(answer)
    assert (message, reason) == ({"role": "assistant", "content": "Bern.", "reasoning": "Hm."}, "stop")
    answer, _ = ask(f"{THOUGHT}Bern.", engine={"reasoning_parser": "qwen3"}, stream=stream, include_reasoning=False)
    message, _ = streamed(answer) if stream else message_of(answer)
    assert message == {"role": "assistant", "content": "Bern."}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_after_reasoning(stream):
    answer, _ = ask(f"{THOUGHT}{CALL}", engine={"reasoning_parser": "qwen3"}, tools=TOOLS, stream=stream)
    message, reason = streamed(answer) if stream else message_of(answer)
    assert message == {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [called()]}
    assert reason == "tool_calls"


def test_reasoning_that_the_prompt_has_begun():
    answer, _ = ask(
        "Hm.</think>Bern.", engine={"reasoning_parser": "qwen3"}, template="{{ messages[0].content }}<think>\n"
    )
    assert message_of(answer)[0] == {"role": "assistant", "content": "Bern.", "reasoning": "Hm."}


def test_constraints_after_reasoning_need_its_tokens():
    """SmolLM2 has none."""
    message = refused(engine={"reasoning_parser": "qwen3"}, response_format={"type": "json_object"})
    assert "it has no token <think>" in message


def test_auto_without_tools_means_none():
    answer, call = ask(CALL, tools=[], tool_choice="auto")
    assert message_of(answer) == ({"role": "assistant", "content": CALL}, "stop")
    assert call.prompt["prompt"] == "Hi[go]"


def test_a_stop_string_within_a_call():
    """The call is not whole, so the message does not end for it."""
    answer, _ = ask(REQUIRED, tools=TOOLS, tool_choice="required", stop="ern")
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "B'
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_many_choices_of_large_tools_are_refused():
    large = {"type": "object", "properties": {"city": {"enum": ["x" * 100_000]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": large}}
    message = refused(tools=[tool], tool_choice="required", n=1024, temperature=1.0)
    assert message.startswith("tools must have at most")


def test_what_comes_back_from_clients():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho", "tool_calls": [], "reasoning": "Hm."},
        {"role": "user", "content": "And?"},
    ]
    template = "{% for m in messages %}[{{ m.content }}{{ m.reasoning_content }}{{ 'tool_calls' in m }}]{% endfor %}"
    _, call = ask("", messages=messages, template=template)
    assert call.prompt["prompt"] == "[HiFalse][HoHm.False][And?False]"


def test_messages_that_cannot_be_continued():
    called_before = {"role": "assistant", "content": "So", "tool_calls": [{"id": "1", "type": "function", **called()}]}
    message = refused(
        tools=TOOLS, messages=[{"role": "user", "content": "Hi"}, called_before], continue_final_message=True
    )
    assert "the final message has tool_calls" in message
    final = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]
    fields = {"messages": final, "continue_final_message": True, "engine": {"reasoning_parser": "qwen3"}}
    message = refused(response_format={"type": "json_object"}, **fields)
    assert message.startswith("continue_final_message is true, and response_format holds for what follows")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_a_format_or_calls(stream):
    """As agents with an output type ask for it."""
    for text, expected in ((CALL, {"content": None, "tool_calls": [called()]}), ('"fine"', {"content": '"fine"'})):
        answer, call = ask(text, tools=TOOLS, response_format=FORMAT, stream=stream)
        message, reason = streamed(answer) if stream else message_of(answer)
        assert message == {"role": "assistant"} | expected
        assert reason == ("tool_calls" if "tool_calls" in expected else "stop")
        assert call.params.structured_outputs.kind == "structural_tag"


def test_a_format_beside_calls_that_must_be():
    """There is no answer that it could be about."""
    for choice in ("required", NAMED):
        _, with_format = ask(REQUIRED, tools=TOOLS, tool_choice=choice, response_format=FORMAT)
        _, without = ask(REQUIRED, tools=TOOLS, tool_choice=choice)
        assert with_format.params.structured_outputs == without.params.structured_outputs
    _, call = ask('"fine"', tools=TOOLS, tool_choice="none", response_format=FORMAT)
    assert call.params.structured_outputs.json == {"enum": ["fine"]}


def test_options_hold_for_calls():
    options = {"disable_any_whitespace": True, "disable_additional_properties": False}
    _, call = ask(REQUIRED, tools=TOOLS, tool_choice="required", structured_outputs=options)
    assert call.params.structured_outputs.disable_any_whitespace
    assert call.params.structured_outputs.disable_additional_properties is False


def test_strict_functions():
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    _, call = ask(CALL, tools=[strict, CLOCK])
    assert call.params.structured_outputs.structural_tag["format"]["type"] == "triggered_tags"
    _, call = ask(CALL, tools=[strict, CLOCK], tool_choice="none")
    assert call.params.structured_outputs is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_that_is_cut_off_at_its_beginning(stream):
    """What a grammar has written of it is nobody's answer."""
    answer, _ = ask(REQUIRED, tools=TOOLS, tool_choice="required", stream=stream, max_tokens=4)
    message, reason = streamed(answer) if stream else message_of(answer)
    assert (message["content"], reason) == ("", "length")
    assert "tool_calls" not in message
