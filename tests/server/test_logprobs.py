"""Log probabilities: finite, complete, with the bytes and offsets that belong to them."""

import json
import math

import pytest

from pelton.core.messages import TokenLogprobs
from pelton.core.outputs import Logprob
from pelton.engine.logprob_entries import logprob_entries
from pelton.server.logprobs import (
    LOWEST,
    TextOffsets,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    prompt_offsets,
    with_top,
)
from pelton.tokenizer import Tokenizer
from tests.server.handlers import chat, complete, run
from tests.support.fake_async_llm import FakeAsyncLLM, Script, smollm2_tokenizer
from tests.tokenizer.backends import BACKENDS

TEXT = "Hi é 👩‍🚀 x"


def entries(tokenizer, token_ids, logprob=-1.0, rank=1):
    return [{i: Logprob(logprob, rank, tokenizer.token_text(i))} for i in token_ids]


def test_bytes_of_all_tokens_make_up_the_text() -> None:
    tokenizer = smollm2_tokenizer()
    token_ids = tokenizer.encode(TEXT)
    assert any("\N{REPLACEMENT CHARACTER}" in tokenizer.token_text(i) for i in token_ids)
    content = chat_logprobs(tokenizer, token_ids, entries(tokenizer, token_ids), with_top=True, as_ids=False).content
    assert b"".join(bytes(token.bytes) for token in content) == TEXT.encode()
    assert all(token.top_logprobs[0].bytes == token.bytes for token in content)


@pytest.mark.parametrize("name", BACKENDS)
def test_bytes_in_every_kind_of_vocabulary(name) -> None:
    tokenizer = Tokenizer(BACKENDS[name](), special_tokens={}, chat_template=None)
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.token_text(token_id)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert tokenizer.token_bytes(token_id) == text.encode()
        else:
            assert len(tokenizer.token_bytes(token_id)) >= 1


def test_bytes_of_byte_tokens() -> None:
    tokenizer = Tokenizer(BACKENDS["metaspace and byte fallback"](), special_tokens={}, chat_template=None)
    token_ids = tokenizer.encode("\N{OLD ITALIC LETTER A}")
    assert b"".join(map(tokenizer.token_bytes, token_ids)).endswith("\N{OLD ITALIC LETTER A}".encode())


@pytest.mark.parametrize("logprob", [-math.inf, -1e30, LOWEST])
def test_what_is_impossible_has_a_number(logprob) -> None:
    async def check() -> None:
        script = Script("a", logprob=logprob)
        whole = await complete(FakeAsyncLLM(answer=script), prompt="a b", logprobs=1, echo=True, prompt_logprobs=1)
        text = json.dumps(whole, allow_nan=False)
        assert str(LOWEST) in text
        for stream in (False, True):
            llm = FakeAsyncLLM(answer=script)
            answer = await chat(llm, logprobs=True, top_logprobs=1, stream=stream)
            choice = answer[1]["choices"][0] if stream else answer["choices"][0]
            assert choice["logprobs"]["content"][0]["logprob"] == LOWEST

    run(check())


def test_the_best_of_equal_texts_counts() -> None:
    tokenizer = smollm2_tokenizer()
    position = {
        5: Logprob(-3.0, 3, "x"),
        6: Logprob(-1.0, 1, "y"),
        7: Logprob(-2.0, 2, "y"),
    }
    logprobs = completion_logprobs(tokenizer, [5], [position], [0], as_ids=False)
    assert logprobs.top_logprobs == [{"y": -1.0, "x": -3.0}]
    assert list(logprobs.top_logprobs[0]) == ["y", "x"]
    assert logprobs.tokens == ["x"]
    assert logprobs.token_logprobs == [-3.0]


def test_ids_instead_of_texts() -> None:
    tokenizer = smollm2_tokenizer()
    logprobs = completion_logprobs(tokenizer, [5, 6], [None, *entries(tokenizer, [6])], [0, 1], as_ids=True)
    assert logprobs.tokens == ["token_id:5", "token_id:6"]
    assert logprobs.top_logprobs == [None, {"token_id:6": -1.0}]
    (token,) = chat_logprobs(tokenizer, [6], entries(tokenizer, [6]), with_top=True, as_ids=True).content
    assert token.token == token.top_logprobs[0].token == "token_id:6"
    assert bytes(token.bytes) == tokenizer.token_bytes(6)


def test_prompts() -> None:
    tokenizer = smollm2_tokenizer()
    first, second = prompt_logprobs([None, *entries(tokenizer, [6], -math.inf, 9)])
    assert first is None
    assert (second[6].logprob, second[6].rank, second[6].decoded_token) == (LOWEST, 9, tokenizer.token_text(6))


def offsets(tokenizer, start=0):
    return TextOffsets(tokenizer, start, skip_special=True, spaces_between_special=True)


def test_offsets_are_where_tokens_begin() -> None:
    tokenizer = smollm2_tokenizer()
    token_ids = tokenizer.encode(TEXT)
    found = offsets(tokenizer).add(token_ids)
    assert found == sorted(found)
    walk = offsets(tokenizer, start=10)
    assert [10 + offset for offset in found] == [offset for i in token_ids for offset in walk.add([i])]
    assert walk.finish() == 10 + len(TEXT)
    for token_id, offset in zip(token_ids, found, strict=True):
        text = tokenizer.token_text(token_id)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert TEXT.startswith(text, offset)


@pytest.mark.parametrize(
    ("token_ids", "text", "expected"),
    [
        ([1, 19556, 2], "<|im_start|>Hello<|im_end|>", [0, 12, 17]),
        ([1, 19556, 2], "Hello", [0, 0, 5]),
        ([19556, 665], "Hello there", [0, 5]),
        ([], "", []),
    ],
)
def test_offsets_of_prompts(token_ids, text, expected) -> None:
    assert prompt_offsets(smollm2_tokenizer(), token_ids, text, spaces=True) == expected


def test_offsets_of_an_answer_count_from_the_prompt_if_it_is_echoed() -> None:
    async def check() -> None:
        llm = FakeAsyncLLM()
        for prompt, echo, expected in (
            ("one two", True, [0, 3, 7, 12, 18, 19]),
            ("one two", False, [0, 5, 11, 12]),
            ("<|im_start|>a", True, [0, 12, 13, 18, 24, 25]),
        ):
            answer = await complete(llm, prompt=prompt, echo=echo, logprobs=0)
            choice = answer["choices"][0]
            assert choice["logprobs"]["text_offset"] == expected
            for token, offset in zip(choice["logprobs"]["tokens"][:-1], expected, strict=False):
                assert choice["text"].startswith(token, offset)

    run(check())


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_fewer_of_the_most_likely_tokens(rank) -> None:
    """As if no more had been computed."""

    def computed(number):
        top = [(7 if place == rank else 100 + place) for place in range(1, number + 1)]
        return logprob_entries([TokenLogprobs([7, *top], [0.0] * (number + 1), rank)], None)

    for number in (0, 1, 2, 4):
        assert with_top([None, *computed(6)], number) == [None, *computed(number)]
    assert with_top(computed(6), -1) == computed(6)
