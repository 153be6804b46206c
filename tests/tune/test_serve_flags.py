"""Flags of `pelton serve`, read and written."""

import re

import pytest

from pelton.tune.serve_flags import parse_serve_flags, parse_value, serve_arguments, serve_defaults, write_flags


def test_read():
    flags = ["--max-model-len", "1k", "--no-enable-prefix-caching", "-dp", "2", "--served-model-name", "a", "b"]
    assert parse_serve_flags(flags) == {
        "max_model_len": 1000,
        "enable_prefix_caching": False,
        "data_parallel_size": 2,
        "served_model_name": ["a", "b"],
    }
    assert parse_serve_flags([]) == {}


def test_written_as_read():
    given = {"max_num_seqs": 8, "enable_prefix_caching": False, "check_nan": True, "enforce_eager": True}
    assert parse_serve_flags(write_flags(given)) == given
    assert write_flags({"num_threads": None}) == []
    arguments = serve_arguments("m", ["--dtype", "float32"], {"max_num_seqs": 8})
    assert arguments == ["m", "--dtype", "float32", "--max-num-seqs", "8"]


@pytest.mark.parametrize("name", ["max_num_seqs", "quantization", "enable_prefix_caching", "stall_timeout"])
def test_values(name):
    default = serve_defaults()[name]
    assert parse_value(name, str(default).lower()) == default


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1, got 0"),
        (["--port", "1"], "--port cannot be given"),
        (["--headless"], "--headless cannot be given: servers are tuned on one node"),
        (["--model", "m"], "--model cannot be given: the model is MODEL"),
        (["--max-num"], "unrecognized arguments: --max-num"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_refused(flags, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_serve_flags(flags)
