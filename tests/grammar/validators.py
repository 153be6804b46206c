"""Whether values are instances of a schema, by two validators that Pelton has nothing to do with."""

import json
import math
import re
from functools import cache
from typing import Any

import jsonschema
import jsonschema_rs
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from referencing import Registry, Resource
from referencing.jsonschema import specification_with

from tests.support.downloads import json_schema_suite

_REMOTE = "http://localhost:1234"
"""Where the suite's schemas believe their remote ones to be."""
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


class Formats(jsonschema.FormatChecker):
    """jsonschema's checks of formats, and jsonschema_rs's, which knows all of the standard's."""

    def check(self, instance: object, format: str) -> None:  # noqa: A002  the base class's name
        super().check(instance, format)
        if isinstance(instance, str) and not _format_validator(format).is_valid(instance):
            raise jsonschema.FormatError(f"{instance!r} is not a {format!r}")


@cache
def _format_validator(name: str) -> Any:
    return jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)


@cache
def remote_schemas(dialect: str) -> Registry[Any]:
    """The suite's remote schemas, for those that refer to them."""
    specification = specification_with(dialect)
    folder = json_schema_suite() / "remotes"
    draft = {DRAFT_7: "draft7", DRAFT_2020_12: "draft2020-12"}[dialect]
    resources = []
    for path in sorted(folder.rglob("*.json")):
        name, schema = path.relative_to(folder).as_posix(), json.loads(path.read_text())
        # Others are written for other drafts, and do not say so.
        if "$schema" in schema or not name.startswith("draft") or name.partition("/")[0] == draft:
            resources.append((f"{_REMOTE}/{name}", Resource.from_contents(schema, specification)))
    return Registry().with_resources(resources)


def _dialect_of(schema: Any) -> str:
    """Schemas that name none, or one of their own, are read as of the newest draft."""
    is_draft_7 = isinstance(schema, dict) and schema.get("$schema") in (DRAFT_7, DRAFT_7.rstrip("#"))
    return DRAFT_7 if is_draft_7 else DRAFT_2020_12


def resolver_of(schema: Any) -> Any:
    """Finds what `$ref` refers to, from the schema's root."""
    dialect = _dialect_of(schema)
    resource = specification_with(dialect).create_resource(schema)
    return SPECIFICATIONS.combine(remote_schemas(dialect)).resolver_with_root(resource)


class Judge:
    """Both validators, for one schema.

    They differ about patterns: jsonschema reads them as Python's, jsonschema_rs as the standard wants (ECMA 262).
    Numbers too great for a float are infinite for Python, and only jsonschema is asked then.
    """

    def __init__(self, schema: Any) -> None:
        dialect = _dialect_of(schema)
        kind = Draft7Validator if dialect == DRAFT_7 else Draft202012Validator
        formats = Formats(kind.FORMAT_CHECKER.checkers)
        self._python = kind(schema, registry=remote_schemas(dialect), format_checker=formats)
        rust = jsonschema_rs.Draft7Validator if dialect == DRAFT_7 else jsonschema_rs.Draft202012Validator
        self._rust = rust(schema, validate_formats=True, retriever=lambda uri: remote_schemas(dialect)[uri].contents)

    def objections(self, value: Any) -> dict[str, str]:
        """Which of them say that the value is no instance, and why."""
        found = {"jsonschema": self._python_objection(value)}
        if not _is_infinite(value):
            found["jsonschema_rs"] = self._rust_objection(value)
        return {name: objection[:300] for name, objection in found.items() if objection}

    def _python_objection(self, value: Any) -> str | None:
        try:
            error = next(self._python.iter_errors(value), None)
        except re.error as pattern_error:
            return f"Python's re cannot read the pattern: {pattern_error}"
        return error and f"{error.message} ({'/'.join(map(str, error.absolute_schema_path))})"

    def _rust_objection(self, value: Any) -> str | None:
        error = next(self._rust.iter_errors(value), None)
        return error and f"{error.message} ({'/'.join(map(str, error.schema_path))})"


def _is_infinite(value: Any) -> bool:
    """Whether any number in it is."""
    if isinstance(value, dict | list):
        return any(map(_is_infinite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)
