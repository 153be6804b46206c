"""Numbers of JSON within bounds, as expressions over their digits."""

from fractions import Fraction
from math import ceil, floor

from pelton.grammar.expressions import (
    EMPTY,
    NOTHING,
    Characters,
    Expression,
    Repeat,
    Text,
    choice,
    optional,
    sequence,
)

MAX_DIGITS = 15
"""Of a bound: a double tells any two numbers of so many digits apart."""
FRACTION_DIGITS = 6
"""Places behind the point of a number with bounds, unless a bound has more."""

_MINUS = Text("-")
_DIGIT = Characters(((48, 57),))
_NO_ZERO = Characters(((49, 57),))

_WHOLE = choice(Text("0"), sequence(_NO_ZERO, Repeat(_DIGIT, 0, None)))
ANY_INTEGER = choice(Text("0"), sequence(optional(_MINUS), _NO_ZERO, Repeat(_DIGIT, 0, None)))
ANY_NUMBER = sequence(
    optional(_MINUS),
    _WHOLE,
    optional(sequence(Text("."), Repeat(_DIGIT, 1, None))),
    optional(
        sequence(
            Characters(((69, 69), (101, 101))), optional(Characters(((43, 43), (45, 45)))), Repeat(_DIGIT, 1, None)
        )
    ),
)


class Bounds:
    """Least and greatest value; either may be None."""

    def __init__(self) -> None:
        self.low: Fraction | None = None
        self.high: Fraction | None = None
        self.excludes_low = self.excludes_high = False

    def raise_low(self, value: Fraction, *, excluded: bool) -> None:
        if self.low is None or (value, excluded) > (self.low, self.excludes_low):
            self.low, self.excludes_low = value, excluded

    def lower_high(self, value: Fraction, *, excluded: bool) -> None:
        if self.high is None or (value, not excluded) < (self.high, not self.excludes_high):
            self.high, self.excludes_high = value, excluded

    @property
    def are_open(self) -> bool:
        return self.low is None and self.high is None

    def scaled(self, factor: int) -> tuple[int | None, int | None]:
        """Least and greatest whole number, of values multiplied by a factor."""
        low = high = None
        if self.low is not None:
            low = floor(self.low * factor) + 1 if self.excludes_low else ceil(self.low * factor)
        if self.high is not None:
            high = ceil(self.high * factor) - 1 if self.excludes_high else floor(self.high * factor)
        return low, high

    @property
    def num_places(self) -> int | None:
        """Places behind the point that numbers between the bounds may have; None if a bound has too many digits."""
        values = [value for value in (self.low, self.high) if value is not None]
        places = max(FRACTION_DIGITS, *map(_places, values))
        digits = max(len(str(abs(int(value)))) for value in values)
        if digits + max(map(_places, values)) > MAX_DIGITS:
            return None
        return min(places, MAX_DIGITS - digits)


def _places(value: Fraction) -> int:
    """Places behind the point; more than any bound may have if it never ends."""
    for places in range(MAX_DIGITS + 1):
        if (value * 10**places).denominator == 1:
            return places
    return MAX_DIGITS + 1


def integers(low: int | None, high: int | None) -> Expression:
    """Whole numbers between two, both included."""
    options = []
    if low is None or low < 0:
        last = None if low is None else -low
        first = 1 if high is None or high >= 0 else -high
        options.append(sequence(_MINUS, _naturals(first, last)))
    if high is None or high >= 0:
        options.append(_naturals(max(0, low or 0), high))
    return choice(*options)


def decimals(low: int | None, high: int | None, num_places: int) -> Expression:
    """Numbers between two, both included, which are given multiplied by 10 ** num_places."""
    options = []
    if low is None or low < 0:
        last = None if low is None else -low
        first = 1 if high is None or high >= 0 else -high
        options.append(sequence(_MINUS, _magnitudes(first, last, num_places)))
    if high is None or high >= 0:
        options.append(_magnitudes(max(0, low or 0), high, num_places))
    return choice(*options)


def _magnitudes(low: int, high: int | None, num_places: int) -> Expression:
    if high is not None and low > high:
        return NOTHING
    scale = 10**num_places
    zeros, nines = "0" * num_places, "9" * num_places
    first, low_places = low // scale, f"{low % scale:0{num_places}}" if num_places else ""
    if high is None:
        last, high_places = None, nines
    else:
        last, high_places = high // scale, f"{high % scale:0{num_places}}" if num_places else ""
    if first == last:
        return sequence(Text(str(first)), _fraction(low_places, high_places))
    options = [sequence(Text(str(first)), _fraction(low_places, nines))]
    options.append(sequence(_naturals(first + 1, None if last is None else last - 1), _fraction(zeros, nines)))
    if last is not None:
        options.append(sequence(Text(str(last)), _fraction(zeros, high_places)))
    return choice(*options)


def _fraction(low: str, high: str) -> Expression:
    """A point and digits, or nothing; `low` and `high` have as many digits as there may be."""
    digits = sequence(Text("."), _places_between(low, high)) if low else NOTHING
    return choice(EMPTY, digits) if not low.strip("0") else digits


def _places_between(low: str, high: str) -> Expression:
    """At least one digit; those that are left out count as zeros."""
    first, last = int(low[0]), int(high[0])
    rest = len(low) - 1
    if not low.strip("0") and not high.strip("9"):
        return sequence(_DIGIT, Repeat(_DIGIT, 0, rest))
    if first == last:
        return sequence(Text(low[0]), _rest_between(low[1:], high[1:]))
    options = [sequence(Text(low[0]), _rest_between(low[1:], "9" * rest))]
    if last - first > 1:
        options.append(sequence(_digits(first + 1, last - 1), Repeat(_DIGIT, 0, rest)))
    options.append(sequence(Text(high[0]), _rest_between("0" * rest, high[1:])))
    return choice(*options)


def _rest_between(low: str, high: str) -> Expression:
    if not low:
        return EMPTY
    digits = _places_between(low, high)
    return digits if low.strip("0") else optional(digits)


def _naturals(low: int, high: int | None) -> Expression:
    """Whole numbers that are not negative."""
    if high is not None and low > high:
        return NOTHING
    options = []
    length = len(str(low))
    while high is None or length <= len(str(high)):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        if high is None and least > low:  # all that are longer than the lower bound
            options.append(sequence(_NO_ZERO, Repeat(_DIGIT, length - 1, None)))
            break
        greatest = 10**length - 1 if high is None else min(high, 10**length - 1)
        options.append(_same_length(str(least), str(greatest)))
        length += 1
    return choice(*options)


def _same_length(low: str, high: str) -> Expression:
    if low == high:
        return Text(low)
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if not low[1:].strip("0") and not high[1:].strip("9"):
        return sequence(_digits(first, last), Repeat(_DIGIT, rest, rest))
    if first == last:
        return sequence(Text(low[0]), _same_length(low[1:], high[1:]))
    options = [sequence(Text(low[0]), _same_length(low[1:], "9" * rest))]
    if last - first > 1:
        options.append(sequence(_digits(first + 1, last - 1), Repeat(_DIGIT, rest, rest)))
    options.append(sequence(Text(high[0]), _same_length("0" * rest, high[1:])))
    return choice(*options)


def _digits(first: int, last: int) -> Expression:
    return Characters(((48 + first, 48 + last),))
