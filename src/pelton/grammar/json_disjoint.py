"""Whether two subschemas certainly have no instance in common: then `oneOf` is the same as `anyOf`."""

from typing import Any

from pelton.grammar.json_references import References

TYPES = ("null", "boolean", "number", "string", "array", "object")
_MAX_ALTERNATIVES = 64
_MAX_DEPTH = 8
_MAX_COMPARED = 20_000
"""Pairs of conjunctions that are compared for one schema; then nothing more is shown."""

Conjunction = tuple[dict[str, Any], ...]
"""Schemas that hold at once, of which only the keywords of their own level are meant."""


def json_type(value: Any) -> str:
    """`number` for integers too."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def json_equal(left: Any, right: Any) -> bool:
    """As JSON schemas compare: 1 and 1.0 are equal, 1 and true are not."""
    if json_type(left) != json_type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(json_equal(value, right[key]) for key, value in left.items())
    return bool(left == right)


def json_key(value: Any) -> Any:
    """Hashable, and the same for equal values."""
    if isinstance(value, list):
        return "array", tuple(map(json_key, value))
    if isinstance(value, dict):
        return "object", frozenset((key, json_key(entry)) for key, entry in value.items())
    return json_type(value), value


class DisjointCheck:
    """`old_draft`: `$ref` hides its siblings."""

    def __init__(self, references: References, *, old_draft: bool) -> None:
        self._references, self._old_draft = references, old_draft
        self._num_compared = 0

    def are_disjoint(self, left: Any, right: Any, depth: int = 0) -> bool:
        """False if it cannot be shown. The schemas are well-formed, or else it is false."""
        if left is False or right is False:
            return True
        lefts, rights = self._alternatives(left, 0), self._alternatives(right, 0)
        if lefts is None or rights is None or depth > _MAX_DEPTH:
            return False
        return all(self._apart(one, other, depth) for one in lefts for other in rights)

    def _alternatives(self, schema: Any, depth: int) -> list[Conjunction] | None:
        """The schema as a choice among conjunctions; None for more than it is worth."""
        if isinstance(schema, bool):
            return [()] if schema else []
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return None
        found: list[Conjunction] = [(schema,)]
        for group in self._groups(schema):
            options = [self._alternatives(option, depth + 1) for option in group]
            expanded = [entry for option in options if option is not None for entry in option]
            if None in options or len(expanded) * len(found) > _MAX_ALTERNATIVES:
                return None
            found = [left + right for left in found for right in expanded]
        return found

    def _groups(self, schema: dict[str, Any]) -> list[list[Any]]:
        """What holds beside the schema's own keywords: one of each group."""
        groups: list[list[Any]] = []
        reference = schema.get("$ref")
        if isinstance(reference, str):
            groups.append([self._references.find(schema, reference, ())])
            if self._old_draft:
                return groups
        groups += [schema[keyword] for keyword in ("anyOf", "oneOf") if isinstance(schema.get(keyword), list)]
        if isinstance(schema.get("allOf"), list):
            groups.extend([entry] for entry in schema["allOf"])
        return groups

    def _apart(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        self._num_compared += 1
        if self._num_compared > _MAX_COMPARED:
            return False
        left, right = self._visible(left), self._visible(right)
        common = _types(left) & _types(right)
        if not common:
            return True
        left_values, right_values = _values(left), _values(right)
        if left_values is not None and right_values is not None:
            return not left_values & right_values
        return common == {"object"} and self._objects_apart(left, right, depth)

    def _visible(self, conjunction: Conjunction) -> Conjunction:
        return tuple(schema for schema in conjunction if not (self._old_draft and "$ref" in schema))

    def _objects_apart(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        """Whether a key that one of them requires has values that the other excludes."""
        required = {
            key
            for schema in (*left, *right)
            if isinstance(schema.get("required"), list)
            for key in schema["required"]
            if isinstance(key, str)
        }
        return any(
            self.are_disjoint(one, other, depth + 1)
            for key in sorted(required)
            for one in _property(left, key)
            for other in _property(right, key)
        )


def _types(conjunction: Conjunction) -> set[str]:
    found = set(TYPES)
    for schema in conjunction:
        named = schema.get("type", list(TYPES))
        names = [named] if isinstance(named, str) else named
        if isinstance(names, list):
            found &= {"number" if name == "integer" else name for name in names if isinstance(name, str)}
        values = _own_values(schema)
        if values is not None:
            found &= {json_type(value) for value in values}
    return found


def _own_values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _values(conjunction: Conjunction) -> set[Any] | None:
    """Keys of the values that some schema of them allows, if there is a list."""
    lists = [values for schema in conjunction if (values := _own_values(schema)) is not None]
    return set.intersection(*({json_key(value) for value in values} for values in lists)) if lists else None


def _property(conjunction: Conjunction, key: str) -> list[Any]:
    """Schemas that a property of that name satisfies in every instance, if it is there."""
    found = []
    for schema in conjunction:
        properties = schema.get("properties", {})
        if isinstance(properties, dict) and key in properties:
            found.append(properties[key])
        elif "patternProperties" not in schema and "additionalProperties" in schema:
            found.append(schema["additionalProperties"])
    return found or [True]
