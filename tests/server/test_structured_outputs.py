"""From the fields of a request that say what the output must look like to one constraint, or a refusal that names
them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server.errors import APIError, parse_request, to_api_error
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest
from pelton.server.request_body import parse_body
from pelton.server.run_batch import BatchRunner
from pelton.server.structured_outputs import ConstraintFields, ResponseFormat, StructuredOutputs
from pelton.structured_outputs_params import BACKENDS, MAX_CHOICES_LENGTH, MAX_SOURCE_LENGTH, StructuredOutputsParams
from tests.server.handlers import USER, chat, complete, run, served
from tests.support.fake_async_llm import FakeAsyncLLM

REQUESTS = {CompletionRequest: {"prompt": "a"}, ChatCompletionRequest: {"messages": USER}}
MODELS = pytest.mark.parametrize("model", REQUESTS)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OF_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"}}
TAG = {"type": "text"}


def constraint(model, /, **fields) -> StructuredOutputsParams | None:
    """From an object and from JSON, which must agree."""
    fields = REQUESTS[model] | fields
    request = parse_request(model, fields)
    assert parse_request(model, json.dumps(fields).encode()) == request
    return None if request.constraint is None else request.constraint.params


def refusal(model, /, **fields) -> APIError:
    fields = REQUESTS[model] | fields
    with pytest.raises(APIError) as raised:
        parse_request(model, fields)
    with pytest.raises(APIError) as of_json:
        parse_request(model, json.dumps(fields).encode())
    assert raised.value.body() == of_json.value.body()
    assert raised.value.status == 400
    assert raised.value.message.isprintable()
    return raised.value


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": OF_SCHEMA}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": False}}}, {"json": {}}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": True}}}, {"json": True}),
        (
            {"response_format": {"type": "structural_tag", "format": TAG, "triggers": None}},
            {"structural_tag": {"type": "structural_tag", "format": TAG}},
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": [{"begin": "<a>"}], "triggers": ["<"]}},
            {"structural_tag": {"type": "structural_tag", "structures": [{"begin": "<a>"}], "triggers": ["<"]}},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": False}}, {"json": False}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"structural_tag": {"format": TAG}}}, {"structural_tag": {"format": TAG}}),
        ({"structural_tag": json.dumps({"format": TAG})}, {"structural_tag": {"format": TAG}}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": {}}, {"json": {}}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True, "whitespace_pattern": " ?"}},
            {"json": SCHEMA, "disable_additional_properties": True, "whitespace_pattern": " ?"},
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "backend": "llguidance"}},
            {"json": SCHEMA, "disable_any_whitespace": True, "backend": "llguidance"},
        ),
        (
            {"response_format": OF_SCHEMA, "structured_outputs": {"disable_any_whitespace": True}},
            {"json": SCHEMA, "disable_any_whitespace": True},
        ),
        (
            {
                "response_format": OF_SCHEMA,
                "guided_whitespace_pattern": " ?",
                "guided_decoding_backend": "xgrammar",
                "structured_outputs": {"backend": "xgrammar"},
            },
            {"json": SCHEMA, "whitespace_pattern": " ?", "backend": "xgrammar"},
        ),
    ],
    ids=str,
)
@MODELS
def test_fields_make_a_constraint(model, fields, expected) -> None:
    assert constraint(model, **fields) == StructuredOutputsParams(**expected)


ALL_NULL = dict.fromkeys(field.alias or name for name, field in StructuredOutputs.model_fields.items())


@pytest.mark.parametrize(
    "fields",
    [
        dict.fromkeys(ConstraintFields.model_fields),
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text", "json_schema": None}},
        {"structured_outputs": {}},
        {"structured_outputs": ALL_NULL},
        {"structured_outputs": {**ALL_NULL, "json_object": False, "disable_any_whitespace": False}},
        {"structured_outputs": {"disable_fallback": False, "of_a_later_version": None}},
        {"guided_decoding_backend": "auto"},
        {"structured_outputs": {"backend": "llguidance"}},
    ],
    ids=str,
)
@MODELS
def test_what_is_no_constraint(model, fields) -> None:
    assert constraint(model, **fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": OF_SCHEMA, "structured_outputs": {"json": SCHEMA}, "guided_json": json.dumps(SCHEMA)},
        {"response_format": {"type": "text"}, "guided_json": SCHEMA},
        {"response_format": None, "structured_outputs": {**ALL_NULL, "json": SCHEMA}, "guided_regex": None},
    ],
)
@MODELS
def test_the_same_may_be_said_twice(model, fields) -> None:
    assert constraint(model, **fields) == StructuredOutputsParams(json=SCHEMA)


@pytest.mark.parametrize(
    ("fields", "first", "second"),
    [
        ({"response_format": OF_SCHEMA, "guided_json": {}}, "response_format.json_schema.schema", "guided_json"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"json": SCHEMA}},
            "response_format",
            "structured_outputs.json",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.regex",
            "structured_outputs.choice",
        ),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "structured_outputs.regex", "guided_regex"),
        ({"guided_choice": ["a"], "guided_grammar": "a"}, "guided_choice", "guided_grammar"),
        ({"structural_tag": "{}", "guided_regex": "a"}, "structural_tag", "guided_regex"),
        (
            {"guided_json": {"const": 1}, "structured_outputs": {"json": {"const": True}}},
            "structured_outputs.json",
            "guided_json",
        ),
        (
            {"guided_json": {"const": 1}, "structured_outputs": {"json": {"const": 1.0}}},
            "structured_outputs.json",
            "guided_json",
        ),
        (
            {
                "guided_regex": "a",
                "guided_decoding_backend": "xgrammar",
                "structured_outputs": {"backend": "llguidance"},
            },
            "structured_outputs.backend",
            "guided_decoding_backend",
        ),
        (
            {"guided_json": {}, "guided_whitespace_pattern": " ", "structured_outputs": {"whitespace_pattern": "  "}},
            "structured_outputs.whitespace_pattern",
            "guided_whitespace_pattern",
        ),
    ],
    ids=str,
)
@MODELS
def test_contradictions_name_both(model, fields, first, second) -> None:
    error = refusal(model, **fields)
    assert error.message == f"{first} and {second} are both given, and are not the same; leave out one of them"
    assert error.param == first


def of_schema(schema) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


FORMAT, OUTPUTS = "response_format", "structured_outputs"
REFUSED = [
    # of the wrong type
    ({FORMAT: "text"}, "response_format must be an object, got 'text'", FORMAT),
    ({FORMAT: []}, "response_format must be an object, got []", FORMAT),
    ({FORMAT: {}}, "response_format.type is missing", "response_format.type"),
    (
        {FORMAT: {"type": "xml"}},
        "response_format.type must be 'text', 'json_object', 'json_schema' or 'structural_tag', got 'xml'",
        "response_format.type",
    ),
    ({FORMAT: {"type": None}}, "response_format.type must be 'text', 'json_object'", "response_format.type"),
    (
        {FORMAT: {"type": "json_schema"}},
        "response_format.json_schema is missing, which type 'json_schema' needs",
        "response_format.json_schema",
    ),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema.schema is missing",
        "response_format.json_schema.schema",
    ),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "schema": None}}},
        "response_format.json_schema.schema must be a JSON schema",
        "response_format.json_schema.schema",
    ),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "json_schema": {}}}},
        "response_format.json_schema has the unknown entry 'json_schema'; there are schema, name, description, strict",
        "response_format.json_schema",
    ),
    (of_schema("{}"), "response_format.json_schema.schema must be a JSON schema", "response_format.json_schema.schema"),
    (of_schema([]), "response_format.json_schema.schema must be a JSON schema", "response_format.json_schema.schema"),
    (of_schema(1), "response_format.json_schema.schema must be a JSON schema", "response_format.json_schema.schema"),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"name": 5, "schema": {}}}},
        "response_format.json_schema.name must be a string, got 5",
        "response_format.json_schema.name",
    ),
    (
        {FORMAT: {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}},
        "response_format.json_schema.strict must be true or false, got 'yes'",
        "response_format.json_schema.strict",
    ),
    (
        {FORMAT: {"type": "structural_tag"}},
        "response_format.format is missing, which type 'structural_tag' needs",
        "response_format.format",
    ),
    (
        {FORMAT: {"type": "structural_tag", "structures": [5]}},
        "response_format.structures[0] must be an object, got 5",
        "response_format.structures",
    ),
    ({OUTPUTS: "a+"}, "structured_outputs must be an object, got 'a+'", OUTPUTS),
    ({OUTPUTS: {"regex": 5}}, "structured_outputs.regex must be a string, got 5", "structured_outputs.regex"),
    ({OUTPUTS: {"regex": ""}}, "structured_outputs.regex must have at least 1", "structured_outputs.regex"),
    ({OUTPUTS: {"json": 5}}, "structured_outputs.json must be a JSON schema", "structured_outputs.json"),
    ({OUTPUTS: {"choice": "ab"}}, "structured_outputs.choice must be a list, got 'ab'", "structured_outputs.choice"),
    (
        {OUTPUTS: {"choice": ["a", 5]}},
        "structured_outputs.choice[1] must be a string, got 5",
        "structured_outputs.choice",
    ),
    (
        {OUTPUTS: {"json_object": "yes"}},
        "structured_outputs.json_object must be true",
        "structured_outputs.json_object",
    ),
    (
        {OUTPUTS: {"structural_tag": []}},
        "structured_outputs.structural_tag must be a structural",
        "structured_outputs.structural_tag",
    ),
    ({"guided_json": []}, "guided_json must be a JSON schema: an object, true or false, or", "guided_json"),
    ({"guided_json": "{"}, "guided_json must be a dict or the text of a JSON object: Expecting", "guided_json"),
    ({"guided_json": '"text"'}, "guided_json must be a dict or the text of a JSON object", "guided_json"),
    ({"structural_tag": "[]"}, "structural_tag must be a dict or the text of a JSON object", "structural_tag"),
    ({"guided_regex": ["a"]}, "guided_regex must be a string, got ['a']", "guided_regex"),
    ({"guided_choice": "a"}, "guided_choice must be a list, got 'a'", "guided_choice"),
    ({"guided_grammar": {}}, "guided_grammar must be a string, got {}", "guided_grammar"),
    ({"guided_whitespace_pattern": 1}, "guided_whitespace_pattern must be a string", "guided_whitespace_pattern"),
    # nothing to choose from
    ({"guided_choice": []}, "guided_choice must be a non-empty list of strings, got []", "guided_choice"),
    ({OUTPUTS: {"choice": []}}, "structured_outputs.choice must be a non-empty list", "structured_outputs.choice"),
    (
        {OUTPUTS: {"choice": ["a", ""]}},
        "structured_outputs.choice[1] must have at least 1",
        "structured_outputs.choice",
    ),
    # what nobody knows
    (
        {OUTPUTS: {"regexp": "a"}},
        "structured_outputs has the unknown entry 'regexp'; there are json, regex, choice, grammar, json_object, str",
        OUTPUTS,
    ),
    ({OUTPUTS: {"regex": "a", "disable_fallback": True}}, "structured_outputs has the unknown entry 'dis", OUTPUTS),
    ({OUTPUTS: {"json_": {}}}, "structured_outputs has the unknown entry 'json_'", OUTPUTS),
    (
        {FORMAT: {"type": "text", "schema": {}}},
        "response_format.schema is given, but response_format.type is 'text'; leave out schema",
        "response_format.schema",
    ),
    (
        {FORMAT: {"type": "json_object", "json_schema": {"name": "n", "schema": {}}}},
        "response_format.json_schema is given, but response_format.type is 'json_object'; leave out json_schema",
        "response_format.json_schema",
    ),
    ({FORMAT: {"type": "text", "triggers": []}}, "response_format.triggers is given, but", "response_format.triggers"),
    (
        {"guided_decoding_backend": "outlines"},
        f"guided_decoding_backend must be one of {', '.join(BACKENDS)}, got 'outlines'",
        "guided_decoding_backend",
    ),
    ({OUTPUTS: {"backend": "x"}}, "structured_outputs.backend must be one of auto,", "structured_outputs.backend"),
    # about a constraint that is not there
    (
        {"guided_whitespace_pattern": " ", FORMAT: {"type": "text"}},
        "guided_whitespace_pattern is given without a constraint that it is about; leave it out, or add one",
        "guided_whitespace_pattern",
    ),
    (
        {OUTPUTS: {"disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace is given without a constraint",
        "structured_outputs.disable_any_whitespace",
    ),
    (
        {OUTPUTS: {"disable_any_whitespace": True}, "guided_json": {}, "guided_whitespace_pattern": " "},
        "structured_outputs.disable_any_whitespace is True and whitespace_pattern is given",
        "structured_outputs.disable_any_whitespace",
    ),
    # too much
    (
        {"guided_regex": "é" * (MAX_SOURCE_LENGTH + 1)},
        f"guided_regex must have at most {MAX_SOURCE_LENGTH} characters, got 'é",
        "guided_regex",
    ),
    (
        of_schema({"enum": ["x" * 1000] * 1100}),
        "response_format.json_schema.schema must have at most",
        "response_format.json_schema.schema",
    ),
    (
        {OUTPUTS: {"choice": ["a"] * (MAX_CHOICES_LENGTH + 1)}},
        "structured_outputs.choice must have at most 65536 items",
        "structured_outputs.choice",
    ),
    (
        {OUTPUTS: {"choice": ["x" * 1000] * 1100}},
        "structured_outputs.choice must have at most",
        "structured_outputs.choice",
    ),
    # text that holds what JSON must not
    ({"guided_json": '{"const": NaN}'}, "guided_json must hold plain JSON data", "guided_json"),
    ({"guided_json": '{"const": 1e999}'}, "guided_json must hold plain JSON data", "guided_json"),
    ({"guided_json": '{"const": "\\ud800"}'}, "guided_json must hold plain JSON data", "guided_json"),
    ({"guided_json": "[" * 100_000}, "guided_json must be a dict or the text of a JSON object", "guided_json"),
    (
        {"structural_tag": '{"a":' * 100_000},
        "structural_tag must be a dict or the text of a JSON obj",
        "structural_tag",
    ),
]


@pytest.mark.parametrize(("fields", "message", "param"), REFUSED, ids=lambda value: str(value)[:60])
@MODELS
def test_refusals_name_the_field(model, fields, message, param) -> None:
    error = refusal(model, **fields)
    assert error.message.startswith(message)
    assert error.param == param
    assert len(error.message) < 500


@pytest.mark.parametrize(
    "schema",
    ['{"const": NaN}', '{"a": ' + "[" * 10_000, '{"a": ' * 10_000 + "1" + "}" * 10_000, '{"const": "\\ud800"}'],
)
def test_bodies_that_are_no_json(schema) -> None:
    body = f'{{"prompt": "a", "guided_json": {schema}}}'.encode()
    with pytest.raises(ValueError, match=r"NaN|nested|surrogate"):
        parse_body(body)


def test_numbers_beyond_all_bounds() -> None:
    body = b'{"prompt": "a", "guided_json": {"const": 1e999}}'
    with pytest.raises(APIError, match="guided_json must hold plain JSON data"):
        parse_request(CompletionRequest, parse_body(body))


def test_sizes_at_their_limit() -> None:
    for size in (MAX_SOURCE_LENGTH - len('{"a": ""}'), MAX_SOURCE_LENGTH):
        fits = size < MAX_SOURCE_LENGTH
        text = json.dumps({"a": "x" * size})
        for schema in (json.loads(text), text):
            if fits:
                assert constraint(CompletionRequest, guided_json=schema) is not None
            else:
                assert refusal(CompletionRequest, guided_json=schema).param == "guided_json"


@pytest.mark.parametrize("schema", [{"enum": [1] * 2_000_000}, {"enum": [{}] * 600_000}, {"enum": [[[]] * 600_000]}])
def test_very_large_schemas_are_not_written_as_json(monkeypatch, schema) -> None:
    monkeypatch.setattr("pelton.server.structured_outputs.StructuredOutputsParams", None)
    with pytest.raises(APIError, match=f"guided_json must have at most {MAX_SOURCE_LENGTH} characters, written as JSO"):
        parse_request(CompletionRequest, {"prompt": "a", "guided_json": schema})


@MODELS
def test_each_choice_has_a_copy(model) -> None:
    schema = {"const": "x" * 20_000}
    assert constraint(model, **of_schema(schema), n=512, temperature=1) is not None
    error = refusal(model, **of_schema(schema), n=1024, temperature=1)
    assert error.message.startswith("response_format.json_schema.schema must have at most 16384 characters with 1024")
    assert error.param == "response_format.json_schema.schema"


def test_each_prompt_has_a_copy() -> None:
    large = {"guided_regex": "x" * 20_000}
    assert constraint(CompletionRequest, prompt=["a"] * 512, **large) is not None
    assert refusal(CompletionRequest, prompt=["a"] * 512, n=2, temperature=1, **large).param == "guided_regex"


def test_every_entry_is_described() -> None:
    for model in (ResponseFormat, StructuredOutputs):
        for part in (model.model_json_schema(), *model.model_json_schema().get("$defs", {}).values()):
            assert part["additionalProperties"] == {"enum": [None, False]}
            assert [name for name, entry in part["properties"].items() if not entry.get("description")] == []
    assert StructuredOutputs.model_json_schema()["properties"]["backend"]["anyOf"][0]["enum"] == list(BACKENDS)


def test_every_option_can_be_set() -> None:
    names = [field.alias or name for name, field in StructuredOutputs.model_fields.items()]
    assert names == list(StructuredOutputsParams.__struct_fields__)


def test_all_prompts_and_choices_have_it() -> None:
    llm = FakeAsyncLLM()
    fields = {"n": 2, "temperature": 1, "logprobs": 1, "max_tokens": 3, "guided_choice": ["a"], "echo": True}
    answer = run(complete(llm, prompt=["a", "b"], **fields))
    assert len(answer["choices"]) == 4
    run(chat(llm, stream=True, guided_choice=["a"], max_tokens=3))
    assert [call.params.structured_outputs for call in llm.calls] == [StructuredOutputsParams(choice=["a"])] * 3


@pytest.mark.parametrize(
    ("refused", "fields", "message", "param"),
    [
        (
            "json has the keyword 'x' at properties.a",
            {"response_format": OF_SCHEMA},
            "response_format.json_schema.schema has the keyword 'x' at properties.a",
            "response_format.json_schema.schema",
        ),
        (
            "the keyword 'x' is not supported",
            {"structured_outputs": {"json": SCHEMA}},
            "structured_outputs.json: the keyword 'x' is not supported",
            "structured_outputs.json",
        ),
        ("regex: no", {"guided_regex": "("}, "guided_regex: no", "guided_regex"),
        (
            "backend is xgrammar, which is not there",
            {"guided_regex": "a", "guided_decoding_backend": "xgrammar"},
            "guided_decoding_backend is xgrammar, which is not there",
            "guided_decoding_backend",
        ),
        ("backend is bad", {"guided_regex": "a"}, "guided_regex: backend is bad", "guided_regex"),
        ("regexes are bad", {"guided_regex": "a"}, "guided_regex: regexes are bad", "guided_regex"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [chat, complete])
def test_what_the_engine_refuses_names_the_field(ask, stream, refused, fields, message, param) -> None:
    llm = FakeAsyncLLM()
    llm.refusals.append(ValueError(f"structured_outputs: {refused}"))
    prompt = {"prompt": "a"} if ask is complete else {}
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - all of it is compared
        run(ask(llm, stream=stream, **prompt, **fields))
    error = to_api_error(raised.value)
    assert (error.status, error.message, error.param) == (400, message, param)


def test_other_refusals_stay_as_they_are() -> None:
    for fields in ({"guided_regex": "a"}, {}):
        llm = FakeAsyncLLM()
        llm.refusals.append(ValueError("the prompt is empty"))
        with pytest.raises(ValueError, match=r"^the prompt is empty$"):
            run(complete(llm, prompt="a", **fields))


def test_batches() -> None:
    async def lines():
        for number, fields in enumerate([{"guided_regex": ""}, {"response_format": {"type": "json_object"}}]):
            request = {"messages": USER, "max_tokens": 2, **fields}
            yield json.dumps(
                {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": request}
            ).encode()

    llm = FakeAsyncLLM()
    answers = []
    runner = BatchRunner(llm, served(llm), answers.append, max_in_engine=8, max_line_bytes=1 << 20)
    run(runner.run(lines()))
    first, second = sorted(map(json.loads, answers), key=lambda answer: answer["custom_id"])
    assert first["error"]["param"] == "guided_regex"
    assert first["error"]["message"].startswith("line 1: guided_regex must")
    assert second["response"]["status_code"] == 200
    assert [call.params.structured_outputs for call in llm.calls] == [StructuredOutputsParams(json_object=True)]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def entries(names) -> st.SearchStrategy:
    values = JSON | st.sampled_from(["a", ["a"], {}, True, *ResponseFormat.model_fields, "json_object", "text"])
    return JSON | st.dictionaries(st.sampled_from([*names, "x"]), values, max_size=3)


@given(
    format_=entries(["type", "json_schema", "format", "structures", "triggers"]),
    outputs=entries(ALL_NULL),
    others=st.dictionaries(st.sampled_from(list(ConstraintFields.model_fields)[2:]), JSON, max_size=1),
)
def test_anything_is_taken_or_refused_in_one_line(format_, outputs, others) -> None:
    fields = {"prompt": "a", "response_format": format_, "structured_outputs": outputs, **others}
    error = None
    try:
        parse_request(CompletionRequest, fields)
    except APIError as refusal:
        error = refusal
    if error is not None:
        assert error.status == 400
        assert error.message.isprintable()
        assert error.param is not None
        assert error.param.partition(".")[0] in ConstraintFields.model_fields
        json.dumps(error.body(), allow_nan=False).encode()
