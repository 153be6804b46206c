"""Divides a model's thinking from its answer, in text that arrives piece by piece."""

from collections.abc import Callable
from typing import ClassVar

from pelton.chat_parsing.json_scanner import WHITESPACE, skip_space
from pelton.chat_parsing.parts import ContentPart, Part, ReasoningPart, coalesced

_LINE_BREAKS = "\r\n"


class ReasoningParser:
    """Divides a text into reasoning, between a start tag and an end tag, and content after it. The parts, joined, are
    the same wherever the text is cut into pieces.

    The start tag counts only at the beginning, whitespace aside; without it all is content, unless the text begins
    inside the reasoning. Without an end tag all is reasoning. Whitespace at both ends of the reasoning, and line
    breaks between it and the content, are dropped.
    """

    start_tag: ClassVar[str] = "<think>"
    end_tag: ClassVar[str] = "</think>"
    thinks_by_default: ClassVar[bool]
    """Whether an output begins inside the reasoning, if the prompt ends with neither tag."""

    def __init__(self, *, is_inside: bool) -> None:
        """`is_inside`: whether the text begins inside the reasoning."""
        self._is_inside = is_inside
        self._state: Callable[[str, int], int] = self._at_start
        self._spaces: list[str] = []
        """Whitespace that is not passed on yet."""
        self._matched = ""
        """The beginning of a tag; not passed on either."""
        self._has_reasoning = False
        self._parts: list[Part] = []

    @classmethod
    def begins_inside(cls, prompt: str, continued: str | None = None) -> bool:
        """Whether what follows a prompt begins inside the reasoning; the end of the prompt is enough.

        `continued`: the message at the end of the prompt, if the model is to go on with it.
        """
        if continued is not None:
            return continued.rfind(cls.start_tag) > continued.rfind(cls.end_tag)
        prompt = prompt.rstrip(WHITESPACE)
        return prompt.endswith(cls.start_tag) or (cls.thinks_by_default and not prompt.endswith(cls.end_tag))

    def feed(self, text: str) -> list[Part]:
        """Take new text; return what can be passed on now."""
        self._run(text)
        return self._take_parts()

    def finish(self) -> list[Part]:
        """No more text will come: return what was held back."""
        matched, self._matched = self._matched, ""
        if self._state in (self._at_start, self._in_start_tag) and not self._is_inside:
            self._add_content("".join([*self._spaces, matched]))
        else:
            self._add_reasoning(matched)
        return self._take_parts()

    # States read the text from a place on, some of it, or change the state. They return where they stopped.

    def _run(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._state(text, at)

    def _at_start(self, text: str, at: int) -> int:
        end = skip_space(text, at)
        self._spaces.append(text[at:end])
        if end < len(text):
            self._state = self._in_start_tag
        return end

    def _in_start_tag(self, text: str, at: int) -> int:
        if text[at] != self.start_tag[len(self._matched)]:
            self._begin_without_tag()
            return at
        self._matched += text[at]
        if self._matched == self.start_tag:
            self._begin_reasoning()
        return at + 1

    def _in_reasoning(self, text: str, at: int) -> int:
        found = text.find(self.end_tag[0], at)
        if found < 0:
            found = len(text)
        else:
            self._state = self._in_end_tag
        self._add_reasoning(text[at:found])
        return found

    def _in_end_tag(self, text: str, at: int) -> int:
        if text[at] != self.end_tag[len(self._matched)]:
            self._state = self._in_reasoning
            self._add_reasoning(self._matched)
            self._matched = ""
            return at
        self._matched += text[at]
        if self._matched == self.end_tag:
            self._matched = ""
            self._spaces.clear()
            self._state = self._before_content
        return at + 1

    def _before_content(self, text: str, at: int) -> int:
        while at < len(text) and text[at] in _LINE_BREAKS:
            at += 1
        if at < len(text):
            self._state = self._in_content
        return at

    def _in_content(self, text: str, at: int) -> int:
        self._add_content(text[at:])
        return len(text)

    # What states do.

    def _begin_reasoning(self) -> None:
        self._matched = ""
        self._state = self._in_reasoning

    def _begin_without_tag(self) -> None:
        matched = self._matched
        if self._is_inside:
            self._begin_reasoning()
            self._run(matched)  # the end tag may begin like the start tag
        else:
            self._add_content("".join([*self._spaces, matched]))
            self._matched = ""
            self._spaces.clear()
            self._state = self._in_content

    def _add_content(self, text: str) -> None:
        if text:
            self._parts.append(ContentPart(text))

    def _add_reasoning(self, text: str) -> None:
        """Without whitespace at the beginning; that at the end waits for what follows."""
        if not self._has_reasoning:
            self._spaces.clear()
            text = text.lstrip(WHITESPACE)
        shown = text.rstrip(WHITESPACE)
        if shown:
            self._parts.append(ReasoningPart("".join([*self._spaces, shown])))
            self._spaces.clear()
            self._has_reasoning = True
        if self._has_reasoning:
            self._spaces.append(text[len(shown) :])

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return coalesced(parts)
