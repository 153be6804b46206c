"""Whether a reduced schema has an instance of finite size."""

from typing import Any


def can_end(top: dict[str, Any] | bool, definitions: dict[str, dict[str, Any] | bool]) -> bool:
    """False only if there is no instance, or if each would have to hold another one of the same kind, without end."""
    finite: set[str] = set()
    while True:
        found = {name for name, schema in definitions.items() if name in finite or _is_finite(schema, finite)}
        if found == finite:
            return _is_finite(top, finite)
        finite = found


def _is_finite(schema: dict[str, Any] | bool, finite: set[str]) -> bool:
    """`finite`: definitions that are known to have a finite instance."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1] in finite
    if not all(_is_finite(part, finite) for part in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(_is_finite(part, finite) for part in schema["anyOf"]):
        return False
    match schema.get("type"):
        case "object":
            properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
            # A pattern may hold for a name that is not listed.
            unlisted = True if "patternProperties" in schema else rest
            return all(_is_finite(properties.get(name, unlisted), finite) for name in schema.get("required", ()))
        case "array":
            prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
            least = schema.get("minItems", 0)
            needed = prefix[:least] + ([rest] if least > len(prefix) else [])
            return all(_is_finite(item, finite) for item in needed)
    return True
