"""Tools with the `openai` client, on a real model that was never taught to call any: what is required is enforced."""

import json
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.support.served import Served

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Bern", "Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: ChatCompletionToolParam = {"type": "function", "function": {"name": "clock"}}
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How will the weather be in Bern?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with Served("smollm2", "--max-model-len", "1024", "--tool-call-parser", "hermes") as served:
        yield openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def check_call(call) -> None:
    assert call.type == "function"
    assert call.function.name in ("get_weather", "clock")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments["city"] in ("Bern", "Rome", "Oslo")
        assert 1 <= arguments["days"] <= 7
    else:
        assert arguments == {}


@pytest.mark.parametrize("seed", range(3))
def test_required_and_parallel(client: openai.OpenAI, seed: int) -> None:
    (choice,) = client.chat.completions.create(
        model="smollm2", messages=QUESTION, tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False,
        temperature=1.0, seed=seed, max_tokens=200,
    ).choices  # fmt: skip
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    check_call(call)


def test_a_round_trip(client: openai.OpenAI) -> None:
    """A function that is named is called, its result goes back, and the model says something."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    (choice,) = client.chat.completions.create(
        model="smollm2", messages=QUESTION, tools=[WEATHER], tool_choice=named, temperature=0, max_tokens=100
    ).choices
    (call,) = choice.message.tool_calls or ()
    check_call(call)
    messages = [
        *QUESTION,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'},
    ]
    (answer,) = client.chat.completions.create(
        model="smollm2", messages=messages, tools=[WEATHER], tool_choice="auto", temperature=0, max_tokens=40
    ).choices
    assert answer.message.content


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    request = {
        "model": "smollm2", "messages": QUESTION, "tools": [WEATHER, CLOCK], "tool_choice": "required",
        "parallel_tool_calls": False, "temperature": 1.0, "seed": 11, "max_tokens": 200,
    }  # fmt: skip
    (whole,) = client.chat.completions.create(**request).choices
    with client.chat.completions.stream(**request) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_completion().choices
    assert "tool_calls.function.arguments.delta" in kinds
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"
    (one,), (other,) = streamed.message.tool_calls or (), whole.message.tool_calls or ()
    assert (one.function.name, one.function.arguments) == (other.function.name, other.function.arguments)


class Mood(BaseModel):
    mood: Literal["calm", "cross"]


def test_an_answer_of_a_type_or_a_call(client: openai.OpenAI) -> None:
    """Agents with an output type send both on every turn."""
    tool: ChatCompletionToolParam = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    num_calls, num_answers = 0, 0
    for seed in range(12):
        (choice,) = client.chat.completions.parse(
            model="smollm2", messages=QUESTION, tools=[tool], response_format=Mood, temperature=2.0, seed=seed,
            max_tokens=200, logit_bias={"44": 3} if seed % 2 else {}, parallel_tool_calls=False,
        ).choices  # fmt: skip
        if choice.message.tool_calls:
            assert choice.finish_reason == "tool_calls"
            for call in choice.message.tool_calls:
                check_call(call)
            num_calls += 1
        else:
            assert isinstance(choice.message.parsed, Mood)
            num_answers += 1
    assert num_calls
    assert num_answers


def test_mistakes_are_told(client: openai.OpenAI) -> None:
    for fields, param in [
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "extra_body": {"guided_regex": "a"}}, "tool_choice"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="smollm2", messages=QUESTION, **fields)
        assert caught.value.param == param
