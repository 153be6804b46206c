"""Structural tags: free text with constrained parts, in both of the forms that vLLM takes."""

from collections.abc import Callable
from typing import Any, NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.expressions import Expression
from pelton.grammar.gbnf_reader import gbnf_rules
from pelton.grammar.json_references import check_depth, pointer
from pelton.grammar.regex_reader import read_regex
from pelton.grammar.xgrammar_ebnf import Grammar, check_repeats
from pelton.grammar.xgrammar_schema import SchemaReader

MAX_TAGS = 1_000
MAX_REPEAT = 1_000

Path = tuple[str | int, ...]
_FIELD = "structural_tag"


def read_tags(tag: dict[str, Any], space: Expression, *, names_only: bool) -> dict[str, Any]:
    """The same for xgrammar, with grammars in place of schemas. `space` and `names_only` as for SchemaReader.

    Raises UnsupportedGrammarError.
    """
    check_depth(tag)
    return {"type": "structural_tag", "format": _Reader(space, names_only).read(tag)}


class _Reader:
    def __init__(self, space: Expression, names_only: bool) -> None:
        self._space = space
        self._names_only = names_only
        self._num_tags = 0
        self._kinds: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._several,
            "or": self._several,
            "optional": self._one,
            "plus": self._one,
            "star": self._one,
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def read(self, tag: dict[str, Any]) -> dict[str, Any]:
        if tag.get("type", "structural_tag") != "structural_tag":
            raise UnsupportedGrammarError(f"{_FIELD}: type is {shown(tag['type'])}; write structural_tag")
        if "format" in tag:
            self._check_fields(tag, ("type", "format"), ())
            return self._format(tag["format"], ("format",))
        self._check_fields(tag, ("type", "structures", "triggers"), ())
        tags = []
        for index, item in enumerate(self._list(tag, "structures", ())):
            path = ("structures", index)
            if not isinstance(item, dict):
                self._refuse("structures", (), f"holds {shown(item)}; write dicts")
            self._check_fields(item, ("begin", "schema", "end"), path)
            schema = self._schema(item.get("schema", True), (*path, "schema"))
            tags.append({
                "type": "tag",
                "begin": self._text(item, "begin", path),
                "content": schema,
                "end": self._text(item, "end", path),
            })  # fmt: skip
        return self._triggered(tags, self._texts(tag, "triggers", ()), ())

    def _refuse(self, name: str, path: Path, why: str) -> NoReturn:
        raise UnsupportedGrammarError(f"{_FIELD}: {name} at {pointer(path)} {why}")

    # Fields

    def _check_fields(self, value: dict[str, Any], known: tuple[str, ...], path: Path) -> None:
        for name in value:
            if name not in known:
                self._refuse(shown(name), path, f"is not known here; leave it out ({', '.join(known)} are)")

    def _text(self, value: dict[str, Any], name: str, path: Path) -> str:
        text = value.get(name)
        if not isinstance(text, str) or not text:
            self._refuse(name, path, f"is {shown(text)}; write a string that is not empty")
        return text

    def _list(self, value: dict[str, Any], name: str, path: Path) -> list[Any]:
        entries = value.get(name)
        if not isinstance(entries, list) or not entries:
            self._refuse(name, path, f"is {shown(entries)}; write a list")
        self._num_tags += len(entries)
        if self._num_tags > MAX_TAGS:
            self._refuse(name, path, f"has too many entries, more than {MAX_TAGS} with all others; write fewer")
        return entries

    def _texts(self, value: dict[str, Any], name: str, path: Path) -> list[str]:
        texts = self._list(value, name, path)
        if not all(isinstance(text, str) and text for text in texts):
            self._refuse(name, path, f"is {shown(texts)}; write strings that are not empty")
        return texts

    def _flag(self, value: dict[str, Any], name: str, path: Path) -> bool:
        flag = value.get(name, False)
        if not isinstance(flag, bool):
            self._refuse(name, path, f"is {shown(flag)}; write true or false")
        return flag

    # Formats

    def _format(self, value: Any, path: Path) -> dict[str, Any]:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in self._kinds:
            self._refuse("the format", path, f"is {shown(value)}; its type must be one of {', '.join(self._kinds)}")
        return self._kinds[kind](value, path)

    def _const_string(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "value"), path)
        return {"type": "const_string", "value": self._text(value, "value", path)}

    def _json_schema(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "json_schema", "style"), path)
        if value.get("style", "json") != "json":
            self._refuse("style", path, f"is {shown(value['style'])}; only json is known")
        return self._schema(value.get("json_schema"), (*path, "json_schema"))

    def _schema(self, schema: Any, path: Path) -> dict[str, Any]:
        field = f"{_FIELD}: in the schema at {pointer(path)}"
        reader = SchemaReader(schema, field, self._space, names_only=self._names_only)
        return {"type": "grammar", "grammar": Grammar(field, reader.json.rules).written()}

    def _regex(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "pattern"), path)
        field = f"{_FIELD}: the pattern at {pointer(path)}"
        rules = {"root": read_regex(self._text(value, "pattern", path), field)}
        check_repeats(field, rules)
        return {"type": "grammar", "grammar": Grammar(field, rules).written()}

    def _grammar(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "grammar", "syntax"), path)
        if value.get("syntax", "ebnf") != "ebnf":
            self._refuse("syntax", path, f"is {shown(value['syntax'])}; only ebnf is known")
        field = f"{_FIELD}: the grammar at {pointer(path)}"
        rules = gbnf_rules(self._text(value, "grammar", path), field)
        check_repeats(field, rules)
        return {"type": "grammar", "grammar": Grammar(field, rules).written()}

    def _any_text(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "excludes"), path)
        excludes = self._texts(value, "excludes", path) if value.get("excludes") else []
        return {"type": "any_text", "excludes": excludes}

    def _several(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "elements"), path)
        parts = self._list(value, "elements", path)
        elements = [self._format(part, (*path, "elements", index)) for index, part in enumerate(parts)]
        return {"type": value["type"], "elements": elements}

    def _one(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "content"), path)
        return {"type": value["type"], "content": self._format(value.get("content"), (*path, "content"))}

    def _repeat(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "min", "max", "content"), path)
        bounds = {}
        for name, low in (("min", 0), ("max", -1)):
            bound = value.get(name)
            if isinstance(bound, bool) or not isinstance(bound, int) or not low <= bound <= MAX_REPEAT:
                self._refuse(name, path, f"is {shown(bound)}; write a whole number from {low} to {MAX_REPEAT}")
            bounds[name] = bound
        if bounds["max"] != -1 and bounds["max"] < bounds["min"]:
            self._refuse("max", path, f"is {bounds['max']}, less than min; raise it")
        return {"type": "repeat", **bounds, "content": self._format(value.get("content"), (*path, "content"))}

    def _tag(self, value: Any, path: Path) -> dict[str, Any]:
        if not isinstance(value, dict) or value.get("type", "tag") != "tag":
            self._refuse("the tag", path, f"is {shown(value)}; write a dict with the type tag")
        self._check_fields(value, ("type", "begin", "content", "end"), path)
        end: Any = value.get("end")
        ends = self._texts(value, "end", path) if isinstance(end, list) else self._text(value, "end", path)
        content = self._format(value.get("content"), (*path, "content"))
        return {"type": "tag", "begin": self._text(value, "begin", path), "content": content, "end": ends}

    def _tags(self, value: dict[str, Any], path: Path) -> list[dict[str, Any]]:
        tags = self._list(value, "tags", path)
        return [self._tag(part, (*path, "tags", index)) for index, part in enumerate(tags)]

    def _triggered_tags(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        known = ("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes")
        self._check_fields(value, known, path)
        found = self._triggered(self._tags(value, path), self._texts(value, "triggers", path), path)
        excludes = self._texts(value, "excludes", path) if value.get("excludes") else []
        return {
            **found,
            "at_least_one": self._flag(value, "at_least_one", path),
            "stop_after_first": self._flag(value, "stop_after_first", path),
            "excludes": excludes,
        }

    def _triggered(self, tags: list[dict[str, Any]], triggers: list[str], path: Path) -> dict[str, Any]:
        for tag in tags:
            found = [trigger for trigger in triggers if tag["begin"].startswith(trigger)]
            if len(found) != 1:
                self._refuse(
                    "triggers",
                    path,
                    f"has {len(found)} beginnings of {shown(tag['begin'])}; write exactly one for each tag",
                )
        for trigger in triggers:
            inside = [other for other in triggers if other is not trigger and trigger in other]
            if inside:
                self._refuse("triggers", path, f"has {shown(trigger)} within {shown(inside[0])}; leave out one of them")
        return {"type": "triggered_tags", "triggers": triggers, "tags": tags}

    def _tags_with_separator(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        self._check_fields(value, ("type", "tags", "separator", "at_least_one", "stop_after_first"), path)
        return {
            "type": "tags_with_separator",
            "tags": self._tags(value, path),
            "separator": self._text(value, "separator", path),
            "at_least_one": self._flag(value, "at_least_one", path),
            "stop_after_first": self._flag(value, "stop_after_first", path),
        }
