"""From the text of one choice to the parts of its message."""

from pelton.chat_parsing.parts import ContentPart, Part
from pelton.chat_parsing.reasoning_parsers import ReasoningParser
from pelton.chat_parsing.tool_parsers import ToolParser


class ChatParser:
    """Takes a model's output piece by piece: reasoning comes first, and what follows it may hold tool calls."""

    def __init__(self, tool_parser: ToolParser | None = None, reasoning_parser: ReasoningParser | None = None) -> None:
        """Without a parser, there is no such part. Each parser follows one text."""
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser

    @property
    def has_calls(self) -> bool:
        """Whether calls were passed on, and all of them whole, so that the message ends for tool calls."""
        parser = self._tool_parser
        return parser is not None and parser.num_calls > 0 and not parser.is_within_call

    def feed(self, text: str) -> list[Part]:
        """Take new text; return what can be passed on now."""
        if self._reasoning_parser is not None:
            return self._with_calls(self._reasoning_parser.feed(text))
        return self._with_calls([ContentPart(text)] if text else [])

    def finish(self) -> list[Part]:
        """No more text will come, for whatever reason: return what was held back."""
        parts = [] if self._reasoning_parser is None else self._with_calls(self._reasoning_parser.finish())
        return parts + ([] if self._tool_parser is None else self._tool_parser.finish())

    def _with_calls(self, parts: list[Part]) -> list[Part]:
        if self._tool_parser is None:
            return parts
        found: list[Part] = []
        for part in parts:
            found.extend(self._tool_parser.feed(part.text) if isinstance(part, ContentPart) else [part])
        return found
