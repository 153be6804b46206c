"""Context-free grammars, as they are written for xgrammar.

Everything that xgrammar compiles for Pelton is written here, in the part of its notation that has one clear meaning.
"""

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.expressions import (
    EMPTY,
    Characters,
    Choice,
    Expression,
    Repeat,
    Rule,
    Sequence,
    Text,
    children,
    is_possible,
    possible_rules,
    reachable,
    sequence,
    written_bounds,
)

MAX_PARTS = 30_000
"""Characters, texts, references and repetitions of a grammar: compiling takes some milliseconds for each ten."""
MAX_CHARACTERS = 200_000
"""Of all texts of a grammar."""
MAX_NESTED_REPEAT = 500
"""Repetitions of repetitions with bounds, multiplied. Masks of ambiguous ones take time in proportion, and more."""
_MAX_COUNT = 127
_BLOCK = 64


class Grammar:
    """Rules by name; the one called `root` is what an output must be."""

    def __init__(self, field: str, rules: dict[str, Expression]) -> None:
        """`field` names the parameter in messages."""
        self._field = field
        self._rules = rules

    def written(self) -> str:
        """For xgrammar. Alternatives that no finite text can complete are left out.

        Raises UnsupportedGrammarError if none is left, or if it is too large.
        """
        order = reachable(self._rules)
        possible = possible_rules(self._rules, self._field)
        if "root" not in possible:
            raise UnsupportedGrammarError(f"{self._field}: no text can meet the constraint; correct it")
        self._check_size(order)
        order = [name for name in reversed(order) if name in possible]
        writer = _Writer(possible, {name: f"r{number}" for number, name in enumerate(order)})
        # xgrammar's masks are too narrow where the root rule is used by others.
        lines = [f"{writer.names[name]} ::= {writer.written(self._rules[name])}" for name in order]
        return "\n".join(("root ::= r0", *lines, *writer.loops))

    def _check_size(self, order: list[str]) -> None:
        num_parts = num_characters = 0
        for name in order:
            stack = [self._rules[name]]
            while stack:
                expression = stack.pop()
                num_parts += 1 + (len(expression.ranges) if isinstance(expression, Characters) else 0)
                num_characters += len(expression.text) if isinstance(expression, Text) else 0
                stack += children(expression)
            if num_parts > MAX_PARTS:
                raise UnsupportedGrammarError(
                    f"{self._field}: its grammar has more than {MAX_PARTS} parts, which is too much for xgrammar; "
                    "make it smaller"
                )
        if num_characters > MAX_CHARACTERS:
            raise UnsupportedGrammarError(
                f"{self._field}: its texts have {num_characters} characters, and {MAX_CHARACTERS} is the most for "
                "xgrammar; make them shorter"
            )


def check_repeats(field: str, rules: dict[str, Expression]) -> None:
    """Refuse repetitions with bounds within others, also by way of rules, if the bounds multiply too much."""
    known: dict[str, int] = {}

    def repeats(expression: Expression) -> int:
        """How often a part of it may come, by bounds alone."""
        if isinstance(expression, Rule):
            return known.get(expression.name, 1)
        inner = max(map(repeats, children(expression)), default=1)
        if not isinstance(expression, Repeat):
            return inner
        times = inner * max(1, expression.low, expression.high or 0)
        if inner > 1 and times > MAX_NESTED_REPEAT:
            raise UnsupportedGrammarError(
                f"{field}: it repeats repetitions up to {times} times, and {MAX_NESTED_REPEAT} is the most for "
                "xgrammar; write smaller bounds, or none"
            )
        return times

    for name in reachable(rules):  # a rule in a circle counts as 1 where it is met before it is known
        known[name] = repeats(rules[name])


class _Writer:
    """Writes expressions, without what is not possible."""

    def __init__(self, possible: set[str], names: dict[str, str]) -> None:
        self._possible = possible
        self.names = names
        self.loops: list[str] = []
        """Rules for repetitions without an upper bound."""

    def written(self, expression: Expression) -> str:
        match expression:
            case Text(text):
                return '"' + "".join(map(_written_character, text)) + '"'
            case Characters(ranges):
                return f"[{''.join(_written_range(*entry) for entry in ranges)}]"
            case Rule(name):
                return self.names[name]
            case Sequence(parts):
                return " ".join(map(self._in_brackets, parts)) or '""'
            case Choice(options):
                return " | ".join(
                    self._in_brackets(option) for option in options if is_possible(option, self._possible)
                )
            case Repeat(part, low, high):
                if high == 0 or part == EMPTY or not is_possible(part, self._possible):
                    return '""'
                if high is None and not isinstance(part, Text | Characters):
                    return self._loop(part, low)
                if isinstance(part, Characters) and max(low, high or 0) > _MAX_COUNT:
                    return self.written(_in_blocks(part, low, high))
                return self._in_brackets(part) + written_bounds(low, high)

    def _loop(self, part: Expression, low: int) -> str:
        """As a rule that refers to itself behind each option: masks of a repeated choice are far slower, up to a
        thousand times."""
        number = len(self.loops)
        name = f"loop{number}"
        self.loops.append("")
        options = part.options if isinstance(part, Choice) else (part,)
        ways = [self._in_brackets(option) for option in options if is_possible(option, self._possible)]
        self.loops[number] = " | ".join((f'{name} ::= ""', *(f"{way} {name}" for way in ways)))
        return f"{self._in_brackets(Repeat(part, low, low))} {name}" if low else name

    def _in_brackets(self, expression: Expression) -> str:
        text = self.written(expression)
        return text if isinstance(expression, Text | Characters | Rule) or expression == EMPTY else f"({text})"


def _in_blocks(part: Expression, low: int, high: int | None) -> Expression:
    """The same repetition by way of blocks: xgrammar's masks are too wide where one of a set with characters of three
    or four bytes goes beyond `_MAX_COUNT`."""
    block = Repeat(part, _BLOCK, _BLOCK)
    first = sequence(Repeat(block, low // _BLOCK, low // _BLOCK), Repeat(part, low % _BLOCK, low % _BLOCK))
    if high is None:
        return sequence(first, Repeat(part, 0, None))
    blocks, rest = divmod(high - low, _BLOCK)
    if blocks < 2:
        return sequence(first, Repeat(part, 0, high - low))
    return sequence(first, Repeat(block, 0, blocks - 1), Repeat(part, 0, _BLOCK + rest))


def _written_range(low: int, high: int) -> str:
    first = _written_character(chr(low))
    return first if low == high else f"{first}-{_written_character(chr(high))}"


def _written_character(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in " _:;,.{}<>=/+*()|"):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
