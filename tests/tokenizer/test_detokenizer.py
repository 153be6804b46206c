from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.detokenizer import ByteLevelDetokenizer, WindowDetokenizer
from tests.support.vocabularies import vocabulary_tokenizer
from tests.tokenizer.backends import BACKENDS


@given(data=st.data())
@settings(max_examples=300)
def test_pieces_make_up_the_whole(any_tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Whatever the ids (bytes that split characters, special tokens, ids outside) and however they arrive."""
    chunks = data.draw(st.lists(st.lists(st.integers(0, any_tokenizer.vocab_size), max_size=4)))
    skip_special_tokens, spaces = data.draw(st.booleans()), data.draw(st.booleans())
    token_ids = [token_id for chunk in chunks for token_id in chunk]
    detokenizer = any_tokenizer.detokenizer(skip_special_tokens, spaces)
    pieces = [detokenizer.add(chunk) for chunk in chunks] + [detokenizer.finish()]
    whole = any_tokenizer.decode(token_ids, skip_special_tokens, spaces)
    expected = any_tokenizer._backend.decode(token_ids, skip_special_tokens)
    if not skip_special_tokens and not spaces:
        expected = without_spaces(any_tokenizer._backend, token_ids)
    assert "".join(pieces) == whole == expected


def without_spaces(backend: tokenizers.Tokenizer, token_ids: list[int]) -> str:
    """The text of the tokens, less the space that an added token brings behind another."""
    if not isinstance(backend.decoder, decoders.WordPiece | None):
        return backend.decode(token_ids, skip_special_tokens=False)
    added = backend.get_added_tokens_decoder()
    known = [token_id for token_id in token_ids if backend.id_to_token(token_id) is not None]
    texts = [backend.decode(known[:end], skip_special_tokens=False) for end in range(len(known) + 1)]
    grown = [after[len(before) :] for before, after in pairwise(texts)]
    for index, pair in enumerate(pairwise(known), start=1):
        if set(pair) <= set(added):
            grown[index] = grown[index].removeprefix(" ")
    return "".join(grown)


@pytest.mark.parametrize("name", ["word piece", "no decoder"])
def test_spaces_between_added_tokens(name: str) -> None:
    tokenizer = Tokenizer(BACKENDS[name](), special_tokens={}, chat_template=None)
    ids = [tokenizer._backend.token_to_id(token) for token in ("<s>", "<unk>", "the", "</s>", "<s>", "the", "the")]
    ids.insert(1, 10**6)

    def decoded(*flags: bool) -> str:
        detokenizer = tokenizer.detokenizer(*flags)
        text = "".join(detokenizer.add([token_id]) for token_id in ids) + detokenizer.finish()
        assert text == tokenizer.decode(ids, *flags)
        return text

    assert decoded(False) == decoded(False, True) == "<s> <unk> the </s> <s> the the"
    assert decoded(False, False) == "<s><unk> the </s><s> the the"
    assert decoded() == decoded(True, True) == decoded(True, False) == "the the the"


@given(text=st.text(alphabet="aé 日🙂\ufffd\n", min_size=1))
def test_text_arrives_without_replacement_characters(any_tokenizer: Tokenizer, text: str) -> None:
    token_ids = any_tokenizer.encode(text)
    whole = any_tokenizer.decode(token_ids)
    detokenizer = any_tokenizer.detokenizer()
    arrived = ""
    for token_id in token_ids:
        arrived += detokenizer.add([token_id])
        assert whole.startswith(arrived)
    assert arrived + detokenizer.finish() == whole


@given(st.lists(st.integers(0, 49151)))
def test_smollm2(smollm2: Tokenizer, token_ids: list[int]) -> None:
    detokenizer = smollm2.detokenizer()
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    pieces = [detokenizer.add([token_id]) for token_id in token_ids]
    whole = smollm2.decode(token_ids)
    assert "".join(pieces) + detokenizer.finish() == whole == smollm2._backend.decode(token_ids)


@pytest.mark.parametrize("name", ["llama-spm", pytest.param("gemma", marks=pytest.mark.slow)])
@given(data=st.data())
def test_real_vocabularies_with_byte_tokens(name: str, data: st.DataObject) -> None:
    """With many of the byte tokens, which are 3 to 258 for Llama and 238 to 493 for Gemma."""
    tokenizer = vocabulary_tokenizer(name)
    ids = st.integers(0, 500) | st.integers(0, tokenizer.vocab_size)
    token_ids = data.draw(st.lists(ids, max_size=20))
    detokenizer = tokenizer.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    pieces = [detokenizer.add([token_id]) for token_id in token_ids] + [detokenizer.finish()]
    assert "".join(pieces) == tokenizer.decode(token_ids)


def test_every_token_of_smollm2_has_its_bytes(smollm2: Tokenizer) -> None:
    for token_id in range(smollm2.vocab_size):
        detokenizer = smollm2.detokenizer(skip_special_tokens=False)
        text = smollm2._backend.decode([token_id], skip_special_tokens=False)
        assert detokenizer.add([token_id]) + detokenizer.finish() == text
        assert smollm2.token_text(token_id) == text


def test_a_character_arrives_with_its_last_byte(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("𓂀!")
    detokenizer = smollm2.detokenizer()
    pieces = [detokenizer.add([token_id]) for token_id in token_ids]
    assert pieces == [""] * (len(token_ids) - 2) + ["𓂀", "!"]
    assert detokenizer.finish() == ""
    detokenizer.add(token_ids[:1])
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_text_arrives_at_once_in_the_window_too(any_tokenizer: Tokenizer) -> None:
    detokenizer = any_tokenizer.detokenizer()
    assert isinstance(detokenizer, ByteLevelDetokenizer | WindowDetokenizer)
    token_ids = any_tokenizer.encode("hello world hello dog")
    pieces = [detokenizer.add([token_id]) for token_id in token_ids]
    assert sum(map(bool, pieces)) >= len(pieces) - 1
    assert detokenizer.finish() == ""


def test_long_runs_of_held_back_tokens(any_tokenizer: Tokenizer) -> None:
    detokenizer = any_tokenizer.detokenizer()
    held = [*any_tokenizer.encode("日")[:1], 1]
    text = "".join(detokenizer.add(held) for _ in range(5000))
    assert text + detokenizer.finish() == any_tokenizer.decode(held * 5000)
