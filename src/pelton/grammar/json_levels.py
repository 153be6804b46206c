"""How deep a reader of a reduced schema goes that follows every `$ref` when it first meets it."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any] | bool


def longest_path(top: Schema, definitions: dict[str, Schema]) -> int:
    """Subschemas within each other, at most. Definitions that refer to each other in a circle, and what refers to
    them, are taken as if all were within one another."""
    levels = {name: _levels(schema) for name, schema in definitions.items()}
    targets = {name: set(_references(schema)) for name, schema in definitions.items()}
    users: dict[str, list[str]] = {name: [] for name in definitions}
    for name, found in targets.items():
        for target in found:
            users[target].append(name)
    num_open = {name: len(found) for name, found in targets.items()}
    ready = [name for name, count in num_open.items() if not count]
    total: dict[str, int] = {}
    while ready:
        name = ready.pop()
        total[name] = levels[name] + max((total[target] for target in targets[name]), default=0)
        for user in users[name]:
            num_open[user] -= 1
            if not num_open[user]:
                ready.append(user)
    in_circles = sum(levels[name] for name in definitions if name not in total)
    return _levels(top) + in_circles + max(total.values(), default=0)


def _subschemas(schema: Schema) -> Iterator[Schema]:
    if isinstance(schema, bool):
        return
    for keyword in ("properties", "patternProperties"):
        yield from schema.get(keyword, {}).values()
    for keyword in ("anyOf", "allOf", "prefixItems"):
        yield from schema.get(keyword, ())
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield schema[keyword]


def _levels(schema: Schema) -> int:
    return 1 + max(map(_levels, _subschemas(schema)), default=0)


def _references(schema: Schema) -> Iterator[str]:
    if isinstance(schema, dict) and "$ref" in schema:
        yield schema["$ref"].rsplit("/", 1)[1]
    for inner in _subschemas(schema):
        yield from _references(inner)
