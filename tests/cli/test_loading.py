"""What holds for requests on the command line: flags, then the model, then the command."""

import json

import pytest

from pelton import SamplingParams
from pelton.cli.loading import load_engine
from pelton.config import EngineArgs
from tests.support.tiny_llama import write_tiny_llama


@pytest.fixture
def default_params(tmp_path):
    """The parameters of a model with this generation_config.json."""

    def load(recommended, given, max_tokens, **engine_args):
        folder = write_tiny_llama(tmp_path)
        (folder / "generation_config.json").write_text(json.dumps(recommended))
        engine, params = load_engine(EngineArgs.create(model=str(folder), **engine_args), given, max_tokens=max_tokens)
        engine.shutdown()
        return params

    return load


@pytest.mark.parametrize(
    ("recommended", "given", "max_tokens", "expected"),
    [
        ({}, {}, 256, {"max_tokens": 256}),
        ({}, {}, None, {"max_tokens": None}),
        ({}, {"max_tokens": 5}, 256, {"max_tokens": 5}),
        ({"max_new_tokens": 16}, {}, 256, {"max_tokens": 16}),
        ({"max_new_tokens": 16, "temperature": 1.0}, {}, None, {"max_tokens": 16}),
        ({"max_new_tokens": 16}, {"max_tokens": None}, 256, {"max_tokens": None}),
        (
            {"max_new_tokens": 40, "temperature": 0.6},
            {"temperature": 0, "top_k": 3},
            256,
            {"max_tokens": 40, "temperature": 0.0, "top_k": 3},
        ),
    ],
)
def test_flags_then_the_model_then_the_command(default_params, recommended, given, max_tokens, expected):
    assert default_params(recommended, given, max_tokens) == SamplingParams(**expected)


def test_without_the_models_say(default_params):
    recommended = {"max_new_tokens": 40, "temperature": -3}
    assert default_params(recommended, {}, 256, generation_config="none") == SamplingParams(max_tokens=256)


def test_contradictions(default_params):
    with pytest.raises(ValueError, match="min_tokens must be at most max_tokens, which is 40, got 50"):
        default_params({"max_new_tokens": 40}, {"min_tokens": 50}, 256)
