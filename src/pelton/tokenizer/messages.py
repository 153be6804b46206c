"""What a conversation is."""

from collections.abc import Mapping, Sequence

from pelton.error_text import shown


def check_messages(messages: object) -> None:
    """Raise ValueError, which names the message, unless this is a conversation: messages, each with a role."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes | bytearray):
        raise ValueError(f"a conversation must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise ValueError("the conversation is empty; it needs at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            kind = type(message).__name__
            raise ValueError(f"message {index}: a message must be a dict with a role and a content, got {kind}")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ValueError(f"message {index}: role must be a string such as user, got {shown(role)}")
