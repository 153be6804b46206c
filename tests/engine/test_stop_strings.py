"""Stop strings in text that arrives in pieces of any size."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.engine.stop_strings import StopStrings


def stream(strings, pieces):
    """What is shown after each piece and at the end, and the stop string found."""
    stops = StopStrings(strings)
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


@given(text=TEXT, strings=STRINGS, places=st.lists(st.integers(0, 30), max_size=12))
def test_any_text_in_any_pieces(text, strings, places):
    """The output is the text before the first match, at the first piece that completes one."""
    stops = StopStrings(strings)
    shown, seen = "", ""
    for piece in cut(text, places):
        new = stops.add(piece)
        seen += piece
        shown += new
        found = [(seen.index(string), strings.index(string)) for string in strings if string in seen]
        if found:
            at, which = min(found)
            assert stops.matched == strings[which]
            assert shown == text[:at]
            return
        assert stops.matched is None
        held = seen[len(shown) :]
        assert shown + held == seen
        # Held back is a beginning of a stop string, and the longest there is: nothing more, nothing less.
        ends = [seen[i:] for i in range(len(seen)) if any(string.startswith(seen[i:]) for string in strings)]
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
