"""Calls in Python's notation are read as Python reads literals."""

import ast
import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.chat_parsing.python_calls import MAX_DEPTH, PythonListScanner, read_python_calls
from tests.chat_parsing.call_formats import CALLS, pythonic
from tests.chat_parsing.streams import cuts


def scan(pieces):
    """The scanner, and how many characters it read."""
    scanner = PythonListScanner()
    num_read = 0
    for piece in pieces:
        at = scanner.scan(piece, 0)
        num_read += at
        if at < len(piece):
            break
    return scanner, num_read


def value_of(text):
    """The value of a literal as the argument of a call; raises ValueError if it is none."""
    calls = read_python_calls(f"[f(a={text})]")
    if not calls:
        raise ValueError("no call")
    return json.loads(calls[0].arguments)["a"]


@pytest.mark.parametrize(
    "text",
    [
        "1", "-1", "+5", "0", "0x1F", "1_000_000", "1.5", "-.5", "1.", "1e3", "1E-3", "True", "False", "None",
        "''", '""', "'a'", "'it\\'s'", '"a\\"b"', "'''it's\n''fine'''", '"""a"b""c"""', "''''a'''", "'a' \"b\"\n'c'",
        r"'\n\t\\\x41\101\u00e9\U0001f680\a\b\f\v\r'", "'\\\n'", r"r'\d+\''", "u'x'", r"R'\n'",
        "[]", "[1, 'a', [None]]", "[1,]", "()", "(1,)", "(1)", "((1, 2), 'x')", "{}", "{'a': 1, 'b': {'c': []},}",
        "{'a': 1, 'a': 2}", "'🚀 é'", "'] ) }'",
    ],
)  # fmt: skip
def test_literals(text):
    expected = ast.literal_eval(f"({text})")
    assert value_of(text) == json.loads(json.dumps(expected))


def test_unknown_escapes_stay():
    assert value_of(r"'\d+\.\w \xZZ'") == r"\d+\.\w \xZZ"


def test_words_of_json():
    assert value_of("[true, false, null]") == [True, False, None]


def test_pairs_of_surrogates():
    assert value_of(r"'\ud83d\ude80'") == "🚀"


@pytest.mark.parametrize(
    "text",
    [
        "x", "x.y", "f()", "1 + 2", "--1", "1 2", "007", "1__0", "1e999", "1j", "b'x'", "f'x'", "{1, 2}", "{1: 2}",
        "lambda: 1", "not True", "a if b else c", "[*a]", "{**a}", "...", "", "'a' 1", "1a", "0x", "'\\ud83d'",
        "'\\U00110000'", "9" * 5000, "0x" + "f" * 5000, "[,]", "[1,,2]", "{'a'}", "(,)", "# 1\n1", "1 # one",
    ],
)  # fmt: skip
def test_other_expressions(text):
    with pytest.raises(ValueError, match="no call"):
        value_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "[f(1)]",
        "[f(a=1, a=2)]",
        "[f(a.b=1)]",
        "[f(**a)]",
        "[f]",
        "[f(), 1]",
        "[f().g()]",
        "[f()]x",
        "[]",
        "[f(a=1 b=2)]",
    ],
)
def test_no_calls(text):
    assert read_python_calls(text) == []


def test_several():
    calls = read_python_calls("[ get.time ( ) ,\n f(a=1, b='x',), ]")
    assert [(call.name, call.arguments) for call in calls] == [("get.time", "{}"), ("f", '{"a": 1, "b": "x"}')]


@settings(max_examples=60)
@given(st.lists(CALLS, min_size=1, max_size=3), st.data())
def test_round_trip(calls, data):
    text = pythonic(calls)
    scanner, num_read = scan(data.draw(cuts(text + "]x")))
    assert scanner.is_complete
    assert num_read == len(text)
    assert [(call.name, json.loads(call.arguments)) for call in read_python_calls(text)] == calls


@settings(max_examples=150)
@given(st.text("ab()[]{}'\"\\=,:1. \n#", max_size=20), st.data())
def test_agrees_with_python(tail, data):
    """What the scanner takes for the end of a list is one for Python, too, unless the list is none."""
    text = "[f(a='x', b=" + tail + ")]"
    scanner, num_read = scan([text])
    pieces_scanner, pieces_read = scan(data.draw(cuts(text)))
    assert (pieces_scanner.is_complete, pieces_scanner.is_malformed) == (scanner.is_complete, scanner.is_malformed)
    assert pieces_read == num_read
    for call in read_python_calls(text[:num_read]) if scanner.is_complete else []:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text[:num_read], mode="eval").body
        assert isinstance(tree, ast.List)
        assert call.name in [ast.unparse(node.func) for node in tree.elts if isinstance(node, ast.Call)]


def test_depth():
    text = "[f(a=" + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2) + ")]"
    assert scan([text])[0].is_complete
    assert len(read_python_calls(text)) == 1
    assert scan(["[f(a=" + "[" * 100_000])[0].is_malformed


@pytest.mark.parametrize("text", ["[1, 2]", "[x for x in y]", "[]", '["a"]', "[[f()]]", "[f]", "[f, g()]", "[note: a]"])
def test_other_lists_are_seen_early(text):
    scanner, num_read = scan([text])
    assert scanner.is_malformed
    assert num_read < len(text)
