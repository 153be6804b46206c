"""What `SamplingParams` takes, and what it refuses in which words."""

import math

import msgspec
import pytest

from pelton import SamplingParams
from pelton.sampling_params import RequestOutputKind

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
    ("seed", -1, "at least 0"),
    ("seed", 2**64, "at most"),
    ("seed", 0.0, "must be an integer"),
    ("seed", False, "must be an integer"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -1, "at least 1"),
    ("max_tokens", 16.0, "must be an integer"),
    ("max_tokens", "16", "must be an integer"),
    ("max_tokens", 2**63, "at most"),
    ("logprobs", -1, "at least 0"),
    ("logprobs", True, "must be an integer"),
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
    assert message.startswith(field)
    assert "got" in message
    message.encode()  # can be printed, whatever the value was


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
    {"logprobs": 0},
    {"stop": []},
    {"stop": "\0"},
    {"stop": ["a", "🚀"]},
    {"stop": "x" * 1_000_000},
    {"stop_token_ids": []},
    {"stop_token_ids": [0, 2**31]},
    {"output_kind": 1},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=lambda fields: ascii(fields)[:25])
def test_accepted(fields):
    params = SamplingParams(**fields)
    for name, value in fields.items():
        assert getattr(params, name) == value


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
    with pytest.raises(msgspec.ValidationError, match="max_tokens must be at least 1"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"max_tokens": 0}), type=SamplingParams)
