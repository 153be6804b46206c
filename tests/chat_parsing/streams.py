"""Texts cut into pieces, and what parsers make of them."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hypothesis import strategies as st

from pelton.chat_parsing import CallArgumentsPart, ContentPart, ParsedMessage, Part, ReasoningPart, join_parts

ALPHABET = "ab<>/|{}[]():,;=\"'\\ \n\t1-.e" + "é🚀"
"""Characters that formats give a meaning, and some that they do not."""


class Parser(Protocol):
    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


def counted_ids(prefix: str = "call_") -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"{prefix}{next(numbers)}"


def parts_of(parser: Parser, pieces: Iterable[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.feed(piece)
    return parts + parser.finish()


def message_of(parser: Parser, pieces: Iterable[str]) -> ParsedMessage:
    return join_parts(parts_of(parser, pieces))


def calls_of(message: ParsedMessage) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in message.tool_calls]


def merged(parts: Sequence[Part]) -> list[Any]:
    """Parts in order, without the places where text was cut."""
    result: list[Any] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, ContentPart | ReasoningPart) and type(last) is type(part):
            result[-1] = type(part)(last.text + part.text)
        elif isinstance(part, CallArgumentsPart) and isinstance(last, CallArgumentsPart) and last.index == part.index:
            result[-1] = CallArgumentsPart(part.index, last.text + part.text)
        else:
            result.append(part)
    return result


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *places, len(text)])]


def check_cuts(make: Callable[[], Parser], text: str, pieces: Sequence[str]) -> list[Any]:
    """The text as a whole, in these pieces and by characters gives the same; returns it."""
    whole = merged(parts_of(make(), [text]))
    assert merged(parts_of(make(), pieces)) == whole
    assert merged(parts_of(make(), text)) == whole
    return whole
