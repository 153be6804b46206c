"""Regular expressions as rules for xgrammar."""

from collections.abc import Callable, Iterable

from pelton.grammar import xgrammar_ebnf as ebnf
from pelton.grammar.llguidance_regex import CharSet, Choice, Node, Ranges, Repeat, Sequence_


def expression_of(node: Node, encode: Callable[[Ranges], ebnf.Expression] = ebnf.Characters) -> ebnf.Expression:
    """`encode` says how one character of a set is written."""
    match node:
        case CharSet(ranges):
            return encode(ranges)
        case Sequence_(parts):
            return ebnf.sequence(*(expression_of(part, encode) for part in parts)) if parts else ebnf.EMPTY
        case Choice(options):
            return ebnf.choice(*(expression_of(option, encode) for option in options))
        case Repeat(part, low, high):
            return ebnf.Repeat(expression_of(part, encode), low, high)
    raise AssertionError(node)


def lengths_of(node: Node) -> tuple[int, int | None]:
    """Characters of the shortest and the longest string; None if there is no longest."""
    match node:
        case CharSet():
            return 1, 1
        case Sequence_(parts):
            lengths = [lengths_of(part) for part in parts]
            return sum(low for low, _ in lengths), _total(high for _, high in lengths)
        case Choice(options):
            lengths = [lengths_of(option) for option in options]
            longest = [high for _, high in lengths]
            known = [high for high in longest if high is not None]
            return min(low for low, _ in lengths), max(known) if len(known) == len(longest) else None
        case Repeat(part, low, high):
            shortest, longest_part = lengths_of(part)
            longest_all = None if high is None or longest_part is None else high * longest_part
            return low * shortest, 0 if longest_part == 0 else longest_all
    raise AssertionError(node)


def _total(lengths: Iterable[int | None]) -> int | None:
    total = 0
    for length in lengths:
        if length is None:
            return None
        total += length
    return total
