"""The keywords of JSON schemas that concern one type each, reduced to what llguidance keeps exactly."""

from abc import ABC, abstractmethod
from functools import cache
from typing import Any, NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.characters import JSON_CHARACTERS
from pelton.grammar.json_formats import FORMATS, WITHOUT_CONTENT
from pelton.grammar.json_numbers import NumberError, is_number, number_keywords
from pelton.grammar.json_references import Path, pointer
from pelton.grammar.llguidance_regex import write_regex
from pelton.grammar.regex_reader import read_regex

MAX_COUNT = 1_000_000
"""Upper bounds of lengths and counts are lowered to this, which is stricter; higher lower bounds are refused."""
MAX_PROPERTIES = 1_000
"""Of one schema: compiling takes time by their square."""
MAX_OPTIONAL = 100
"""Optional properties beside a `minProperties` that asks for one of them."""
APPLICATORS = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "dependencies")
)
"""Keywords by which other schemas hold for the same value."""

Schema = dict[str, Any] | bool


class TypeReader(ABC):
    """`prefix_items`: the draft has `prefixItems`; `lists_in_items`: `items` may be a list instead."""

    def __init__(self, field: str, *, closed: bool, prefix_items: bool, lists_in_items: bool) -> None:
        self.field, self.closed = field, closed
        self.prefix_items, self.lists_in_items = prefix_items, lists_in_items

    @abstractmethod
    def schema(self, node: Any, path: Path, combined: bool = False) -> Schema:
        """A subschema, reduced. `combined`: another one, which may name properties, holds for the same value."""

    @abstractmethod
    def target(self, node: Any, path: Path) -> Any:
        """The schema that a chain of bare `$ref` leads to."""

    def refuse(self, keyword: str, path: Path, why: str = "cannot be kept by llguidance; leave it out") -> NoReturn:
        """`path`: of the schema that has the keyword."""
        raise UnsupportedGrammarError(f"{self.field}: the keyword {keyword} at {pointer((*path, keyword))} {why}")

    def typed(self, node: dict[str, Any], path: Path, name: str, combined: bool) -> Schema:
        """The schema's own keywords for values of one type; False if there are none."""
        match name:
            case "number" | "integer":
                return self._number(node, path, name == "integer")
            case "string":
                return self._string(node, path)
            case "array":
                return self._array(node, path)
            case "object":
                return self._object(node, path, combined)
        return {"type": name}

    def strings(self, node: dict[str, Any], keyword: str, path: Path) -> list[str]:
        value = node.get(keyword, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.refuse(keyword, path, f"must be a list of strings, got {shown(value)}")
        return list(dict.fromkeys(value))

    def _number(self, node: dict[str, Any], path: Path, integer: bool) -> Schema:
        try:
            found = number_keywords(node, integer=integer)
        except NumberError as error:
            self.refuse(error.keyword, path, str(error))
        return False if found is None else found

    def _count(self, node: dict[str, Any], keyword: str, path: Path) -> int | None:
        if keyword not in node:
            return None
        value: Any = node[keyword]
        if not is_number(value) or value != int(value) or value < 0:
            self.refuse(keyword, path, f"must be a count, got {shown(value)}")
        return int(value)

    def _counts(self, node: dict[str, Any], low: str, high: str, path: Path) -> dict[str, int] | None:
        """The bounds, without such that say nothing. None if no count is within them."""
        least, most = self._count(node, low, path) or 0, self._count(node, high, path)
        if least > MAX_COUNT:
            self.refuse(low, path, f"is {least}, and {MAX_COUNT} is the most that can be kept")
        if most is not None and most < least:
            return None
        return ({low: least} if least else {}) | ({high: min(most, MAX_COUNT)} if most is not None else {})

    # Strings

    def _string(self, node: dict[str, Any], path: Path) -> Schema:
        counts = self._counts(node, "minLength", "maxLength", path)
        if counts is None:
            return False
        if node.get("format") in ("hostname", "idn-hostname"):
            counts["maxLength"] = min(counts.get("maxLength", 253), 253)
        patterns = [pattern for pattern in (self._pattern(node, path), self._format(node, path)) if pattern is not None]
        found: dict[str, Any] = {"type": "string", **counts}
        if patterns:
            found["pattern"] = patterns[0]
        if len(patterns) == 2:
            found["allOf"] = [{"type": "string", "pattern": patterns[1]}]
        return found

    def _pattern(self, node: dict[str, Any], path: Path) -> str | None:
        if "pattern" not in node:
            return None
        return self._written(node["pattern"], "pattern", path)

    def _written(self, pattern: Any, keyword: str, path: Path) -> str:
        if not isinstance(pattern, str):
            self.refuse(keyword, path, f"must be a string, got {shown(pattern)}")
        expression = read_regex(pattern, f"{self.field}: pattern at {pointer((*path, keyword))}", search=True)
        if write_regex(expression, JSON_CHARACTERS) is None:
            self.refuse(keyword, path, "matches only control characters, which cannot be kept")
        return f"^(?:{write_regex(expression)})$"

    def _format(self, node: dict[str, Any], path: Path) -> str | None:
        name = node.get("format")
        if name is None or (isinstance(name, str) and name in WITHOUT_CONTENT):
            return None
        if not isinstance(name, str) or name not in FORMATS:
            self.refuse("format", path, f"is {shown(name)}, which cannot be kept; known are {', '.join(FORMATS)}")
        return _format_pattern(name)

    # Arrays

    def _array(self, node: dict[str, Any], path: Path) -> Schema:
        counts = self._counts(node, "minItems", "maxItems", path)
        self._check_whole_array(node, path)
        prefix, rest = self._items(node, path)
        if counts is None:
            return False
        found: dict[str, Any] = {"type": "array", **counts}
        if prefix:
            found["prefixItems"] = prefix
        if rest is not True:
            found["items"] = rest
        return found

    def _check_whole_array(self, node: dict[str, Any], path: Path) -> None:
        most = self._count(node, "maxItems", path)
        if node.get("uniqueItems", False) is not False and (most is None or most > 1):
            self.refuse("uniqueItems", path)
        if "contains" in node and (node.get("minContains", 1) != 0 or "maxContains" in node):
            self.refuse("contains", path)

    def _items(self, node: dict[str, Any], path: Path) -> tuple[list[Schema], Schema]:
        """Schemas of the first items, and of the rest."""
        items = node.get("items", True)
        prefix: Any = []
        prefix_keyword = rest_keyword = "items"
        rest_given = "items" in node
        if isinstance(items, list) and self.lists_in_items:
            if self.prefix_items and "prefixItems" in node:
                self.refuse("prefixItems", path, "stands beside a list in items, which means the same; leave out one")
            prefix, items, rest_keyword = items, node.get("additionalItems", True), "additionalItems"
            rest_given = "additionalItems" in node
        elif self.prefix_items and "prefixItems" in node:
            prefix, prefix_keyword = node["prefixItems"], "prefixItems"
        if not isinstance(prefix, list):
            self.refuse(prefix_keyword, path, f"must be a list, got {shown(prefix)}")
        if "unevaluatedItems" in node and node["unevaluatedItems"] is not True and not rest_given:
            if APPLICATORS & node.keys() or "contains" in node:
                self.refuse("unevaluatedItems", path)
            items, rest_keyword = node["unevaluatedItems"], "unevaluatedItems"
        first = [self.schema(entry, (*path, prefix_keyword, index)) for index, entry in enumerate(prefix)]
        return first, self.schema(items, (*path, rest_keyword))

    # Objects

    def _object(self, node: dict[str, Any], path: Path, combined: bool) -> Schema:
        found: dict[str, Any] = {"type": "object"}
        properties = self._named(node, "properties", path)
        patterns = {
            self._key_pattern(pattern, path): schema
            for pattern, schema in self._named(node, "patternProperties", path).items()
        }
        required = self.strings(node, "required", path)
        rest = self._rest(node, path)
        if self.closed and not combined and _may_be_closed(node):
            unnamed = [name for name in required if name not in properties]
            if not (unnamed and patterns):  # which of them a pattern names, nobody looks
                properties, rest = properties | dict.fromkeys(unnamed, True), False
        properties, patterns, rest = self._with_names(node, path, properties, patterns, rest)
        keywords = {"properties": properties, "patternProperties": patterns, "required": required}
        found |= {keyword: value for keyword, value in keywords.items() if value}
        if rest is not True:
            found["additionalProperties"] = rest
        return self._counted(found, node, path)

    def _key_pattern(self, pattern: str, path: Path) -> str:
        place = (*path, "patternProperties")
        field = f"{self.field}: pattern at {pointer((*place, pattern))}"
        expression = read_regex(pattern, field, search=True, exact=True)
        if write_regex(expression, JSON_CHARACTERS) is None:
            self.refuse(pattern, place, "matches only control characters, which cannot be kept")
        return f"^(?:{write_regex(expression)})$"

    def _named(self, node: dict[str, Any], keyword: str, path: Path) -> dict[str, Schema]:
        entries = node.get(keyword, {})
        if not isinstance(entries, dict):
            self.refuse(keyword, path, f"must be an object, got {shown(entries)}")
        if len(entries) > MAX_PROPERTIES:
            self.refuse(keyword, path, f"has {len(entries)} entries, and {MAX_PROPERTIES} is the most")
        return {name: self.schema(entry, (*path, keyword, name)) for name, entry in entries.items()}

    def _rest(self, node: dict[str, Any], path: Path) -> Schema:
        """The schema of the properties that are not named."""
        if "additionalProperties" in node:
            return self.schema(node["additionalProperties"], (*path, "additionalProperties"))
        if "unevaluatedProperties" in node and node["unevaluatedProperties"] is not True:
            if APPLICATORS & node.keys():
                self.refuse("unevaluatedProperties", path)
            return self.schema(node["unevaluatedProperties"], (*path, "unevaluatedProperties"))
        return True

    def _with_names(
        self, node: dict[str, Any], path: Path, properties: dict[str, Schema], patterns: dict[str, Schema], rest: Schema
    ) -> tuple[dict[str, Schema], dict[str, Schema], Schema]:
        """With `propertyNames`: a list of names, or a pattern where no properties are named."""
        names = self.target(node.get("propertyNames", True), (*path, "propertyNames"))
        if names is True or names == {} or names == {"type": "string"}:
            return properties, patterns, rest
        if names is False:
            return dict.fromkeys(properties, False), {}, False
        keywords = names.keys() - {"type", "title", "description", "default", "examples", "$comment"}
        if keywords in ({"enum"}, {"const"}) and not patterns and names.get("type", "string") == "string":
            values = names["enum"] if "enum" in names else [names["const"]]
            listed = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
            allowed: dict[str, Schema] = {name: properties.get(name, rest) for name in listed}
            return {**dict.fromkeys(properties, False), **allowed}, {}, False
        if keywords != {"pattern"} or patterns or properties or names.get("type", "string") != "string":
            self.refuse("propertyNames", path)
        return {}, {self._written(names["pattern"], "propertyNames", path): rest}, False

    def _counted(self, found: dict[str, Any], node: dict[str, Any], path: Path) -> Schema:
        """With `minProperties` and `maxProperties`. llguidance may repeat a property that is not named, which counts
        once: so it can be asked for one more than are required, and not for two."""
        counts = self._counts(node, "minProperties", "maxProperties", path)
        if counts is None:
            return False
        properties, required = found.get("properties", {}), found.get("required", [])
        optional = [name for name in properties if name not in required and properties[name] is not False]
        is_closed = found.get("additionalProperties") is False and "patternProperties" not in found
        least, most = counts.get("minProperties", 0), counts.get("maxProperties")
        if most is not None and not (is_closed and most >= len(optional) + len(required)):
            if optional:
                self.refuse("maxProperties", path, "cannot be kept beside optional properties; leave it out")
            found["maxProperties"] = most
        if least <= len(required):
            return found
        if least > len(required) + 1 or len(optional) > MAX_OPTIONAL:
            self.refuse("minProperties", path, "can only be kept up to one more than the required properties")
        if not optional:
            return False if is_closed else {**found, "minProperties": least}
        if "maxProperties" in found:
            self.refuse("minProperties", path, "cannot be kept beside optional properties; leave it out")
        return {**found, "anyOf": [{"type": "object", "required": [name]} for name in optional]}


@cache
def _format_pattern(name: str) -> str:
    return f"^(?:{write_regex(read_regex(FORMATS[name], 'format'))})$"


def _may_be_closed(node: dict[str, Any]) -> bool:
    """Whether it names properties, and does not say what others may be."""
    return names_properties(node) and not node.keys() & {"additionalProperties", "unevaluatedProperties"}


def names_properties(node: dict[str, Any]) -> bool:
    return "properties" in node or "patternProperties" in node
