"""`--chat-template`, the flag."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pelton.engine.input_processor import TokensPrompt
    from pelton.tokenizer import Tokenizer


def add_chat_template_flag(parser: argparse.ArgumentParser, needs: str = "") -> None:
    """`needs`: what the help says of the flags that it goes with."""
    parser.add_argument(
        "--chat-template",
        metavar="TEMPLATE",
        help=f"template to use instead of the model's, as a file or as text{needs}",
    )


def given_chat_template(given: str | None) -> str | None:
    """The template's text. Raises ValueError, before there is a model, for what cannot be read or is not valid."""
    if given is None:
        return None
    from pelton.tokenizer.chat_template import ChatTemplate
    from pelton.tokenizer.template_text import read_chat_template

    text, path = read_chat_template(given)
    ChatTemplate(text, special_tokens={}, path=path)
    return text


def render_messages(
    tokenizer: "Tokenizer", messages: Sequence[Mapping[str, Any]], chat_template: str | None
) -> "TokensPrompt":
    """`render_chat`, with the remedy that a command has for a model without a template."""
    from pelton.engine.chat import render_chat
    from pelton.tokenizer.template_text import MissingChatTemplateError

    try:
        return render_chat(tokenizer, messages, chat_template=chat_template)
    except MissingChatTemplateError as error:
        raise ValueError(f"{error.problem}; give one with --chat-template FILE") from None
