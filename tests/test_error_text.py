import numpy as np
import pytest

from pelton.error_text import check_name, described, message_of, shown
from tests.support.nested import nested


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"'a\nb'"),
        ("\ud800\u202e", r"'\ud800\u202e'"),
        (True, "True"),
        (0.5, "0.5"),
        (None, "None"),
        ([1, "x"], "[1, 'x']"),
        (np.zeros(2, np.float32), "array([0., 0.], dtype=float32)"),
    ],
)
def test_shows_short_values_whole(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    "value",
    [
        "a" * 10**6,
        ["a" * 1000] * 1000,
        {"a" * 1000: {"b" * 1000: ["c" * 1000] * 6}},
        nested(50_000),
        10**4000,
        10**5000,
        [10**5000],
        np.arange(900),
        np.zeros((30, 30)),
        np.array(["a" * 1000]),
        b"\n" * 1000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_shows_large_values_short_and_on_one_line(value: object) -> None:
    text = shown(value)
    assert len(text) < 130
    assert text.isprintable()


@pytest.mark.parametrize("name", ["", "blk.0.attn_q.weight", "tokenizer.ggml.tokens", "é", "a" * 256])
def test_takes_names_that_can_be_shown(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["a" * 257, "a\nb", "\x1b[31m", "\ud800", "\u202e"])
def test_refuses_names_that_cannot(name: str) -> None:
    with pytest.raises(ValueError, match="is longer than 256 characters, or not printable") as refusal:
        check_name(name)
    assert str(refusal.value).isprintable()


class UnprintableError(Exception):
    """Fails whoever wants to see it."""

    def __str__(self) -> str:
        raise RuntimeError("no message")

    def __repr__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "value", [UnprintableError(), [UnprintableError()], {"a": UnprintableError()}, type("list", (), {})()]
)
def test_shows_what_cannot_be_shown(value: object) -> None:
    text = shown(value)
    assert type(value).__name__ in text or "UnprintableError" in text
    assert len(text) < 130


@pytest.mark.parametrize(
    ("error", "message", "text"),
    [
        (KeyError("a"), "'a'", "KeyError: 'a'"),
        (ValueError("one\ntwo\t\ud800"), "one two", "ValueError: one two"),
        (ValueError(), "", "ValueError"),
        (UnprintableError("x"), "", "UnprintableError"),
        (OSError("x" * 10**6), "x" * 300 + "...", "OSError: " + "x" * 300 + "..."),
        (type("T" * 10**4, (Exception,), {})("x"), "x", "T" * 300 + "...: x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions_of_others(error: Exception, message: str, text: str) -> None:
    assert (message_of(error), described(error)) == (message, text)
