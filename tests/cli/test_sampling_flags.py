"""Sampling parameters on the command line."""

import argparse

import pytest

from pelton import SamplingParams
from pelton.cli.parser import CommandParser
from pelton.cli.sampling_flags import NOT_FLAGS, SAMPLING_FLAGS, add_sampling_flags, given_sampling

EXAMPLES = {
    "n": (["3"], 3),
    "presence_penalty": (["-0.5"], -0.5),
    "frequency_penalty": (["0.5"], 0.5),
    "repetition_penalty": (["1.2"], 1.2),
    "temperature": (["0.7"], 0.7),
    "top_p": (["0.9"], 0.9),
    "top_k": (["-1"], -1),
    "min_p": (["0.1"], 0.1),
    "seed": (["7"], 7),
    "stop": (["a b"], ["a b"]),
    "stop_token_ids": (["5"], [5]),
    "include_stop_str_in_output": ([], True),
    "bad_words": (["word"], ["word"]),
    "ignore_eos": ([], True),
    "max_tokens": (["9"], 9),
    "min_tokens": (["2"], 2),
    "logprobs": (["-1"], -1),
    "prompt_logprobs": (["0"], 0),
    "logit_bias": (["5=-1.5"], {5: -1.5}),
    "allowed_token_ids": (["5"], [5]),
    "detokenize": ([], True),
    "skip_special_tokens": ([], True),
    "spaces_between_special_tokens": ([], True),
    "truncate_prompt_tokens": (["8"], 8),
    "structured_outputs": (['{"choice": ["a"]}'], {"choice": ["a"]}),
    "extra_args": (['{"a": [1]}'], {"a": [1]}),
}
"""Field -> arguments of its flag, and what they mean."""


def parse(*arguments):
    parser = CommandParser("pelton test")
    add_sampling_flags(parser, max_tokens_default="256")
    return given_sampling(parser.parse_args(arguments))


def test_every_parameter_is_a_flag_or_an_exception():
    assert sorted([*SAMPLING_FLAGS, *NOT_FLAGS]) == sorted(SamplingParams.__struct_fields__)
    assert SAMPLING_FLAGS.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLING_FLAGS)
def test_a_flag_gives_its_parameter(name):
    arguments, value = EXAMPLES[name]
    flag = "--" + name.replace("_", "-")
    assert parse(flag, *arguments) == {name: value}
    if isinstance(value, bool):
        assert parse(f"--no-{flag[2:]}") == {name: False}


def test_flags_that_repeat():
    given = parse("--stop", "a", "--stop", "b", "--logit-bias", "5=1", "--logit-bias", "6=-2", "--stop-token-ids", "3")
    assert given == {"stop": ["a", "b"], "logit_bias": {5: 1.0, 6: -2.0}, "stop_token_ids": [3]}
    assert parse("--min-tokens", "100") == {"min_tokens": 100}, "max_tokens may come from the model"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--top-p", "2"], r"top_p must be in \(0, 1\]"),
        (["--seed", "-2"], "seed must be at least -1, got -2"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "logit_bias names a token twice"),
        (["--structured-outputs", '{"choices": ["a"]}'], "structured_outputs has no field 'choices'; there are json"),
        (["--structured-outputs", "{}"], "structured_outputs: a constraint must have one of json"),
        (["--n", "2", "--temperature", "0"], "n must be 1 with greedy sampling"),
    ],
)
def test_values_that_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        parse(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--logit-bias", "5"], "must have the form TOKEN_ID=BIAS, got '5'"),
        (["--logit-bias", "five=1"], "must have the form TOKEN_ID=BIAS, got 'five=1'"),
        (["--extra-args", "[1]"], "must be a JSON object, but it is not a JSON object"),
        (["--extra-args", "{"], "must be a JSON object, but Expecting property name"),
        (["--max-tokens", "1.5"], "invalid int value: '1.5'"),
    ],
)
def test_forms_that_are_refused(capsys, arguments, words):
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert words in capsys.readouterr().err


def test_help_has_the_defaults(capsys):
    parser = CommandParser("pelton test")
    add_sampling_flags(parser, max_tokens_default="so many", leave_out=["n"])
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "most tokens per output; 0 processes the prompt only. Default: so many." in text
    assert f"divides the logits; 0 means greedy. Default: {SamplingParams().temperature}." in text
    assert "-100 to 100; repeatable, at most 1,024 times." in text
    assert "-1: as many as leave room for max_tokens (for one token, if that is not given)." in text
    assert "--n N" not in text


def test_nothing_is_given_by_default():
    assert parse() == {}
    assert given_sampling(argparse.Namespace(model="x")) == {}
