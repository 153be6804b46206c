"""JSON schemas, reduced to the keywords that llguidance keeps exactly.

The reduction knows what each keyword means in the schema's draft and trusts the backend with as little as possible:
the result has `type`, `enum`, `anyOf`, `allOf`, `$ref` to its own `$defs`, and plain keywords of numbers, strings,
arrays and objects. What cannot be brought into that form is refused by keyword and place. Every instance of the result
is one of the schema; some instances, and spellings of them, may be left out (docs/structured-output.md lists them).
"""

import json
from collections.abc import Iterator
from typing import Any

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.characters import JSON_CHARACTERS
from pelton.grammar.json_disjoint import TYPES, DisjointCheck, json_equal, json_type
from pelton.grammar.json_finite import can_end
from pelton.grammar.json_levels import longest_path
from pelton.grammar.json_numbers import LARGEST_INTEGER, is_number
from pelton.grammar.json_references import Path, References, check_depth, pointer
from pelton.grammar.json_types import APPLICATORS, Schema, TypeReader, names_properties

MAX_REDUCED = 10_000
"""Subschemas of the result."""
MAX_LEVELS = 500
"""Of subschemas within each other, along `$ref`: llguidance follows them on the stack."""
MAX_OPTIONS = 1_000
"""Entries of `anyOf` and `allOf`."""
MAX_ONE_OF = 100
"""Entries of `oneOf`, which are compared in pairs."""

_NEW_DRAFTS = ("https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema")
_OLD_DRAFTS = tuple(f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7))
_ABOUT_PROPERTIES = {"properties", "patternProperties", "propertyNames", "required", "minProperties"}
_NEVER = ("$dynamicRef", "$recursiveRef", "disallow", "extends", "divisibleBy")

Placed = tuple[Any, Path]
"""A subschema and where it is."""


def reduced_schema(schema: Schema, field: str, *, closed: bool = False) -> Schema:
    """`field` begins the messages; `closed` forbids properties that a schema which names some does not name, unless
    others hold for the same object.

    Raises UnsupportedGrammarError.
    """
    check_depth(schema, field)
    try:
        schema = json.loads(json.dumps(schema, allow_nan=False))  # every part its own object
    except ValueError:  # 1e999 is read as infinity
        raise UnsupportedGrammarError(f"{field}: the schema has a number that is too large; leave it out") from None
    return _Reducer(schema if isinstance(schema, dict) else {}, field, closed).run(schema)


class _Reducer(TypeReader):
    def __init__(self, schema: dict[str, Any], field: str, closed: bool) -> None:
        named = schema.get("$schema", _NEW_DRAFTS[0])
        address = named.rstrip("#").replace("https:", "http:") if isinstance(named, str) else ""
        newest = address == _NEW_DRAFTS[0].replace("https:", "http:")
        super().__init__(
            field, closed=closed, prefix_items=newest, lists_in_items=not newest or "$schema" not in schema
        )
        self._old_draft = address in _OLD_DRAFTS
        if not self._old_draft and address not in [draft.replace("https:", "http:") for draft in _NEW_DRAFTS]:
            self.refuse("$schema", (), f"is {shown(named)}; known are the drafts 4, 6, 7, 2019-09 and 2020-12")
        self._references = References(schema, old_draft=self._old_draft, field=field)
        self._disjoint = DisjointCheck(self._references, old_draft=self._old_draft)
        self._names: dict[tuple[int, bool], str] = {}
        self._pending: list[tuple[str, Any, Path, bool]] = []
        self._num_reduced = 0

    def run(self, schema: Schema) -> Schema:
        top = self.schema(schema, ())
        definitions: dict[str, Schema] = {}
        while self._pending:
            name, node, path, combined = self._pending.pop()
            definitions[name] = self.schema(node, path, combined)
        num_levels = longest_path(top, definitions)
        if num_levels > MAX_LEVELS:
            raise UnsupportedGrammarError(
                f"{self.field}: the schema's $ref lead {num_levels} levels deep, and {MAX_LEVELS} is the most"
            )
        if not can_end(top, definitions):
            raise UnsupportedGrammarError(f"{self.field}: no finite output satisfies the schema")
        if isinstance(top, bool) or not definitions:
            return top
        return {**top, "$defs": definitions}

    def schema(self, node: Any, path: Path, combined: bool = False) -> Schema:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UnsupportedGrammarError(f"{self.field}: {pointer(path)} must be a schema, got {shown(node)}")
        self._num_reduced += 1
        if self._num_reduced > MAX_REDUCED:
            raise UnsupportedGrammarError(
                f"{self.field}: the schema has more than {MAX_REDUCED} parts; make it smaller"
            )
        if "$ref" in node and self._old_draft:
            return self._reference(node, path, combined)
        for keyword in _NEVER:
            if keyword in node:
                self.refuse(keyword, path)
        groups = list(self._groups(node, path))
        beside = combined or not _ABOUT_PROPERTIES.isdisjoint(node)  # what the schemas of the groups are combined with
        several = beside or len(groups) + ("$ref" in node) > 1
        others = "$ref" in node or any(_may_name_properties(option) for group in groups for option, _ in group)
        parts = [self._own(node, path, combined or others)]
        parts += [any_of([self.schema(option, place, several) for option, place in group]) for group in groups]
        if "$ref" in node:
            parts.append(self._reference(node, path, several))
        return all_of(parts)

    def _reference(self, node: dict[str, Any], path: Path, combined: bool) -> Schema:
        target = self._found(node, path)
        if isinstance(target, bool):
            return target
        key = id(target), combined and self.closed
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            self._pending.append((self._names[key], target, (*path, "$ref"), combined))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _found(self, node: dict[str, Any], path: Path) -> Any:
        reference = node["$ref"]
        if not isinstance(reference, str):
            self.refuse("$ref", path, f"must be a string, got {shown(reference)}")
        return self._references.find(node, reference, path)

    def target(self, node: Any, path: Path) -> Any:
        for _ in range(16):
            if not isinstance(node, dict) or node.keys() != {"$ref"}:
                break
            node = self._found(node, path)
        if not isinstance(node, dict | bool):
            raise UnsupportedGrammarError(f"{self.field}: {pointer(path)} must be a schema, got {shown(node)}")
        return node

    # What holds beside the keywords of types: one of each group

    def _groups(self, node: dict[str, Any], path: Path) -> Iterator[list[Placed]]:
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword not in node:
                continue
            options = node[keyword]
            if not isinstance(options, list) or not options:
                self.refuse(keyword, path, f"must be a non-empty list, got {shown(options)}")
            if len(options) > MAX_OPTIONS:
                self.refuse(keyword, path, f"has {len(options)} entries, and {MAX_OPTIONS} is the most")
            placed = [(option, (*path, keyword, index)) for index, option in enumerate(options)]
            if keyword == "allOf":
                yield from ([entry] for entry in placed)
                continue
            if keyword == "oneOf":
                self._check_disjoint(options, path)
            yield placed
        yield from self._condition(node, path)
        if "not" in node:
            yield self._negation(node["not"], path)
        yield from self._dependencies(node, path)

    def _check_disjoint(self, options: list[Any], path: Path) -> None:
        if len(options) > MAX_ONE_OF:
            self.refuse("oneOf", path, f"has {len(options)} entries, and {MAX_ONE_OF} is the most; use anyOf")
        for index, left in enumerate(options):
            for later, right in enumerate(options[index + 1 :], index + 1):
                if not self._disjoint.are_disjoint(left, right):
                    self.refuse(
                        "oneOf",
                        path,
                        f"cannot be kept by llguidance, for its entries {index} and {later} may both hold; make them "
                        "differ in type or by a required property with const, or use anyOf",
                    )

    def _condition(self, node: dict[str, Any], path: Path) -> Iterator[list[Placed]]:
        if "if" not in node or ("then" not in node and "else" not in node):
            return
        if not isinstance(node["if"], bool):
            self.refuse("if", path)
        branch = "then" if node["if"] else "else"
        yield [(node.get(branch, True), (*path, branch))]

    def _negation(self, inner: Any, path: Path) -> list[Placed]:
        """Of a boolean, of types alone, and of required names alone: what holds instead."""
        place = (*path, "not")
        if isinstance(inner, bool) or inner == {}:
            return [(inner is False, place)]
        if not isinstance(inner, dict) or not inner.keys() <= {"type", "required"}:
            self.refuse("not", path)
        names = self._type_names(inner, place) if "type" in inner else list(TYPES)
        if "integer" in names or ("required" in inner and "object" not in names):
            self.refuse("not", path)
        others: list[Any] = [{"type": name} for name in TYPES if name not in names]
        if "required" in inner and len(names) in (1, len(TYPES)):
            absent = self.strings(inner, "required", place)
            others += [{"type": "object", "properties": {name: False}, "additionalProperties": True} for name in absent]
        elif "required" in inner:
            self.refuse("not", path)
        return [(option, place) for option in others or [False]]

    def _dependencies(self, node: dict[str, Any], path: Path) -> Iterator[list[Placed]]:
        """If a property is there, a schema must hold: or else the property is not there."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            entries = node.get(keyword, {})
            if not isinstance(entries, dict):
                self.refuse(keyword, path, f"must be an object, got {shown(entries)}")
            for name, entry in entries.items():
                place = (*path, keyword, name)
                if keyword == "dependentRequired" or (keyword == "dependencies" and isinstance(entry, list)):
                    entry = {"required": self.strings(entries, name, (*path, keyword))}
                present = {"properties": {name: True}, "additionalProperties": True, "required": [name]}
                # Properties come in the order in which they are named.
                names_it = isinstance(entry, dict) and name in _as_dict(entry.get("properties"))
                then = {"type": "object", "allOf": [entry, present] if names_it else [present, entry]}
                without = {"properties": {name: False}, "additionalProperties": True}
                yield [(without, place), (then, place)]

    # The keywords of one level

    def _own(self, node: dict[str, Any], path: Path, combined: bool) -> Schema:
        names = self._type_names(node, path) if "type" in node else None
        if "const" in node or "enum" in node:
            values = [value for value in self._values(node, path) if names is None or _is_of(value, names)]
            types = list(dict.fromkeys(map(json_type, values)))
            rest = any_of([self.typed(node, path, name, combined) for name in types])
            literals: Schema = {"enum": values} if values else False
            return literals if _is_plain(rest, types) else all_of([literals, rest])
        options = [self.typed(node, path, name, combined) for name in names or TYPES]
        if names is None and all(map(_is_just_a_type, options)):
            return True
        return any_of(options)

    def _type_names(self, node: dict[str, Any], path: Path) -> list[str]:
        value, known = node["type"], (*TYPES, "integer")
        names = [value] if isinstance(value, str) else value
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) and name in known for name in names)
        ):
            self.refuse("type", path, f"must be of {', '.join(known)}, got {shown(value)}")
        return [name for name in dict.fromkeys(names) if name != "integer" or "number" not in names]

    def _values(self, node: dict[str, Any], path: Path) -> list[Any]:
        """What `const` and `enum` name."""
        values = node.get("enum", [node.get("const")])
        if not isinstance(values, list):
            self.refuse("enum", path, f"must be a list, got {shown(values)}")
        if "const" in node:
            values = [value for value in values if json_equal(value, node["const"])][:1]
        keyword = "enum" if "enum" in node else "const"
        return [self._literal(value, keyword, path) for value in values]

    def _literal(self, value: Any, keyword: str, path: Path) -> Any:
        """A value as llguidance takes it literally."""
        if isinstance(value, list):
            return [self._literal(entry, keyword, path) for entry in value]
        if isinstance(value, dict):
            return {name: self._literal(entry, keyword, path) for name, entry in value.items()}
        if isinstance(value, str):
            bad = next((char for char in value if _is_control(char)), None)
            if bad is not None:
                self.refuse(keyword, path, f"holds the control character U+{ord(bad):04X}, which cannot be kept")
        if not is_number(value):
            return value
        if abs(value) > LARGEST_INTEGER or "e" in repr(value):
            self.refuse(keyword, path, f"holds {shown(value)}, which cannot be kept exactly")
        return int(value) if value == int(value) else value


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_control(char: str) -> bool:
    code = ord(char)
    return (code < 32 or code == 127) and not any(low <= code <= high for low, high in JSON_CHARACTERS)


def _is_of(value: Any, names: list[str]) -> bool:
    """Whether a value is of one of the types, of which `integer` includes 1.0."""
    name = json_type(value)
    return name in names or (name == "number" and "integer" in names and value == int(value))


def _is_just_a_type(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema.keys() == {"type"}


def _is_plain(schema: Schema, types: list[str]) -> bool:
    """Whether a schema only asks for these types."""
    return schema == any_of([{"type": name} for name in types])


def _may_name_properties(node: Any) -> bool:
    return isinstance(node, dict) and (names_properties(node) or bool(APPLICATORS & node.keys()))


def any_of(options: list[Schema]) -> Schema:
    """One schema for several, without those that nothing satisfies; types alone are put together."""
    if True in options:
        return True
    types = [option["type"] for option in options if isinstance(option, dict) and option.keys() == {"type"}]
    rest: list[Schema] = [option for option in options if option is not False and not _is_just_a_type(option)]
    if types:
        flat = [name for entry in types for name in (entry if isinstance(entry, list) else [entry])]
        rest.append({"type": flat[0] if len(flat) == 1 else list(dict.fromkeys(flat))})
    if not rest:
        return False
    return rest[0] if len(rest) == 1 else {"anyOf": rest}


def all_of(parts: list[Schema]) -> Schema:
    """One schema for several that hold at once."""
    if False in parts:
        return False
    rest: list[Schema] = [part for part in parts if part is not True]
    if not rest:
        return True
    return rest[0] if len(rest) == 1 else {"allOf": rest}
