"""Structural tags for llguidance: free text with constrained parts, in both of the forms that vLLM takes."""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import GrammarVocabulary, UnsupportedGrammarError
from pelton.grammar.json_references import Path, check_depth, pointer
from pelton.grammar.llguidance_lark import checked_levels
from pelton.grammar.llguidance_regex import write_regex, written_literal
from pelton.grammar.regex_reader import read_regex

MAX_TAGS = 1_000
_ANY = "(?s:.)*"

ReduceSchema = Callable[[Any, str], dict[str, Any]]


def tags_grammar(tag: dict[str, Any], reduce_schema: ReduceSchema, vocabulary: GrammarVocabulary | None) -> str:
    """In Lark's notation. Raises UnsupportedGrammarError."""
    check_depth(tag, "structural_tag")
    writer = _Writer(reduce_schema, vocabulary)
    start = writer.read(tag)
    return checked_levels("\n".join([f"start: {start}", *writer.lines]) + "\n", "structural_tag")


class _Writer:
    def __init__(self, reduce_schema: ReduceSchema, vocabulary: GrammarVocabulary | None) -> None:
        self._reduce_schema = reduce_schema
        self._special = {} if vocabulary is None else _special_tokens(vocabulary)
        texts = sorted(self._special, key=len, reverse=True)
        self._special_texts = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None
        self.lines: list[str] = []
        self._num_tags = 0
        self._kinds: dict[str, Callable[[dict[str, Any], Path], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def read(self, tag: dict[str, Any]) -> str:
        if tag.get("type", "structural_tag") != "structural_tag":
            raise UnsupportedGrammarError(f"structural_tag: type must be structural_tag, got {shown(tag['type'])}")
        if "format" in tag:
            self._check_fields(tag, ("type", "format"), ())
            return self._format(tag["format"], ("format",))
        self._check_fields(tag, ("type", "structures", "triggers"), ())
        tags: list[tuple[dict[str, Any], Path]] = []
        for index, entry in enumerate(self._list(tag, "structures", ())):
            path = ("structures", index)
            if not isinstance(entry, dict):
                self._refuse("structures", (), f"must hold dicts, got {shown(entry)}")
            self._check_fields(entry, ("begin", "schema", "end"), path)
            content = {"type": "json_schema", "json_schema": entry.get("schema", True)}
            tags.append(({"begin": entry.get("begin"), "content": content, "end": entry.get("end", "")}, path))
        return self._triggered(tags, self._texts(tag, "triggers", ()), (), at_least_one=False, stop_after_first=False)

    def _refuse(self, name: str, path: Path, why: str) -> NoReturn:
        raise UnsupportedGrammarError(f"structural_tag: {name} at {pointer(path)} {why}")

    def _check_fields(self, value: dict[str, Any], known: tuple[str, ...], path: Path) -> None:
        for name in value:
            if name not in known:
                self._refuse(shown(name), path, f"is not supported; known are {', '.join(known)}")

    def _text(self, value: dict[str, Any], name: str, path: Path) -> str:
        text = value.get(name)
        if not isinstance(text, str):
            self._refuse(name, path, f"must be a string, got {shown(text)}")
        return text

    def _list(self, value: dict[str, Any], name: str, path: Path) -> list[Any]:
        entries = value.get(name)
        if not isinstance(entries, list) or not entries or len(entries) > MAX_TAGS:
            self._refuse(name, path, f"must be a list of up to {MAX_TAGS} entries, got {shown(entries)}")
        return entries

    def _texts(self, value: dict[str, Any], name: str, path: Path) -> list[str]:
        texts = self._list(value, name, path)
        if not all(isinstance(text, str) and text for text in texts):
            self._refuse(name, path, f"must hold non-empty strings, got {shown(texts)}")
        return list(dict.fromkeys(texts))

    def _flag(self, value: dict[str, Any], name: str, path: Path) -> bool:
        flag = value.get(name, False)
        if not isinstance(flag, bool):
            self._refuse(name, path, f"must be True or False, got {shown(flag)}")
        return flag

    def _rule(self, body: str) -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _literal(self, text: str) -> str:
        """The text, with or without special tokens that read like parts of it."""
        written = []
        for piece in filter(None, [text] if self._special_texts is None else self._special_texts.split(text)):
            plain = f"/{written_literal(piece)}/"
            token_id = self._special.get(piece)
            written.append(plain if token_id is None else f"({plain} | <[{token_id}]>)")
        return " ".join(written) or '""'

    # Formats

    def _format(self, value: Any, path: Path) -> str:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in self._kinds:
            self._refuse("type", path, f"must be one of {', '.join(self._kinds)}, got {shown(kind)}")
        return self._kinds[kind](value, path)

    def _const_string(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "value"), path)
        return self._literal(self._text(value, "value", path))

    def _json_schema(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "json_schema", "style"), path)
        if value.get("style", "json") != "json":
            self._refuse("style", path, f"must be json, got {shown(value['style'])}")
        schema = value.get("json_schema")
        if not isinstance(schema, dict | bool):
            self._refuse("the schema", path, f"must be a dict or a boolean, got {shown(schema)}")
        reduced = self._reduce_schema(schema, f"structural_tag: in the schema at {pointer(path)}")
        return self._rule(f"%json {json.dumps(reduced)}")

    def _regex(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "pattern"), path)
        pattern = self._text(value, "pattern", path)
        written = write_regex(read_regex(pattern, f"structural_tag: the pattern at {pointer(path)}"))
        if written is None:
            self._refuse("pattern", path, "matches nothing")
        return self._terminal(f"/{written}/") if written else '""'

    def _any_text(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type",), path)
        return self._terminal(f"/{_ANY}/")

    def _sequence(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "elements"), path)
        elements = self._list(value, "elements", path)
        for index, element in enumerate(elements[:-1]):
            if isinstance(element, dict) and element.get("type") in ("any_text", "triggered_tags"):
                self._refuse("elements", path, f"has {element['type']} at {index}, which can only be kept at the end")
        return " ".join(self._format(element, (*path, "elements", index)) for index, element in enumerate(elements))

    def _or(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "elements"), path)
        options = self._list(value, "elements", path)
        return (
            f"({' | '.join(self._format(option, (*path, 'elements', index)) for index, option in enumerate(options))})"
        )

    def _tag(self, value: dict[str, Any], path: Path) -> str:
        return self._literal(self._text(value, "begin", path)) + " " + self._rest_of_tag(value, path)

    def _rest_of_tag(self, value: dict[str, Any], path: Path) -> str:
        """What follows the beginning of a tag."""
        self._num_tags += 1
        if self._num_tags > MAX_TAGS:
            self._refuse("the tag", path, f"is one of more than {MAX_TAGS}; leave some out")
        self._check_fields(value, ("type", "begin", "content", "end"), path)
        content, end = value.get("content"), self._text(value, "end", path)
        place = (*path, "content")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            self._check_fields(content, ("type",), place)
            return self._until([end], end)
        if isinstance(content, dict) and content.get("type") == "triggered_tags":
            self._refuse("content", path, "is triggered_tags, which cannot be kept within a tag")
        return f"{self._format(content, place)} {self._literal(end)}"

    def _until(self, stops: list[str], stop: str) -> str:
        """Text up to one of the stops, the first of them that occurs, and the stop itself."""
        anywhere = "|".join(map(written_literal, stops))
        return self._terminal(f"/{_ANY}{written_literal(stop)}/ & ~/{_ANY}(?:{anywhere})(?s:.)+/")

    def _tags(self, value: dict[str, Any], path: Path) -> list[tuple[dict[str, Any], Path]]:
        placed: list[tuple[dict[str, Any], Path]] = []
        for index, tag in enumerate(self._list(value, "tags", path)):
            place = (*path, "tags", index)
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                self._refuse("the tag", place, f"must be a dict of type tag, got {shown(tag)}")
            placed.append((tag, place))
        return placed

    def _triggered_tags(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "triggers", "tags", "at_least_one", "stop_after_first"), path)
        return self._triggered(
            self._tags(value, path),
            self._texts(value, "triggers", path),
            path,
            at_least_one=self._flag(value, "at_least_one", path),
            stop_after_first=self._flag(value, "stop_after_first", path),
        )

    def _triggered(
        self,
        tags: list[tuple[dict[str, Any], Path]],
        triggers: list[str],
        path: Path,
        *,
        at_least_one: bool,
        stop_after_first: bool,
    ) -> str:
        """Text without triggers, and tags where one comes; with `at_least_one` it begins with a tag."""
        for trigger in triggers:
            if any(trigger in other for other in triggers if other != trigger):
                self._refuse(
                    "triggers", path, f"has {shown(trigger)} and another one that holds it; leave out one of them"
                )
        options: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for tag, place in tags:
            begin = self._text(tag, "begin", place)
            found = [trigger for trigger in triggers if begin.startswith(trigger)]
            if not found:
                self._refuse("begin", place, f"must begin with one of the triggers, got {shown(begin)}")
            rest = self._literal(begin.removeprefix(found[0]))
            options[found[0]].append(self._rule(f"{rest} {self._rest_of_tag(tag, place)}"))
        unused = [trigger for trigger in triggers if not options[trigger]]
        if unused:
            self._refuse("triggers", path, f"has {shown(unused[0])}, with which no tag begins; leave it out")
        starts = [f"{self._start(triggers, trigger)} ({' | '.join(options[trigger])})" for trigger in triggers]
        one = self._rule(" | ".join(starts))
        first = " | ".join(f"{self._literal(trigger)} ({' | '.join(options[trigger])})" for trigger in triggers)
        anywhere = "|".join(map(written_literal, triggers))
        tail = self._terminal(f"/{_ANY}/ & ~/{_ANY}(?:{anywhere}){_ANY}/ & /(?s:.)+/")
        if stop_after_first:
            return f"({first})" if at_least_one else f"({one} | {tail}?)"
        return f"({first}) {one}* {tail}?" if at_least_one else f"{one}* {tail}?"

    def _start(self, triggers: list[str], trigger: str) -> str:
        """Text up to a trigger, as text or as the special token that reads so."""
        written = self._until(triggers, trigger)
        token_id = self._special.get(trigger)
        if token_id is None:
            return written
        anywhere = "|".join(map(written_literal, triggers))
        before = self._terminal(f"/{_ANY}/ & ~/{_ANY}(?:{anywhere}){_ANY}/ & /(?s:.)+/")
        return f"({written} | {before}? <[{token_id}]>)"

    def _tags_with_separator(self, value: dict[str, Any], path: Path) -> str:
        self._check_fields(value, ("type", "tags", "separator", "at_least_one", "stop_after_first"), path)
        one = self._rule(" | ".join(self._tag(tag, place) for tag, place in self._tags(value, path)))
        separator = self._literal(self._text(value, "separator", path))
        more = "" if self._flag(value, "stop_after_first", path) else f" ({separator} {one})*"
        return f"({one}{more})" if self._flag(value, "at_least_one", path) else f"({one}{more})?"


def _special_tokens(vocabulary: GrammarVocabulary) -> dict[str, int]:
    """Those that have a text."""
    texts = {token_id: vocabulary.token_bytes[token_id] for token_id in vocabulary.special_token_ids}
    return {data.decode(errors="replace"): token_id for token_id, data in texts.items() if data}
