"""JSON schemas as grammars for xgrammar.

xgrammar reads JSON schemas itself, but leaves out silently what it cannot keep. Here a schema becomes rules whose texts
are instances of it and nothing else, or is refused by keyword and place. Objects have their properties in the schema's
order; then come those that are only required, then others.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.expressions import (
    EMPTY,
    NOTHING,
    Expression,
    Rule,
    Text,
    choice,
    encoded,
    lengths_of,
    optional,
    sequence,
)
from pelton.grammar.json_formats import FORMATS, WITHOUT_CONTENT
from pelton.grammar.json_references import References, check_depth, pointer
from pelton.grammar.json_types import names_properties
from pelton.grammar.json_whitespace import read_whitespace
from pelton.grammar.regex_reader import read_regex
from pelton.grammar.xgrammar_ebnf import check_repeats
from pelton.grammar.xgrammar_json import JsonRules, NameTree, character_of, quoted, written
from pelton.grammar.xgrammar_numbers import ANY_INTEGER, Bounds, decimals, integers
from pelton.structured_outputs_params import StructuredOutputsParams

MAX_MULTIPLE = 200
MAX_ENUMERATED = 2_000
MAX_REPEAT = 100_000
MAX_BRANCHES = 200
"""Of a oneOf."""
MAX_NAME = 200
"""Letters of a property's name, where others than those named may come."""
MAX_COUNTED = 2_000
"""Properties, times the number of them that minProperties or maxProperties counts."""

Path = tuple[str | int, ...]

TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")
_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties",
    ),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
}  # fmt: skip
_KEPT = frozenset((*_APPLICATORS, "type", "enum", "const", *(word for words in _BY_TYPE.values() for word in words)))
_REFUSED = frozenset((
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains",
    "maxContains", "$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy",
))  # fmt: skip

_OLD_DRAFTS = ("http://json-schema.org/draft-03", "http://json-schema.org/draft-04", "http://json-schema.org/draft-06",
               "http://json-schema.org/draft-07")  # fmt: skip


def json_rules(params: StructuredOutputsParams) -> dict[str, Expression]:
    """The rules for `json` or `json_object`."""
    schema = {"type": "object"} if params.json is None else params.json
    reader = SchemaReader(schema, "json", space_of(params), names_only=bool(params.disable_additional_properties))
    return reader.json.rules


def space_of(params: StructuredOutputsParams) -> Expression:
    """What may stand between the tokens of JSON."""
    if params.disable_any_whitespace:
        return EMPTY
    expression = read_whitespace(params.whitespace_pattern)
    check_repeats("whitespace_pattern", {"root": expression})
    return optional(expression)


class SchemaReader:
    """Makes rules of a schema. Raises UnsupportedGrammarError."""

    def __init__(
        self, schema: Any, field: str, space: Expression, *, names_only: bool = False, prefix: str = ""
    ) -> None:
        """`names_only`: objects with named properties have no others unless the schema says so. `field` names the
        parameter in messages; `prefix` begins the names of all rules but `root`."""
        self._field = field
        self._names_only = names_only
        self._prefix = prefix
        self.json = JsonRules(space, prefix)
        check_depth(schema)
        self._old_draft = isinstance(schema, dict) and str(schema.get("$schema", "")).startswith(_OLD_DRAFTS)
        self._references = References(schema if isinstance(schema, dict) else {}, old_draft=self._old_draft)
        self._targets = {id(schema): Rule("root")} if isinstance(schema, dict) else {}
        """Rules for what a $ref leads to, by the id of the subschema."""
        self._waiting: list[tuple[Rule, Any, Path]] = []
        self.json.rules["root"] = self._value(schema, ())
        while self._waiting:
            rule, target, path = self._waiting.pop()
            self.json.rules[rule.name] = self._value(target, path)

    def _refuse(self, keyword: str, path: Path, why: str = "cannot be kept by xgrammar; leave it out") -> NoReturn:
        raise UnsupportedGrammarError(f"{self._field}: the keyword {keyword} at {pointer(path)} {why}")

    # Schemas

    def _value(self, schema: Any, path: Path) -> Expression:
        if isinstance(schema, bool):
            return self.json.any if schema else NOTHING
        if not isinstance(schema, dict):
            raise UnsupportedGrammarError(
                f"{self._field}: the schema at {pointer(path)} is {shown(schema)}; write a dict"
            )
        if self._old_draft and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        for keyword in sorted(_REFUSED & schema.keys()):
            self._refuse(keyword, path)
        given = [keyword for keyword in schema if keyword in _KEPT]
        for keyword in _APPLICATORS:
            if keyword in given:
                return self._applied(keyword, schema, given, path)
        if "const" in given or "enum" in given:
            return self._listed_values(schema, given, path)
        options = [self._of_type(name, schema, path) for name in self._types(schema, path)]
        if len(options) == len(TYPES) - 1 and not any(word in given for words in _BY_TYPE.values() for word in words):
            return self.json.any
        return choice(*options)

    def _types(self, schema: dict[str, Any], path: Path) -> list[str]:
        """Without `integer` where all numbers may be."""
        names = schema.get("type", list(TYPES))
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not names or any(name not in TYPES for name in names):
            self._refuse(
                "type", path, f"is {shown(schema['type'])}; write one of {', '.join(TYPES)}, or a list of them"
            )
        return [name for name in dict.fromkeys(names) if name != "integer" or "number" not in names]

    def _of_type(self, name: str, schema: dict[str, Any], path: Path) -> Expression:
        match name:
            case "string":
                return self._text(schema, path)
            case "number" | "integer":
                return self._numeral(schema, path, is_integer=name == "integer")
            case "object":
                return self._mapping(schema, path)
            case "array":
                return self._sequence(schema, path)
            case "boolean":
                return choice(Text("true"), Text("false"))
        return Text("null")

    # References and combinations

    def _applied(self, keyword: str, schema: dict[str, Any], given: list[str], path: Path) -> Expression:
        branches = self._branches(keyword, schema, path)
        for other in given:
            if other == keyword or (other == "type" and self._implies(branches, self._types(schema, path))):
                continue
            self._refuse(keyword, path, f"cannot be kept beside {other} by xgrammar; write them as one")
        match keyword:
            case "$ref":
                return self._referred(*branches[0])
            case "allOf":
                real = [branch for branch in branches if branch[0] not in (True, {})] or [(True, path)]
                if len(real) > 1:
                    self._refuse(keyword, path, "with several schemas cannot be kept by xgrammar; write them as one")
                return self._value(*real[0])
            case "oneOf":
                self._check_disjoint(branches, path)
        return choice(*(self._value(*branch) for branch in branches))

    def _branches(self, keyword: str, schema: dict[str, Any], path: Path) -> list[tuple[Any, Path]]:
        value = schema[keyword]
        if keyword == "$ref":
            if not isinstance(value, str):
                self._refuse(keyword, path, f"is {shown(value)}; write a string")
            return [(self._references.find(schema, value, path), (*path, keyword))]
        if not isinstance(value, list) or not value:
            self._refuse(keyword, path, f"is {shown(value)}; write a list of schemas")
        return [(branch, (*path, keyword, index)) for index, branch in enumerate(value)]

    def _referred(self, target: Any, path: Path) -> Expression:
        if isinstance(target, bool):
            return self._value(target, path)
        rule = self._targets.get(id(target))
        if rule is None:
            rule = self.json.new(NOTHING)
            self._targets[id(target)] = rule
            self._waiting.append((rule, target, path))
        return rule

    def _implies(self, branches: list[tuple[Any, Path]], names: list[str]) -> bool:
        """Whether what meets one of the branches is of one of these types anyway."""
        allowed = set(names) | ({"integer"} if "number" in names else set())
        return all(self._possible_types(branch, path) <= allowed for branch, path in branches)

    def _possible_types(self, schema: Any, path: Path) -> set[str]:
        schema = self._resolved(schema, path)
        if not isinstance(schema, dict):
            return set() if schema is False else set(TYPES)
        values = _finite_values(schema)
        if values is not None:
            return {_type_of(value) for value in values}
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                return set().union(*(self._possible_types(branch, path) for branch in schema[keyword]))
        if "type" not in schema:
            return set(TYPES)
        names = self._types(schema, path)
        return set(names) | ({"integer"} if "number" in names else set())

    def _resolved(self, schema: Any, path: Path) -> Any:
        """Behind references that stand alone; true, which is anything, where they go in a circle."""
        for _ in range(16):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            schema = self._references.find(schema, schema["$ref"], path)
        return True

    def _check_disjoint(self, branches: list[tuple[Any, Path]], path: Path) -> None:
        """Whether no value can meet two of a oneOf's branches, as far as types, values and discriminators show."""
        if len(branches) > MAX_BRANCHES:
            self._refuse("oneOf", path, f"has {len(branches)} schemas, and {MAX_BRANCHES} is the most; use anyOf")
        facts = [(self._possible_types(*branch), self._discriminators(*branch)) for branch in branches]
        for index, (types, values) in enumerate(facts):
            for other, (other_types, other_values) in enumerate(facts[:index]):
                shared = types & other_types
                told_apart = any(values[name].isdisjoint(other_values[name]) for name in values.keys() & other_values)
                if shared and not told_apart:
                    self._refuse(
                        "oneOf",
                        path,
                        f"cannot be kept by xgrammar, for its schemas {other} and {index} may hold both; use anyOf, or "
                        "tell them apart by a required property with a const",
                    )

    def _discriminators(self, schema: Any, path: Path) -> dict[str, frozenset[str]]:
        """Values that tell the schema apart from others: those of required properties by name, or, under the empty
        name, its own."""
        schema = self._resolved(schema, path)
        if not isinstance(schema, dict):
            return {}
        own = _finite_values(schema)
        if own is not None:
            return {"": frozenset(map(_key, own))}
        properties, required = schema.get("properties"), schema.get("required")
        if schema.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        found = {}
        for name in required:
            part = self._resolved(properties.get(name) if isinstance(name, str) else None, path)
            values = _finite_values(part) if isinstance(part, dict) else None
            if values is not None:
                found["/" + name] = frozenset(map(_key, values))
        return found

    # Values that are given

    def _listed_values(self, schema: dict[str, Any], given: list[str], path: Path) -> Expression:
        for keyword in given:
            if keyword not in ("const", "enum", "type"):
                word = "const" if "const" in schema else "enum"
                self._refuse(keyword, path, f"cannot be kept beside {word} by xgrammar; leave out one of them")
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            self._refuse("enum", path, f"is {shown(values)}; write a list")
        if "const" in schema:
            values = [value for value in values if _key(value) == _key(schema["const"])]
        if "type" in schema:
            names = self._types(schema, path)
            allowed = set(names) | ({"integer"} if "number" in names else set())
            values = [value for value in values if _type_of(value) in allowed]
        return choice(*(self.json.literal(value) for value in values))

    # Strings

    def _text(self, schema: dict[str, Any], path: Path) -> Expression:
        least, most = self._count(schema, "minLength", path) or 0, self._count(schema, "maxLength", path)
        pattern, form = schema.get("pattern"), schema.get("format")
        if form in WITHOUT_CONTENT:
            form = None
        if pattern is not None and form is not None:
            self._refuse("format", path, "cannot be kept beside pattern by xgrammar; leave out one of them")
        if pattern is None and form is None:
            return self._string(least, most)
        if pattern is not None:
            if not isinstance(pattern, str):
                self._refuse("pattern", path, f"is {shown(pattern)}; write a string")
            node = read_regex(pattern, f"{self._field}: the keyword pattern at {pointer(path)}", search=True)
        else:
            if not isinstance(form, str) or form not in FORMATS:
                self._refuse("format", path, f"is {shown(form)}, which is not known; leave it out, or use a pattern")
            node = read_regex(FORMATS[form], f"{self._field}: the keyword format at {pointer(path)}")
        word = "format" if pattern is None else "pattern"
        fewest, longest = lengths_of(node)
        if least > fewest:
            self._refuse("minLength", path, f"cannot be kept beside {word} by xgrammar; let the {word} say it")
        if most is not None and (longest is None or longest > most):
            self._refuse("maxLength", path, f"cannot be kept beside {word} by xgrammar; let the {word} say it")
        return self._matching(node, word, path)

    def _matching(self, node: Expression, keyword: str, path: Path) -> Expression:
        content = encoded(node, character_of)
        check_repeats(f"{self._field}: the keyword {keyword} at {pointer(path)}", {"root": content})
        return quoted(content)

    def _string(self, least: int, most: int | None) -> Expression:
        if least == 0 and most is None:
            return self.json.string
        return NOTHING if most is not None and most < least else self.json.string_of_length(least, most)

    def _count(self, schema: dict[str, Any], keyword: str, path: Path) -> int | None:
        value = schema.get(keyword)
        if value is None and keyword not in schema:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._refuse(keyword, path, f"is {shown(value)}; write a whole number that is not negative")
        if value > MAX_REPEAT:
            if keyword.startswith("max"):
                self._refuse(keyword, path, f"is {value}, and xgrammar counts to {MAX_REPEAT}; leave it out")
            self._refuse(keyword, path, f"is {value}, and xgrammar counts to {MAX_REPEAT}; write less")
        return value

    # Numbers

    def _numeral(self, schema: dict[str, Any], path: Path, *, is_integer: bool) -> Expression:
        bounds = Bounds()
        for keyword, take in (("minimum", bounds.raise_low), ("maximum", bounds.lower_high)):
            exclusive = "exclusive" + keyword.capitalize()
            old_exclusive = schema.get(exclusive) is True  # in draft 4
            for name in (keyword, exclusive):
                value = schema.get(name)
                if name in schema and not (name == exclusive and isinstance(value, bool) and self._old_draft):
                    take(self._fraction(value, name, path), excluded=name == exclusive or old_exclusive)
        multiple = schema.get("multipleOf")
        if multiple is not None:
            return self._multiples(multiple, bounds, path, is_integer=is_integer)
        if bounds.are_open:
            return ANY_INTEGER if is_integer else self.json.number
        if is_integer:
            return integers(*bounds.scaled(1))
        num_places = bounds.num_places
        if num_places is None:
            word = next(word for word in _BY_TYPE["number"] if word in schema)
            self._refuse(word, path, f"is {shown(schema[word])}, which has more than 15 digits; round it")
        return decimals(*bounds.scaled(10**num_places), num_places)

    def _fraction(self, value: Any, keyword: str, path: Path) -> Fraction:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(keyword, path, f"is {shown(value)}; write a number")
        if not -1e60 < value < 1e60:
            self._refuse(keyword, path, f"is {shown(value)}, which is too far from zero for xgrammar; leave it out")
        return Fraction(repr(value))

    def _multiples(self, multiple: Any, bounds: Bounds, path: Path, *, is_integer: bool) -> Expression:
        step = self._fraction(multiple, "multipleOf", path)
        if step <= 0:
            self._refuse("multipleOf", path, f"is {shown(multiple)}; write a positive number")
        if is_integer:  # 2.5 is 5 then
            step = Fraction(step.numerator)
        if step.denominator != 1:
            self._refuse("multipleOf", path, "cannot be kept by xgrammar unless it is a whole number; leave it out")
        low, high = bounds.scaled(1)
        if step == 1:
            return integers(low, high)
        first = None if low is None else -(-low // step.numerator)
        last = None if high is None else high // step.numerator
        if first is not None and last is not None and last - first < MAX_ENUMERATED:
            return choice(*(Text(str(number * step.numerator)) for number in range(first, last + 1)))
        if step.numerator > MAX_MULTIPLE:
            self._refuse(
                "multipleOf", path, f"is {shown(multiple)}, and {MAX_MULTIPLE} is the most for xgrammar; leave it out"
            )
        if high is not None or (low is not None and low > 0):
            self._refuse("multipleOf", path, "cannot be kept by xgrammar beside these bounds; leave out one of them")
        if low is not None and low < 0:
            negative = [Text(str(number)) for number in range(step.numerator, -low + 1, step.numerator)]
            if len(negative) > MAX_ENUMERATED:
                self._refuse(
                    "multipleOf", path, "cannot be kept by xgrammar beside these bounds; leave out one of them"
                )
            return choice(self._whole_multiples(step.numerator), *(sequence(Text("-"), number) for number in negative))
        whole = self._whole_multiples(step.numerator)
        return whole if low is not None else sequence(optional(Text("-")), whole)

    def _whole_multiples(self, step: int) -> Expression:
        """Numbers that are not negative; a rule for each remainder says which digits may follow."""
        rules = [self.json.new(NOTHING) for _ in range(step)]
        for remainder, rule in enumerate(rules):
            digits = [sequence(Text(str(digit)), rules[(10 * remainder + digit) % step]) for digit in range(10)]
            self.json.rules[rule.name] = choice(*([EMPTY] if remainder == 0 else []), *digits)
        starts = [sequence(Text(str(digit)), rules[digit % step]) for digit in range(1, 10)]
        return choice(Text("0"), *starts)

    # Arrays

    def _sequence(self, schema: dict[str, Any], path: Path) -> Expression:
        unique = schema.get("uniqueItems", False)
        least, most = self._count(schema, "minItems", path) or 0, self._count(schema, "maxItems", path)
        if unique is not False and (most is None or most > 1):
            self._refuse("uniqueItems", path)
        first, first_key, rest, rest_key = self._items(schema, path)
        if not isinstance(first, list):
            self._refuse(first_key, path, f"is {shown(first)}; write a list of schemas")
        if not first and rest is True and "items" not in schema and not least and most is None:
            return self.json.array
        head = [self._value(part, (*path, first_key, index)) for index, part in enumerate(first)]
        tail = self._value(rest, (*path, rest_key))
        if most is not None:
            if most < least:
                return NOTHING
            head = head[:most]
        if not head:
            return self.json.list_of(tail, least, most)
        return self.json.list_after(head, tail, least, most)

    def _items(self, schema: dict[str, Any], path: Path) -> tuple[Any, str, Any, str]:
        """Schemas of the first items and of all others, with their keywords."""
        items = schema.get("items", True)
        if isinstance(items, list) or self._old_draft:  # before 2020-12
            if "prefixItems" in schema:
                self._refuse("prefixItems", path, "is of another draft than the rest; write items as a dict")
            first = items if isinstance(items, list) else []
            key = "additionalItems" if isinstance(items, list) else "items"
            return first, "items", schema.get(key, True), key
        if "additionalItems" in schema:
            self._refuse("additionalItems", path, "means nothing beside these items; leave it out")
        return schema.get("prefixItems", []), "prefixItems", *self._rest(schema, "items", "unevaluatedItems", path)

    def _rest(self, schema: dict[str, Any], keyword: str, unevaluated: str, path: Path) -> tuple[Any, str]:
        """What applies where nothing else does; there is nothing that could evaluate a part from elsewhere."""
        if keyword in schema:
            return schema[keyword], keyword
        return schema.get(unevaluated, True), unevaluated

    # Objects

    def _mapping(self, schema: dict[str, Any], path: Path) -> Expression:
        properties = self._named(schema, "properties", path)
        patterns = self._named(schema, "patternProperties", path)
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self._refuse("required", path, f"is {shown(required)}; write a list of names")
        if not any(keyword in schema for keyword in _BY_TYPE["object"]):
            return self.json.object
        rest, rest_key = self._rest(schema, "additionalProperties", "unevaluatedProperties", path)
        if self._names_only and names_properties(schema) and rest_key not in schema:
            properties, rest = {**properties, **{name: True for name in required if name not in properties}}, False
        names = list(dict.fromkeys((*properties, *required)))
        if "propertyNames" in schema:
            key = self._restricted_key(schema, names, patterns, path)
        elif patterns:
            key, rest, rest_key = self._pattern_key(patterns, names, path)
        else:
            key = self._other_key(names, path) if rest is not False else NOTHING
        extra = self.json.member(key, self._value(rest, (*path, rest_key)))
        members = []
        for name in names:
            part, place = (properties[name], ("properties", name)) if name in properties else (rest, (rest_key,))
            members.append((self.json.named(name, self._value(part, (*path, *place))), name in required))
        least, most = self._count(schema, "minProperties", path) or 0, self._count(schema, "maxProperties", path)
        if not least and most is None:
            return self.json.object_of(members, extra)
        if (len(members) + 1) * ((least if most is None else most) + 1) > MAX_COUNTED:
            word = "minProperties" if most is None else "maxProperties"
            self._refuse(word, path, f"is too much for xgrammar beside {len(members)} properties; write less")
        return self.json.counted_object(members, extra, least, most)

    def _other_key(self, names: list[str], path: Path) -> Expression:
        tree = NameTree()
        for name in names:
            tree.add(name[:MAX_NAME])
        if tree.height > MAX_NAME or sum(map(len, names)) > MAX_COUNTED:
            self._refuse("properties", path, "has too long names for xgrammar; add additionalProperties: false")
        return self.json.other_key(tree)

    def _named(self, schema: dict[str, Any], keyword: str, path: Path) -> dict[str, Any]:
        value = schema.get(keyword, {})
        if not isinstance(value, dict):
            self._refuse(keyword, path, f"is {shown(value)}; write a dict")
        return value

    def _restricted_key(
        self, schema: dict[str, Any], names: Iterable[str], patterns: dict[str, Any], path: Path
    ) -> Expression:
        if names or patterns:
            self._refuse("propertyNames", path, "cannot be kept beside other properties by xgrammar; leave it out")
        rule = schema["propertyNames"]
        if isinstance(rule, bool):
            return self.json.string if rule else NOTHING
        if not isinstance(rule, dict):
            self._refuse("propertyNames", path, f"is {shown(rule)}; write a dict")
        here = (*path, "propertyNames")
        key = self._value(rule, here) if self._possible_types(rule, here) <= {"string"} else None
        if key is None and not any(keyword in rule for keyword in ("$ref", "allOf", "anyOf", "oneOf", "enum", "const")):
            types = self._types(rule, here)
            key = self._value({**rule, "type": "string"}, here) if "string" in types else NOTHING
        if key is None:
            self._refuse(
                "propertyNames", path, "cannot be kept by xgrammar unless it is about strings alone; add a type"
            )
        return key

    def _pattern_key(self, patterns: dict[str, Any], names: Iterable[str], path: Path) -> tuple[Expression, Any, str]:
        """Other names than those of the pattern are left out, so that its schema is for all that come."""
        if names:
            self._refuse("patternProperties", path, "cannot be kept beside other properties by xgrammar; leave it out")
        if len(patterns) > 1:
            self._refuse("patternProperties", path, "with several patterns cannot be kept by xgrammar; write one")
        pattern, value = next(iter(patterns.items()))
        node = read_regex(pattern, f"{self._field}: the keyword patternProperties at {pointer(path)}", search=True)
        return self._matching(node, "patternProperties", path), value, "patternProperties"


def _finite_values(schema: dict[str, Any]) -> list[Any] | None:
    """The values that a schema lists, or a superset of those that meet it."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "integer" if value == int(value) else "number"


def _key(value: Any) -> str:
    """Equal for equal values of JSON: 1 is 1.0 and not true."""
    match value:
        case list():
            return f"[{','.join(map(_key, value))}]"
        case dict():
            return f"{{{','.join(sorted(f'{written(name)}:{_key(part)}' for name, part in value.items()))}}}"
        case float() if value.is_integer():
            return str(int(value))
    return written(value)
