"""Tool parsers find the calls of their format, and give everything else back as it came, however the text is cut."""

import itertools
import json
import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.chat_parsing import CallArgumentsPart, CallBeginPart, ContentPart, find_tool_parser
from pelton.chat_parsing.call_reader import MAX_MEMBERS
from pelton.chat_parsing.json_scanner import MAX_DEPTH
from pelton.chat_parsing.tool_parsers import TOOL_PARSERS
from pelton.chat_parsing.tool_parsers.named import NamedParser
from tests.chat_parsing import call_formats
from tests.chat_parsing.call_formats import CALLS, WHOLE
from tests.chat_parsing.streams import ALPHABET, calls_of, check_cuts, counted_ids, cuts, message_of, parts_of

H = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
F_A = ("f", '{"a": 1}')
G_ = ("g", "{}")
L = '{"name": "f", "parameters": {"a": 1}}'
M = '{"name": "g", "arguments": {}}'

CASES = [
    # parser, text, content, calls
    ("hermes", "", "", []),
    ("hermes", " \n", " \n", []),
    ("hermes", "No call.\n", "No call.\n", []),
    ("hermes", H, "", [F_A]),
    ("hermes", f"\n\n{H}\n", "", [F_A]),
    ("hermes", f"Let me see. \n{H}\n{G}\nDone. ", "Let me see.\nDone. ", [F_A, G_]),
    ("hermes", f"{H}{G}{H}", "", [F_A, G_, F_A]),
    ("hermes", f"a {G} b {G} c", "a b c", [G_, G_]),
    ("hermes", '<tool_call>{"arguments":{"a" : 1.0e5},"name":"f"}</tool_call>', "", [("f", '{"a" : 1.0e5}')]),
    ("hermes", '<tool_call>{"name": "f", "parameters": {}}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"id": [{"name": "x"}], "name": "f", "arguments": {}}</tool_call>', "", [("f", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> \\"}{ <tool_call>"}}</tool_call>',
        "",
        [("f", '{"a": "</tool_call> \\"}{ <tool_call>"}')],
    ),
    ("hermes", '<tool_call>{"name": "\\u0066é🚀", "arguments": {"ü": "\\u00e9"}}</tool_call>', "",
     [("fé🚀", '{"ü": "\\u00e9"}')]),
    # the end of the text stands for the end tag, but not for the end of the object
    ("hermes", H.removesuffix("</tool_call>"), "", [F_A]),
    ("hermes", H.removesuffix("_call>"), "", [F_A]),
    ("hermes", H[:30], H[:30], []),
    ("hermes", "a\n<tool_", "a\n<tool_", []),
    ("hermes", f"{G}\n<tool_call>\n", "\n<tool_call>\n", [G_]),
    # malformed
    ("hermes", f"x\n<tool_call>\nno object\n</tool_call>\n{G}", "x\n<tool_call>\nno object\n</tool_call>", [G_]),
    ("hermes", f"<tool_call>{G}", "<tool_call>", [G_]),
    ("hermes", f"<tool_<<tool_call{G}", "<tool_<<tool_call", [G_]),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {{}}}}{G}', '<tool_call>{"name": "f", "arguments": {}}', [G_]),
    ("hermes", f'<tool_call>{M}}}</tool_call>', f'<tool_call>{M}}}</tool_call>', []),
    ("hermes", f'<tool_call>[{M}]</tool_call>', f'<tool_call>[{M}]</tool_call>', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a\n', '<tool_call>{"name": "f", "arguments": {"a\n', []),
    # the whole output
    ("llama3_json", L, "", [F_A]),
    ("llama3_json", f"\n{L};", "", [F_A]),
    ("llama3_json", f"{L}; {M} ;{M}\n{L}", "", [F_A, G_, G_, F_A]),
    ("llama3_json", f"<|python_tag|>{L}", "", [F_A]),
    ("llama3_json", f"I call <|python_tag|>{L}; {M}\nwell <|python_tag|> {M}", "I call\nwell", [F_A, G_, G_]),
    ("llama3_json", f"I call {L}", f"I call {L}", []),
    ("llama3_json", f"{L} and more", " and more", [F_A]),
    ("llama3_json", '{"type": "function", "name": "g", "parameters": {}}', "", [G_]),
    ("llama3_json", '{"answer": 5}', '{"answer": 5}', []),
    ("llama3_json", f'{L}; {{"answer": 5}}', ' {"answer": 5}', [F_A]),
    ("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("json", f"[{L}, {M}]", "", [F_A, G_]),
    ("json", f" {L} ", "", [F_A]),
    ("json", f"[{L}] x", " x", [F_A]),
    ("json", f"[{L}, {M}", "", [F_A, G_]),
    ("json", f"[{L}, 5]", ", 5]", [F_A]),
    ("json", f"[{L},", ",", [F_A]),
    ("json", f"[{L} {M}]", f" {M}]", [F_A]),
    ("json", "[1, 2]", "[1, 2]", []),
    ("json", "[]", "[]", []),
    ("json", f"x {L}", f"x {L}", []),
    ("json", f"{L}{M}", M, [F_A]),
    ("mistral", f"[TOOL_CALLS] [{L}, {M}]", "", [F_A, G_]),
    ("mistral", f"Sure.\n[TOOL_CALLS][{L}]\nDone", "Sure.\nDone", [F_A]),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', "", [F_A]),
    ("mistral", 'x [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g {}\n', "x", [F_A, G_]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}', "", [F_A]),
    ("mistral", f"[TOOL_CALLS][TOOL_CALLS][{M}]", "[TOOL_CALLS]", [G_]),
    ("mistral", "[TOOL_CALLS]f[TOOL_CALLS]g{}", "[TOOL_CALLS]f", [G_]),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]1[TOOL_CALLS]g{}", "[TOOL_CALLS]f[CALL_ID]1", [G_]),
    ("mistral", f"[TOOL_CALLS]{M}", f"[TOOL_CALLS]{M}", []),
    ("mistral", f"[TOOL_CALLS]{'f' * 64}{{}}", "", [("f" * 64, "{}")]),
    ("mistral", f"[TOOL_CALLS]{'f' * 65}{{}}", f"[TOOL_CALLS]{'f' * 65}{{}}", []),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("mistral", "[TOOL_CALLS]f{]", "[TOOL_CALLS]f{]", []),
    ("mistral", "[TOOL_CALLS]f", "[TOOL_CALLS]f", []),
    ("mistral", "[INST] [TOOL_", "[INST] [TOOL_", []),
    ("mistral", f"[{M}]", f"[{M}]", []),
    ("pythonic", "[f(a=1), g()]", "", [F_A, G_]),
    ("pythonic", "\n[m.f(a='é', b=[True, None, {'c': 1.5}])]\n", "",
     [("m.f", '{"a": "é", "b": [true, null, {"c": 1.5}]}')]),
    ("pythonic", "x <|python_start|>[g()]<|python_end|> y [g()]", "x y [g()]", [G_]),
    ("pythonic", "<|python_tag|>[g()]<|python_", "<|python_", [G_]),
    ("pythonic", "[g()] [g()]", " [g()]", [G_]),
    ("pythonic", "[f(']'), a=1]", "[f(']'), a=1]", []),
    ("pythonic", "[1] and [2]", "[1] and [2]", []),
    ("pythonic", "[f(a=b)]", "[f(a=b)]", []),
    ("pythonic", "[f(a=1", "[f(a=1", []),
    ("pythonic", "x [f()]", "x [f()]", []),
]  # fmt: skip

NO_CALLS = [
    '{"arguments": {}}',
    '{"name": "f"}',
    '{"name": "", "arguments": {}}',
    '{"name": "\\ud800", "arguments": {}}',
    '{"name": 5, "arguments": {}}',
    '{"name": null, "arguments": {}}',
    '{"name": {"name": "f"}, "arguments": {}}',
    '{"name": "f", "arguments": "{}"}',
    '{"name": "f", "arguments": []}',
    '{"name": "f", "arguments": null}',
    '{"name": "f", "name": "g", "arguments": {}}',
    '{"name": "f", "arguments": {}, "arguments": {}}',
    '{"name": "f", "arguments": {}, "parameters": {}}',
    '{"name": "f", "arguments": {"a": 1,}}',
    "{'name': 'f', 'arguments': {}}",
    "{}",
    '{"name": "f", "arguments": {}, ' + ", ".join(f'"{i}": 0' for i in range(MAX_MEMBERS)) + "}",
    '{"name": "f", "arguments": {"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}}",
]


def maker(name, **options):
    return lambda: find_tool_parser(name)(new_id=counted_ids(), **options)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_cases(name, text, content, calls):
    for pieces in ([text], text, [text[:7], "", text[7:]]):
        message = message_of(maker(name)(), pieces)
        assert message.content == content
        assert calls_of(message) == calls
        assert [call.id for call in message.tool_calls] == [f"call_{index}" for index in range(len(calls))]


@pytest.mark.parametrize("text", NO_CALLS)
@pytest.mark.parametrize(
    ("name", "form"),
    [("hermes", "<tool_call>{}</tool_call>"), ("llama3_json", "{}"), ("json", "[{}]"), ("mistral", "[TOOL_CALLS][{}]")],
)
def test_objects_that_are_no_calls(name, form, text):
    text = form.replace("{}", text, 1)
    for pieces in ([text], text):
        message = message_of(maker(name)(), pieces)
        assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(max_examples=25)
@given(calls=st.lists(CALLS, min_size=1, max_size=4), data=st.data())
def test_round_trip(name, calls, data):
    text = WHOLE[name](calls)
    pieces = data.draw(cuts(text))
    check_cuts(maker(name), text, pieces)
    message = message_of(maker(name)(), pieces)
    assert message.content == ""
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    if name != "pythonic":
        assert all(call.arguments in text for call in message.tool_calls)


def without_tags(tag):
    texts = st.text(ALPHABET, max_size=15).filter(lambda text: tag[:4] not in text)
    return st.builds(lambda text, beginning: text + beginning, texts, st.sampled_from(["", " ", tag[:1], tag[:-1]]))


@pytest.mark.parametrize(
    ("name", "tag", "write"),
    [
        ("hermes", "<tool_call>", call_formats.hermes),
        ("mistral", "[TOOL_CALLS]", call_formats.mistral_named),
        ("mistral", "[TOOL_CALLS]", lambda call: call_formats.mistral_list([call])),
    ],
)
@settings(max_examples=40)
@given(data=st.data())
def test_text_before_between_and_after(name, tag, write, data):
    calls = data.draw(st.lists(CALLS, min_size=1, max_size=3))
    texts = data.draw(st.lists(without_tags(tag), min_size=len(calls) + 1, max_size=len(calls) + 1))
    text = "".join(itertools.chain.from_iterable(zip(texts, map(write, calls), strict=False))) + texts[-1]
    kept = [text.rstrip(" \n\t") for text in texts[:-1]] + [texts[-1] if texts[-1].strip(" \n\t") else ""]
    pieces = data.draw(cuts(text))
    check_cuts(maker(name), text, pieces)
    message = message_of(maker(name)(), pieces)
    assert message.content == "".join(kept)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls


def is_within(content, text):
    """Whether the characters of content are in the text, in order."""
    rest = iter(text)
    return all(char in rest for char in content)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(max_examples=40)
@given(data=st.data())
def test_small_changes(name, data):
    """Whatever comes of it, nothing is lost or invented, and pieces do not matter."""
    text = WHOLE[name](data.draw(st.lists(CALLS, min_size=1, max_size=2)))
    text = data.draw(st.text(ALPHABET, max_size=3)) + text + data.draw(st.text(ALPHABET, max_size=3))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 2))
        text = text[:at] + data.draw(st.text(ALPHABET, max_size=2)) + text[at + length :]
    pieces = data.draw(cuts(text))
    check_cuts(maker(name), text, pieces)
    if name != "pythonic":
        check_cuts(maker(name, streams=True), text, pieces)
    message = message_of(maker(name)(), pieces)
    if not message.tool_calls:
        assert message.content == text
    assert is_within(message.content, text)
    for call in message.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert name == "pythonic" or call.arguments in text


@pytest.mark.parametrize("name", TOOL_PARSERS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_text(name, data):
    words = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_end|>"]
    words += ['{"name": "f", "arguments": {}}', '{"name": ', "f(", "a=", "[", "{", ";", ",", '"', "'", " ", "x", "é"]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=15)))
    pieces = data.draw(cuts(text))
    for options in ({}, {"streams": True}) if name != "pythonic" else ({},):
        whole = check_cuts(maker(name, **options), text, pieces)
        if not options and not any(isinstance(part, CallBeginPart) for part in whole):
            assert "".join(part.text for part in whole) == text


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_a_hundred_calls(name):
    calls = [(f"f{index}", {"index": index}) for index in range(100)]
    message = message_of(maker(name)(), WHOLE[name](calls))
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert len({call.id for call in message.tool_calls}) == 100


def test_what_is_passed_on_when():
    """Text at once, but for whitespace and the beginning of a tag; a call when it is complete."""
    parser = maker("hermes")()
    pieces = [
        "Let",
        " me ",
        "see <",
        "b> ",
        "<tool",
        '_call>{"name": "f", ',
        '"arguments": {}}',
        "</tool_call",
        ">",
        " ",
    ]
    steps = [
        [ContentPart("Let")],
        [ContentPart(" me")],
        [ContentPart(" see")],
        [ContentPart(" <b>")],
        [],
        [],
        [],
        [],
        [CallBeginPart(0, "call_0", "f"), CallArgumentsPart(0, "{}")],
        [],
    ]
    assert [parser.feed(piece) for piece in pieces] == steps
    assert parser.finish() == []


def test_calls_of_a_list_are_passed_on_one_by_one():
    parser = maker("json")()
    assert parser.feed(f"[{L}") == [CallBeginPart(0, "call_0", "f"), CallArgumentsPart(0, '{"a": 1}')]
    assert parser.feed(f", {M}") == [CallBeginPart(1, "call_1", "g"), CallArgumentsPart(1, "{}")]
    assert parser.feed("]") + parser.finish() == []


def test_streamed_arguments():
    """As they come, from a grammar's output; cut off, too."""
    parser = maker("json", streams=True)()
    pieces = ['[{"na', 'me": "f', '", "parameters": ', '{"a', '": "}', '"}', "}, "]
    pieces += ['{"parameters": {}, "name": "g"', '}, {"name": "f", "parameters": {"b']
    steps = [
        [],
        [],
        [],
        [CallBeginPart(0, "call_0", "f"), CallArgumentsPart(0, '{"a')],
        [CallArgumentsPart(0, '": "}')],
        [CallArgumentsPart(0, '"}')],
        [],
        [CallBeginPart(1, "call_1", "g"), CallArgumentsPart(1, "{}")],
        [CallBeginPart(2, "call_2", "f"), CallArgumentsPart(2, '{"b')],
    ]
    assert [parser.feed(piece) for piece in pieces] == steps
    assert parser.finish() == []
    assert parser.num_calls == 3


def test_streamed_arguments_that_are_malformed():
    """What was passed on stays a call; the rest is content, and other calls are calls of their own."""
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": x}}}}</tool_call>\n{G}'
    for pieces in ([text], text):
        message = message_of(maker("hermes", streams=True)(), pieces)
        assert message.content == "x}}</tool_call>"
        assert calls_of(message) == [("f", '{"a": '), G_]


def test_named():
    parser = NamedParser("f", new_id=counted_ids())
    assert parser.feed("\n") == []
    assert parser.feed("{") == [CallBeginPart(0, "call_0", "f"), CallArgumentsPart(0, "{")]
    assert parser.feed(' "a": "}') == [CallArgumentsPart(0, ' "a": "}')]
    assert parser.feed('" }\n') == [CallArgumentsPart(0, '" }')]
    assert parser.finish() == []
    for text in ("", "no object", "5"):
        message = message_of(NamedParser("f"), text)
        assert (message.content, message.tool_calls) == (text, [])


@settings(max_examples=40)
@given(CALLS, st.data())
def test_named_in_pieces(call, data):
    text = json.dumps(call[1], indent=data.draw(st.sampled_from([None, 2])))
    text = text[: data.draw(st.integers(0, len(text)))]
    check_cuts(lambda: NamedParser("f", new_id=counted_ids()), text, data.draw(cuts(text)))
    message = message_of(NamedParser("f"), text)
    assert calls_of(message) == ([("f", text)] if text else [])


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("hermes", f"a\n{H}\n{G} b", "a b"),
        ("llama3_json", f"{L}; {M}", ""),
        ("json", f"[{L}, {M}]", ""),
        ("mistral", f"[TOOL_CALLS][{L}, {M}]", ""),
        ("mistral", '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', ""),
        ("pythonic", "[f(a=1), g()]", ""),
    ],
)
def test_only_the_first_call(name, text, content):
    """Without parallel calls, others are dropped."""
    for options in ({}, {"streams": True}) if name != "pythonic" else ({},):
        for pieces in ([text], text):
            message = message_of(maker(name, parallel=False, **options)(), pieces)
            assert (message.content, calls_of(message)) == (content, [F_A])


def test_ids():
    ids = [message_of(find_tool_parser("hermes")(), [G]).tool_calls[0].id for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(len(call_id) == 29 and call_id.startswith("call_") and call_id[5:].isalnum() for call_id in ids)
    mistral = [message_of(find_tool_parser("mistral")(), ["[TOOL_CALLS]g{}"]).tool_calls[0].id for _ in range(100)]
    assert len(set(mistral)) == 100
    assert all(len(call_id) == 9 and call_id.isascii() and call_id.isalnum() for call_id in mistral)


LONG = {
    "text": ("hermes", "lorem ipsum "),
    "whitespace": ("hermes", " \n"),
    "beginnings of tags": ("hermes", "<tool_"),
    "tags": ("hermes", "<tool_call>"),
    "objects": ("hermes", '<tool_call>{"a":'),
    "a string": ("hermes", '<tool_call>{"a": "', "x<"),
    "members": ("json", '{"name": "f", "arguments": {', '"a": 1, '),
    "members of no call": ("json", "[{", '"a": 1, '),
    "brackets": ("mistral", "[TOOL_CALLS]["),
    "a name": ("mistral", "[TOOL_CALLS]", "f"),
    "calls": ("llama3_json", L),
    "a list": ("pythonic", "[", "f(a='x'), "),
    "quotes": ("pythonic", "[f(a='''", "''\\'"),
}


@pytest.mark.parametrize("case", LONG)
def test_time_is_linear(case):
    """Eight times the text, character by character, takes about eight times as long, not 64."""
    name, *beginning, unit = LONG[case]
    options = {"streams": True} if name == "json" else {}

    def seconds(num_chars):
        text = "".join(beginning) + unit * (num_chars // len(unit))
        return min(timeit.repeat(lambda: parts_of(maker(name, **options)(), text), number=1, repeat=3))

    assert seconds(16_000) < 25 * seconds(2_000)
