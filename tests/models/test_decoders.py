"""Against transformers, token by token, through the paged cache."""

import numpy as np
import pytest
from transformers import PreTrainedModel

from pelton.core.kv_spec import FullAttentionSpec, SlidingWindowSpec
from pelton.models import Model, create_model, record_backbone, registry
from pelton.ops import Interpreter, L, Recorder
from tests.models.helpers import BLOCK_SIZE, HEAD_SIZE, Engine, gemma3, llama, load, qwen2_with_windows
from tests.support.tiny_models import VARIANTS, VOCAB_SIZE, architecture_of, decoder_config, logits_of

SEQUENCES = [np.random.default_rng(i).integers(0, VOCAB_SIZE, length).tolist() for i, length in enumerate((37, 9, 50))]

CHUNKINGS = {
    "whole": [{0: 37, 1: 9, 2: 50}],
    "one by one": [{0: 37}, {1: 9}, {2: 50}],
    "chunks": [{0: 5}, {0: 16, 1: 8}, {2: 33, 0: 15, 1: 1}, {0: 1, 2: 17}],
    "decodes": [{0: 30, 2: 49}, {1: 2, 0: 1}] + [{0: 1, 1: 1}] * 6 + [{1: 1, 2: 1}],
}


def head_of(model: Model) -> Interpreter:
    op = Recorder("head")
    rows = op.input("rows", (L, model.config.hidden_size))
    return Interpreter(op.finish({"logits": model.head(op, rows)}), {L: 100})


@pytest.mark.parametrize("steps", CHUNKINGS.values(), ids=CHUNKINGS.keys())
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_llama_against_transformers(steps: list[dict[int, int]], tied: bool) -> None:
    reference = llama(tied=tied)
    model = load(reference)
    check(reference, Engine(model, [0] * 4, SEQUENCES), head_of(model), steps)


@pytest.mark.parametrize("steps", CHUNKINGS.values(), ids=CHUNKINGS.keys())
@pytest.mark.parametrize("window", [1, 4, 7])
def test_mixed_windows_against_transformers(steps: list[dict[int, int]], window: int) -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    reference = qwen2_with_windows(window, types)
    model = load(reference)
    assert decoder_config(reference).layer_windows == (None, window, window, None)
    check(reference, Engine(model, [0, 1, 1, 0], SEQUENCES), head_of(model), steps, window)


@pytest.mark.parametrize("steps", CHUNKINGS.values(), ids=CHUNKINGS.keys())
@pytest.mark.parametrize("window", [1, 4, 7])
def test_gemma3_against_transformers(steps: list[dict[int, int]], window: int) -> None:
    reference = gemma3(window)
    model = load(reference)
    assert decoder_config(reference).layer_windows == (window, None, window, window)
    check(reference, Engine(model, [1, 0, 1, 1], SEQUENCES), head_of(model), steps, window)


def check(
    reference: PreTrainedModel,
    engine: Engine,
    head: Interpreter,
    steps: list[dict[int, int]],
    window: int | None = None,
) -> None:
    expected = [logits_of(reference, tokens).numpy() for tokens in SEQUENCES]
    for counts in steps:
        if window is not None:
            engine.forget_before(window, group=1)
        starts = list(engine.num_computed)
        for r, hidden in zip(counts, engine.step(counts), strict=True):
            logits = head.run({L: len(hidden)}, {"rows": hidden})["logits"]
            wanted = expected[r][starts[r] : starts[r] + len(hidden)]
            np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
    assert engine.num_computed == list(map(len, SEQUENCES))


def test_what_the_model_declares() -> None:
    reference = qwen2_with_windows(7, ["full_attention", "sliding_attention"] * 2)
    model = create_model(decoder_config(reference), block_size=BLOCK_SIZE)
    full = FullAttentionSpec(BLOCK_SIZE, 2, HEAD_SIZE, "float32")
    sliding = SlidingWindowSpec(BLOCK_SIZE, 2, HEAD_SIZE, "float32", 7)
    assert model.kv_specs() == [full, sliding, full, sliding]
    assert [layer.name for layer in model.kv_layers] == [f"layers.{i}.attention" for i in range(4)]
    shapes = {name: parameter.shape for name, parameter in model.parameters().items()}
    assert shapes["layers.3.attention.k"] == (16, 48)
    assert shapes["layers.3.attention.k.bias"] == (16,)
    assert shapes["layers.0.mlp.down"] == (48, 96)
    assert "lm_head" not in shapes
    assert len(shapes) == 2 + 4 * 12


def test_the_program_reads_as_the_model() -> None:
    program = record_backbone(load(llama(tied=True)), [0] * 4, 16)
    attention = ["rms_norm", "linear", "rope_and_cache", "attention", "linear"]
    mlp = ["rms_norm", "linear", "gated_activation", "linear"]
    operators = [launch.operator.name for launch in program.launches]
    assert operators == ["embed", "rotary", *(attention + mlp) * 4, "rms_norm"]
    text = str(program)
    assert [text.count(f", cache(layers.{i}.attention)") for i in range(5)] == [2, 2, 2, 2, 0]
    assert "block_table.0[R, 16] int32" in text


def test_the_angles_of_both_frequencies_are_computed_once() -> None:
    program = record_backbone(load(gemma3(4)), [1, 0, 1, 1], 16)
    rotaries = [launch for launch in program.launches if launch.operator.name == "rotary"]
    assert len(rotaries) == 2
    assert "gelu_tanh" in str(program)


def test_unknown_architecture() -> None:
    config = decoder_config(llama(tied=True))
    object.__setattr__(config, "architecture", "mystery")
    known = ", ".join(sorted(registry._MODELS))
    with pytest.raises(ValueError, match=f"unknown architecture 'mystery'; there are: {known}$"):
        create_model(config, block_size=16)


def test_every_architecture_has_its_row_among_the_tiny_models() -> None:
    """From these rows come the tests through the whole engine and those of the configurations."""
    assert {architecture_of(variant.config) for variant in VARIANTS.values()} == registry._MODELS.keys()
