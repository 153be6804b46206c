"""Finds tool calls in text that arrives piece by piece."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pelton.chat_parsing.call_ids import new_call_id
from pelton.chat_parsing.json_scanner import WHITESPACE, skip_space
from pelton.chat_parsing.parts import CallArgumentsPart, CallBeginPart, ContentPart, Part, coalesced


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls are written that are JSON objects, for a grammar that leaves the model to decide on them."""

    arguments: str
    """What the arguments are called, beside `name`."""
    begin: str = ""
    """Before the first call; empty: there is nothing but an object, and one call."""
    separator: str = ""
    """Between two calls."""
    end: str = ""
    """After the last one."""


class ToolParser(ABC):
    """Divides a text into content and tool calls. The parts, joined, are the same wherever the text is cut into pieces.

    Content is passed on at once, except whitespace and what may be the beginning of a tag. What may be a call is held
    until it is complete; if it turns out to be none, it is content, whitespace and tags included, and the search goes
    on where that was seen, so that each character is read once. Whitespace before a call, and between a call and
    the end of the text, is dropped.
    """

    tags: ClassVar[tuple[str, ...]] = ()
    """What begins calls anywhere in a text. A tag's first character occurs in it once."""
    openers: ClassVar[str] = ""
    """Characters that begin calls at the beginning of a text, whitespace aside."""
    needs_special_tokens: ClassVar[bool] = False
    """Whether models have tags of this format as special tokens, which the text must show to be read."""
    syntax: ClassVar[CallSyntax | None] = None
    """Of calls that a grammar makes; None: none can."""
    new_id: ClassVar[Callable[[], str]] = staticmethod(new_call_id)

    def __init__(self, *, new_id: Callable[[], str] | None = None, parallel: bool = True) -> None:
        """`new_id`: makes the ids of calls. Without `parallel`, calls after the first one are dropped."""
        self._new_id = new_id or type(self).new_id
        self._parallel = parallel
        self._parts: list[Part] = []
        self._state: Callable[[str, int], int] = self._at_start
        self._held: list[str] = []
        """Text read and not passed on: in content whitespace, then what may be a call."""
        self._is_after_call = False
        """Whether only whitespace, if anything, has come since a call."""
        self._matched = ""
        """Of a tag or another literal, and held."""
        self._literal = ""
        self._after_literal: Callable[[], None] = self._to_content
        self.num_calls = 0
        """Calls found, those that were dropped included."""

    @property
    def is_within_call(self) -> bool:
        """Whether a call has been passed on in part."""
        return False

    def feed(self, text: str) -> list[Part]:
        """Take new text; return what can be passed on now."""
        self._run(text)
        return self._take_parts()

    def finish(self) -> list[Part]:
        """No more text will come: return what was held back."""
        self._finish_call()
        held = self._take_held()
        if held.strip(WHITESPACE) or not self._is_after_call:
            self._add_content(held)
        return self._take_parts()

    @abstractmethod
    def _begin_call(self) -> None:
        """Set the state for what comes at, or after, the beginning of a call."""

    def _finish_call(self) -> None:
        """End a call which the end of the text completes."""
        return

    # States read the text from a place on, some of it, or change the state. They return where they stopped.

    def _run(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._state(text, at)

    def _at_start(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text):
            self._to_content()
            if text[at] in self.openers:
                self._begin_call()
        return at

    def _in_content(self, text: str, at: int) -> int:
        found = min((place for tag in self.tags if (place := text.find(tag[0], at)) >= 0), default=len(text))
        self._pass_on(text[at:found])
        if found < len(text):
            self._matched = ""
            self._state = self._in_tag
        return found

    def _in_tag(self, text: str, at: int) -> int:
        matched = self._matched + text[at]
        if not any(tag.startswith(matched) for tag in self.tags):
            self._to_content()
            self._pass_on(self._take_held())
            return at
        self._held.append(text[at])
        self._matched = matched
        if matched in self.tags:
            self._begin_call()
        return at + 1

    def _before_literal(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text):
            self._matched = ""
            self._state = self._in_literal
        return at

    def _in_literal(self, text: str, at: int) -> int:
        if text[at] != self._literal[len(self._matched)]:
            self._refuse()
            return at
        self._held.append(text[at])
        self._matched += text[at]
        if self._matched == self._literal:
            self._after_literal()
        return at + 1

    # What states do.

    def _to_content(self) -> None:
        self._state = self._in_content

    def _expect(self, literal: str, then: Callable[[], None]) -> None:
        """After whitespace, which may be there, comes the literal, or what is held is content."""
        self._literal, self._after_literal = literal, then
        self._state = self._before_literal

    def _drop_held(self) -> None:
        """What is held belongs to a call that has been passed on."""
        self._held.clear()
        self._is_after_call = True

    def _refuse(self) -> None:
        """What is held is no call, but content; its end may be the beginning of a tag."""
        held = self._take_held()
        begin = min((_beginning(tag, held) for tag in self.tags), default=len(held))
        self._to_content()
        self._pass_on(held[:begin])
        self._run(held[begin:])

    def _take_held(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def _hold_space(self, text: str, at: int) -> int:
        end = skip_space(text, at)
        self._held.append(text[at:end])
        return end

    def _pass_on(self, text: str) -> None:
        """As content, but for whitespace at the end."""
        shown = text.rstrip(WHITESPACE)
        if shown:
            self._add_content(self._take_held() + shown)
            self._is_after_call = False
        self._held.append(text[len(shown) :])

    def _add_content(self, text: str) -> None:
        if text:
            self._parts.append(ContentPart(text))

    def _add_call(self, name: str) -> int:
        """Returns its index."""
        index = self.num_calls
        self.num_calls += 1
        self._drop_held()
        if self._is_wanted(index):
            self._parts.append(CallBeginPart(index, self._new_id(), name))
        return index

    def _add_arguments(self, index: int, text: str) -> None:
        if text and self._is_wanted(index):
            self._parts.append(CallArgumentsPart(index, text))

    def _is_wanted(self, index: int) -> bool:
        return index == 0 or self._parallel

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return coalesced(parts)


def _beginning(tag: str, text: str) -> int:
    """Where the end of a text begins that is the beginning of a tag; the text's length if there is none."""
    at = text.rfind(tag[0], max(0, len(text) - len(tag) + 1))
    return at if at >= 0 and tag.startswith(text[at:]) else len(text)
