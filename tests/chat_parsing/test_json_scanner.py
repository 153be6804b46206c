"""The scanner takes what JSON has as objects, and nothing else, wherever the text is cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.chat_parsing.json_scanner import MAX_DEPTH, JsonScanner
from tests.chat_parsing.call_formats import STRINGS, VALUES
from tests.chat_parsing.streams import cuts

WRONG = [
    "[]",
    "1",
    "{1: 2}",
    "{'a': 1}",
    "{,}",
    '{"a" 1}',
    '{"a": }',
    '{"a": 1,}',
    '{"a": [1,]}',
    '{"a": [1}',
    '{"a": 01}',
    '{"a": +1}',
    '{"a": -}',
    '{"a": .5}',
    '{"a": 1.}',
    '{"a": 1.e5}',
    '{"a": 1e}',
    '{"a": 1e+}',
    '{"a": 1.5.2}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": -Infinity}',
    '{"a": tru}',
    '{"a": trux}',
    '{"a": nul1}',
    '{"a": "\n"}',
    '{"a": "\\x"}',
    '{"a": "\\u12g4"}',
    '{"a": "b" "c"}',
    '{"a": 1 2}',
    '{"a": 1;}',
    '{"a": {]}',
]
RIGHT = [
    "{}",
    "{ \t\r\n}",
    '{"": 0}',
    '{"a":-0.5e-10,"b":[ ],"c":[[],{}],"d":1E5 }',
    '{"a": "\\u00e9\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\\\\""}',
    '{"a": [true, false, null, 10, 0, -1, 1.25]}',
    '{"\\"": "}", "é🚀": "</tool_call>"}',
    '{"a": 1, "a": 2}',
    '{"a": "\x7f\u2028"}',
]


def scan(pieces):
    scanner = JsonScanner()
    num_read = 0
    for piece in pieces:
        at = scanner.scan(piece, 0)
        num_read += at
        if at < len(piece):
            break
    assert scanner.num_scanned == num_read
    return scanner


def is_object(text):
    def refuse(name):
        raise ValueError(name)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("text", RIGHT)
def test_objects(text):
    assert is_object(text)
    for pieces in ([text], text):
        scanner = scan(pieces)
        assert scanner.is_complete
        assert scanner.num_scanned == len(text)


@pytest.mark.parametrize("text", WRONG)
def test_other_texts(text):
    assert not is_object(text)
    places = {scan(pieces).num_scanned for pieces in ([text], text)}
    assert len(places) == 1
    for pieces in ([text], text):
        assert scan(pieces).is_malformed


@pytest.mark.parametrize("text", RIGHT)
def test_beginnings_are_open(text):
    for end in range(len(text)):
        scanner = scan([text[:end]])
        assert (scanner.is_complete, scanner.is_malformed) == (False, False)


def test_what_follows_is_not_read():
    scanner = JsonScanner()
    assert scanner.scan('xx{"a": 1}{"b": 2}', 2) == 10
    assert scanner.is_complete


@settings(max_examples=100)
@given(st.data())
def test_as_json_has_it(data):
    """Texts that were objects, after small changes."""
    value = data.draw(st.dictionaries(STRINGS, VALUES, max_size=3))
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(1, len(text)))
        text = text[:at] + data.draw(st.text('"\\{}[],:0-.e \ntf', max_size=1)) + text[at + 1 :]
    scanner = scan([text])
    assert scanner.is_complete == is_object(text[: scanner.num_scanned])
    assert not (scanner.is_complete and scanner.is_malformed)
    if scanner.is_malformed:
        assert not is_object(text)
    in_pieces = scan(data.draw(cuts(text)))
    assert in_pieces.members == scanner.members
    assert in_pieces.num_scanned == scanner.num_scanned


@settings(max_examples=50)
@given(st.dictionaries(STRINGS, VALUES, max_size=4), st.sampled_from([None, 2]))
def test_members(value, indent):
    text = json.dumps(value, indent=indent)
    found = {}
    for member in scan(text).members:
        value_text = text[member.value_start : member.value_end]
        assert value_text[0] == member.first_char
        assert value_text == value_text.strip()
        found[json.loads(text[member.key_start : member.key_end])] = json.loads(value_text)
    assert found == value


def test_depth():
    text = '{"a": ' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    assert scan([text]).is_complete
    deeper = '{"a": ' + "[" * 100_000
    for pieces in ([deeper], deeper[:1000]):
        scanner = scan(pieces)
        assert scanner.is_malformed
        assert scanner.num_scanned == len('{"a": ') + MAX_DEPTH - 1


def test_number_of_members():
    scanner = JsonScanner(max_members=2)
    assert scanner.scan('{"a": {"x": 1, "y": 2, "z": 3}, "b": 1, "c": 2}', 0) == 40
    assert scanner.is_malformed
