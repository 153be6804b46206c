"""What the output of one request must look like."""

import json
from typing import Any

import msgspec

from pelton.checks import check_flag, check_unicode
from pelton.error_text import message_of, shown

MAX_SOURCE_LENGTH = 1 << 20
"""Characters of a schema, grammar or pattern, as text."""
MAX_CHOICES_LENGTH = 1 << 16
"""Entries of `choice`."""
BACKENDS = ("auto", "llguidance", "xgrammar")
BACKEND_ALIASES = {"guidance": "llguidance"}
"""vLLM's names."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A constraint on the output, with vLLM's names: one of `json`, `regex`, `choice`, `grammar`, `json_object` and
    `structural_tag`, and how it is meant. docs/structured-output.md tells what each promises.

    Raises ValueError that names the field, its value and the remedy.
    """

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, as a dict or as text: the output is an instance of it."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: list[str] | None = None
    """The output is one of these strings."""
    grammar: str | None = None
    """A context-free grammar, in Lark's notation or in GBNF (`root ::= ...`)."""
    json_object: bool | None = None
    """The output is a JSON object, whatever is in it."""
    structural_tag: str | dict[str, Any] | None = None
    """Free text with constrained parts between tags, as a dict or as text."""
    disable_any_whitespace: bool = False
    """JSON without any whitespace between its tokens."""
    disable_additional_properties: bool | None = None
    """Objects have only the properties that the schema names, unless it says otherwise. None: the engine's setting."""
    whitespace_pattern: str | None = None
    """A regular expression for the whitespace that JSON may have between its tokens; by default a few characters."""
    backend: str = "auto"
    """Who compiles it: llguidance, xgrammar, or auto, the first that is installed and can keep the promise."""

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise ValueError(
                f"a constraint must have one of {', '.join(KINDS)}, got {' and '.join(given) or 'none of them'}"
            )
        for name in ("regex", "grammar", "whitespace_pattern"):
            self._check_text(name)
        for name in ("json", "structural_tag"):
            self._check_object(name)
        self._check_choice()
        if self.json_object is not None:
            check_flag("json_object", self.json_object)
        check_flag("disable_any_whitespace", self.disable_any_whitespace)
        if self.disable_additional_properties is not None:
            check_flag("disable_additional_properties", self.disable_additional_properties)
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise ValueError("disable_any_whitespace is True and whitespace_pattern is given; leave out one of them")
        self.backend = BACKEND_ALIASES.get(self.backend, self.backend)
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {shown(self.backend)}")

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return self._given()[0]

    def _given(self) -> list[str]:
        return [name for name in KINDS if getattr(self, name) is not None and (name, getattr(self, name)) != _NO_OBJECT]

    def _check_text(self, name: str) -> None:
        text = getattr(self, name)
        if text is None:
            return
        if not isinstance(text, str) or not text:
            raise ValueError(f"{name} must be a non-empty string, got {shown(text)}")
        check_unicode(name, text)
        _check_length(name, len(text))

    def _check_object(self, name: str) -> None:
        """A dict, or the text of one, which becomes a dict; a schema may also be a boolean."""
        value: Any = getattr(self, name)
        if value is None:
            return
        if isinstance(value, str):
            _check_length(name, len(value))
            value = _parsed(name, value)
        allowed = dict | bool if name == "json" else dict
        if not isinstance(value, allowed):
            raise ValueError(f"{name} must be a dict or the text of a JSON object, got {shown(value)}")
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{name} must hold plain JSON data: {message_of(error)}") from None
        try:
            value = json.loads(text)  # a copy, with keys as they travel
            msgspec.msgpack.encode(value)
        except (OverflowError, RecursionError) as error:
            what = "integers of at most 64 bits" if isinstance(error, OverflowError) else "data that is nested less"
            raise ValueError(f"{name} must hold {what}, which messages between processes can carry") from None
        _check_length(name, len(text))
        setattr(self, name, value)

    def _check_choice(self) -> None:
        if self.choice is None:
            return
        if not isinstance(self.choice, list | tuple) or not self.choice:
            raise ValueError(f"choice must be a non-empty list of strings, got {shown(self.choice)}")
        if len(self.choice) > MAX_CHOICES_LENGTH:
            raise ValueError(f"choice must have at most {MAX_CHOICES_LENGTH} strings, got {len(self.choice)}")
        for string in self.choice:
            if not isinstance(string, str) or not string:
                raise ValueError(f"choice must hold non-empty strings, got {shown(string)}")
            check_unicode("choice", string)
        _check_length("choice", sum(map(len, self.choice)))
        self.choice = list(self.choice)


_NO_OBJECT = ("json_object", False)

GuidedDecodingParams = StructuredOutputsParams
"""The name that it had in older versions of vLLM."""


def _check_length(name: str, length: int) -> None:
    if length > MAX_SOURCE_LENGTH:
        raise ValueError(f"{name} must have at most {MAX_SOURCE_LENGTH} characters, got {length}")


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be a dict or the text of a JSON object: {message_of(error)}") from None
