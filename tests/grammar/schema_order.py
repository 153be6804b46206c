"""Instances with their properties in the order in which the schema names them."""

from collections.abc import Iterable, Iterator
from typing import Any

from referencing.exceptions import Unresolvable

Resolver = Any
"""referencing's, whose type is private: it finds what `$ref` refers to."""


def in_schema_order(instance: Any, schema: Any, resolver: Resolver) -> Any:
    """The same instance: properties that the schema names come first, in its order, then those that it only requires,
    then those that require others, each with these behind it, then the rest as it stands. What equals a `const`, or a
    value of an `enum`, is written as it is there.

    `resolver` is for the schema's own place.
    """
    return _ordered(instance, [(schema, resolver)])


def _ordered(instance: Any, schemas: list[tuple[Any, Resolver]]) -> Any:
    """By all the schemas that apply at this place."""
    applied = [found for schema, resolver in schemas for found in _applied(schema, instance, resolver, ())]
    for schema, _ in applied:
        for literal in (*([schema["const"]] if "const" in schema else ()), *schema.get("enum", ())):
            if _is_equal(literal, instance):
                return literal
    if isinstance(instance, list):
        return [_ordered(item, list(_item_schemas(applied, index))) for index, item in enumerate(instance)]
    if isinstance(instance, dict):
        names = dict.fromkeys(name for name in _names(applied) if name in instance)
        names |= dict.fromkeys(instance)
        return {name: _ordered(instance[name], list(_property_schemas(applied, name))) for name in names}
    return instance


def _applied(
    schema: Any, instance: Any, resolver: Resolver, refs: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], Resolver]]:
    """The schema, and those that it applies to the same value: by reference, by allOf and the like, and because the
    value has a property."""
    if not isinstance(schema, dict):
        return
    yield schema, resolver
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref not in refs:
        try:
            resolved = resolver.lookup(ref)
        except Unresolvable:
            return
        yield from _applied(resolved.contents, instance, resolved.resolver, (*refs, ref))
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(keyword, ()):
            yield from _applied(part, instance, resolver, refs)
    for keyword in ("dependentSchemas", "dependencies"):
        for name, part in schema.get(keyword, {}).items():
            if isinstance(instance, dict) and name in instance:
                yield from _applied(part, instance, resolver, refs)


def _names(applied: list[tuple[dict[str, Any], Resolver]]) -> Iterator[str]:
    for keyword in ("properties", "required"):
        for schema, _ in applied:
            yield from schema.get(keyword, ())
    for keyword in ("dependentRequired", "dependencies"):
        for schema, _ in applied:
            needed = {name: needed for name, needed in schema.get(keyword, {}).items() if isinstance(needed, list)}
            yield from (name for first, others in needed.items() for name in (first, *others))


def _property_schemas(applied: list[tuple[dict[str, Any], Resolver]], name: str) -> Iterator[tuple[Any, Resolver]]:
    for schema, resolver in applied:
        if name in schema.get("properties", ()):
            yield schema["properties"][name], resolver
        elif "additionalProperties" in schema:
            yield schema["additionalProperties"], resolver
        yield from ((part, resolver) for part in schema.get("patternProperties", {}).values())


def _item_schemas(applied: list[tuple[dict[str, Any], Resolver]], index: int) -> Iterator[tuple[Any, Resolver]]:
    for schema, resolver in applied:
        items = schema.get("items")
        first: Any = schema.get("prefixItems", items if isinstance(items, list) else [])
        rest = schema.get("additionalItems") if isinstance(items, list) else items
        if index < len(first):
            yield first[index], resolver
        elif rest is not None:
            yield rest, resolver


def _is_equal(one: Any, other: Any) -> bool:
    """As JSON values, written with the same kind of number: 1 is neither true nor 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and _all_equal(zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and _all_equal((value, other[name]) for name, value in one.items())
    return bool(one == other)


def _all_equal(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return all(_is_equal(one, other) for one, other in pairs)
