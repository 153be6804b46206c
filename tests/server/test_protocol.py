"""What requests may hold: types, limits, nulls, unknown fields, and those that other servers know."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server.errors import APIError, parse_request
from pelton.server.not_supported import NOT_SUPPORTED
from pelton.server.protocol import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_PROMPTS,
    MAX_TOTAL_CHOICES,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from pelton.server.sampling import chat_params, completion_params
from tests.server.handlers import USER

REQUESTS = {
    CompletionRequest: {"prompt": "a"},
    ChatCompletionRequest: {"messages": USER},
    TokenizeRequest: {"prompt": "a"},
    DetokenizeRequest: {"tokens": [1]},
}
GENERATION = (CompletionRequest, ChatCompletionRequest)


def parse(model, /, **fields):
    """From an object and from JSON, which must agree."""
    fields = REQUESTS[model] | fields
    as_json = outcome(model, json.dumps(fields).encode())
    as_object = outcome(model, fields)
    if not isinstance(as_object, APIError):
        assert as_json == as_object
        return as_object
    assert isinstance(as_json, APIError)
    assert as_json.body() == as_object.body()
    raise as_object


def outcome(model, source):
    try:
        return parse_request(model, source)
    except APIError as error:
        return error


def refusal(model, /, **fields) -> APIError:
    with pytest.raises(APIError) as raised:
        parse(model, **fields)
    assert raised.value.status == 400
    return raised.value


@pytest.mark.parametrize("model", REQUESTS)
def test_null_means_not_set(model) -> None:
    names = {name for name, field in model.model_fields.items() if not field.is_required()}
    request = parse(model, **(dict.fromkeys(names | NOT_SUPPORTED) | REQUESTS[model]))
    plain = parse(model)
    assert {name: getattr(request, name) for name in names} == {name: getattr(plain, name) for name in names}


@pytest.mark.parametrize("model", GENERATION)
def test_what_clients_send_of_their_own_is_accepted(model) -> None:
    parse(model, store=True, metadata={"a": 1}, service_tier="auto", prompt_cache_key="k", verbosity=None, x=[1])


@pytest.mark.parametrize("model", GENERATION)
@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
def test_what_other_servers_know_is_refused(model, name) -> None:
    error = refusal(model, **{name: {"type": "json_object"}})
    assert error.message == f"{name} is not supported by this version of Pelton; leave it out"
    assert error.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"functions": [{}], "function_call": "none"},
        {"use_beam_search": False},
        {"length_penalty": 1.0},
        {"suffix": ""},
        {"modalities": ["text"]},
        {"structured_outputs": {}},
        {"truncation_side": "left"},
        {"parallel_tool_calls": True},
        {"logit_bias": {}},
    ],
)
def test_what_changes_nothing_is_accepted(fields) -> None:
    parse(ChatCompletionRequest, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"use_beam_search": True},
        {"length_penalty": 0.5},
        {"functions": [{}]},
        {"functions": [{}], "function_call": "auto"},
    ],
)
def test_what_would_change_something_is_refused(fields) -> None:
    error = refusal(ChatCompletionRequest, **fields)
    assert "is not supported by this version of Pelton" in error.message
    assert error.param in fields


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "1", "temperature must be a number, got '1'"),
        ("temperature", True, "temperature must be a number, got True"),
        ("temperature", -0.5, "temperature must be greater than or equal to 0, got -0.5"),
        ("n", "2", "n must be an integer, got '2'"),
        ("n", True, "n must be an integer, got True"),
        ("n", 1.5, "n must be an integer, got 1.5"),
        ("n", 0, "n must be greater than or equal to 1, got 0"),
        ("n", 1025, "n must be less than or equal to 1024, got 1025"),
        ("stream", 1, "stream must be true or false, got 1"),
        ("stream", "true", "stream must be true or false, got 'true'"),
        ("max_tokens", -1, "max_tokens must be greater than or equal to 0, got -1"),
        ("top_p", 0, "top_p must be greater than 0, got 0"),
        ("logit_bias", {"x": 1}, "logit_bias.x must match pattern '^[0-9]{1,10}$', got 'x'"),
        ("logit_bias", {"5": "1"}, "logit_bias.5 must be a number, got '1'"),
        ("stop_token_ids", [1, -1], "stop_token_ids[1] must be greater than or equal to 0, got -1"),
        ("model", ["a"], "model must be a string, got ['a']"),
        (
            "stop",
            ["a", 1],
            "stop must be a string of 1 to 512 characters, or a list of at most 64 such strings, got ['a', 1]",
        ),
        ("stop", "", "stop must be a string of 1 to 512 characters, or a list of at most 64 such strings, got ''"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage must be true or false, got 1"),
        (
            "stream_options",
            {"include_usage": True},
            "stream_options is given, but stream is not true; leave it out",
        ),
        ("request_id", "a\nb", r"request_id must be printable, got 'a\nb'"),
        ("cache_salt", "", "cache_salt must have at least 1 character, got ''"),
    ],
)
@pytest.mark.parametrize("model", GENERATION)
def test_values_of_the_wrong_kind(model, field, value, message) -> None:
    error = refusal(model, **{field: value})
    assert error.message == message
    assert error.param == field
    assert error.error_type == "BadRequestError"


@pytest.mark.parametrize("model", GENERATION)
def test_whole_numbers_may_be_written_as_floats_and_floats_as_whole_numbers(model) -> None:
    request = parse(model, n=2.0, max_tokens=5.0, temperature=1, top_k=-1.0)
    assert (request.n, request.max_tokens, request.temperature, request.top_k) == (2, 5, 1.0, -1)
    assert type(request.n) is int


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(literal) -> None:
    body = f'{{"prompt": "a", "temperature": {literal}}}'
    for source in (body.encode(), json.loads(body)):
        with pytest.raises(APIError, match=r"temperature|not valid JSON"):
            parse_request(CompletionRequest, source)


@pytest.mark.parametrize(
    "prompt", [[], [[]], {}, 5, None, True, [None], [1, "a"], ["a", 1], [[1], "a"], [1.5], [True], [-1], [[1, -1]]]
)
def test_prompts_that_are_none(prompt) -> None:
    error = refusal(CompletionRequest, prompt=prompt)
    assert error.message.startswith("prompt must be a string, a list of strings, a list of token ids, or a list of")
    assert error.param == "prompt"


def test_the_prompt_is_required() -> None:
    with pytest.raises(APIError, match=r"^prompt is missing$") as raised:
        parse_request(CompletionRequest, {})
    assert raised.value.param == "prompt"
    with pytest.raises(APIError, match=r"^messages is missing$"):
        parse_request(ChatCompletionRequest, b"{}")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_forms_of_prompts(prompt, prompts) -> None:
    assert parse(CompletionRequest, prompt=prompt).prompts == prompts


def test_best_of_is_n() -> None:
    parse(CompletionRequest, best_of=1)
    parse(CompletionRequest, best_of=3, n=3)
    assert refusal(CompletionRequest, best_of=3, n=2).param == "best_of"


def test_numbers_of_prompts_choices_and_messages_are_limited() -> None:
    parse(CompletionRequest, prompt=["a"] * MAX_PROMPTS)
    assert refusal(CompletionRequest, prompt=["a"] * (MAX_PROMPTS + 1)).param == "prompt"
    parse(CompletionRequest, prompt=["a"] * 4, n=MAX_TOTAL_CHOICES // 4)
    error = refusal(CompletionRequest, prompt=["a"] * 4, n=MAX_TOTAL_CHOICES // 4 + 1)
    assert error.message.startswith("n must be at most 512 with 4 prompts, got 513")
    parse(ChatCompletionRequest, messages=USER * MAX_MESSAGES)
    error = refusal(ChatCompletionRequest, messages=USER * (MAX_MESSAGES + 1))
    assert error.message.startswith("messages must have at most 4096 items, got 4097")
    assert refusal(ChatCompletionRequest, messages=[]).param == "messages"
    contents = [[{"type": "text", "text": "a"}] * (MAX_PARTS // 2) for _ in range(2)]
    parse(ChatCompletionRequest, messages=[{"role": "user", "content": content} for content in contents])
    contents.append(contents[0][:1])
    error = refusal(ChatCompletionRequest, messages=[{"role": "user", "content": content} for content in contents])
    assert error.message.startswith("messages must hold at most 16384 parts of contents in all, got 16385")


def test_what_is_too_much_is_not_looked_at() -> None:
    """Each of these would be refused for itself."""
    assert "2048 prompts" in refusal(CompletionRequest, prompt=[[-1]] * (MAX_PROMPTS + 1)).message
    messages = [{"role": "user", "content": [5] * (MAX_PARTS + 1)}]
    assert "16384 parts" in refusal(ChatCompletionRequest, messages=messages).message


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": "a"}, "messages[1].role is missing"),
        ({"role": "", "content": "a"}, "messages[1].role must have at least 1 character"),
        ({"role": "x" * 65, "content": "a"}, "messages[1].role must have at most 64 characters"),
        ({"role": 5, "content": "a"}, "messages[1].role must be a string, got 5"),
        ({"role": "user", "content": 5}, "messages[1].content must be a string or a list of parts, got 5"),
        ("Hi", "messages[1] must be an object, got 'Hi'"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
            "messages[1].content has a part of type 'image_url', but Pelton reads only parts of type 'text'",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            "messages[1].content has a part of type 'input_audio'",
        ),
        ({"role": "user", "content": ["a"]}, "messages[1].content has part 0, which must be"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content has part 0, whose text must be"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls must be a list, got {}"),
    ],
)
def test_messages_that_are_none(message, problem) -> None:
    error = refusal(ChatCompletionRequest, messages=[*USER, message])
    assert error.message.startswith(problem)
    assert error.param == "messages"


def test_contents() -> None:
    request = parse(
        ChatCompletionRequest,
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "a", "x": 1}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"arguments": {"x": None}}}]},
            {"role": "user", "content": "", "name": None, "extra": {"kept": None}},
            {"role": "assistant", "content": None},
            {"role": "assistant"},
            {"role": "ipython", "content": "4"},
        ],
    )
    assert [message.for_template() for message in request.messages] == [
        {"role": "system", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {"x": None}}}]},
        {"role": "user", "content": "", "extra": {"kept": None}},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "ipython", "content": "4"},
    ]


def test_top_logprobs_need_logprobs() -> None:
    parse(ChatCompletionRequest, top_logprobs=0)
    parse(ChatCompletionRequest, top_logprobs=2, logprobs=True)
    assert refusal(ChatCompletionRequest, top_logprobs=2).param == "top_logprobs"
    assert refusal(ChatCompletionRequest, top_logprobs=2, logprobs=False).param == "top_logprobs"
    assert refusal(ChatCompletionRequest, logprobs=5).param == "logprobs"
    assert refusal(CompletionRequest, logprobs=True).param == "logprobs"


@pytest.mark.parametrize("model", GENERATION)
def test_streams_have_no_place_for_prompt_logprobs(model) -> None:
    parse(model, prompt_logprobs=1)
    parse(model, prompt_logprobs=0, stream=True)
    for number in (1, -1):
        assert refusal(model, prompt_logprobs=number, stream=True).param == "prompt_logprobs"


@pytest.mark.parametrize("model", GENERATION)
def test_what_asks_for_nothing_is_fine(model) -> None:
    for options in (None, {}, {"include_usage": None}, {"include_usage": False}):
        parse(model, stream_options=options)
    parse(model, user=5)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"a"', b"\xff", b'{"prompt": "\\ud800"}'])
def test_bodies_that_are_none(body) -> None:
    with pytest.raises(APIError) as raised:
        parse_request(CompletionRequest, body)
    assert raised.value.status == 400
    assert raised.value.message.isprintable()


def test_every_field_is_described() -> None:
    for model in REQUESTS:
        properties = model.model_json_schema()["properties"]
        assert [name for name, schema in properties.items() if not schema.get("description")] == []
    for model in GENERATION:
        properties = model.model_json_schema()["properties"]
        assert properties["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 1024}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("model", "params"), [(CompletionRequest, completion_params), (ChatCompletionRequest, chat_params)]
)
@given(data=st.data())
def test_any_value_of_any_field_is_taken_or_refused_in_one_line(model, params, data) -> None:
    names = st.sampled_from(sorted({*model.model_fields, *NOT_SUPPORTED}))
    fields = data.draw(st.dictionaries(names, JSON | st.sampled_from([0, 1, -1, True, "a", ["a"], [1]]), max_size=3))
    request = outcome(model, REQUESTS[model] | fields)
    if isinstance(request, APIError):
        assert request.status == 400
        assert request.message.isprintable()
        assert len(request.message) < 1000
        json.dumps(request.body(), allow_nan=False).encode()
        return
    refusal = ""
    try:
        params(request, {})
    except ValueError as error:
        refusal = str(error)
    assert refusal.isprintable()


def test_tools_are_for_conversations() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert refusal(CompletionRequest, tools=[tool]).message.startswith("tools are for chat completions")
    assert parse(TokenizeRequest, prompt=None, messages=USER, tools=[tool]).tools_for_template == [tool]
    assert (
        parse(TokenizeRequest, prompt=None, messages=USER, tools=[tool], tool_choice="none").tools_for_template is None
    )
