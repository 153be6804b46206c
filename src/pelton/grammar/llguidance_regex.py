"""Regular expressions and texts, as llguidance's notations have them."""

from functools import lru_cache

from pelton.grammar.characters import ALL, Ranges, intersection, is_single
from pelton.grammar.expressions import Characters, Choice, Expression, Repeat, Sequence, written_bounds


def write_regex(expression: Expression, allowed: Ranges = ALL) -> str | None:
    """For llguidance, which takes it as matching whole strings. Characters that are not allowed are left out of the
    language; None if nothing is left of it."""
    match expression:
        case Characters(ranges):
            return _written_class(ranges, allowed)
        case Sequence(parts):
            pieces = [write_regex(part, allowed) for part in parts]
            return None if None in pieces else "".join(piece or "" for piece in pieces)
        case Choice(options):
            found = [piece for option in options if (piece := write_regex(option, allowed)) is not None]
            return f"(?:{'|'.join(found)})" if found else None
        case Repeat(part, low, high):
            piece = write_regex(part, allowed)
            if piece is None:
                return "" if low == 0 else None
            return f"(?:{piece})" + written_bounds(low, high)
    raise AssertionError(expression)


@lru_cache(maxsize=1024)
def _written_class(ranges: Ranges, allowed: Ranges) -> str | None:
    kept = ranges if allowed is ALL else intersection(ranges, allowed)
    if not kept:
        return None
    if kept == ALL:
        return "(?s:.)"
    if is_single(kept):
        return _written_character(kept[0][0])
    return "[" + "".join(_written_range(low, high) for low, high in kept) + "]"


def _written_range(low: int, high: int) -> str:
    return _written_character(low) if low == high else f"{_written_character(low)}-{_written_character(high)}"


def _written_character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


def written_literal(text: str) -> str:
    """An expression for just this text."""
    return "".join(map(_written_character, map(ord, text)))


def lark_text(text: str) -> str:
    """A text in quotes. It is compiled much faster than an expression for the same text."""
    return '"' + "".join(map(_lark_character, text)) + '"'


def _lark_character(char: str) -> str:
    if " " <= char <= "~" or char > "\xff":
        return f"\\{char}" if char in '"\\' else char
    return f"\\x{ord(char):02x}"
