"""From the fields of a request to `SamplingParams`."""

import pytest

from pelton.sampling_params import SEED_LIMIT, RequestOutputKind, SamplingParams
from pelton.server.errors import parse_request
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest
from pelton.server.sampling import chat_params, completion_params
from tests.server.handlers import USER

FIELDS = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.25,
    "temperature": 0.75,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.25,
    "seed": 11,
    "stop": ["x", "y"],
    "stop_token_ids": [5],
    "include_stop_str_in_output": True,
    "bad_words": ["bad"],
    "ignore_eos": True,
    "max_tokens": 30,
    "min_tokens": 2,
    "prompt_logprobs": 3,
    "allowed_token_ids": [5, 6],
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "truncate_prompt_tokens": 9,
}


def of_completion(defaults=None, **fields) -> SamplingParams:
    return completion_params(parse_request(CompletionRequest, {"prompt": "a"} | fields), defaults or {})


def of_chat(defaults=None, **fields) -> SamplingParams:
    return chat_params(parse_request(ChatCompletionRequest, {"messages": USER} | fields), defaults or {})


@pytest.mark.parametrize("make", [of_completion, of_chat])
def test_fields_keep_their_names(make) -> None:
    assert make(**FIELDS) == SamplingParams(**FIELDS, output_kind=RequestOutputKind.FINAL_ONLY)


def test_every_parameter_can_be_set() -> None:
    """But those that are not for requests over HTTP, and those that have other names or shapes there."""
    others = {"logprobs", "logit_bias", "structured_outputs", "guided_decoding"}
    others |= {"extra_args", "output_kind", "detokenize"}
    assert set(SamplingParams.__struct_fields__) == {*FIELDS, *others}


@pytest.mark.parametrize("make", [of_completion, of_chat])
def test_fields_go_before_what_the_model_recommends(make) -> None:
    defaults = {"temperature": 0.5, "top_k": 9, "max_tokens": 77}
    params = make(defaults, temperature=0.0, top_k=None)
    assert (params.temperature, params.top_k, params.max_tokens) == (0.0, 9, 77)


def test_nothing_said() -> None:
    assert of_completion() == SamplingParams(max_tokens=16, output_kind=RequestOutputKind.FINAL_ONLY)
    assert of_chat() == SamplingParams(max_tokens=None, output_kind=RequestOutputKind.FINAL_ONLY)
    assert of_chat(stream=True).output_kind is RequestOutputKind.DELTA


def test_logprobs() -> None:
    assert of_completion(logprobs=3).logprobs == 3
    assert of_completion(logprobs=3).prompt_logprobs is None
    assert of_completion(logprobs=0, echo=True).prompt_logprobs == 0
    assert of_completion(logprobs=3, echo=True, prompt_logprobs=1).prompt_logprobs == 3
    assert of_completion(logprobs=3, echo=True, prompt_logprobs=-1).prompt_logprobs == -1
    assert of_completion(logprobs=-1, echo=True, prompt_logprobs=5).prompt_logprobs == -1
    assert of_completion(prompt_logprobs=0, stream=True).prompt_logprobs is None
    assert of_completion(echo=True).prompt_logprobs is None
    assert of_chat(logprobs=True).logprobs == 0
    assert of_chat(logprobs=True, top_logprobs=4).logprobs == 4
    assert of_chat(logprobs=False).logprobs is None
    assert of_chat(logprobs=True, echo=True).prompt_logprobs is None


def test_other_shapes() -> None:
    assert of_chat(logit_bias={"5": -100, "6": 0.5}).logit_bias == {5: -100.0, 6: 0.5}
    assert of_chat(logit_bias={}).logit_bias is None
    assert of_chat(vllm_xargs={"target": 3}).extra_args == {"target": 3}
    assert of_chat(vllm_xargs={}).extra_args is None
    assert of_chat(max_tokens=3, max_completion_tokens=4).max_tokens == 4


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(-1, None), (0, 0), (-2, SEED_LIMIT - 2), (-(2**63), 2**63), (SEED_LIMIT - 1, SEED_LIMIT - 1)],
)
def test_seeds_may_be_signed(seed, expected) -> None:
    assert of_chat(seed=seed).seed == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 2, "temperature": 0}, "n must be 1 with greedy sampling"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens must be at most max_tokens"),
        ({"logit_bias": {"5": 101}}, r"logit_bias of token 5 must be in \[-100, 100\]"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be at least 1"),
        ({"allowed_token_ids": []}, "allowed_token_ids must allow at least one token"),
    ],
)
@pytest.mark.parametrize("make", [of_completion, of_chat])
def test_contradictions(make, fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        make(**fields)
