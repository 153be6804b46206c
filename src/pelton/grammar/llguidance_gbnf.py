"""Grammars in GBNF for llguidance, without the difference that its lexer would make.

llguidance splits an output into terminals and lets each go on as long as it can, whatever the rules need. Runs of
characters, texts and rules that do not hold themselves become terminals only where that decides nothing: where no
character that may follow a terminal could also continue one. Else single texts and rules do, or single characters.
"""

from enum import Enum, auto

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.expressions import (
    Characters,
    Choice,
    Expression,
    Repeat,
    Rule,
    Sequence,
    Text,
    children,
    is_nullable,
    possible_rules,
    references,
    written_bounds,
)
from pelton.grammar.llguidance_regex import lark_text, write_regex
from pelton.grammar.llguidance_terminals import Lexed, lexing_decides

MAX_TERMINAL = 500_000
"""Characters of one terminal, as it is written."""
MAX_TERMINALS = 1_000_000
"""Of the rules that may be put into others."""
MAX_HEIGHT = 200
"""Levels of a terminal's expression."""


class Grain(Enum):
    """What becomes a terminal."""

    RUNS = auto()
    RULES = auto()
    CHARACTERS = auto()


def gbnf_as_lark(rules: dict[str, Expression]) -> str:
    """In Lark's notation, which begins with the rule `start`."""
    if "root" not in possible_rules(rules, "grammar"):
        raise UnsupportedGrammarError("grammar: no finite output satisfies it")
    regular = _Regular(rules)
    for grain in Grain:
        lexed = _lexed(rules, regular, grain)
        root = lexed.rules["root"]
        is_terminal = isinstance(root, Rule) and root.name in lexed.terminals
        if is_terminal or grain is Grain.CHARACTERS or not lexing_decides(lexed, rules):
            break
    return _Writer(lexed, regular).written()


class _Regular:
    """Which expressions hold no rule that holds itself, and what they are as terminals in Lark's notation."""

    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._known: dict[str, str] = {}
        self._find_rules()

    def _find_rules(self) -> None:
        """From those that refer to none to those that refer to known ones."""
        users: dict[str, list[str]] = {name: [] for name in self._rules}
        num_unknown = {}
        for name, rule in self._rules.items():
            used = set(references(rule))
            num_unknown[name] = len(used)
            for other in used:
                users[other].append(name)
        ready = [name for name, count in num_unknown.items() if not count]
        room = MAX_TERMINALS
        heights: dict[str, int] = {}
        while ready:
            name = ready.pop()
            found = self.terminal(self._rules[name])
            heights[name] = _height(self._rules[name], heights)
            if found is None or len(found) > room or heights[name] > MAX_HEIGHT:
                continue
            self._known[name] = found
            room -= len(found)
            for user in users[name]:
                num_unknown[user] -= 1
                if not num_unknown[user]:
                    ready.append(user)

    def terminal(self, expression: Expression) -> str | None:
        """None for what is not regular, or too long."""
        match expression:
            case Text(text):
                return lark_text(text)
            case Characters():
                written = write_regex(expression)
                if written is None:
                    raise UnsupportedGrammarError("grammar: a class of characters is empty; leave it out")
                return f"/{written}/"
            case Rule(name):
                return self._known.get(name)
            case Repeat(part, low, high):
                inner = self.terminal(part)
                return None if inner is None else f"({inner}){written_bounds(low, high)}"
        pieces = []
        for part in children(expression):
            piece = self.terminal(part)
            if piece is None:
                return None
            pieces.append(piece)
        joined = f"({(' ' if isinstance(expression, Sequence) else ' | ').join(pieces)})" if pieces else '""'
        return joined if len(joined) <= MAX_TERMINAL else None

    def is_optional(self, name: str) -> bool:
        """Whether a rule that is regular matches the empty text."""
        return is_nullable(self._rules[name], self.is_optional)


def _height(expression: Expression, heights: dict[str, int]) -> int:
    """Levels of the expression, with those of its rules."""
    if isinstance(expression, Rule):
        return 1 + heights[expression.name]
    return 1 + max((_height(child, heights) for child in children(expression)), default=0)


def _lexed(rules: dict[str, Expression], regular: _Regular, grain: Grain) -> Lexed:
    """The rules that `root` needs, over terminals."""
    names: dict[Expression, str] = {}

    def terminal(expression: Expression) -> Rule:
        return Rule(names.setdefault(expression, f"#{len(names)}"))  # GBNF's names begin with a letter

    def is_terminal(expression: Expression) -> bool:
        if grain is Grain.CHARACTERS or (grain is Grain.RULES and isinstance(expression, Sequence)):
            return False
        return regular.terminal(expression) is not None

    def split(expression: Expression) -> Expression:
        if is_terminal(expression):
            return terminal(expression)
        match expression:
            case Text(text):
                return Sequence(tuple(terminal(Text(char)) for char in text))
            case Characters():
                return terminal(expression)
            case Rule():
                return expression
            case Sequence(parts):
                return Sequence(tuple(map(split, _runs(parts, regular) if grain is Grain.RUNS else parts)))
            case Choice(options):
                return Choice(tuple(map(split, options)))
            case Repeat(part, low, high):
                return Repeat(split(part), low, high)

    found: dict[str, Expression] = {}
    pending = ["root"]
    while pending:
        name = pending.pop()
        if name in rules and name not in found:
            found[name] = split(rules[name])
            pending += references(found[name])
    return Lexed(found, {name: expression for expression, name in names.items()})


def _runs(parts: tuple[Expression, ...], regular: _Regular) -> list[Expression]:
    """With regular neighbours put together, as far as they make one terminal."""
    found: list[Expression] = []
    run: list[Expression] = []
    length = 0
    for part in parts:
        written = regular.terminal(part)
        if run and (written is None or length + len(written) > MAX_TERMINAL // 2):
            found.append(Sequence(tuple(run)))
            run, length = [], 0
        if written is None:
            found.append(part)
        else:
            run.append(part)
            length += len(written) + 1
    return [*found, Sequence(tuple(run))] if run else found


class _Writer:
    def __init__(self, lexed: Lexed, regular: _Regular) -> None:
        self._lexed, self._regular = lexed, regular
        self._names = {"root": "start"}
        self._terminals: dict[str, str] = {}

    def written(self) -> str:
        lines: dict[str, str] = {}
        while pending := [name for name in self._names if name not in lines]:
            lines |= {name: f"{self._names[name]}: {self._expression(self._lexed.rules[name])}" for name in pending}
        return "\n".join([*lines.values(), *(f"{name}: {source}" for source, name in self._terminals.items())]) + "\n"

    def _expression(self, expression: Expression) -> str:
        match expression:
            case Rule(name) if name in self._lexed.terminals:
                return self._terminal(self._lexed.terminals[name])
            case Rule(name):
                return self._names.setdefault(name, f"r{len(self._names)}")
            case Sequence(parts):
                return " ".join(map(self._expression, parts)) or '""'
            case Choice(options):
                return f"({' | '.join(map(self._expression, options))})"
            case Repeat(part, low, high):
                return f"({self._expression(part)}){written_bounds(low, high)}"
        raise AssertionError(expression)

    def _terminal(self, terminal: Expression) -> str:
        """It has at least one character."""
        source, optional = self._regular.terminal(terminal), is_nullable(terminal, self._regular.is_optional)
        assert source is not None, "it is regular"
        if optional:
            source = f"({source}) & /(?s:.)+/"
        name = self._terminals.setdefault(source, f"T{len(self._terminals)}")
        return f"{name}?" if optional else name
