"""The texts of JSON as rules for xgrammar: strings, numbers, arrays, objects and values that are given."""

import json
from collections.abc import Iterable
from typing import Any

from pelton.grammar.characters import Ranges, intersection, without
from pelton.grammar.expressions import (
    EMPTY,
    NOTHING,
    Characters,
    Expression,
    Repeat,
    Rule,
    Text,
    choice,
    optional,
    sequence,
)
from pelton.grammar.xgrammar_numbers import ANY_NUMBER

_PLAIN: Ranges = without(((0, 31), (34, 34), (92, 92)))
"""What stands for itself in a string."""
_ESCAPES = {code: json.dumps(chr(code))[1:-1] for code in (*range(32), 34, 92)}
_HEX = Characters(((48, 57), (65, 70), (97, 102)))
_D = Characters(((68, 68), (100, 100)))
_QUOTE = Text('"')
_SHORT_ESCAPE = sequence(Text("\\"), Characters(tuple((ord(letter), ord(letter)) for letter in '"\\bfnrt')))
_LOW_HALF = sequence(Text("\\u"), _D, Characters(((67, 70), (99, 102))), _HEX, _HEX)
_CHARACTERS = (
    Characters(_PLAIN),
    _SHORT_ESCAPE,
    Text("\\/"),
    sequence(Text("\\u"), Characters(((48, 57), (65, 67), (69, 70), (97, 99), (101, 102))), _HEX, _HEX, _HEX),
    sequence(Text("\\u"), _D, Characters(((48, 55),)), _HEX, _HEX),
    sequence(Text("\\u"), _D, Characters(((56, 57), (65, 66), (97, 98))), _HEX, _HEX, _LOW_HALF),
)
"""The ways to write one character of a string; by number, half of a pair is never alone."""
MAX_COUNTED_CHARACTERS = 32
"""Up to here, a string of bounded length may have escapes: xgrammar's compilation takes time for each of them."""


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def character_of(ranges: Ranges) -> Expression:
    """One character of a set, in a string: as it stands, or as its shortest escape where it has to be escaped."""
    plain = intersection(ranges, _PLAIN)
    special = [Text(text) for code, text in _ESCAPES.items() if any(low <= code <= high for low, high in ranges)]
    return choice(*([Characters(plain)] if plain else []), *special)


def quoted(content: Expression) -> Expression:
    return sequence(_QUOTE, content, _QUOTE)


def _before(rest: Expression) -> list[Expression]:
    """All ways to write one character, with what follows it."""
    return [sequence(character, rest) for character in _CHARACTERS]


class JsonRules:
    """Rules for any JSON, and for more with `new`. Members of objects are given with whether they must be there."""

    def __init__(self, space: Expression, prefix: str = "") -> None:
        """`space` is what may be between tokens; `prefix` begins the names of all rules."""
        self.rules: dict[str, Expression] = {}
        self._prefix = prefix
        self._space = self.add("space", space) if space != EMPTY else EMPTY
        self._comma = sequence(self._space, Text(","), self._space)
        rest = Rule(prefix + "rest of string")
        # A rule that refers to itself at its end: a repetition of the same choice has masks a thousand times slower.
        self._rest_of_string = self.add("rest of string", choice(_QUOTE, *_before(rest)))
        self.string = self.add("string", sequence(_QUOTE, self._rest_of_string))
        self.number = self.add("number", ANY_NUMBER)
        self.any = Rule(prefix + "any")
        self.array = self.add("array", self.list_of(self.any, 0, None))
        self.object = self.add("object", self.object_of([], self.member(self.string, self.any)))
        self.add(
            "any",
            choice(self.string, self.number, self.object, self.array, Text("true"), Text("false"), Text("null")),
        )

    def add(self, name: str, expression: Expression) -> Rule:
        self.rules[self._prefix + name] = expression
        return Rule(self._prefix + name)

    def new(self, expression: Expression) -> Rule:
        return self.add(str(len(self.rules)), expression)

    def string_of_length(self, least: int, most: int | None) -> Expression:
        """Characters of bounded number; where these are many, all of them stand for themselves."""
        if max(least, most or 0) > MAX_COUNTED_CHARACTERS:
            return quoted(Repeat(Characters(_PLAIN), least, most))
        rest: Expression = self._rest_of_string if most is None else _QUOTE
        for length in range((least if most is None else most) - 1, -1, -1):
            rest = self.new(choice(*([_QUOTE] if length >= least else []), *_before(rest)))
        return sequence(_QUOTE, rest)

    def literal(self, value: Any) -> Expression:
        if isinstance(value, list) and value:
            return self.list_after([self.literal(item) for item in value], NOTHING, len(value), len(value))
        if isinstance(value, dict) and value:
            return self.object_of([(self.named(name, self.literal(part)), True) for name, part in value.items()])
        return Text(written(value))

    # Arrays

    def list_of(self, item: Expression, least: int, most: int | None) -> Expression:
        empty = sequence(Text("["), self._space, Text("]"))
        if most == 0:
            return empty
        more = Repeat(sequence(self._comma, item), max(0, least - 1), None if most is None else most - 1)
        full = sequence(Text("["), self._space, item, more, self._space, Text("]"))
        return full if least else choice(full, empty)

    def list_after(self, head: list[Expression], tail: Expression, least: int, most: int | None) -> Expression:
        """`head` in this order, then any number of `tail`. It may end everywhere from the least number on."""
        room = None if most is None else most - len(head)
        more: Expression = Repeat(sequence(self._comma, tail), max(0, least - len(head)), room)
        for index in range(len(head) - 1, 0, -1):
            following = sequence(self._comma, head[index], more)
            more = self.new(following if index < least else optional(following))
        full = sequence(Text("["), self._space, head[0], more, self._space, Text("]"))
        return full if least else choice(full, sequence(Text("["), self._space, Text("]")))

    # Objects

    def named(self, name: str, value: Expression) -> Expression:
        return self.member(Text(written(name)), value)

    def member(self, key: Expression, value: Expression) -> Expression:
        return sequence(key, self._space, Text(":"), self._space, value)

    def object_of(self, members: Iterable[tuple[Expression, bool]], extra: Expression = NOTHING) -> Expression:
        """The members in this order, and any number of others behind them."""
        more: Expression = Repeat(sequence(self._comma, extra), 0, None)  # behind another member
        first: Expression = optional(sequence(extra, more, self._space))  # behind none
        for member, is_required in reversed(list(members)):
            starting = sequence(member, more, self._space)
            following = sequence(self._comma, member, more)
            first = self.new(starting if is_required else choice(starting, first))
            more = self.new(following if is_required else choice(following, more))
        return sequence(Text("{"), self._space, first, Text("}"))

    def counted_object(
        self, members: Iterable[tuple[Expression, bool]], extra: Expression, least: int, most: int | None
    ) -> Expression:
        """The same, with bounds on how many there are. Others may repeat a name, so all of them together count as one
        for the lower bound."""
        last = least if most is None else most
        follow: list[Expression] = []
        """What may come behind so many members; without an upper bound, the last entry is for all beyond."""
        for count in range(last + 1):
            one = extra if count == 0 else sequence(self._comma, extra)
            room = None if most is None else most - count - 1
            others = NOTHING if room == -1 else sequence(one, Repeat(sequence(self._comma, extra), 0, room))
            ends = [EMPTY] if count >= least else []
            follow.append(choice(*ends, *([others] if count + 1 >= least else [])))
        for member, is_required in reversed(list(members)):
            before: list[Expression] = []
            for count in range(last + 1):
                taken = sequence(member if count == 0 else sequence(self._comma, member), follow[min(count + 1, last)])
                options = [] if count == most else [taken]
                before.append(self.new(choice(*options, *([] if is_required else [follow[count]]))))
            follow = before
        return sequence(Text("{"), self._space, follow[0], self._space, Text("}"))

    def other_key(self, names: "NameTree") -> Expression:
        """A string that is none of these."""
        return sequence(_QUOTE, self._key_after(names)) if names.children or names.is_name else self.string

    def _key_after(self, tree: "NameTree") -> Expression:
        """The rest of a string that has not left the tree of names yet."""
        taken = tuple((ord(letter), ord(letter)) for letter in sorted(tree.children))
        options = [sequence(Characters(intersection(_PLAIN, without(taken))), self._rest_of_string)]
        if not tree.is_escaped:
            options.append(sequence(_SHORT_ESCAPE, self._rest_of_string))
        if not tree.is_name:
            options.append(_QUOTE)
        options += [sequence(Text(letter), self._key_after(child)) for letter, child in tree.children.items()]
        return self.new(choice(*options))


class NameTree:
    """Strings by their letters, up to the first that has to be escaped."""

    def __init__(self) -> None:
        self.children: dict[str, NameTree] = {}
        self.is_name = False
        self.is_escaped = False
        """Whether such a letter follows here."""

    def add(self, name: str) -> None:
        node = self
        for letter in name:
            if ord(letter) in _ESCAPES:
                node.is_escaped = True
                return
            node = node.children.setdefault(letter, NameTree())
        node.is_name = True

    @property
    def height(self) -> int:
        return 1 + max((child.height for child in self.children.values()), default=0)
