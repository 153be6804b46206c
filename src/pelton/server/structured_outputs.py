"""Fields of requests that say what the output must look like, and the constraint that they make."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from pelton.core.request import CONSTRAINT_FAILED
from pelton.error_text import shown
from pelton.server.field_types import Flag, one_of
from pelton.structured_outputs_params import (
    BACKENDS,
    KINDS,
    MAX_CHOICES_LENGTH,
    MAX_SOURCE_LENGTH,
    StructuredOutputsParams,
)

MAX_TOTAL_LENGTH = 16 << 20
"""Characters of a constraint, as JSON, times the choices of its request: the engine holds it for each of them."""


def _check_backend(name: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"must be one of {', '.join(BACKENDS)}, got {shown(name)}")
    return name


def _check_size(value: Any) -> Any:
    """Before an object is looked at as a whole: to write a very large one as JSON holds up everybody."""
    if isinstance(value, str):
        return value
    room, pending = MAX_SOURCE_LENGTH, [value]
    while pending and room >= 0:
        part = pending.pop()
        room -= 1 + (len(part) if isinstance(part, str | list | dict) else 0)
        if isinstance(part, list):
            pending += part[:room]
        elif isinstance(part, dict):
            pending += part.keys()
            pending += part.values()
    if room < 0:
        raise ValueError(f"must have at most {MAX_SOURCE_LENGTH} characters, written as JSON")
    return value


Source = Annotated[str, Field(min_length=1, max_length=MAX_SOURCE_LENGTH)]
_AS_TEXT = f"as text of 1 to {MAX_SOURCE_LENGTH} characters"
_LIMITED = BeforeValidator(_check_size)
JsonSchema = Annotated[dict[str, Any] | Flag, one_of("a JSON schema: an object, true or false"), _LIMITED]
JsonSource = Annotated[
    dict[str, Any] | Flag | Source,
    one_of(f"a JSON schema: an object, true or false, or one of these {_AS_TEXT}"),
    _LIMITED,
]
TagSource = Annotated[dict[str, Any] | Source, one_of(f"a structural tag: an object, or one {_AS_TEXT}"), _LIMITED]
Choices = Annotated[list[Source], Field(fail_fast=True, max_length=MAX_CHOICES_LENGTH), _LIMITED]
Backend = Annotated[str, AfterValidator(_check_backend), Field(json_schema_extra={"enum": list(BACKENDS)})]


class _Entries(BaseModel):
    """An object all of whose entries count: one that nobody knows may ask for what the output would not keep to."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra={"additionalProperties": {"enum": [None, False]}}
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for name, value in data.items():
                if name not in known and value is not None and value is not False:
                    raise ValueError(f"has the unknown entry {shown(name)}; there are {', '.join(known)}")
        return data


class JsonSchemaFormat(_Entries):
    """A JSON schema in a response format."""

    schema_: JsonSchema = Field(alias="schema")
    """The output is an instance of it."""
    name: str | None = None
    """Not looked at."""
    description: str | None = None
    """Not looked at."""
    strict: Flag | None = None
    """Of no consequence: the output always keeps to the schema."""


class ResponseFormat(_Entries):
    """What the output must look like, as in OpenAI's interface."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    """Anything, a JSON object, an instance of a JSON schema, or text with constrained parts."""
    json_schema: JsonSchemaFormat | None = None
    """Only with type `json_schema`, which needs it."""
    schema_: JsonSchema | None = Field(None, alias="schema")
    """Only with type `json_object`, as in llama.cpp's interface: the output is an instance of it."""
    format: Annotated[dict[str, Any], _LIMITED] | None = None
    """Only with type `structural_tag`: what the text is made of."""
    structures: Annotated[list[dict[str, Any]], _LIMITED] | None = None
    """Only with type `structural_tag`, in its older form: the tags, with a JSON schema each."""
    triggers: Annotated[list[str], _LIMITED] | None = None
    """Only with type `structural_tag`, in its older form: beginnings of tags."""


class StructuredOutputs(_Entries):
    """A constraint on the output, and how it is meant."""

    json_: JsonSource | None = Field(None, alias="json")
    """A JSON schema: the output is an instance of it."""
    regex: Source | None = None
    """A regular expression that the whole output matches."""
    choice: Choices | None = None
    """The output is one of these strings."""
    grammar: Source | None = None
    """A context-free grammar, in Lark's notation or in GBNF."""
    json_object: Flag | None = None
    """The output is a JSON object."""
    structural_tag: TagSource | None = None
    """Free text with constrained parts between tags."""
    disable_any_whitespace: Flag | None = None
    """JSON without any whitespace between its tokens."""
    disable_additional_properties: Flag | None = None
    """Objects have only the properties that the schema names, unless it says otherwise. Default: the server's, true."""
    whitespace_pattern: Source | None = None
    """A regular expression for the whitespace that JSON may have between its tokens."""
    backend: Backend | None = None
    """Who compiles the constraint. Default: the server's."""


class ConstraintFields(BaseModel):
    """What the output must look like. Several fields may say it if they say the same."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    response_format: ResponseFormat | None = None
    """A constraint on the output, as in OpenAI's interface."""
    structured_outputs: StructuredOutputs | None = None
    """A constraint on the output, as in vLLM's."""
    structural_tag: TagSource | None = None
    """The same as in `structured_outputs`."""
    guided_json: JsonSource | None = None
    """An older name of `json` in `structured_outputs`."""
    guided_regex: Source | None = None
    """An older name of `regex` in `structured_outputs`."""
    guided_choice: Choices | None = None
    """An older name of `choice` in `structured_outputs`."""
    guided_grammar: Source | None = None
    """An older name of `grammar` in `structured_outputs`."""
    guided_whitespace_pattern: Source | None = None
    """An older name of `whitespace_pattern` in `structured_outputs`."""
    guided_decoding_backend: Backend | None = None
    """An older name of `backend` in `structured_outputs`."""
    _constraint: "Constraint | None" = PrivateAttr(None)
    _options: "dict[str, _Given]" = PrivateAttr(default_factory=dict)

    @property
    def may_be_constrained_later(self) -> bool:
        """Whether other fields may make a constraint, so that options alone are no mistake yet."""
        return False

    @property
    def constraint(self) -> "Constraint | None":
        """What all these fields make; None if any output will do."""
        return self._constraint

    def constrain(self, constraint: "Constraint") -> None:
        """Set what fields of a subclass make, instead of what there was; with the same options."""
        options = self._options.values()
        paths = {**constraint.paths, **{given.name: given.path for given in options}}
        try:
            params = msgspec.structs.replace(constraint.params, **{given.name: given.value for given in options})
        except ValueError as error:
            raise ValueError(named(str(error), paths, constraint.params.kind)) from None
        self._constraint = replace(constraint, params=params, paths=paths)

    def check_options(self) -> None:
        """Raise ValueError for options of a constraint, if there is none."""
        if self._constraint is None:
            _check_alone(self._options)

    def check_copies(self, num_choices: int) -> None:
        """Raise ValueError for a constraint that is too large for so many choices."""
        constraint = self._constraint
        if constraint is None or num_choices == 1:
            return
        length = len(_content(constraint))
        if length * num_choices > MAX_TOTAL_LENGTH:
            raise ValueError(
                f"{constraint.path} must have at most {MAX_TOTAL_LENGTH // num_choices} characters with {num_choices} "
                f"choices in all, got {length}; send several requests"
            )

    @model_validator(mode="after")
    def _make_constraint(self) -> "ConstraintFields":
        # Here, for large requests are read beside the event loop.
        constraints, self._options = _read(self)
        self._constraint = _constraint_of(constraints, self._options.values())
        if not self.may_be_constrained_later:
            self.check_options()
        return self


_TOP_LEVEL = {
    "structural_tag": "structural_tag",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "guided_decoding_backend": "backend",
}
"""Fields of requests -> of `StructuredOutputsParams`."""

_OF_TYPE: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema",),
    "structural_tag": ("format", "structures", "triggers"),
}
"""Entries of a response format that go with its types. Those of the last two are needed: of the last one, either the
first or the others."""

_MAY_BE_FALSE = ("json", "disable_additional_properties")
"""Fields that say something when they are false."""

_FIRST_WORD = re.compile(r"[a-z_]+(?![\w.])")


@dataclass(frozen=True, slots=True)
class _Given:
    """Something that a request sets."""

    name: str
    """Of the field of `StructuredOutputsParams`."""
    value: Any
    path: str
    """Where the request has it."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output must look like, and where its request says so."""

    params: StructuredOutputsParams
    paths: Mapping[str, str]
    """Field of `params` -> field of the request."""
    reworded: Callable[[str], str] = str
    """Messages about `params`, in the words of the request."""

    @property
    def path(self) -> str:
        """Field of the request that has the constraint itself."""
        return self.paths[self.params.kind]

    def named(self, message: str) -> str:
        """A message about `params`, which begins with a field of the request."""
        kind = self.params.kind
        content = message.removeprefix(f"{kind}: ")
        reworded = self.reworded(content)
        return named(message, self.paths, kind) if reworded == content else reworded


@contextmanager
def named_in_refusals(constraint: Constraint | None) -> Iterator[None]:
    """Let the engine's refusal of the constraint begin with the field of the request that it came in."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        if constraint is None or not message.startswith(CONSTRAINT_FAILED):
            raise
        raise ValueError(constraint.named(message.removeprefix(CONSTRAINT_FAILED))) from None


def named(message: str, paths: Mapping[str, str], kind: str) -> str:
    """A message about `StructuredOutputsParams`, which begins with a field of the request."""
    found = _FIRST_WORD.match(message)
    if found is not None and found.group() in paths:
        return paths[found.group()] + message[found.end() :]
    return f"{paths[kind]}: {message}"


def _read(request: ConstraintFields) -> tuple[list[_Given], dict[str, _Given]]:
    """Constraints, and options by name. Raises ValueError that begins with the field."""
    constraints: list[_Given] = []
    options: dict[str, _Given] = {}
    for given in _all_given(request):
        if given.value is None or (given.value is False and given.name not in _MAY_BE_FALSE):
            continue
        if given.name in KINDS:
            constraints.append(given)
            continue
        other = options.setdefault(given.name, given)
        if other.value != given.value:
            raise _contradiction(other.path, given.path)
    return constraints, options


def _constraint_of(constraints: list[_Given], options: Iterable[_Given]) -> Constraint | None:
    """The one that all of these mean. Raises ValueError that begins with the field."""
    if not constraints:
        return None
    made = [_made(given, options) for given in constraints]
    for given, constraint in zip(constraints[1:], made[1:], strict=True):
        if _content(constraint) != _content(made[0]):
            raise _contradiction(constraints[0].path, given.path)
    return made[0]


def _all_given(request: ConstraintFields) -> Iterator[_Given]:
    if request.response_format is not None:
        yield from _given_by_format(request.response_format)
    entries = request.structured_outputs
    if entries is not None:
        for attribute in StructuredOutputs.model_fields:
            name = attribute.removesuffix("_")
            yield _Given(name, getattr(entries, attribute), f"structured_outputs.{name}")
    for field, name in _TOP_LEVEL.items():
        yield _Given(name, getattr(request, field), field)


def _given_by_format(given: ResponseFormat) -> Iterator[_Given]:
    kind, entries = given.type, {}
    for name in (name for names in _OF_TYPE.values() for name in names):
        if (value := getattr(given, "schema_" if name == "schema" else name)) is None:
            continue
        if name not in _OF_TYPE[kind]:
            raise ValueError(f"response_format.{name} is given, but response_format.type is {kind!r}; leave out {name}")
        entries[name] = value
    if "schema" in entries:
        yield _Given("json", entries["schema"], "response_format.schema")
    elif kind == "json_object":
        yield _Given(kind, True, "response_format")
    elif _OF_TYPE[kind] and not entries:
        raise ValueError(f"response_format.{_OF_TYPE[kind][0]} is missing, which type {kind!r} needs")
    if given.json_schema is not None:
        yield _Given("json", given.json_schema.schema_, "response_format.json_schema.schema")
    if kind == "structural_tag":
        yield _Given(kind, {"type": kind, **entries}, "response_format")


def _contradiction(path: str, other: str) -> ValueError:
    return ValueError(f"{path} and {other} are both given, and are not the same; leave out one of them")


def _check_alone(options: Mapping[str, _Given]) -> None:
    """Who compiles is of no consequence if there is nothing to be compiled; that there is nothing may be a mistake."""
    for name, given in options.items():
        if name != "backend":
            raise ValueError(
                f"{given.path} is given without a constraint that it is about; leave it out, or add one, such as "
                "response_format"
            )


def _made(given: _Given, options: Iterable[_Given]) -> Constraint:
    fields = [given, *options]
    paths = {field.name: field.path for field in fields}
    try:
        params = StructuredOutputsParams(**{field.name: field.value for field in fields})
    except ValueError as error:
        raise ValueError(named(str(error), paths, given.name)) from None
    return Constraint(params, paths)


def _content(constraint: Constraint) -> str:
    """Equal if the constraints are, their options aside: 1 is not True, and the order of entries counts."""
    kind = constraint.params.kind
    return json.dumps([kind, getattr(constraint.params, kind)])
