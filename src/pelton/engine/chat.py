"""Conversations: from messages, as chat interfaces have them, to prompts."""

import json
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from pelton.engine.input_processor import TokensPrompt
from pelton.error_text import shown
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.messages import check_messages

_ARGUMENTS = frozenset(signature(Tokenizer.apply_chat_template).parameters) - {"extras"}
"""Names that are no variables of a template."""


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> TokensPrompt:
    """The prompt of one conversation, as text and as token ids.

    A message is a dict with a `role` and a `content`: text, or a list of texts and `{"type": "text", "text": ...}`.
    Messages with `tool_calls` may do without a content. `chat_template` is the text of a template or, if it has no
    `{`, the path of a file with one; by default it is the model's. `continue_final_message` leaves the final message
    open, for the model to go on with; it excludes `add_generation_prompt`. `chat_template_kwargs` are further variables
    of the template.

    Raises ValueError that names the message, or says what the template refuses.
    """
    check_messages(messages)
    text = tokenizer.apply_chat_template(
        [_as_templates_expect(index, message) for index, message in enumerate(messages)],
        chat_template=chat_template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        **_check_extras(chat_template_kwargs),
    )
    # The template writes beginning-of-sequence tokens itself, if the model wants one.
    return {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False), "prompt": text}


def as_conversation_list(messages: Any) -> list[Any]:
    """One conversation, or a sequence of them, as a list. Raises ValueError if it is neither."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes | bytearray):
        raise ValueError(
            f"messages must be a list of dicts (a conversation) or a list of such lists, got {type(messages).__name__}"
        )
    if not messages:
        raise ValueError("messages is empty; a conversation has at least one message")
    return [messages] if isinstance(messages[0], Mapping) else list(messages)


def _as_templates_expect(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """The content is text, arguments of tool calls are objects."""
    checked = dict(message)
    tool_calls = message.get("tool_calls")
    try:
        if tool_calls is not None:
            checked["tool_calls"] = _check_tool_calls(tool_calls)
        if message.get("content") is not None:
            checked["content"] = _as_text(message["content"])
        elif not tool_calls:
            raise ValueError("content is missing; it must be text, unless the message has tool_calls")
    except ValueError as error:
        raise ValueError(f"message {index}: {error}") from None
    return checked


def _as_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError(f"content must be a string or a list of text parts, got {type(content).__name__}")
    return "\n".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ValueError(f"a part of content must be a string or a dict with type and text, got {type(part).__name__}")
    if part.get("type") != "text":
        raise ValueError(f"a part of content has the type {shown(part.get('type'))}, and Pelton reads only 'text'")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"text of a part of content must be a string, got {type(part.get('text')).__name__}")
    if unknown := sorted(set(part) - {"type", "text"}, key=str):
        raise ValueError(f"unknown key {shown(unknown[0])} in a part of content; there are type and text")
    return str(part["text"])


def _check_tool_calls(calls: Any) -> list[dict[str, Any]]:
    """Arguments that are JSON, as OpenAI's interface has them, become the objects that templates expect."""
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"tool_calls must be a list of dicts, got {shown(calls)}")
    checked = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            function = {**function, "arguments": _parse_arguments(function["arguments"])}
            call = {**call, "function": function}
        checked.append(dict(call))
    return checked


def _parse_arguments(text: str) -> dict[str, Any]:
    """As loosely as models write them."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(
            f"arguments of a tool call must be a dict, or a JSON object as text, got {shown(text)}; leave out a call "
            "that was cut off"
        )
    return arguments


def _check_extras(extras: Any) -> Mapping[str, Any]:
    if extras is None:
        return {}
    if not isinstance(extras, Mapping) or not all(isinstance(name, str) for name in extras):
        raise ValueError(f"chat_template_kwargs must be a dict of names and values, got {shown(extras)}")
    if clash := [name for name in extras if name in _ARGUMENTS]:
        raise ValueError(f"chat_template_kwargs has {clash[0]}, which has a meaning of its own here; take it out")
    return extras
