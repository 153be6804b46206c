"""Checks of single values that users give. They raise ValueError that names the field, its value and the remedy."""

import math
from collections.abc import Collection
from typing import Any

from pelton.error_text import shown

INTEGER_LIMIT = 2**63
"""Messages between processes carry integers of 64 bits."""


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_integer(name: str, value: Any, *, low: int, high: int = INTEGER_LIMIT - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {shown(value)}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {shown(value)}")
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {shown(value)}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}")


def finite_float(name: str, value: Any) -> float:
    """The number as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {number}")
    return number


def check_unicode(name: str, text: str) -> None:
    if has_lone_surrogate(text):
        raise ValueError(f"{name} must be valid Unicode without lone surrogates, got {shown(text)}")


def has_lone_surrogate(text: str) -> bool:
    """Whether a text is not valid Unicode, so that no message can carry it."""
    return not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)
