"""Reasoning, content and tool calls of one output together."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.chat_parsing import ChatParser, ContentPart, find_reasoning_parser, find_tool_parser
from tests.chat_parsing.call_formats import CALLS, hermes
from tests.chat_parsing.streams import ALPHABET, calls_of, check_cuts, counted_ids, cuts, message_of

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def make(*, is_inside=False):
    return ChatParser(
        find_tool_parser("qwen3")(new_id=counted_ids()), find_reasoning_parser("qwen3")(is_inside=is_inside)
    )


def test_all_parts():
    text = f"<think>\nI call f, {CALL}\n</think>\n\nI call.\n{CALL}\n"
    for pieces in ([text], text):
        parser = make()
        message = message_of(parser, pieces)
        assert message.reasoning == f"I call f, {CALL}"
        assert message.content == "I call."
        assert calls_of(message) == [("f", "{}")]
        assert message.tool_calls[0].id == "call_0"
        assert parser.has_calls


def test_formats_without_tags_begin_after_the_reasoning():
    parser = ChatParser(find_tool_parser("llama3_json")(), find_reasoning_parser("deepseek_r1")(is_inside=True))
    message = message_of(parser, 'So.</think>\n\n{"name": "f", "parameters": {}}')
    assert (message.reasoning, message.content, calls_of(message)) == ("So.", "", [("f", "{}")])


def test_text_without_parsers_stays():
    parser = ChatParser()
    assert parser.feed("") == []
    assert parser.feed(f" <think>\n{CALL}") == [ContentPart(f" <think>\n{CALL}")]
    assert parser.finish() == []
    assert not parser.has_calls


def test_one_parser():
    message = message_of(ChatParser(find_tool_parser("hermes")()), f"<think>{CALL}")
    assert (message.content, message.reasoning, len(message.tool_calls)) == ("<think>", "", 1)
    message = message_of(ChatParser(None, find_reasoning_parser("qwen3")(is_inside=True)), f"a</think>{CALL}")
    assert (message.content, message.reasoning, message.tool_calls) == (CALL, "a", [])


def test_output_that_is_cut_off():
    """In a call, which is content then, and in a thought."""
    text = f"<think>a</think>b {CALL[:25]}"
    parser = make()
    message = message_of(parser, text)
    assert (message.reasoning, message.content, message.tool_calls) == ("a", f"b {CALL[:25]}", [])
    assert not parser.has_calls
    message = message_of(make(), "<think>a b")
    assert (message.reasoning, message.content) == ("a b", "")
    message = message_of(make(), "<thi")
    assert (message.reasoning, message.content) == ("", "<thi")


@settings(max_examples=70)
@given(st.booleans(), st.data())
def test_pieces_do_not_matter(is_inside, data):
    texts = st.text(ALPHABET, max_size=10)
    calls = data.draw(st.lists(CALLS, max_size=2))
    text = data.draw(st.sampled_from(["<think>", "\n<think>\n", ""])) + data.draw(texts)
    text += data.draw(st.sampled_from(["</think>", "\n</think>\n\n", ""]))
    text += "".join(data.draw(texts) + hermes(call) for call in calls) + data.draw(texts)
    text = text[: data.draw(st.integers(len(text) // 2, len(text)))]
    check_cuts(lambda: make(is_inside=is_inside), text, data.draw(cuts(text)))
    for call in message_of(make(is_inside=is_inside), text).tool_calls:
        assert (call.name, json.loads(call.arguments)) in calls
