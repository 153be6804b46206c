"""What generation_config.json recommends, and what is made of a bad one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pelton.loader import open_checkpoint
from pelton.sampling_params import SamplingParams

QWEN3 = {
    "bos_token_id": 1,
    "do_sample": True,
    "eos_token_id": [3, 5],
    "pad_token_id": 1,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}
"""The keys that the file of Qwen3 has."""

Defaults = Callable[[str], dict[str, float | int]]


@pytest.fixture
def defaults(tiny_folder: Path) -> Defaults:
    """The defaults of a folder with this text as its generation_config.json."""

    def read(text: str) -> dict[str, float | int]:
        (tiny_folder / "generation_config.json").write_text(text)
        return open_checkpoint(str(tiny_folder)).generation_defaults()

    return read


def test_what_is_read(defaults: Defaults) -> None:
    assert defaults(json.dumps(QWEN3)) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    everything = {
        "temperature": 1,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
        "max_new_tokens": 2048,
    }
    expected = everything | {"max_tokens": 2048}
    del expected["max_new_tokens"]
    assert defaults(json.dumps(everything)) == expected
    assert SamplingParams(**defaults(json.dumps(everything))) == SamplingParams(**expected)


@pytest.mark.parametrize("values", [{}, {"temperature": None, "top_k": None, "max_new_tokens": None}])
def test_null_is_as_absent(defaults: Defaults, values: dict[str, Any]) -> None:
    assert defaults(json.dumps(values)) == {}


@pytest.mark.parametrize("values", [{"do_sample": False}, {"num_beams": 4, "max_length": 20}, {"penalty_alpha": "x"}])
def test_other_keys_set_nothing(defaults: Defaults, values: dict[str, Any]) -> None:
    assert defaults(json.dumps(values | {"top_p": 0.5})) == {"top_p": 0.5}


def test_no_file(tiny_folder: Path) -> None:
    (tiny_folder / "generation_config.json").unlink(missing_ok=True)
    assert open_checkpoint(str(tiny_folder)).generation_defaults() == {}


def test_gguf_files_have_no_defaults(make_gguf: Callable[..., Path]) -> None:
    assert open_checkpoint(str(make_gguf())).generation_defaults() == {}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("temperature", '"0.6"', "must be a number, got '0.6'"),
        ("temperature", "true", "must be a number, got True"),
        ("temperature", "[0.6]", r"must be a number, got \[0.6\]"),
        ("temperature", "NaN", "must be a finite number, got nan"),
        ("top_p", "Infinity", "must be a finite number, got inf"),
        ("min_p", "1" + "0" * 400, "must be a finite number, got inf"),
        ("temperature", '"' + "hot" * 1000 + '"', "must be a number, got 'hothot"),
        ("temperature", "-3", r"must be at least 0 \(0 means greedy\), got -3"),
        ("top_p", "2", r"must be in \(0, 1\] .* got 2"),
        ("max_new_tokens", "-1", "must be at least 0, got -1"),
        ("repetition_penalty", "{}", "must be a number, got {}"),
        ("top_k", "50.0", "must be an integer, got 50.0"),
        ("top_k", "false", "must be an integer, got False"),
        ("max_new_tokens", '"many"', "must be an integer, got 'many'"),
    ],
)
def test_what_no_request_could_have_is_refused(defaults: Defaults, key: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf"generation_config.json: {key} {words}") as caught:
        defaults(f'{{"{key}": {value}}}')
    assert len(str(caught.value)) < 400


def test_a_bad_value_does_not_keep_the_model_from_being_opened(tiny_folder: Path) -> None:
    """Whoever does without the defaults does not need them to be right."""
    (tiny_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5], "temperature": "hot"}))
    assert set(open_checkpoint(str(tiny_folder)).config.eos_token_ids) >= {3, 5}
