"""Structured output over HTTP: the `openai` package and models of pydantic, unchanged, against a real server."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.clients import MODEL, PARIS, assert_error, serve_smollm2
from tests.support.http_client import check_error, post
from tests.support.native import needs_native
from tests.support.served import Served

pytestmark = needs_native


class Mood(Enum):
    CALM = "calm"
    CROSS = "cross"


class Address(BaseModel):
    street: str = Field(max_length=12)
    number: int = Field(ge=1, le=999)


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=12)
    age: int = Field(ge=0, le=120)
    mood: Mood
    nickname: str | None = Field(max_length=8)
    address: Address
    tags: list[Mood] = Field(min_length=1, max_length=2)


ALICE: list[Any] = [
    {"role": "user", "content": "Alice is 30 and calm. She lives at 5 Main Road. Describe her as JSON."}
]
ASK = {"model": MODEL, "messages": ALICE, "temperature": 0, "max_tokens": 150}
PROMPT = {"model": MODEL, "prompt": PARIS, "temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve_smollm2("--structured-outputs-config", '{"max_check_seconds": 1.5}') as served:
        yield served


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
        yield client


def text_of(answer: Any) -> str:
    """Of a completion that ended by itself."""
    (choice,) = answer.choices
    assert choice.finish_reason == "stop", choice
    return choice.text if hasattr(choice, "text") else choice.message.content


# ------------------------------------------------------------------------------------------------ pydantic's models


def test_parse(client):
    whole = client.chat.completions.parse(**ASK, response_format=Person)
    (choice,) = whole.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    assert Person.model_validate_json(choice.message.content) == choice.message.parsed
    with client.chat.completions.stream(**ASK, response_format=Person) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        streamed = stream.get_final_completion()
    assert len(deltas) > 5
    assert "".join(deltas) == streamed.choices[0].message.content == choice.message.content
    assert streamed.choices[0].message.parsed == choice.message.parsed


def test_parse_of_several_choices(client):
    answer = client.chat.completions.parse(
        **{**ASK, "temperature": 1}, n=3, seed=5, logprobs=True, top_logprobs=2, response_format=Person
    )
    assert all(isinstance(choice.message.parsed, Person) for choice in answer.choices)
    assert len({choice.message.content for choice in answer.choices}) > 1
    for choice in answer.choices:
        spelled = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
        assert spelled.decode().startswith(choice.message.content)
        assert all(token.logprob <= 0 for token in choice.logprobs.content)


def test_an_answer_that_is_cut_off(client):
    with pytest.raises(openai.LengthFinishReasonError) as raised:
        client.chat.completions.parse(**{**ASK, "max_tokens": 5}, response_format=Person)
    (choice,) = raised.value.completion.choices
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")
    with (
        pytest.raises(openai.LengthFinishReasonError),
        client.chat.completions.stream(**{**ASK, "max_tokens": 5}, response_format=Person) as stream,
    ):
        stream.until_done()


# --------------------------------------------------------------------------------------------------- other kinds


def test_json_object(client):
    prompt = {**PROMPT, "prompt": 'JSON: {"a": 1}\nJSON: {"b": 2}\nJSON: '}
    answer = client.completions.create(**prompt, extra_body={"response_format": {"type": "json_object"}})
    assert isinstance(json.loads(text_of(answer)), dict)
    body = {"structured_outputs": {"json_object": True}}
    assert text_of(client.completions.create(**prompt, extra_body=body)) == text_of(answer)
    asked = client.chat.completions.create(**{**ASK, "max_tokens": 10}, response_format={"type": "json_object"})
    assert asked.choices[0].message.content.startswith("{")


SCHEMA = {
    "type": "object",
    "properties": {"capital": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer", "maximum": 9}},
    "required": ["capital", "people"],
    "additionalProperties": False,
}


def test_a_schema_under_all_its_names(client):
    """Makes one answer, however it is written, in completions and in chat."""
    schema_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    bodies = [
        {"response_format": schema_format},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": json.dumps(SCHEMA)},
    ]
    completions = {text_of(client.completions.create(**PROMPT, extra_body=body)) for body in bodies}
    chats = {text_of(client.chat.completions.create(**ASK, extra_body=body)) for body in bodies}
    for texts in (completions, chats):
        (text,) = texts
        answer = json.loads(text)
        assert answer["capital"] in ("Paris", "Rome")
        assert answer["people"] <= 9
        assert set(answer) == {"capital", "people"}
    compact = {"response_format": schema_format, "structured_outputs": {"disable_any_whitespace": True}}
    assert re.search(r"\s", text_of(client.completions.create(**PROMPT, extra_body=compact))) is None


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-c]{2,5}-[0-9]{3}"}}, "[a-c]{2,5}-[0-9]{3}"),
        ({"guided_regex": "(é|🚀){3}"}, "(é|🚀){3}"),
        ({"structured_outputs": {"choice": ["Rome", "a tower", "Röm"]}}, "Rome|a tower|Röm"),
        ({"guided_choice": ["only"]}, "only"),
        ({"structured_outputs": {"grammar": 'start: "yes" | "no" ("!" | "?")\n'}}, "yes|no[!?]"),
        ({"guided_grammar": 'root ::= "x" digit digit\ndigit ::= [0-9]\n'}, "x[0-9][0-9]"),
    ],
    ids=str,
)
def test_patterns(client, body, pattern):
    whole = client.completions.create(**PROMPT, extra_body=body)
    assert re.fullmatch(pattern, text_of(whole))
    streamed = client.completions.create(**PROMPT, extra_body=body, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text_of(whole)
    assert re.fullmatch(pattern, text_of(client.chat.completions.create(**ASK, extra_body=body)))


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_with_several_choices(client, stream):
    prompts = [PARIS, "One, two, three,"]
    body = {"structured_outputs": {"choice": ["one", "two", "three"]}}
    options = {**PROMPT, "prompt": prompts, "temperature": 1, "seed": 3, "n": 2, "echo": True, "logprobs": 2}
    answer = client.completions.create(**options, extra_body=body, stream=stream)
    texts = dict.fromkeys(range(4), "")
    for chunk in answer if stream else [answer]:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
    for index, text in texts.items():
        assert text.removeprefix(prompts[index // 2]) in body["structured_outputs"]["choice"]


# ------------------------------------------------------------------------------------------------------- refusals


def of_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


IN_FORMAT = "response_format.json_schema.schema"
REFUSED = [
    (of_schema({"type": "strange"}), IN_FORMAT),
    (of_schema({"properties": {"a": {"$ref": "#/$defs/none"}}}), IN_FORMAT),
    (of_schema({"properties": {"a": {"type": "string", "pattern": "("}}}), IN_FORMAT),
    (of_schema({"type": "array", "uniqueItems": True}), IN_FORMAT),
    (of_schema({"minLength": "three"}), IN_FORMAT),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "strange"}}}, "response_format"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": r"(a)\1"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
    ({"guided_json": '{"type": "strange"}'}, "guided_json"),
    ({"guided_json": {"x": "y" * (1 << 20)}}, "guided_json"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_json"),
    ({"guided_regex": "a", "guided_decoding_backend": "none"}, "guided_decoding_backend"),
]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


EXTREME = [
    nested(60),
    nested(200),
    {"enum": list(range(10_000))},
    {"enum": ["x" * 2_000]},
    {"type": "integer", "minimum": 10**30},
    {"type": "integer", "maximum": -(10**300)},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "string", "minLength": 10**9},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "pattern": "(((a{1,99}){1,99}){1,99}){1,99}"},
    {"$ref": "#"},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {},
    False,
]
"""May be taken or refused, in an orderly way."""


def test_refusals_beside_streams_that_go_on(server, client):
    """Name the field, come instead of an answer, streamed or not, and cost the others nothing."""
    options = {**PROMPT, "max_tokens": 150, "extra_body": {"guided_regex": "[a-z ]{2000}"}}
    expected = client.completions.create(**options)
    assert expected.choices[0].finish_reason == "length"

    def stream(_: int) -> str:
        return "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))

    with ThreadPoolExecutor(4) as threads:
        texts = threads.map(stream, range(4))
        for number, (body, param) in enumerate(REFUSED):
            with pytest.raises(openai.BadRequestError) as raised:
                client.chat.completions.create(**ASK, extra_body=body, stream=bool(number % 2))
            assert_error(raised.value, 400, param, param)
            with pytest.raises(openai.BadRequestError) as raised:
                client.completions.create(**PROMPT, extra_body=body, stream=not number % 2)
            assert_error(raised.value, 400, param, param)
        check_error(post(server, "/v1/completions", b'{"prompt": "a", "guided_json": {"const": NaN}}'), 400)
        deep = b'{"prompt": "a", "guided_json": ' + b'{"not": ' * 10_000 + b"1" + b"}" * 10_001
        check_error(post(server, "/v1/completions", deep), 400)
        for schema in EXTREME:
            answer = post(server, "/v1/completions", {"prompt": "a", "max_tokens": 2, "guided_json": schema})
            if answer.status != 200:
                assert check_error(answer, 400)["param"] == "guided_json"
        assert set(texts) == {expected.choices[0].text}
    assert "Traceback" not in server.log, server.log


ENDLESS = {"type": "string", "allOf": [{"type": "string", "pattern": f"a.*{number}.*b"} for number in range(32)]}
"""Whether anything meets it, nobody finds out in time."""


def test_a_constraint_that_nobody_can_check(server, client):
    """It keeps a process of its own busy for some seconds, and others wait for none of that."""
    expected = client.completions.create(**PROMPT).choices[0].text
    pictured = {**PROMPT, "max_tokens": 8, "extra_body": {"guided_regex": "[a-z ]{2000}"}}
    constrained = client.completions.create(**pictured).choices[0].text

    def refused(number: int) -> str:
        schema = {**ENDLESS, "title": f"{number}"}  # none is known from the one before
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(**PROMPT, extra_body={"guided_json": schema})
        assert_error(raised.value, 400, "guided_json", "guided_json: to check it takes ")
        return str(raised.value)

    with ThreadPoolExecutor(6) as threads:
        hostile = [threads.submit(refused, number) for number in range(6)]
        answers = 0
        while not all(future.done() for future in hostile):
            assert client.completions.create(**PROMPT).choices[0].text == expected
            assert client.completions.create(**pictured).choices[0].text == constrained  # its check is known
            answers += 1
        assert answers > 3, "they would wait for some seconds each"
        for future in hostile:
            future.result()


def test_one_output_after_the_other_of_a_constraint_with_many_states(client):
    """What all have found out fills what they share; each goes on."""
    body = {"guided_regex": ".*a.{30}"}
    options = {**PROMPT, "max_tokens": 6, "extra_body": body}
    expected = client.completions.create(**options).choices[0].text
    for seed in range(3):
        wild = {**PROMPT, "temperature": 2.0, "max_tokens": 60, "seed": seed, "n": 16, "extra_body": body}
        assert len(client.completions.create(**wild).choices) == 16
    assert client.completions.create(**options).choices[0].text == expected


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_more_tokens_than_the_constraint_has(client, ignore_eos):
    body = {"guided_choice": ["yes", "no"], "min_tokens": 20, "ignore_eos": ignore_eos}
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**PROMPT, extra_body=body)
    assert_error(raised.value, 400, "structured_outputs", "and min_tokens is 20; lower min_tokens")
