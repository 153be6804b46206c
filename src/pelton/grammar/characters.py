"""Sets of characters, as ranges of code points, and what classes of regular expressions hold.

Where the dialects of ECMA-262 and Python disagree on a class, only what both accept is generated: `\\d` is 0-9, `\\w`
is A-Z, a-z, 0-9 and _, and `\\D`, `\\W` and `\\S` leave out what is a digit, letter or space in either.
"""

import re
import unicodedata
from functools import cache
from itertools import pairwise

Range = tuple[int, int]
"""First and last code point."""
Ranges = tuple[Range, ...]

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
# Spaces of ECMA-262 that are spaces in Python's dialect too.
_SPACES: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip


def is_character(code: int) -> bool:
    return code <= LAST and not SURROGATES[0] <= code <= SURROGATES[1]


def single(code: int) -> Ranges:
    return ((code, code),)


def is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def union(*sets: Ranges) -> Ranges:
    """Sorted, and without overlaps."""
    merged: list[Range] = []
    for low, high in sorted(entry for ranges in sets for entry in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def without(*sets: Ranges) -> Ranges:
    """All characters that are in none of the sets; surrogates are no characters."""
    taken = union(*sets, (SURROGATES,))
    edges = ((-1, -1), *taken, (LAST + 1, LAST + 1))
    return tuple((left[1] + 1, right[0] - 1) for left, right in pairwise(edges) if left[1] + 1 <= right[0] - 1)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    return without(without(left), without(right))


def class_of(*sets: Ranges, negated: bool) -> Ranges:
    """The characters that are in one of the sets or, if `negated`, in none."""
    others = without(*sets)
    return others if negated else without(others)


ALL: Ranges = without()
JSON_CHARACTERS: Ranges = without(((0, 7), (11, 11), (14, 31), (127, 127)))
"""What a string of JSON may hold here: control characters are left out, except those with an escape of one letter."""


@cache
def categories() -> dict[str, Ranges]:
    """Unicode's general categories, of one and of two letters."""
    runs: dict[str, list[Range]] = {}
    start, current = 0, unicodedata.category("\0")
    for code in range(1, LAST + 2):
        category = unicodedata.category(chr(code)) if code <= LAST else ""
        if category != current:
            runs.setdefault(current, []).append((start, code - 1))
            start, current = code, category
    exact = {name: tuple(ranges) for name, ranges in runs.items()}
    broad = {letter: union(*(exact[name] for name in exact if name[0] == letter)) for letter in "LMNPSZC"}
    return {**exact, **broad}


@cache
def _in_python(escape: str) -> Ranges:
    """What an escape for a class matches in Python."""
    text = "".join(map(chr, range(LAST + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(f"{escape}+", text))


_ECMA: dict[str, Ranges] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": union(_SPACES, single(0xFEFF)),
}


def class_escape(letter: str, *, exact: bool, outer: bool) -> Ranges:
    """What `\\d` and the like match in every dialect or, for `outer`, in any of them; `exact`: in ECMA-262."""
    kind, negated = letter.lower(), letter.isupper()
    ranges = _ECMA[kind]
    if not exact and outer != negated:
        ranges = union(ranges, _in_python(f"\\{kind}"))
    elif not exact and kind == "s":
        ranges = _SPACES
    return class_of(ranges, negated=negated)
