"""Chat templates: Jinja, in a sandbox, with the environment that Hugging Face's templates expect."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own filter, this one escapes nothing for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled chat template. Raises ValueError if it cannot be compiled."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = special_tokens
        try:
            self._template = environment.from_string(source)
        except Exception as error:
            # Not only TemplateError: deep nesting is a RecursionError, or a SyntaxError of the compiled code.
            raise ValueError(f"the model's chat template is not valid: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **extras: Any) -> str:
        """The prompt of a conversation.

        Raises ValueError for messages that are not dictionaries with a role, and for whatever the template
        itself refuses.
        """
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(f"a message must be a dictionary with a role and a content, got {message!r}")
        variables = {"tools": None, "documents": None, **self._special_tokens, **extras}
        try:
            return self._template.render(**variables, messages=messages, add_generation_prompt=add_generation_prompt)
        except Exception as error:
            # Templates index and concatenate what users send, so any exception may be the user's mistake.
            raise ValueError(f"the chat template refuses these messages: {error}") from error
