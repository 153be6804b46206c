"""Reasoning comes first, between its tags, and the rest is content, however the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.chat_parsing import ContentPart, ReasoningPart, find_reasoning_parser
from pelton.chat_parsing.reasoning_parsers import REASONING_PARSERS
from tests.chat_parsing.streams import ALPHABET, check_cuts, cuts, message_of

CASES = [
    # text, whether it begins inside, reasoning, content
    ("", False, "", ""),
    ("Hello", False, "", "Hello"),
    (" \n Hello ", False, "", " \n Hello "),
    (" \n", False, "", " \n"),
    ("<think>\nHm.\n</think>\n\nHello\n", False, "Hm.", "Hello\n"),
    ("\n<think> a <b>\n c </think>  x = 1", False, "a <b>\n c", "  x = 1"),
    ("<think>\n\n</think>\n\nHello", False, "", "Hello"),
    ("<think>Hm. </think>", False, "Hm.", ""),
    ("<think>Hm. ", False, "Hm.", ""),
    ("<think>Hm. </thi", False, "Hm. </thi", ""),
    ("<thi", False, "", "<thi"),
    ("\n<thin air", False, "", "\n<thin air"),
    ("a <think>b</think>", False, "", "a <think>b</think>"),
    ("a</think>b", False, "", "a</think>b"),
    ("<think>a</think>b</think>c<think>", False, "a", "b</think>c<think>"),
    ("<think><think>a</think>b", False, "<think>a", "b"),
    ("", True, "", ""),
    ("\nHm.\n</think>\n\nHello", True, "Hm.", "Hello"),
    ("<think>\nHm.\n</think>\n\nHello", True, "Hm.", "Hello"),
    ("</think>Hello", True, "", "Hello"),
    ("\n\n</think>\r\n\r\nHello", True, "", "Hello"),
    ("Hm. ", True, "Hm.", ""),
    (" <thi", True, "<thi", ""),
    ("<", True, "<", ""),
    ("<<</think></think", True, "<<", "</think"),
    ("</thin</think>é", True, "</thin", "é"),
]


@pytest.mark.parametrize(("text", "is_inside", "reasoning", "content"), CASES)
@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_cases(name, text, is_inside, reasoning, content):
    for pieces in ([text], text):
        message = message_of(find_reasoning_parser(name)(is_inside=is_inside), pieces)
        assert (message.reasoning, message.content, message.tool_calls) == (reasoning, content, [])


@settings(max_examples=120)
@given(st.booleans(), st.data())
def test_pieces_do_not_matter(is_inside, data):
    words = st.one_of(st.sampled_from(["<think>", "</think>", "\n", " ", "</", "<th"]), st.text(ALPHABET, max_size=2))
    text = "".join(data.draw(st.lists(words, max_size=10)))
    parser = find_reasoning_parser("qwen3")
    whole = check_cuts(lambda: parser(is_inside=is_inside), text, data.draw(cuts(text)))
    # only tags and whitespace can be lost
    shown = "".join(part.text for part in whole)
    rest = iter(text)
    assert all(char in rest for char in shown)
    lost = "".join(text.replace("<think>", "").replace("</think>", "").split())
    assert len("".join(shown.split())) >= len(lost)


def test_what_is_passed_on_when():
    parser = find_reasoning_parser("qwen3")(is_inside=False)
    pieces = ["<th", "ink>\n", "So ", "it", " is.\n", "</thi", "nk>", "\n\n", "Yes", " <think>"]
    steps = [
        [],
        [],
        [ReasoningPart("So")],
        [ReasoningPart(" it")],
        [ReasoningPart(" is.")],
        [],
        [],
        [],
        [ContentPart("Yes")],
        [ContentPart(" <think>")],
    ]
    assert [parser.feed(piece) for piece in pieces] == steps
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("prompt", "continued", "qwen3", "deepseek_r1"),
    [
        ("<|im_start|>assistant\n", None, False, True),
        ("<|im_start|>assistant\n<think>\n", None, True, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, False, False),
        ("<think> is a tag<|im_start|>assistant\n", None, False, True),
        ("assistant\nThe answer", "The answer", False, False),
        ("assistant\n<think>The answer", "<think>The answer", True, True),
        ("assistant\n<think>a</think>The", "<think>a</think>The", False, False),
    ],
)
def test_where_an_output_begins(prompt, continued, qwen3, deepseek_r1):
    assert find_reasoning_parser("qwen3").begins_inside(prompt, continued) == qwen3
    assert find_reasoning_parser("deepseek_r1").begins_inside(prompt, continued) == deepseek_r1


def test_other_names():
    with pytest.raises(ValueError, match=r"^reasoning_parser must be one of deepseek_r1, qwen3, got 'o1'$"):
        find_reasoning_parser("o1")
