"""Cutting tokens into tokens, against looking up every part."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.tokenizer.gguf import cuts
from pelton.tokenizer.gguf.cuts import cut_tokens

VOCABULARIES = st.lists(st.text("aé\u2581\N{GRINNING FACE}", max_size=6), unique=True, max_size=60)


def pairs_of(tokens):
    return list(chain.from_iterable(cut_tokens(tokens)))


def looked_up(tokens):
    known = set(tokens)
    cut = ((token[:length], token[length:]) for token in tokens for length in range(1, len(token)))
    return [pair for pair in cut if known.issuperset(pair)]


@given(VOCABULARIES)
def test_all_pairs_in_order(tokens):
    assert pairs_of(tokens) == looked_up(tokens)


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_are_of_no_account(monkeypatch, chunk):
    tokens = [f"{number:b}" for number in range(300)]
    expected = looked_up(tokens)
    monkeypatch.setattr(cuts, "_CHUNK", chunk)
    assert pairs_of(tokens) == expected
    assert len(expected) > 500


def test_equal_hashes_end():
    """Two tokens that no table can tell apart: the sequence of Thue and Morse, and its opposite, have one hash."""
    text = "a"
    while len(text) < 2**12:
        text += text.translate({97: "b", 98: "a"})
    tokens = [text, text.translate({97: "b", 98: "a"}), "a", "b", "ab"]
    assert ("a", "b") in pairs_of(tokens)
