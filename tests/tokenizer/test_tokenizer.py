"""SmolLM2's tokenizer, and what holds for all."""

import threading

import pytest
import tokenizers
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from pelton.loader import open_checkpoint
from pelton.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "In 2024 there were 12345678 of them, 3.14 and ½ and ٣٤.",
    "  leading\n\n\n   and\ttrailing  \n",
    "I'll can't won't THEY'RE",
    "naïve café e\N{COMBINING ACUTE ACCENT}",
    "👩‍👩‍👧 🙂🙂 🏳️‍🌈",
    "日本語のテキスト、한국어, العربية, हिन्दी, Ελληνικά",
    "def f(x):\n    return x ** 2  # ok",
    "\x00\x01 \ufffd \u2028 \U0010ffff",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a<|im_end|>b <|endoftext|> <|im_start",
]


@pytest.fixture(scope="module")
def independent() -> tokenizers.Tokenizer:
    """SmolLM2's tokenizer once more: read by another library, cut by one regular expression."""
    path = open_checkpoint("smollm2").path
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    words = Regex(r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(tokens[:17])
    return backend


@pytest.mark.parametrize("text", TEXTS)
def test_agrees_with_an_independent_pipeline(text: str, smollm2: Tokenizer, independent: tokenizers.Tokenizer) -> None:
    token_ids = smollm2.encode(text)
    assert token_ids == independent.encode(text).ids
    assert smollm2.decode(token_ids, skip_special_tokens=False) == text
    assert smollm2.decode(token_ids) == independent.decode(token_ids)


ABSENT = "\x04\x06\x13\x14\x16\x1d"
"""Characters whose bytes SmolLM2's vocabulary lacks, besides those of the unassigned planes from U+40000."""


@given(st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters=ABSENT)))
def test_every_text_survives(smollm2: Tokenizer, independent: tokenizers.Tokenizer, text: str) -> None:
    token_ids = smollm2.encode(text)
    assert token_ids == independent.encode(text).ids
    assert smollm2.decode(token_ids, skip_special_tokens=False) == text


def test_agrees_with_transformers_where_there_are_no_digits(smollm2: Tokenizer) -> None:
    path = open_checkpoint("smollm2").path
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        if not any(char.isnumeric() for char in text):
            assert smollm2.encode(text) == reference.encode(text, add_special_tokens=False)


def test_bytes_that_the_vocabulary_lacks_are_lost_as_in_the_reference(
    smollm2: Tokenizer, independent: tokenizers.Tokenizer
) -> None:
    assert smollm2.encode("a\x04b") == independent.encode("a\x04b").ids
    assert smollm2.decode(smollm2.encode("a\x04b")) == "ab"


def test_digits_stand_alone(smollm2: Tokenizer) -> None:
    assert [smollm2.token_text(token_id) for token_id in smollm2.encode("x 2024")] == ["x", " ", *"2024"]


def test_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.encode("<|im_start|>a<|im_end|>") == [1, *smollm2.encode("a"), 2]
    assert [token_id for token_id in range(49152) if not smollm2.decode([token_id])] == list(range(17))
    assert smollm2.special_token_id("eos_token") == 2
    assert smollm2.special_token_id("mask_token") is None
    assert smollm2.decode([1, 2]) == ""
    assert smollm2.token_text(2) == "<|im_end|>"


def test_a_part_of_a_character_shows_as_replacement(smollm2: Tokenizer) -> None:
    parts = smollm2.encode("𓂀")
    assert len(parts) > 1
    assert all("\ufffd" in smollm2.token_text(token_id) for token_id in parts)


def test_lone_surrogates_are_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate \(U\+D83D\) at position 2"):
        smollm2.encode("a \ud83d b")


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({"a": 0}, [], unk_token="<unk>"),
        models.WordLevel({"a": 0}, unk_token="<unk>"),
        models.WordPiece({"a": 0}, unk_token="<unk>"),
        models.Unigram([("a", 0.0)]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_text_without_tokens_is_refused(model: models.Model) -> None:
    backend = tokenizers.Tokenizer(model)
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(ValueError, match=r"cannot encode this text: .*([Uu]nk|UNK)"):
        tokenizer.encode("b")


def test_ids_outside_the_vocabulary(smollm2: Tokenizer) -> None:
    assert smollm2.decode([49152, 10**6]) == ""
    with pytest.raises(ValueError, match="token ids must be in"):
        smollm2.decode([-1])


@pytest.mark.parametrize(
    ("prefix", "suffix", "length", "expected"),
    [
        ([], [], 2, [8, 9]),
        ([1], [], 3, [1, 8, 9]),
        ([1, 2], [], 3, [1, 2, 9]),
        ([], [3], 3, [8, 9, 3]),
        ([1, 2], [3], 4, [1, 2, 9, 3]),
        ([1, 2], [3], 3, [1, 2, 3]),
        ([1, 2], [3], 5, [1, 2, 8, 9, 3]),
        ([1, 2], [3], 6, [1, 2, 7, 8, 9, 3]),
        ([1, 2], [3], 100, [1, 2, 7, 8, 9, 3]),
        ([], [], 0, []),
    ],
)
def test_truncation(prefix: list[int], suffix: list[int], length: int, expected: list[int]) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 7}, unk_token="a"))
    tokenizer = Tokenizer(backend, prefix=prefix, suffix=suffix, special_tokens={}, chat_template=None)
    whole = [*prefix, 7, 8, 9, *suffix]
    assert tokenizer.truncate(whole, length) == expected
    assert whole == [*prefix, 7, 8, 9, *suffix]


@pytest.mark.parametrize("length", [0, 1, 2])
def test_truncation_keeps_what_is_around_a_text(length: int) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 7}, unk_token="a"))
    tokenizer = Tokenizer(backend, prefix=[1, 2], suffix=[3], special_tokens={}, chat_template=None)
    with pytest.raises(ValueError, match=f"{length} is too few, for the model wants 3 tokens around every text"):
        tokenizer.truncate([1, 2, 7, 3], length)


def test_others_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    """An event loop in another thread has to."""
    is_over = threading.Event()
    num_turns = 0

    def take_turns() -> None:
        nonlocal num_turns
        while not is_over.wait(0.001):
            num_turns += 1

    thread = threading.Thread(target=take_turns)
    thread.start()
    before = num_turns
    smollm2.encode("the cat " * 100_000)
    during = num_turns - before
    is_over.set()
    thread.join()
    assert during > 5, "encoding takes hundreds of times as long as a turn"
