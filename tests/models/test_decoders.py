"""Against transformers, token by token, through the paged cache."""

from functools import partial

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.gemma3 import modeling_gemma3

from pelton.core.kv_spec import FullAttentionSpec, SlidingWindowSpec
from pelton.models import create_model, record_backbone
from pelton.ops import Interpreter, L, Recorder
from tests.models.helpers import BLOCK_SIZE, Engine, decoder_config, gemma3, llama, load, qwen2_with_windows

SEQUENCES = [np.random.default_rng(i).integers(0, 97, length).tolist() for i, length in enumerate((37, 9, 50))]

CHUNKINGS = {
    "whole": [{0: 37, 1: 9, 2: 50}],
    "one by one": [{0: 37}, {1: 9}, {2: 50}],
    "chunks": [{0: 5}, {0: 16, 1: 8}, {2: 33, 0: 15, 1: 1}, {0: 1, 2: 17}],
    "decodes": [{0: 30, 2: 49}, {1: 2, 0: 1}] + [{0: 1, 1: 1}] * 6 + [{1: 1, 2: 1}],
}


def expected_logits(reference: PreTrainedModel) -> list[np.ndarray]:
    with torch.no_grad():
        return [reference(torch.tensor([tokens])).logits[0].numpy() for tokens in SEQUENCES]


def head_of(model: object) -> Interpreter:
    op = Recorder("head")
    rows = op.input("rows", (L, 48))
    return Interpreter(op.finish({"logits": model.head(op, rows)}), {L: 100})  # type: ignore[attr-defined]


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
def test_gemma3_against_transformers(steps: list[dict[int, int]], window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = gemma3(window)
    # Gemma 3's own attention in transformers does not hand on the soft cap of its configuration.
    capped = partial(modeling_gemma3.eager_attention_forward, softcap=reference.config.attn_logit_softcapping)
    monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", capped)
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
    expected = expected_logits(reference)
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
    full = FullAttentionSpec(BLOCK_SIZE, 2, 8, "float32")
    sliding = SlidingWindowSpec(BLOCK_SIZE, 2, 8, "float32", 7)
    assert model.kv_specs() == [full, sliding, full, sliding]
    assert [layer.name for layer in model.kv_layers] == [f"layers.{i}.attention" for i in range(4)]
    shapes = {name: parameter.shape for name, parameter in model.parameters().items()}
    assert shapes["layers.3.attention.k"] == (16, 48)
    assert shapes["layers.3.attention.k.bias"] == (16,)
    assert shapes["layers.0.mlp.down"] == (48, 80)
    assert "lm_head" not in shapes
    assert len(shapes) == 2 + 4 * 12


def test_the_program_reads_as_the_model() -> None:
    program = str(record_backbone(load(llama(tied=True)), [0] * 4, 16)).splitlines()
    assert len(program) == 2 + 2 + 4 * 9 + 1
    assert program[2] == "  %7 cos[T, 4], %8 sin[T, 4] = rotary(%1, frequencies[4], factor=1.0)"
    assert program[5] == ("  %11 q[T, 48] = rope_and_cache(%10, %7, %8, %4, cache(layers.0.attention), eps=1e-06)")
    assert program[-1] == "  return hidden=%45"
    assert "slot_mapping.0[T] int64, %5 block_table.0[R, 16] int32" in program[0]


def test_the_angles_of_both_frequencies_are_computed_once() -> None:
    program = record_backbone(load(gemma3(4)), [1, 0, 1, 1], 16)
    rotaries = [launch for launch in program.launches if launch.operator.name == "rotary"]
    assert len(rotaries) == 2
    assert "gelu_tanh" in str(program)


def test_unknown_architecture() -> None:
    config = decoder_config(llama(tied=True))
    object.__setattr__(config, "architecture", "mystery")
    with pytest.raises(ValueError, match="unknown architecture 'mystery'; there are: gemma3, llama, qwen2, qwen3"):
        create_model(config, block_size=16)
