"""Which GGUF metadata is accepted, and how the rest is refused. What tokenizers give is compared elsewhere."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.tokenizer.from_gguf import tokenizer_from_gguf

METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "<tool>", "a", "b", "Ġ", "ab", "1", "</s>"],
    "tokenizer.ggml.token_type": np.array([2, 3, 4, 1, 1, 1, 1, 5, 3], np.int32),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 8,
    "tokenizer.ggml.add_bos_token": True,
}
LLAMA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "b", "ab"],
    "tokenizer.ggml.scores": np.array([0, 0, 0, -3, -4, -1, -5, -2], np.float32),
    "tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 1, 1, 1], np.int32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
BERT: dict[str, Any] = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": ["[UNK]", "[CLS]", "[SEP]", "▁a", "b"],
    "tokenizer.ggml.token_type": np.array([3, 3, 3, 1, 1], np.int32),
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.cls_token_id": 1,
    "tokenizer.ggml.seperator_token_id": 2,
}
KINDS = {"gpt2": METADATA, "llama": LLAMA, "bert": BERT}
HI = [{"role": "user", "content": "Hi"}]


def changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Keys without `tokenizer.` in front belong to `tokenizer.ggml.`; None takes one out."""
    entries = {
        key if key.startswith("tokenizer.") else f"tokenizer.ggml.{key}": value for key, value in changes.items()
    }
    return {key: value for key, value in (metadata | entries).items() if value is not None}


def test_reads_token_types_and_the_beginning_of_sequence() -> None:
    tokenizer = tokenizer_from_gguf(METADATA)
    assert tokenizer.encode("ab<tool>a 11<s>") == [1, 6, 2, 3, 5, 7, 7, 1]
    assert tokenizer.encode("<s>ab") == [1, 6]
    assert tokenizer.decode([0, 1, 6, 2]) == "ab<tool>"


def test_token_types_are_optional() -> None:
    assert tokenizer_from_gguf(changed(METADATA, {"token_type": None})).encode("ab") == [1, 6]


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        ({"add_bos_token": False}, "ab", [6]),
        ({"add_bos_token": None}, "ab", [6]),
        ({"add_bos_token": None, "pre": "llama-bpe"}, "ab", [1, 6]),
        ({"add_bos_token": None, "pre": "llama3"}, "ab", [1, 6]),
        ({"add_bos_token": None, "pre": "tekken"}, "ab", [1, 6]),
        ({"add_bos_token": False, "pre": "llama-bpe"}, "ab", [6]),
        ({"add_eos_token": True}, "ab", [1, 6, 8]),
        ({"add_eos_token": True}, "", [1, 8]),
        ({"add_eos_token": True}, "<s>ab</s>", [1, 6, 8]),
        ({"add_eos_token": True, "add_bos_token": False}, "ab", [6, 8]),
        # One token for both: a text that is this token alone has a beginning, and no end.
        ({"add_eos_token": True, "eos_token_id": 1}, "<s>", [1, 1]),
        ({"add_eos_token": True, "eos_token_id": 1}, "<s>a<s>", [1, 3, 1]),
        # It only ever stands between two texts.
        ({"add_sep_token": True}, "ab", [1, 6]),
    ],
)
def test_what_goes_around_a_text(changes: dict[str, Any], text: str, expected: list[int]) -> None:
    tokenizer = tokenizer_from_gguf(changed(METADATA, changes))
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode("ab", add_special_tokens=False) == [6]


def test_words_that_are_tokens_need_no_merges() -> None:
    """Of the pre-tokenizers, some take a word that is a token as it is."""
    for pre, expected in (("llama-bpe", [6]), ("tekken", [6]), ("qwen2", [3, 4])):
        tokenizer = tokenizer_from_gguf(changed(METADATA, {"pre": pre, "merges": [], "add_bos_token": False}))
        assert tokenizer.encode("ab") == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "t5"}, "model is 't5', and Pelton reads only gpt2, llama, bert"),
        ({"model": None}, "model is None"),
        ({"model": 5}, "model is 5"),
        ({"pre": "bloom"}, "pre is 'bloom', and Pelton reads only command-r, .*, smollm, starcoder, tekken"),
        ({"pre": None}, "pre is missing: an old converter .* convert the original model anew"),
        ({"pre": "default"}, "pre is 'default', which says nothing: an old converter .* anew"),
        ({"pre": 5}, "pre is 5"),
        ({"add_eos_token": 1}, "add_eos_token must be true or false"),
        ({"add_eos_token": True, "eos_token_id": None}, "eos_token_id is missing"),
        ({"add_bos_token": 1}, "add_bos_token must be true or false"),
        ({"bos_token_id": None}, "bos_token_id is missing"),
        ({"precompiled_charsmap": "x"}, "does not know the key tokenizer.ggml.precompiled_charsmap"),
        ({"suppress_tokens": np.array([1])}, "does not know the key tokenizer.ggml.suppress_tokens"),
        ({"normalizer.lowercase": True}, "does not know the key tokenizer.ggml.normalizer.lowercase"),
        ({"tokenizer.rwkv.world": "x"}, "does not know the key tokenizer.rwkv.world"),
        ({"bos_token_id": 9}, "bos_token_id must be a token id below 9"),
        ({"mask_token_id": -1}, "mask_token_id must be a token id below 9"),
        ({"eos_token_id": "a"}, "eos_token_id must be a token id below 9"),
        ({"padding_token_id": True}, "padding_token_id must be a token id below 9"),
        ({"tokens": None}, "tokens must be a list"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": ["a", "b", "a"]}, "tokens has 'a' twice, as 0 and as 2"),
        ({"tokens": ["a" * 5000, "b"]}, "a token of 5000 characters, and Pelton reads up to 1024"),
        ({"merges": ["a c"]}, "merges does not fit"),
        ({"merges": ["a a"]}, "merges does not fit"),
        ({"merges": ["ab"]}, "merges does not fit"),
        ({"merges": np.array([1])}, "merges must be a list"),
        ({"merges": None}, "merges must be a list"),
        ({"token_type": np.array([1, 1])}, "one number for each of the 9"),
        ({"token_type": ["a"] * 9}, "one number for each of the 9"),
        ({"token_type": np.array([1, 1, 1, 7, 1, 1, 1, 1, 1])}, "holds 7"),
        ({"token_type": np.array([1, 1, 1, 0, 1, 1, 1, 1, 1])}, "holds 0"),
    ],
)
def test_refuses(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tokenizer_from_gguf(changed(METADATA, changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pre": "llama-bpe"}, "pre is 'llama-bpe', and for tokenizer.ggml.model llama Pelton reads only 'default'"),
        ({"scores": None}, "scores must hold one number for each of the 8 tokens"),
        ({"scores": np.zeros(7)}, "scores must hold one number for each of the 8 tokens"),
        ({"scores": ["a"] * 8}, "scores must hold one number"),
        ({"scores": np.array([0, 0, np.nan, 0, 0, 0, 0, 0])}, "scores holds nan"),
        ({"scores": np.array([0, 0, np.inf, 0, 0, 0, 0, 0])}, "scores holds inf"),
        ({"add_space_prefix": 1}, "add_space_prefix must be true or false"),
        ({"remove_extra_whitespaces": "x"}, "remove_extra_whitespaces must be true or false"),
        ({"bos_token_id": None}, "bos_token_id is missing"),
        ({"precompiled_charsmap": np.array([1])}, "does not know the key tokenizer.ggml.precompiled_charsmap"),
    ],
)
def test_refuses_sentencepiece(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tokenizer_from_gguf(changed(LLAMA, changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pre": "smollm"}, "pre is 'smollm', and for tokenizer.ggml.model bert Pelton reads only default, bert-bge"),
        ({"unknown_token_id": None}, "unknown_token_id is missing"),
        ({"cls_token_id": None}, "cls_token_id is missing"),
        ({"seperator_token_id": None}, "seperator_token_id is missing"),
        ({"tokens": ["[UNK]", "[CLS]", "[SEP]", "▁##b", "b"]}, "words twice, once they are written with ##"),
        ({"normalizer.lowercase": 1}, "normalizer.lowercase must be true or false"),
    ],
)
def test_refuses_wordpiece(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tokenizer_from_gguf(changed(BERT, changes))


def test_refuses_vocabularies_with_far_too_many_merges() -> None:
    runs = [letter * length for letter in "abcdefgh" for length in range(1, 400)]
    tokens = ["<unk>", "<s>", "</s>", *runs]
    changes = {"tokens": tokens, "scores": -np.arange(len(tokens)), "token_type": np.ones(len(tokens), np.int32)}
    with pytest.raises(ValueError, match=r"tokens is not a usable vocabulary: it has more than \d+ merges"):
        tokenizer_from_gguf(changed(LLAMA, changes))


def test_refuses_a_file_without_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        tokenizer_from_gguf({"general.architecture": "llama"})


def test_what_converters_write_for_all_kinds_is_harmless() -> None:
    extra = {"eot_token_id": 1, "fim_pre_token_id": 1, "token_type_count": 2, "tokenizer.huggingface.json": "{"}
    for metadata in KINDS.values():
        tokenizer_from_gguf(changed(metadata, extra | {"add_space_prefix": False, "remove_extra_whitespaces": False}))
    spelled_right = changed(BERT, {"seperator_token_id": None, "separator_token_id": 2})
    assert tokenizer_from_gguf(spelled_right).encode("ab") == [1, 3, 4, 2]


def test_roles_for_chat_templates() -> None:
    tokenizer = tokenizer_from_gguf(changed(METADATA, {"unknown_token_id": 0, "tokenizer.chat_template": "x"}))
    ids = [tokenizer.special_token_id(f"{role}_token") for role in ("bos", "eos", "unk", "pad")]
    assert ids == [1, 8, 0, None]


def test_named_templates() -> None:
    templates = {
        "tokenizer.chat_template": "plain {{ bos_token }}",
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "tools {{ tools[0].name }}",
        "tokenizer.chat_template.rag": "documents",
    }
    tokenizer = tokenizer_from_gguf(changed(METADATA, templates))
    assert tokenizer.apply_chat_template(HI) == "plain <s>"
    assert tokenizer.apply_chat_template(HI, tools=[{"name": "f"}]) == "tools f"
    only_named = tokenizer_from_gguf(changed(METADATA, templates | {"tokenizer.chat_template": None}))
    with pytest.raises(ValueError, match="no chat template; it has only tool_use, rag; give one as chat_template"):
        only_named.apply_chat_template(HI)


@pytest.mark.parametrize(
    ("templates", "problem"),
    [
        ({"tokenizer.chat_template": 5}, "tokenizer.chat_template must be a string"),
        ({"tokenizer.chat_template.x": ["a"]}, "tokenizer.chat_template.x must be a string"),
        ({"tokenizer.chat_templates": "x"}, "tokenizer.chat_templates must be a list"),
        ({"tokenizer.chat_templates": ["x"]}, "names 'x', and there is no tokenizer.chat_template of that name"),
    ],
)
def test_refuses_templates(templates: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tokenizer_from_gguf(changed(METADATA, templates))


ODD_TOKENS = ["", " ", "▁", "▁▁", "a b", "\0", "##", "##a", "a" * 1024, "<0x41>", "\n", "Ġ", "[UNK]", "\u0301", "</s>"]
KEYS = sorted({key for metadata in KINDS.values() for key in metadata} - {"tokenizer.ggml.model"})
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 3, 2**31, 2**64, 0.5, float("nan")]),
    st.text(max_size=3),
    st.lists(st.sampled_from(["a", "a b", "b a", "", " "]), max_size=3),
    st.lists(st.integers(-1, 7), max_size=9).map(lambda values: np.array(values, np.int32)),
    st.lists(st.floats(width=32), max_size=9).map(lambda values: np.array(values, np.float32)),
)


@given(data=st.data())
@settings(max_examples=300)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_metadata(kind: str, data: st.DataObject) -> None:
    """It is refused, or works: ids are of the vocabulary, and the pieces of a text make up the text."""
    metadata = dict(KINDS[kind])
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = metadata["tokenizer.ggml.token_type"].copy()
    for position in data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=2)):
        tokens[position] = data.draw(st.sampled_from(ODD_TOKENS))
        types[position] = data.draw(st.integers(1, 6))
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    metadata |= data.draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2))
    text = data.draw(st.sampled_from(["", "ab", " a  b\n", "<s>a</s>", "[CLS]a[SEP]", "é日▁ <0x41>", "\0\u0301"]))
    try:
        tokenizer = tokenizer_from_gguf(metadata)
        token_ids = tokenizer.encode(text)
    except ValueError:
        return
    assert all(token_id < len(metadata["tokenizer.ggml.tokens"]) for token_id in token_ids)
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.add([token_id]) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(token_ids)
