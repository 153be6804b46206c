"""Every check takes what it says, and names what it refuses in one short line."""

from typing import Any

import pytest

from pelton.checks import check_choice, check_flag, check_integer, finite_float, has_lone_surrogate
from tests.support.nested import nested


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (check_flag, 1, "must be True or False, got 1"),
        (lambda name, value: check_integer(name, value, low=0), True, "must be an integer, got True"),
        (lambda name, value: check_integer(name, value, low=0), 1.0, "must be an integer, got 1.0"),
        (lambda name, value: check_integer(name, value, low=0), -1, "must be at least 0, got -1"),
        (lambda name, value: check_integer(name, value, low=0), 2**63, f"must be at most {2**63 - 1}, got {2**63}"),
        (lambda name, value: check_choice(name, value, ("a", "b")), "c", "must be one of a, b, got 'c'"),
        (finite_float, False, "must be a number, got False"),
        (finite_float, "1", "must be a number, got '1'"),
        (finite_float, float("nan"), "must be a finite number, got nan"),
        (finite_float, 10**400, "must be a finite number, got inf"),
    ],
)
def test_refusals(check: Any, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^size {words}$"):
        check("size", value)


@pytest.mark.parametrize(
    "value",
    ["\n" * 10**6, [["x" * 1000] * 1000], nested(50_000), 10**5000, -(10**5000)],
    ids=["text", "lists", "nested", "positive", "negative"],
)
@pytest.mark.parametrize(
    "check",
    [
        check_flag,
        finite_float,
        lambda name, value: check_integer(name, value, low=0),
        lambda name, value: check_choice(name, value, {"a": 1}),
    ],
    ids=["flag", "float", "integer", "choice"],
)
def test_large_values_are_shown_short(check: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^size must be") as caught:
        check("size", value)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_what_is_taken() -> None:
    check_flag("size", False)
    check_integer("size", -3, low=-3, high=-3)
    check_integer("size", 2**63 - 1, low=0)
    check_choice("size", "b", ("a", "b"))
    assert isinstance(finite_float("size", 3), float)


@pytest.mark.parametrize(("text", "has_one"), [("", False), ("aé🚀", False), ("a\ud800", True), ("\udfff", True)])
def test_lone_surrogates(text: str, has_one: bool) -> None:
    assert has_lone_surrogate(text) is has_one
