"""Parsers by name, and by what a chat template says."""

import pytest

from pelton.chat_parsing.tool_parsers import TOOL_PARSERS, detect, find_tool_parser
from pelton.chat_parsing.tool_parsers.registry import ALIASES

HERMES = """return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}
</tool_call>"""
LLAMA3 = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'

TEMPLATES = [
    # what it says of calls, the parser
    (HERMES, "hermes"),
    ("{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + key + '>' }}", None),
    ("{{- '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>", None),
    ("{{- '[TOOL_CALLS] [' }}{{- tool_call.function|tojson }}", "mistral"),
    ("{{ '[AVAILABLE_TOOLS]' }}[TOOL_CALLS]{{ name + '[ARGS]' + arguments }}", "mistral"),
    (LLAMA3, "llama3_json"),
    (LLAMA3 + "{{- '<|python_tag|>' }}", "llama3_json"),
    ("{{- '<|python_tag|>' + tool_call.name }}", "llama3_json"),
    ("{{- 'in the format of [func_name1(params_name1=params_value1), func_name2(params)]' }}", "pythonic"),
    ("{{- '<|python_start|>' }}", "pythonic"),
    ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", None),
    ("<|tool_call|>{{ tool_call | tojson }}", None),
    ("", None),
]


@pytest.mark.parametrize(("template", "parser"), TEMPLATES)
def test_detection(template, parser):
    assert detect(template) == parser


def test_names():
    for name, parser in TOOL_PARSERS.items():
        assert find_tool_parser(name) is parser
    for alias, name in ALIASES.items():
        assert find_tool_parser(alias) is TOOL_PARSERS[name]


def test_other_names():
    with pytest.raises(ValueError, match=r"^tool_call_parser must be one of hermes, json, .*, qwen3, got 'gpt'$"):
        find_tool_parser("gpt")


def test_tags_begin_with_a_character_of_their_own():
    """The parsers rely on it."""
    for parser in TOOL_PARSERS.values():
        for tag in parser.tags:
            assert tag.count(tag[0]) == 1
            assert not any(other != tag and other.startswith(tag) for other in parser.tags)
