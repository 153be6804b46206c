"""What a model's output consists of."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ContentPart:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBeginPart:
    """A tool call begins."""

    index: int
    """Its place among the calls of the message."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArgumentsPart:
    """Further text of a call's arguments. All of them, joined, are a JSON object, unless the output was cut off."""

    index: int
    """Of the call."""
    text: str


Part = ContentPart | ReasoningPart | CallBeginPart | CallArgumentsPart


def coalesced(parts: Iterable[Part]) -> list[Part]:
    """The same with pieces of one text joined that follow each other."""
    result: list[Part] = []
    for kind, group in groupby(parts, type):
        if kind is ContentPart or kind is ReasoningPart:
            result.append(kind("".join(part.text for part in group if isinstance(part, kind))))
        else:
            result.extend(group)
    return result


@dataclass(slots=True)
class ToolCall:
    """One call of a function."""

    id: str
    name: str
    arguments: str
    """JSON text."""


@dataclass(slots=True)
class ParsedMessage:
    """All parts of one output, joined."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


def join_parts(parts: Iterable[Part]) -> ParsedMessage:
    """The message that a stream of these parts amounts to."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallBeginPart] = []
    arguments: list[list[str]] = []
    for part in parts:
        match part:
            case ContentPart(text):
                content.append(text)
            case ReasoningPart(text):
                reasoning.append(text)
            case CallBeginPart():
                calls.append(part)
                arguments.append([])
            case CallArgumentsPart(index, text):
                arguments[index].append(text)
    return ParsedMessage(
        content="".join(content),
        reasoning="".join(reasoning),
        tool_calls=[ToolCall(call.id, call.name, "".join(texts)) for call, texts in zip(calls, arguments, strict=True)],
    )
