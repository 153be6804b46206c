"""Bounds and multiples of numbers, made exact for a backend that computes with doubles."""

from fractions import Fraction
from typing import Any

LARGEST_INTEGER = 2**53
"""Up to here, doubles hold every integer."""
LARGEST_NUMBER = 10**15
MAX_MULTIPLE = 10_000
"""Numerator and denominator of `multipleOf`: a backend's automaton has a state for each remainder."""
_DECIMALS = 6

Bound = tuple[Fraction, bool]
"""A bound, and whether it is exclusive."""


class NumberError(ValueError):
    """`keyword` cannot be kept; the message says why."""

    def __init__(self, keyword: str, why: str) -> None:
        super().__init__(why)
        self.keyword = keyword


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def exact(value: float) -> Fraction:
    """What was written in decimal."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def number_keywords(schema: dict[str, Any], *, integer: bool) -> dict[str, Any] | None:
    """The keywords for a backend: within the schema's, exact in doubles. None if no number satisfies them.

    Raises NumberError.
    """
    multiple = _multiple(schema.get("multipleOf"))
    integer = integer or (multiple is not None and multiple.denominator == 1)
    low, high = _bound(schema, "minimum", "exclusiveMinimum", 1), _bound(schema, "maximum", "exclusiveMaximum", -1)
    if multiple is not None:  # larger doubles may lose the fraction, or be no multiples
        reach = Fraction(LARGEST_INTEGER // multiple.denominator)
        low = max(low or (-reach, False), (-reach, False))
        high = high if high is not None and high[0] <= reach else (reach, False)
    found = _integer_bounds(low, high) if integer else _number_bounds(low, high)
    if found is None:
        return None
    if multiple is not None:
        found["multipleOf"] = int(multiple) if multiple.denominator == 1 else float(multiple)
    return {"type": "integer" if integer else "number", **found}


def _multiple(value: Any) -> Fraction | None:
    if value is None:
        return None
    if not is_number(value) or value <= 0:
        raise NumberError("multipleOf", "must be a positive number")
    multiple = Fraction(value)  # what the double is: 0.1 is no tenth, and validators disagree on its multiples
    if multiple.numerator > MAX_MULTIPLE or multiple.denominator > MAX_MULTIPLE:
        raise NumberError("multipleOf", f"cannot be kept: it must be exact in binary, and up to {MAX_MULTIPLE}")
    return multiple


def _bound(schema: dict[str, Any], inclusive: str, exclusive: str, sign: int) -> Bound | None:
    """The tighter one of two keywords: the larger for `sign` 1, the smaller for -1."""
    bounds: list[Bound] = []
    for keyword, is_exclusive in ((inclusive, False), (exclusive, True)):
        value = schema.get(keyword)
        if value is None or (is_exclusive and value is False):
            continue
        if is_exclusive and value is True:  # draft 4
            bounds = [(bound, True) for bound, _ in bounds]
            continue
        if not is_number(value):
            raise NumberError(keyword, "must be a number")
        bounds.append((exact(value), is_exclusive))
    return max(bounds, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def _integer_bounds(low: Bound | None, high: Bound | None) -> dict[str, Any] | None:
    found = {}
    if low is not None:
        least = low[0].__floor__() + 1 if low[1] else low[0].__ceil__()
        if least > LARGEST_INTEGER:
            raise NumberError("minimum", f"cannot be kept beyond {LARGEST_INTEGER}")
        found["minimum"] = max(least, -LARGEST_INTEGER)
    if high is not None:
        most = high[0].__ceil__() - 1 if high[1] else high[0].__floor__()
        if most < -LARGEST_INTEGER:
            raise NumberError("maximum", f"cannot be kept beyond {-LARGEST_INTEGER}")
        found["maximum"] = min(most, LARGEST_INTEGER)
    return None if len(found) == 2 and found["minimum"] > found["maximum"] else found


def _number_bounds(low: Bound | None, high: Bound | None) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for bound, name, sign in ((low, "minimum", 1), (high, "maximum", -1)):
        if bound is None:
            continue
        value = _tightened(sign * bound[0], bound[1])
        if value > LARGEST_NUMBER:
            raise NumberError(name, f"cannot be kept beyond {sign * LARGEST_NUMBER}")
        found[name] = _plain(sign * value)
    return None if len(found) == 2 and found["minimum"] > found["maximum"] else found


def _tightened(value: Fraction, exclusive: bool) -> Fraction:
    """A lower bound as an inclusive one of few digits, not below it. An exclusive one is raised by its last digit:
    nearer numbers might be rounded to the bound by whoever reads them."""
    if value < -LARGEST_NUMBER:
        return Fraction(-LARGEST_NUMBER)
    step = Fraction(1, 10 ** max(0, min(_DECIMALS, 15 - len(str(abs(value).__floor__())))))
    steps = value / step
    return step * (steps.__floor__() + 1 if exclusive else steps.__ceil__())


def _plain(value: Fraction) -> float:
    return int(value) if value.denominator == 1 else float(value)
