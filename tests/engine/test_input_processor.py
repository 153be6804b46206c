"""Bad prompts and parameters meet one clear sentence each, and good ones arrive whole."""

import random

import msgspec
import numpy as np
import pytest

from pelton import SamplingParams
from pelton.config import EngineArgs
from pelton.engine.input_processor import InputProcessor
from pelton.loader import open_checkpoint
from pelton.tokenizer import load_tokenizer
from tests.support.vocabularies import vocabulary_tokenizer

VOCAB_SIZE = 49152
MAX_MODEL_LEN = 64


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(open_checkpoint("smollm2"))


@pytest.fixture
def processor(tokenizer):
    args = EngineArgs.create(scheduling_policy="priority")
    return InputProcessor(args, tokenizer, [2, 0], VOCAB_SIZE, MAX_MODEL_LEN)


@pytest.fixture
def process(processor):
    """With default parameters and an id."""

    def process(prompt, params=None, **options):
        return processor.process(prompt, params or SamplingParams(), **{"request_id": "a", **options})

    return process


BAD_PROMPTS = [
    ("", ["the prompt is empty", "at least one token"]),
    ([], ["the prompt is empty", "at least one token"]),
    ({"prompt": ""}, ["the prompt is empty"]),
    ({"prompt_token_ids": []}, ["the prompt is empty"]),
    (None, ["prompt must be a string, a list of token ids, or a dict", "NoneType"]),
    (5, ["prompt must be a string, a list of token ids, or a dict", "int"]),
    (b"bytes", ["prompt must be a string, a list of token ids, or a dict", "bytes"]),
    ((1, 2), ["prompt must be a string, a list of token ids, or a dict", "tuple"]),
    ([[]], ["prompt_token_ids must be integers", "[]"]),
    ([[1, 2]], ["prompt_token_ids must be integers", "[1, 2]"]),
    ([1, "2"], ["prompt_token_ids must be integers", "'2'"]),
    ([1, 2.0], ["prompt_token_ids must be integers", "2.0"]),
    ([1, None], ["prompt_token_ids must be integers", "None"]),
    ([1, True], ["prompt_token_ids must be integers", "True"]),
    ([np.int64(1)], ["prompt_token_ids must be integers"]),
    ([1, -1], ["token id -1", "outside the vocabulary", "49151"]),
    ([1, VOCAB_SIZE], ["token id 49152", "outside the vocabulary", "49151"]),
    ([2**63], [f"token id {2**63}", "outside the vocabulary"]),
    ([-(2**63)], [f"token id {-(2**63)}", "outside the vocabulary"]),
    ([10**400], ["token id", "outside the vocabulary"]),
    ([[[[[[]]]] * 100]], ["prompt_token_ids must be integers"]),
    (["x" * 10_000], ["prompt_token_ids must be integers"]),
    ([b"\n"], ["prompt_token_ids must be integers"]),
    ({}, ["needs prompt or prompt_token_ids"]),
    ({"cache_salt": "a"}, ["needs prompt or prompt_token_ids"]),
    ({"prompt": "a", "prompt_token_ids": []}, ["the prompt is empty"]),
    ({"prompt": "a", "prompt_token_ids": None}, ["prompt_token_ids must be a list", "NoneType"]),
    ({"prompt": None, "prompt_token_ids": [1]}, ["prompt must be a string", "NoneType"]),
    ({"prompt": [1], "prompt_token_ids": [1]}, ["prompt must be a string", "list"]),
    ({"prompt": "a\ud800" * 100, "prompt_token_ids": [1]}, ["prompt must be valid Unicode"]),
    ({"prompt": "a", "x" * 10_000: 1}, ["unknown key"]),
    ("\x04", ["no tokens for the prompt", r"'\x04'"]),
    ("\x04" * 10_000, ["no tokens for the prompt"]),
    ({"prompt": "a", "multi_modal_data": {}}, ["unknown key 'multi_modal_data'", "cache_salt"]),
    ({"prompt": "a", 5: 5}, ["unknown key 5"]),
    ({"prompt": None}, ["prompt must be a string", "NoneType"]),
    ({"prompt": [1]}, ["prompt must be a string", "list"]),
    ({"prompt_token_ids": "abc"}, ["prompt_token_ids must be a list", "str"]),
    ({"prompt_token_ids": (1, 2)}, ["prompt_token_ids must be a list", "tuple"]),
    ({"prompt_token_ids": None}, ["prompt_token_ids must be a list", "NoneType"]),
    ({"prompt": "a", "cache_salt": ""}, ["cache_salt must be a non-empty string", "''"]),
    ({"prompt": "a", "cache_salt": 7}, ["cache_salt must be a non-empty string", "7"]),
    ({"prompt": "a", "cache_salt": b"a"}, ["cache_salt must be a non-empty string", "b'a'"]),
    ({"prompt": "a", "cache_salt": ["a"]}, ["cache_salt must be a non-empty string"]),
    ({"prompt": "a", "cache_salt": "a\ud800"}, ["cache_salt", "Unicode"]),
    ("a\ud800b", ["lone surrogate", "U+D800", "position 1"]),
    ({"prompt": "\udfff"}, ["lone surrogate", "U+DFFF", "position 0"]),
    ([1] * MAX_MODEL_LEN, ["maximum context length is 64", "prompt has 64", "shorten the prompt"]),
    ([1] * (MAX_MODEL_LEN + 2), ["maximum context length is 64", "prompt has 66"]),
    ("Hello" * 2000, ["maximum context length is 64", "shorten the prompt"]),
]


@pytest.mark.parametrize(("prompt", "words"), BAD_PROMPTS, ids=lambda value: ascii(value)[:30])
def test_bad_prompts(process, prompt, words):
    with pytest.raises(ValueError, match=r".") as caught:
        process(prompt)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert len(message) < 250
    message.encode()


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, "greedy", SamplingParams])
def test_parameters_of_another_type(processor, params):
    with pytest.raises(ValueError, match="sampling_params must be SamplingParams, got"):
        processor.process("Hello", params, request_id="a")


@pytest.mark.parametrize("priority", [None, 1.0, "1", True, 2**63, -(2**63) - 1])
def test_bad_priorities(process, priority):
    with pytest.raises(ValueError, match="priority must be"):
        process("Hello", priority=priority)


@pytest.mark.parametrize("request_id", ["", 7, b"a", None])
def test_bad_request_ids(process, request_id):
    with pytest.raises(ValueError, match="request_id must be a non-empty string"):
        process("Hi", request_id=request_id)


@pytest.mark.parametrize("max_tokens", [16, 0])
def test_the_longest_prompt(process, max_tokens):
    """One token less than the context: room for one token of output, even if none is wanted."""
    params = SamplingParams(max_tokens=max_tokens)
    assert process([1] * (MAX_MODEL_LEN - 1), params).message.prompt_token_ids == [1] * (MAX_MODEL_LEN - 1)
    with pytest.raises(ValueError, match="maximum context length"):
        process([1] * MAX_MODEL_LEN, params)


def test_limits_are_inclusive(process):
    ids = [0, VOCAB_SIZE - 1]
    params = SamplingParams(stop_token_ids=ids, allowed_token_ids=ids, logit_bias=dict.fromkeys(ids, 1.0))
    assert process(ids, params).message.prompt_token_ids == ids


def test_a_text_prompt(process, tokenizer):
    processed = process("Hello 🚀", SamplingParams(seed=3, n=4), request_id="mine", priority=-2)
    message = processed.message
    assert processed.prompt == "Hello 🚀"
    assert message.request_id == "mine"
    assert message.prompt_token_ids == tokenizer.encode("Hello 🚀")
    assert message.eos_token_ids == [2, 0]
    assert message.priority == -2
    assert message.cache_salt is None
    assert message.choice == 0
    assert message.bad_words_token_ids == []
    assert message.sampling_params == SamplingParams(seed=3, n=4)


@pytest.mark.parametrize("prompt", [[5, 6], {"prompt_token_ids": [5, 6]}])
def test_a_token_prompt(process, prompt):
    processed = process(prompt)
    assert processed.prompt is None
    assert processed.message.prompt_token_ids == [5, 6]


@pytest.mark.parametrize("text", ["something else", ""])
def test_a_text_beside_the_ids_is_carried_along(process, text):
    processed = process({"prompt": text, "prompt_token_ids": [5, 6]})
    assert processed.prompt == text
    assert processed.message.prompt_token_ids == [5, 6]


@pytest.mark.parametrize("prompt", [{"prompt": "Hi", "cache_salt": "a"}, {"prompt_token_ids": [1], "cache_salt": "a"}])
def test_a_salt(process, prompt):
    assert process(prompt).message.cache_salt == "a"
    assert process(prompt | {"cache_salt": None}).message.cache_salt is None


def test_request_ids_are_counted(processor):
    assert [processor.next_request_id() for _ in range(3)] == ["request-0", "request-1", "request-2"]


def test_a_priority_that_nobody_would_look_at_is_refused(tokenizer):
    processor = InputProcessor(EngineArgs.create(), tokenizer, [2], VOCAB_SIZE, MAX_MODEL_LEN)
    assert processor.process("Hi", SamplingParams(), request_id="a", priority=0)
    with pytest.raises(ValueError, match="priority is 3, but only scheduling_policy='priority' looks at it"):
        processor.process("Hi", SamplingParams(), request_id="a", priority=3)


def test_drawn_seeds_differ_and_leave_global_generators_alone(process):
    params = SamplingParams()
    before = random.getstate(), np.random.get_state()
    seeds = [process("Hi", params).message.sampling_params.seed for _ in range(200)]
    after = random.getstate(), np.random.get_state()
    assert after[0] == before[0]
    assert str(after[1]) == str(before[1])
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) >= 2**60, "all 64 bits are drawn"
    assert params.seed is None, "the user's own parameters stay as they are"


def test_drawn_seeds_do_not_follow_the_global_generator(process):
    def draw():
        random.seed(1)
        np.random.seed(1)
        return process("Hi").message.sampling_params.seed

    state = random.getstate()
    try:
        assert draw() != draw()
    finally:
        random.setstate(state)


def test_a_given_seed_is_kept(process):
    assert process("Hi", SamplingParams(seed=0)).message.sampling_params.seed == 0


def test_requests_are_copies(process):
    """What callers do with their prompt and parameters later changes nothing."""
    prompt = [1, 2, 3]
    params = SamplingParams(
        seed=1,
        stop=["x"],
        stop_token_ids=[5],
        allowed_token_ids=[6],
        bad_words=["no"],
        logit_bias={7: 1.0},
    )
    message = process(prompt, params).message
    expected = msgspec.json.encode(message)
    prompt.append(4)
    params.temperature = 0.0
    for values in (params.stop, params.stop_token_ids, params.allowed_token_ids, params.bad_words):
        values.append(values[0])
    params.logit_bias[8] = 1.0
    assert msgspec.json.encode(message) == expected


def test_parameters_are_checked_again(process):
    """Their owner may have changed them since they were made."""
    params = SamplingParams()
    params.allowed_token_ids = 5
    with pytest.raises(ValueError, match="allowed_token_ids must be a list of token ids, got 5"):
        process("Hi", params)


LONG_TEXT = "one two three four five six seven eight nine ten eleven twelve"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"truncate_prompt_tokens": 3}, 3),
        ({"truncate_prompt_tokens": MAX_MODEL_LEN - 1}, MAX_MODEL_LEN - 1),
        ({"truncate_prompt_tokens": -1}, MAX_MODEL_LEN - 16),
        ({"truncate_prompt_tokens": -1, "max_tokens": 1}, MAX_MODEL_LEN - 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": MAX_MODEL_LEN - 1}, 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": MAX_MODEL_LEN}, MAX_MODEL_LEN - 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": 10**9}, MAX_MODEL_LEN - 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": None}, MAX_MODEL_LEN - 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": 0}, MAX_MODEL_LEN - 1),
    ],
)
def test_truncation_keeps_the_last_tokens(process, tokenizer, params, expected):
    ids = list(range(100, 100 + 2 * MAX_MODEL_LEN))
    assert process(ids, SamplingParams(**params)).message.prompt_token_ids == ids[-expected:]
    text = LONG_TEXT * 20
    processed = process(text, SamplingParams(**params))
    assert processed.message.prompt_token_ids == tokenizer.encode(text)[-expected:]
    assert processed.prompt == text


def test_a_short_prompt_is_not_truncated(process):
    for prompt in ([5, 6], {"prompt_token_ids": [5, 6], "prompt": LONG_TEXT}):
        for length in (2, 3, -1):
            params = SamplingParams(truncate_prompt_tokens=length)
            assert process(prompt, params).message.prompt_token_ids == [5, 6]


def test_a_text_beside_the_ids_does_not_matter_for_truncation(process):
    params = SamplingParams(truncate_prompt_tokens=2)
    assert process({"prompt_token_ids": [5, 6, 7], "prompt": "a"}, params).message.prompt_token_ids == [6, 7]


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, 10**12])
def test_truncation_to_more_than_the_context_is_refused(process, length):
    problem = f"truncate_prompt_tokens is {length}, but the context holds prompts of at most 63 tokens; .* or to -1"
    with pytest.raises(ValueError, match=problem):
        process("Hi", SamplingParams(truncate_prompt_tokens=length))


def test_ids_that_truncation_drops_are_checked(process):
    with pytest.raises(ValueError, match="token id 49152 in the prompt is outside the vocabulary"):
        process([VOCAB_SIZE, 1, 2], SamplingParams(truncate_prompt_tokens=2))


def test_truncated_texts_keep_what_the_model_wants_around_them():
    tokenizer = vocabulary_tokenizer("bert-bge")
    processor = InputProcessor(EngineArgs.create(), tokenizer, [2], tokenizer.vocab_size, MAX_MODEL_LEN)

    def truncated(prompt, length):
        params = SamplingParams(truncate_prompt_tokens=length)
        return processor.process(prompt, params, request_id="a").message.prompt_token_ids

    whole = tokenizer.encode(LONG_TEXT)
    assert truncated(LONG_TEXT, 5) == [101, *whole[-4:]]
    assert truncated(LONG_TEXT, 2) == [101, 102]
    assert truncated(LONG_TEXT, 63) == truncated(LONG_TEXT, -1) == whole
    assert truncated(whole, 2) == whole[-2:], "ids are taken as they are"
    with pytest.raises(ValueError, match=r"truncate_prompt_tokens is 1: 1 is too few, .* wants 2 tokens around"):
        truncated(LONG_TEXT, 1)


def test_bad_words_arrive_as_ids(process, tokenizer):
    message = process("Hi", SamplingParams(bad_words=["dog", " dog"])).message
    assert sorted(message.bad_words_token_ids) == sorted(tokenizer.encode(text) for text in ("dog", " dog"))
    assert message.sampling_params.bad_words == ["dog", " dog"]


def test_what_cannot_fit_is_refused_before_it_is_tokenized(process, tokenizer, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(tokenizer, "encode", lambda *_: pytest.fail("it is tokenized"))
        with pytest.raises(
            ValueError, match=r"maximum context length is 64 tokens, but the prompt has at least \d+ and"
        ):
            process("the cat " * 100_000)
    kept = process("the cat " * 1000, SamplingParams(truncate_prompt_tokens=3))
    assert len(kept.message.prompt_token_ids) == 3
    lost = "\x04"  # the vocabulary has no token for it
    assert process(lost * 100_000 + "a").message.prompt_token_ids == tokenizer.encode("a")
