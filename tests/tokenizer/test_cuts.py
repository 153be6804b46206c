"""Cutting tokens into tokens, against looking up every part."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.tokenizer.gguf import cuts
from pelton.tokenizer.gguf.cuts import cut_tokens
from pelton.tokenizer.gguf.sentencepiece import merges_by_score

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


def twins():
    """Two texts of one hash: the sequence of Thue and Morse, and its opposite."""
    text = "a"
    while len(text) < 2**10:
        text += opposite(text)
    return text, opposite(text)


def opposite(text):
    return text.translate({97: "b", 98: "a"})


def test_tokens_of_one_hash_are_refused():
    message = r"^'a.*' and 'b.*' are two tokens that cannot be told apart$"
    with pytest.raises(ValueError, match=message):
        pairs_of([*twins(), "a", "b", "ab"])
    with pytest.raises(ValueError, match=r"^tokenizer\.ggml\.tokens is not a usable vocabulary: .* told apart$"):
        merges_by_score(["a", "b", *twins()])


def test_a_part_with_the_hash_of_a_token_is_none():
    one, other = twins()
    tokens = [one, "x", "y", other + "x", "xy"]
    assert pairs_of(tokens) == looked_up(tokens) == [("x", "y")]
    assert pairs_of([one, "x", one + "x"]) == [(one, "x")]
