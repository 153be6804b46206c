"""Bad prompts and parameters meet one clear sentence each, and good ones arrive whole."""

import random

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.config import EngineArgs
from pelton.engine.input_processor import InputProcessor
from pelton.loader import open_checkpoint
from pelton.tokenizer import load_tokenizer

VOCAB_SIZE = 49152
MAX_MODEL_LEN = 64


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(open_checkpoint("smollm2"))


@pytest.fixture
def processor(tokenizer):
    args = EngineArgs.create(max_logprobs=5, scheduling_policy="priority")
    return InputProcessor(args, tokenizer, [2, 0], VOCAB_SIZE, MAX_MODEL_LEN)


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
    ({}, ["exactly one of prompt and prompt_token_ids"]),
    ({"cache_salt": "a"}, ["exactly one of prompt and prompt_token_ids"]),
    ({"prompt": "a", "prompt_token_ids": [1]}, ["exactly one of prompt and prompt_token_ids"]),
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
def test_bad_prompts(processor, prompt, words):
    with pytest.raises(ValueError, match=r".") as caught:
        processor.process(prompt, SamplingParams())
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert len(message) < 250
    message.encode()


BAD_PARAMETERS = [
    ({"logprobs": 6}, ["logprobs is 6", "max_logprobs allows 5", "larger max_logprobs"]),
    ({"stop_token_ids": [1, VOCAB_SIZE]}, ["token id 49152 in stop_token_ids", "49151"]),
    ({"stop_token_ids": [2**40]}, [f"token id {2**40} in stop_token_ids"]),
]


@pytest.mark.parametrize(("fields", "words"), BAD_PARAMETERS, ids=lambda value: ascii(value)[:30])
def test_bad_parameters(processor, fields, words):
    with pytest.raises(ValueError, match=r".") as caught:
        processor.process("Hello", SamplingParams(**fields))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("params", [None, {}, {"temperature": 0}, "greedy", SamplingParams])
def test_parameters_of_another_type(processor, params):
    with pytest.raises(ValueError, match="sampling_params must be SamplingParams, got"):
        processor.process("Hello", params)


@pytest.mark.parametrize("priority", [None, 1.0, "1", True, 2**63, -(2**63) - 1])
def test_bad_priorities(processor, priority):
    with pytest.raises(ValueError, match="priority must be"):
        processor.process("Hello", SamplingParams(), priority=priority)


def test_the_longest_prompt(processor):
    """One token less than the context: room for one token of output."""
    processed = processor.process([1] * (MAX_MODEL_LEN - 1), SamplingParams())
    assert len(processed.message.prompt_token_ids) == MAX_MODEL_LEN - 1


def test_limits_are_inclusive(processor):
    processor.process([0, VOCAB_SIZE - 1], SamplingParams(logprobs=5, stop_token_ids=[0, VOCAB_SIZE - 1]))


def test_a_text_prompt(processor, tokenizer):
    processed = processor.process("Hello 🚀", SamplingParams(seed=3), priority=-2)
    message = processed.message
    assert processed.prompt == "Hello 🚀"
    assert message.prompt_token_ids == tokenizer.encode("Hello 🚀")
    assert message.eos_token_ids == [2, 0]
    assert message.priority == -2
    assert message.cache_salt is None
    assert message.sampling_params == SamplingParams(seed=3)


@pytest.mark.parametrize("prompt", [[5, 6], {"prompt_token_ids": [5, 6]}])
def test_a_token_prompt(processor, prompt):
    processed = processor.process(prompt, SamplingParams())
    assert processed.prompt is None
    assert processed.message.prompt_token_ids == [5, 6]


@pytest.mark.parametrize("prompt", [{"prompt": "Hi", "cache_salt": "a"}, {"prompt_token_ids": [1], "cache_salt": "a"}])
def test_a_salt(processor, prompt):
    assert processor.process(prompt, SamplingParams()).message.cache_salt == "a"
    assert processor.process(prompt | {"cache_salt": None}, SamplingParams()).message.cache_salt is None


def test_request_ids_are_counted_unless_given(processor):
    ids = [processor.process("Hi", SamplingParams()).message.request_id for _ in range(3)]
    assert ids == ["request-0", "request-1", "request-2"]
    assert processor.process("Hi", SamplingParams(), request_id="mine").message.request_id == "mine"


def test_drawn_seeds_differ_and_leave_global_generators_alone(processor):
    params = SamplingParams()
    before = random.getstate(), np.random.get_state()
    seeds = [processor.process("Hi", params).message.sampling_params.seed for _ in range(200)]
    after = random.getstate(), np.random.get_state()
    assert after[0] == before[0]
    assert str(after[1]) == str(before[1])
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) >= 2**60, "all 64 bits are drawn"
    assert params.seed is None, "the user's own parameters stay as they are"


def test_drawn_seeds_do_not_follow_the_global_generator(processor):
    def draw():
        random.seed(1)
        np.random.seed(1)
        return processor.process("Hi", SamplingParams()).message.sampling_params.seed

    state = random.getstate()
    try:
        assert draw() != draw()
    finally:
        random.setstate(state)


def test_a_given_seed_is_kept(processor):
    assert processor.process("Hi", SamplingParams(seed=0)).message.sampling_params.seed == 0


@pytest.mark.parametrize("request_id", ["", 7, b"a"])
def test_bad_request_ids(processor, request_id):
    with pytest.raises(ValueError, match="request_id must be a non-empty string"):
        processor.process("Hi", SamplingParams(), request_id=request_id)


def test_a_priority_that_nobody_would_look_at_is_refused(tokenizer):
    processor = InputProcessor(EngineArgs.create(), tokenizer, [2], VOCAB_SIZE, MAX_MODEL_LEN)
    assert processor.process("Hi", SamplingParams(), priority=0)
    with pytest.raises(ValueError, match="priority is 3, but only scheduling_policy='priority' looks at it"):
        processor.process("Hi", SamplingParams(), priority=3)


def test_requests_are_copies(processor):
    """What callers do with their prompt and parameters later changes nothing."""
    prompt, params = [1, 2, 3], SamplingParams(seed=1, stop_token_ids=[5])
    message = processor.process(prompt, params).message
    prompt.append(4)
    params.temperature = 0.0
    assert message.prompt_token_ids == [1, 2, 3]
    assert message.sampling_params.temperature == 1.0
