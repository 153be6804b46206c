"""Stop strings in text that arrives in pieces of any size."""

import timeit
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.engine.stop_strings import StopStrings


def stream(strings, pieces, **options):
    """What is shown after each piece and at the end, and the stop string found."""
    stops = StopStrings(strings, **options)
    shown = []
    for piece in pieces:
        shown.append(stops.add(piece))
        if stops.matched is not None:
            return shown, stops.matched
    shown.append(stops.flush())
    return shown, None


CASES = [
    # stop strings, pieces, what is shown after each, what matched
    (["STOP"], ["hello"], ["hello", ""], None),
    (["STOP"], ["aSTOPb"], ["a"], "STOP"),
    (["STOP"], ["aST", "OPb"], ["a", ""], "STOP"),
    (["STOP"], ["S", "T", "O", "P"], ["", "", "", ""], "STOP"),
    (["STOP"], ["aST", "Ob"], ["a", "STOb", ""], None),
    (["STOP"], ["aSTO"], ["a", "STO"], None),
    (["STOP"], ["SSTOP"], ["S"], "STOP"),
    (["STOP"], ["STSTOP"], ["ST"], "STOP"),
    (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], "aab"),
    (["x", "ay"], ["a", "x"], ["", "a"], "x"),
    (["late", "a"], ["b a late"], ["b "], "a"),
    (["abc", "ab"], ["xabc"], ["x"], "abc"),
    (["ab", "abc"], ["xabc"], ["x"], "ab"),
    (["abc", "ab"], ["xab", "c"], ["x"], "ab"),
    (["abcd", "bc"], ["ab", "c", "d"], ["", "a"], "bc"),
    (["\n\n"], ["a\n", "b\n\nc"], ["a", "\nb"], "\n\n"),
    (["🚀"], ["to 🚀 go"], ["to "], "🚀"),
    (["a"], [""], ["", ""], None),
    (["a"], ["", "a"], ["", ""], "a"),
]


@pytest.mark.parametrize(("strings", "pieces", "shown", "matched"), CASES)
def test_cases(strings, pieces, shown, matched):
    assert stream(strings, pieces) == (shown, matched)


@pytest.mark.parametrize(("strings", "pieces", "shown", "matched"), CASES)
def test_included(strings, pieces, shown, matched):
    """All that was shown, and then the stop string."""
    with_stop, same = stream(strings, pieces, include=True)
    assert same == matched
    assert "".join(with_stop) == "".join(shown) + (matched or "")
    assert with_stop[:-1] == shown[:-1]


EXEMPT_CASES = [
    # stop strings, pieces, exempt characters, what is shown, what matched
    (["ab"], ["ab", "ab"], 2, "ab", "ab"),
    (["ab"], ["abab"], 2, "ab", "ab"),
    (["ab"], ["a", "b", "a", "b"], 2, "ab", "ab"),
    (["ab"], ["a", "b"], 1, "", "ab"),
    (["ab"], ["ab"], 2, "ab", None),
    (["ab"], ["ab"], 9, "ab", None),
    (["ab", "abc"], ["ab", "x"], 2, "abx", None),
    (["ab", "abc"], ["ab", "c"], 2, "", "abc"),
    (["ab", "abcd"], ["ab", "c", "ab"], 2, "abc", "ab"),
    (["b", "abc"], ["ab", "d"], 2, "abd", None),
    (["aa"], ["aaa"], 2, "a", "aa"),
    (["aa"], ["aa", "a"], 2, "a", "aa"),
]


@pytest.mark.parametrize(("strings", "pieces", "num_exempt", "shown", "matched"), EXEMPT_CASES)
def test_exempt_characters(strings, pieces, num_exempt, shown, matched):
    stops = StopStrings(strings)
    stops.exempt(num_exempt)
    text = ""
    for piece in pieces:
        text += stops.add(piece)
        if stops.matched:
            break
    else:
        text += stops.flush()
    assert (text, stops.matched) == (shown, matched)


def test_flush_empties():
    stops = StopStrings(["ab"])
    assert stops.add("a") == ""
    assert stops.flush() == "a"
    assert stops.flush() == ""


TEXT = st.text(alphabet="abc", max_size=30)
STRINGS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def cut(text, places):
    """The text in pieces, cut at these places."""
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(
    text=TEXT,
    strings=STRINGS,
    places=st.lists(st.integers(0, 30), max_size=12),
    num_exempt=st.just(0) | st.integers(0, 10),
    include=st.booleans(),
)
def test_any_text_in_any_pieces(text, strings, places, num_exempt, include):
    """The output is the text before the first match, at the first piece that completes one."""
    stops = StopStrings(strings, include=include)
    shown, seen = "", ""
    for piece in cut(text, places):
        stops.exempt(len(piece[: max(0, num_exempt - len(seen))]))
        new = stops.add(piece)
        seen += piece
        shown += new
        found = [
            (at, which)
            for which, string in enumerate(strings)
            if (at := seen.find(string, max(0, num_exempt + 1 - len(string)))) >= 0
        ]
        if found:
            at, which = min(found)
            assert stops.matched == strings[which]
            assert shown == text[: at + len(strings[which]) * include]
            return
        assert stops.matched is None
        held = seen[len(shown) :]
        assert shown + held == seen
        # Held back is a beginning of a stop string, and the longest there is: nothing more, nothing less.
        tails = (seen[i:] for i in range(len(seen)))
        ends = [tail for tail in tails if any(string.startswith(tail) and string != tail for string in strings)]
        assert held == (ends[0] if ends else "")
    assert shown + stops.flush() == text


@given(text=TEXT, string=st.text(alphabet="abc", min_size=1, max_size=5), places=st.lists(st.integers(0, 30)))
def test_one_string_does_not_depend_on_the_pieces(text, string, places):
    shown, matched = stream([string], cut(text, places))
    before, found, _ = text.partition(string)
    assert "".join(shown) == before
    assert matched == (found or None)


def test_a_very_long_stop_string():
    stops = StopStrings(["x" * 1_000_000])
    assert "".join(stops.add("abc") for _ in range(100)) == "abc" * 100
    assert stops.add("xx") == ""
    assert stops.add("y") == "xxy"


def test_many_long_stop_strings_are_compared_quickly():
    """The most that a request may bring, and a text made to fit all of them: what a piece costs does not grow with
    strings times length."""
    one = StopStrings(["a" * 511 + "c"])
    many = StopStrings(["a" * 511 + "c"] + ["a" * 8 * k + "b" + "a" * (511 - 8 * k) for k in range(1, 64)])
    for stops in (one, many):
        assert "".join(stops.add("a") for _ in range(600)) == "a" * 89
    durations = []
    for stops in (one, many):
        best = min(timeit.repeat(lambda stops=stops: stops.add("a"), number=20, repeat=10))
        durations.append(best)
    assert durations[1] < 64 * 3 * durations[0]
