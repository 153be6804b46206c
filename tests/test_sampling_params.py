"""What `SamplingParams` takes, and what it refuses in which words."""

import math

import msgspec
import pytest

from pelton import SamplingParams
from pelton.sampling_params import BeamSearchParams, RequestOutputKind
from tests.support.nested import nested

REFUSED = [
    ("temperature", -0.1, "at least 0"),
    ("temperature", math.nan, "finite"),
    ("temperature", math.inf, "finite"),
    ("temperature", -math.inf, "finite"),
    ("temperature", 10**400, "finite"),
    ("temperature", "1", "must be a number"),
    ("temperature", True, "must be a number"),
    ("temperature", None, "must be a number"),
    ("top_p", 0, r"in \(0, 1\]"),
    ("top_p", -0.5, r"in \(0, 1\]"),
    ("top_p", 1.0001, r"in \(0, 1\]"),
    ("top_p", math.nan, "finite"),
    ("top_p", [], "must be a number"),
    ("top_k", -2, "at least -1"),
    ("top_k", 1.0, "must be an integer"),
    ("top_k", True, "must be an integer"),
    ("top_k", None, "must be an integer"),
    ("top_k", 2**63, "at most"),
    ("seed", -2, "at least -1"),
    ("seed", 2**64, "at most"),
    ("seed", 0.0, "must be an integer"),
    ("seed", False, "must be an integer"),
    ("max_tokens", -1, "at least 0"),
    ("max_tokens", 16.0, "must be an integer"),
    ("max_tokens", "16", "must be an integer"),
    ("max_tokens", 2**63, "at most"),
    ("logprobs", -2, "at least -1"),
    ("logprobs", True, "must be an integer"),
    ("prompt_logprobs", -2, "at least -1"),
    ("prompt_logprobs", 1.5, "must be an integer"),
    ("n", 0, "at least 1"),
    ("n", 10**9, "at most 1024"),
    ("n", True, "must be an integer"),
    ("n", None, "must be an integer"),
    ("presence_penalty", -2.1, r"in \[-2, 2\]"),
    ("presence_penalty", math.nan, "finite"),
    ("frequency_penalty", 3, r"in \[-2, 2\]"),
    ("frequency_penalty", "1", "must be a number"),
    ("repetition_penalty", 0, "above 0"),
    ("repetition_penalty", -1.0, "above 0"),
    ("repetition_penalty", math.inf, "finite"),
    ("min_p", -0.1, r"in \[0, 1\]"),
    ("min_p", 1.1, r"in \[0, 1\]"),
    ("min_p", None, "must be a number"),
    ("min_tokens", -1, "at least 0"),
    ("min_tokens", None, "must be an integer"),
    ("truncate_prompt_tokens", 0, "at least 1, or -1"),
    ("truncate_prompt_tokens", -2, "at least -1"),
    ("truncate_prompt_tokens", "5", "must be an integer"),
    ("logit_bias", [5], "dict of token ids and numbers"),
    ("logit_bias", {"100": 1.0}, r"^the keys of logit_bias must be token ids \(integers\), got '100'$"),
    ("logit_bias", {True: 1.0}, "the keys of logit_bias must be token ids"),
    ("logit_bias", {-1: 1.0}, "the keys of logit_bias must be at least 0"),
    ("output_kind", 1.0, "CUMULATIVE, DELTA or FINAL_ONLY"),
    ("output_kind", [1], "CUMULATIVE, DELTA or FINAL_ONLY"),
    ("logit_bias", {5: 101}, r"of token 5 must be in \[-100, 100\]"),
    ("logit_bias", {5: math.nan}, "of token 5 must be a finite number"),
    ("logit_bias", {5: None}, "of token 5 must be a number"),
    ("logit_bias", dict.fromkeys(range(1025), 0.5), "at most 1024 tokens, got 1025; allowed_token_ids"),
    ("allowed_token_ids", [], "at least one token"),
    ("allowed_token_ids", 5, "list of token ids"),
    ("allowed_token_ids", [-1], "at least 0"),
    ("allowed_token_ids", ["a"], "must be an integer"),
    ("bad_words", "word", "list of strings"),
    ("bad_words", ["a", ""], "non-empty strings"),
    ("bad_words", [5], "non-empty strings"),
    ("bad_words", ["a\ud800"], "Unicode"),
    ("bad_words", ["a"] * 4097, "at most 4096 strings"),
    ("bad_words", ["a" * 513], "at most 512 characters"),
    ("detokenize", None, "True or False"),
    ("skip_special_tokens", 0, "True or False"),
    ("spaces_between_special_tokens", "yes", "True or False"),
    ("include_stop_str_in_output", 1, "True or False"),
    ("extra_args", [1], "dict of argument names"),
    ("extra_args", {5: 1}, "dict of argument names"),
    ("ignore_eos", 1, "True or False"),
    ("ignore_eos", None, "True or False"),
    ("stop", 5, "string or a list of strings"),
    ("stop", b"stop", "string or a list of strings"),
    ("stop", {"a"}, "string or a list of strings"),
    ("stop", "", "non-empty"),
    ("stop", ["a", ""], "non-empty"),
    ("stop", ["a", 5], "non-empty strings"),
    ("stop", ["a", None], "non-empty strings"),
    ("stop", "a\ud800", "Unicode"),
    ("stop", ["a"] * 65, "at most 64 strings"),
    ("stop", "x" * 513, "at most 512 characters"),
    ("stop_token_ids", 5, "list of token ids"),
    ("stop_token_ids", "5", "list of token ids"),
    ("stop_token_ids", [-1], "at least 0"),
    ("stop_token_ids", [1, "2"], "must be an integer"),
    ("stop_token_ids", [True], "must be an integer"),
    ("stop_token_ids", [1.0], "must be an integer"),
    ("output_kind", 3, "CUMULATIVE, DELTA or FINAL_ONLY"),
    ("output_kind", "delta", "CUMULATIVE, DELTA or FINAL_ONLY"),
]


@pytest.mark.parametrize(("field", "value", "words"), REFUSED, ids=lambda value: ascii(value)[:25])
def test_refused(field, value, words):
    with pytest.raises(ValueError, match=words) as caught:
        SamplingParams(**{field: value})
    message = str(caught.value)
    assert message.removeprefix("the keys of ").startswith(field)
    assert "got" in message
    message.encode()  # can be printed, whatever the value was


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "make", [SamplingParams, lambda **fields: BeamSearchParams(beam_width=1, max_tokens=1, **fields)]
)
@pytest.mark.parametrize(
    "value",
    ["\n" * 10**6, nested(50_000), 10**5000, -(10**5000), Unprintable()],
    ids=lambda value: type(value).__name__,
)
def test_no_value_makes_a_message_long_or_fail(make, value):
    """In whatever field, and in whatever place of it."""
    names = SamplingParams.__struct_fields__
    if make is not SamplingParams:
        names = [name for name in BeamSearchParams.__struct_fields__ if name not in ("beam_width", "max_tokens")]
    for name in names:
        for given in (value, [value], {5: value}, {value: 1} if isinstance(value, int | str) else {}):
            try:
                make(**{name: given})
            except ValueError as error:
                message = str(error)
                assert name in message
                assert len(message) < 300
                assert message.isprintable()


ACCEPTED = [
    {},
    {"temperature": 0},
    {"temperature": 1e300},
    {"temperature": 5e-324},
    {"top_p": 1},
    {"top_p": 5e-324},
    {"top_k": -1},
    {"top_k": 10**9},
    {"seed": 0},
    {"seed": 2**64 - 1},
    {"max_tokens": None},
    {"max_tokens": 10**9},
    {"max_tokens": 0},
    {"logprobs": 0},
    {"logprobs": -1, "prompt_logprobs": -1},
    {"n": 1024},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"repetition_penalty": 1e-300},
    {"min_p": 1},
    {"min_tokens": 16},
    {"min_tokens": 10**9, "max_tokens": None},
    {"truncate_prompt_tokens": -1},
    {"logit_bias": {}},
    {"logit_bias": {0: -100, 2**40: 100.0}},
    {"logit_bias": dict.fromkeys(range(1024), 0.5)},
    {"allowed_token_ids": [7, 7]},
    {"bad_words": ["a", " b", "\n"]},
    {"extra_args": {"anything": [None]}},
    {"stop": []},
    {"stop": "\0"},
    {"stop": ["a", "🚀"]},
    {"stop": ["x" * 512] * 64},
    {"stop_token_ids": []},
    {"stop_token_ids": [0, 2**31]},
    {"output_kind": 1},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=lambda fields: ascii(fields)[:25])
def test_accepted(fields):
    params = SamplingParams(**fields)
    for name, value in fields.items():
        assert getattr(params, name) == value


CONTRADICTIONS = [
    ({"n": 2, "temperature": 0}, "n must be 1 with greedy sampling"),
    ({"min_tokens": 17}, "min_tokens must be at most max_tokens, which is 16, got 17"),
    ({"stop": "a", "detokenize": False}, "stop needs text"),
]


@pytest.mark.parametrize(("fields", "words"), CONTRADICTIONS, ids=lambda value: ascii(value)[:25])
def test_contradictions(fields, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams(**fields)


def test_a_seed_of_minus_one_is_none():
    assert SamplingParams(seed=-1).seed is None


BEAM_REFUSED = [
    ("beam_width", 0, "at least 1"),
    ("beam_width", None, "must be an integer"),
    ("max_tokens", 0, "at least 1"),
    ("temperature", -1, "at least 0"),
    ("length_penalty", math.inf, "finite"),
    ("ignore_eos", None, "True or False"),
    ("include_stop_str_in_output", 0, "True or False"),
]


@pytest.mark.parametrize(("field", "value", "words"), BEAM_REFUSED)
def test_beam_search_parameters_that_are_refused(field, value, words):
    with pytest.raises(ValueError, match=f"^{field}.*{words}"):
        BeamSearchParams(**({"beam_width": 2, "max_tokens": 5} | {field: value}))


def test_types_are_settled():
    """Whoever reads the parameters finds the types that the fields declare."""
    params = SamplingParams(temperature=0, top_p=1, output_kind=2)
    assert type(params.temperature) is float
    assert type(params.top_p) is float
    assert params.output_kind is RequestOutputKind.FINAL_ONLY


def test_unknown_parameters_are_refused():
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)


@pytest.mark.parametrize(("stop", "strings"), [(None, []), ("ab", ["ab"]), (["a", "b"], ["a", "b"]), ([], [])])
def test_stop_strings(stop, strings):
    assert SamplingParams(stop=stop).stop_strings == strings


def test_greedy_is_temperature_zero():
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=-0.0).is_greedy
    assert not SamplingParams(temperature=1e-9).is_greedy


def test_replacing_and_decoding_validate():
    """No way to make parameters goes around the checks."""
    params = SamplingParams()
    with pytest.raises(ValueError, match="top_p must be"):
        msgspec.structs.replace(params, top_p=2.0)
    params.temperature = math.nan
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        msgspec.structs.replace(params, seed=1)
    with pytest.raises(msgspec.ValidationError, match="max_tokens must be at least 0"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"max_tokens": -1}), type=SamplingParams)


def test_a_clone_shares_nothing():
    fields = {
        "stop": ["a"],
        "stop_token_ids": [1],
        "bad_words": ["b"],
        "allowed_token_ids": [2],
        "logit_bias": {3: 1.0},
        "extra_args": {"deep": [{"er": [1]}]},
        "seed": 5,
        "output_kind": RequestOutputKind.DELTA,
    }
    params = SamplingParams(**fields)
    clone = params.clone()
    assert clone == params
    assert clone.output_kind is RequestOutputKind.DELTA
    clone.top_k = None
    clone.extra_args["deep"][0]["er"].append(2)
    for name in fields:
        if isinstance(value := getattr(clone, name), list | dict):
            value.clear()
    assert params == SamplingParams(**fields)
