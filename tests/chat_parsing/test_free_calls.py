"""A model that is free to call or not, and what its calls and its answer must look like then."""

import json
import random

import jsonschema
import pytest

from pelton.chat_parsing import Tool, find_tool_parser, free_constraint
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.chat_parsing.streams import calls_of, message_of
from tests.grammar.installed_backends import INSTALLED, compiled
from tests.grammar.random_generation import generate
from tests.grammar.small_vocabularies import PIECES

COLOR = {"type": "object", "properties": {"color": {"enum": ["red", "blé"]}}, "required": ["color"]}
CLOSED = {**COLOR, "additionalProperties": False}
SHARED = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "boolean"}}}
TOOLS = [
    Tool("paint", parameters=CLOSED, strict=True),
    Tool("say.it", parameters={**SHARED, "required": ["a"], "additionalProperties": False}, strict=True),
    Tool("now", strict=True),
]
ANSWER = {
    "type": "object",
    "properties": {"name": {"enum": ["paint", "x"]}, "good": {"$ref": "#/$defs/A"}},
    "required": ["name", "good"],
    "additionalProperties": False,
    "$defs": {"A": {"type": "null"}},
}
ARGUMENTS = {
    "paint": CLOSED,
    "say.it": {**SHARED, "required": ["a"], "additionalProperties": False},
    "now": {"type": "object", "maxProperties": 0},
}
TAGGED = ["hermes", "mistral"]
PLAIN = ["llama3_json", "json"]


def outputs(constraint, backend="llguidance", number=60, stop_chance=0.5):
    grammar = compiled(backend, constraint)
    rng = random.Random(7)
    for _ in range(number):
        made = generate(grammar, PIECES, rng, max_tokens=3000, stop_chance=stop_chance)
        yield PIECES.decode(made.token_ids), made.is_complete


def calls_in(message):
    """Name and arguments of each, which are as the tool wants them."""
    for name, text in calls_of(message):
        jsonschema.validate(json.loads(text), ARGUMENTS[name])
        yield name


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("format_name", TAGGED + PLAIN)
def test_an_answer_or_calls(format_name, parallel, backend):
    """Whatever a model writes under the constraint, its parser reads as one of the two."""
    parser = find_tool_parser(format_name)
    constraint = free_constraint(TOOLS, parser, StructuredOutputsParams(json=ANSWER), parallel=parallel)
    names, num_answers = [], 0
    for data, is_complete in outputs(constraint, backend):
        assert is_complete
        message = message_of(parser(), [data.decode()])
        found = list(calls_in(message))
        if found:
            assert not message.content
            assert len(found) == 1 or (parallel and format_name in TAGGED)
            names += found
        else:
            jsonschema.validate(json.loads(message.content), ANSWER)
            num_answers += 1
    assert num_answers
    assert set(names) == set(ARGUMENTS)


@pytest.mark.parametrize(
    ("kind", "value", "answers"),
    [
        ("choice", ["yes", "no"], {"yes", "no"}),
        ("json_object", True, None),
        ("json", True, None),
    ],
)
def test_kinds_of_answers(kind, value, answers):
    parser = find_tool_parser("hermes")
    constraint = free_constraint(TOOLS, parser, StructuredOutputsParams(**{kind: value}))
    found = set()
    for data, is_complete in outputs(constraint, stop_chance=0.9):
        message = message_of(parser(), [data.decode(errors="replace")])
        if is_complete and not list(calls_in(message)):
            found.add(message.content)
    if answers is not None:
        assert found == answers
    else:
        assert found
        assert all(isinstance(json.loads(text), dict) for text in found if kind == "json_object")


@pytest.mark.parametrize("format_name", PLAIN)
def test_any_answer_in_json(format_name):
    parser = find_tool_parser(format_name)
    for fields in ({"json_object": True}, {"json": True}, {"json": {"type": "array"}}):
        constraint = free_constraint(TOOLS, parser, StructuredOutputsParams(**fields, disable_any_whitespace=True))
        assert constraint.disable_any_whitespace
        validator = jsonschema.Draft202012Validator(constraint.json)
        key = parser.syntax.arguments
        assert validator.is_valid({"name": "paint", key: {"color": "red"}})
        assert validator.is_valid({"other": 1}) == ("array" not in str(fields))


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("format_name", TAGGED)
def test_strict_functions(format_name, backend):
    """Text is free, but a call in it keeps to the tools."""
    parser = find_tool_parser(format_name)
    tools = [*TOOLS[:2], Tool("loose", parameters=CLOSED)]
    constraint = free_constraint(tools, parser, None)
    grammar = compiled(backend, constraint)

    def may_be(text):
        matcher = grammar.new_matcher()
        return all(map(matcher.accept, PIECES.encode(text))) and matcher.is_accepting

    def call(name, arguments):
        return parser.syntax.begin + f'{{"name": "{name}", "arguments": {arguments}}}' + parser.syntax.end

    good = call("paint", '{"color": "red"}')
    assert may_be("Nothing to do.")
    assert may_be(good)
    assert may_be(f"So: {good}")
    assert may_be(good.replace(parser.syntax.end, parser.syntax.separator) + good[len(parser.syntax.begin) :])
    assert may_be(call("loose", '{"color": 5, "more": [1]}'))
    assert not may_be(call("paint", '{"color": "green"}'))
    assert not may_be(call("paint", '{"color": "red", "more": 1}'))
    assert not may_be(call("other", "{}"))
    assert not may_be(parser.tags[0])


def test_who_is_not_constrained():
    loose = [Tool("paint", parameters=COLOR)]
    for format_name in TAGGED + PLAIN + ["pythonic"]:
        assert free_constraint(loose, find_tool_parser(format_name), None) is None
    for format_name in [*PLAIN, "pythonic"]:
        assert free_constraint(TOOLS, find_tool_parser(format_name), None) is None


@pytest.mark.parametrize(
    ("format_name", "fields", "message"),
    [
        ("pythonic", {"json": ANSWER}, "no grammar can be made of calls"),
        ("llama3_json", {"regex": "a"}, "must be JSON, too"),
        ("hermes", {"grammar": 'start: "a"'}, "an answer by grammar leaves no room"),
        ("hermes", {"regex": ".*"}, "an answer by regex leaves no room"),
        (
            "hermes",
            {"choice": ["a", 'x<tool_call>{"name": "f", "arguments": {}}']},
            "an answer by choice leaves no room",
        ),
        ("mistral", {"structural_tag": {"format": {"type": "any_text"}}}, "an answer by structural_tag"),
    ],
)
def test_answers_beside_which_there_is_no_room(format_name, fields, message):
    with pytest.raises(ValueError, match=message):
        free_constraint(TOOLS, find_tool_parser(format_name), StructuredOutputsParams(**fields))
