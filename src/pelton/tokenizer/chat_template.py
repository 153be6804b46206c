"""Chat templates: Jinja, in a sandbox, with the environment that Hugging Face's templates expect."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from threading import local
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pelton.error_text import message_of

_MAX_STEPS = 500_000
"""Rounds of loops and calls of macros in one rendering: a few seconds of work."""

_END_MARK = "CONTINUEFROMHERE "
"""The space shows whether the template strips what ends in one. Letters, so that no escaping changes them."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _StepLimit(Extension):
    """Counts the steps of a rendering, since nested loops may take forever."""

    identifier = "pelton.step_limit"

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._thread = local()

    def insert(self, template: nodes.Template) -> None:
        """Begin every loop's and every macro's body with a call of `count`."""
        for node in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            node.body.insert(0, nodes.ExprStmt(self.call_method("count"), lineno=node.lineno))

    def start(self) -> None:
        self._thread.steps = 0

    def count(self, num_steps: int = 1) -> None:
        self._thread.steps += num_steps
        if self._thread.steps > _MAX_STEPS:
            raise jinja2.TemplateError(f"it takes more than {_MAX_STEPS} steps")


class _SafeNamespace(Namespace):
    """Templates keep their variables here; names that mean something to Python are not among them."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.TemplateError(f"a namespace has no {name}")
        super().__setitem__(name, value)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


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


def _line(error: Exception) -> str:
    """Where in the template the error is, if it is about its syntax."""
    return f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""


def _reason(error: Exception) -> str:
    return message_of(error) or type(error).__name__


class ChatTemplate:
    """A compiled chat template.

    Raises ValueError if it cannot be compiled, which says in what line, and in what file if `path` does.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], path: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {
            "raise_exception": _raise_exception,
            "range": self._range,
            "strftime_now": _strftime_now,
            # Classes have more methods than templates need.
            "dict": _dict,
            "namespace": _SafeNamespace,
        }
        self._steps = _StepLimit(environment)
        environment.extensions[_StepLimit.identifier] = self._steps
        self._special_tokens = special_tokens
        try:
            tree = environment.parse(source)
            self._steps.insert(tree)
            self._template = environment.from_string(tree)
        except Exception as error:
            # Not only TemplateError: deep nesting is a RecursionError, or a SyntaxError of the compiled code.
            name = "the chat template" if path is None else f"the chat template {path}"
            raise ValueError(f"{name} is not valid: {_line(error)}{_reason(error)}") from error

    def _range(self, *bounds: int) -> range:
        """Counts as many steps as it has numbers: filters, and loops that take none of them, walk through it too."""
        numbers = range(*bounds)
        self._steps.count(len(numbers))
        return numbers

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **extras: Any) -> str:
        """The prompt of a conversation.

        Entries of a message that are None count as absent. Raises ValueError for whatever the template refuses. Rounds
        of loops are limited; memory, and what a single expression or filter does, are not.
        """
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        variables = {"tools": None, "documents": None, **self._special_tokens, **extras}
        self._steps.start()
        try:
            return self._template.render(**variables, messages=present, add_generation_prompt=add_generation_prompt)
        except Exception as error:
            # Templates index and concatenate what users send, so any exception may be the user's mistake.
            raise ValueError(f"the chat template refuses these messages: {_reason(error)}") from error

    def render_unfinished(self, messages: Sequence[Mapping[str, Any]], **extras: Any) -> str:
        """The prompt of a conversation, up to the end of the final message's content (of its last part with text).

        Raises ValueError as `render` does, and if there is no such text or if the template changes it.
        """
        marked, text = _with_end_mark(messages[-1].get("content"))
        rendered = self.render([*messages[:-1], {**messages[-1], "content": marked}], False, **extras)
        before, mark, after = rendered.rpartition(_END_MARK.rstrip())
        if not after.startswith(" "):
            before = before.rstrip()
        if not mark or not before.rstrip().endswith(text.strip()):
            raise ValueError(
                "continue_final_message is True, but the chat template changes the final message's content, so it "
                "cannot be continued"
            )
        return before


def _with_end_mark(content: Any) -> tuple[Any, str]:
    """A copy of a message's content with a mark at the end of its text, and the text."""
    if isinstance(content, str):
        return content + _END_MARK, content
    parts = list(content) if isinstance(content, list | tuple) else []
    for index in range(len(parts) - 1, -1, -1):
        text = parts[index].get("text") if isinstance(parts[index], Mapping) else None
        if isinstance(text, str):
            parts[index] = {**parts[index], "text": text + _END_MARK}
            return parts, text
    raise ValueError("continue_final_message is True, but the final message has no text to continue")
