"""Models of a few layers, and a stand-in for the engine that drives their programs."""

import numpy as np
from transformers import Gemma3TextConfig, LlamaConfig, PreTrainedModel, Qwen2Config

from pelton.layers import Target
from pelton.loader.name_maps import WeightNames
from pelton.models import Model, create_model, record_backbone
from pelton.ops import L, Program, R, Recorder, T
from pelton.ops.backend import Backend, Run
from tests.support.backends import numpy_target
from tests.support.tiny_models import build, decoder_config, gemma_rope, randomized, rope

BLOCK_SIZE = 4
MAX_BLOCKS = 16
HEAD_SIZE = 8
ROW_TILE = 16
_HEADS = {"hidden_size": 6 * HEAD_SIZE, "num_attention_heads": 6, "num_key_value_heads": 2}


def llama(*, tied: bool) -> PreTrainedModel:
    return randomized(build(LlamaConfig, {**_HEADS, "tie_word_embeddings": tied}), seed=0)


def qwen2_with_windows(window: int, layer_types: list[str]) -> PreTrainedModel:
    options = {
        **_HEADS,
        "use_sliding_window": True,
        "sliding_window": window,
        "layer_types": layer_types,
        "tie_word_embeddings": True,
    }
    return randomized(build(Qwen2Config, options), seed=0)


def gemma3(window: int) -> PreTrainedModel:
    options = {
        **_HEADS,
        "head_dim": HEAD_SIZE,
        "query_pre_attn_scalar": 13,
        "sliding_window": window,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        **gemma_rope(rope(theta=1e6)["rope_parameters"], sliding_theta=1e4),
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "pad_token_id": 1,
    }
    return randomized(build(Gemma3TextConfig, options), seed=0)


def load(reference: PreTrainedModel, target: Target | None = None) -> Model:
    """Our model with the reference's weights; for numpy in float32, unless a target says otherwise."""
    config = decoder_config(reference)
    model = create_model(config, target or numpy_target(block_size=BLOCK_SIZE))
    names, tensors = WeightNames(config, "hf"), reference.state_dict()
    parameters = model.parameters()
    unused = set(tensors) - {names.foreign(name) for name in parameters}
    assert unused == ({"lm_head.weight"} if config.tie_word_embeddings else set())
    for name, parameter in parameters.items():
        stored = tensors[names.foreign(name)].numpy()
        parameter.load(stored + np.float32(1.0) if names.is_minus_one(name) else stored)
    return model


def record_logits(model: Model) -> Program:
    """The model's head alone: inputs rows [L, E] and is_wanted [L], outputs logits and best_ids."""
    op = Recorder("logits")
    rows = op.input("rows", (L, model.config.hidden_size), model.activation_dtype)
    logits, best_ids = model.head(op, rows, op.input("is_wanted", (L,), "int32"))
    return op.finish({"logits": logits, "best_ids": best_ids})


class Engine:
    """Runs steps over sequences of known tokens, with shuffled blocks in caches that begin as NaN."""

    def __init__(self, model: Model, backend: Backend, layer_groups: list[int], sequences: list[list[int]]) -> None:
        self.backend = backend
        self.sequences = sequences
        self.num_groups = max(layer_groups) + 1
        self.num_computed = [0] * len(sequences)
        num_blocks = 1 + len(sequences) * MAX_BLOCKS * self.num_groups
        ids = np.random.default_rng(0).permutation(np.arange(1, num_blocks, dtype=np.int32))
        self.tables = ids.reshape(self.num_groups, len(sequences), MAX_BLOCKS)
        for layer, spec in zip(model.kv_layers, model.kv_specs(), strict=True):
            shape = (num_blocks, 2, spec.num_kv_heads, spec.block_size, spec.head_size)
            array = backend.zeros(num_blocks * spec.block_bytes).view(spec.dtype).reshape(shape)
            array.fill(np.nan)
            layer.bind(array, backend.cache_layout)
        max_sizes = {T: sum(map(len, sequences)), R: len(sequences)}
        self.backbone = backend.compile(record_backbone(model, layer_groups, MAX_BLOCKS), max_sizes)
        self.head = backend.compile(record_logits(model), {L: max_sizes[T]}, (L, ROW_TILE))

    def step(self, counts: dict[int, int]) -> list[np.ndarray]:
        """Compute the next `counts[r]` tokens of sequences r -> their hidden states."""
        rows = list(counts)
        spans = {r: np.arange(self.num_computed[r], self.num_computed[r] + n) for r, n in counts.items()}
        positions = np.concatenate(list(spans.values()))
        query_start = np.cumsum([0, *counts.values()]).astype(np.int32)
        inputs = {
            "token_ids": np.concatenate([np.array(self.sequences[r], np.int32)[spans[r]] for r in rows]),
            "positions": positions.astype(np.int32),
            "query_start": query_start,
            "seq_lens": np.array([spans[r][-1] + 1 for r in rows], np.int32),
        }
        of_token = np.repeat(rows, list(counts.values()))
        for g, table in enumerate(self.tables):
            inputs[f"block_table.{g}"] = table[rows]
            blocks = table[of_token, positions // BLOCK_SIZE].astype(np.int64)
            inputs[f"slot_mapping.{g}"] = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        sizes = {T: len(positions), R: len(rows)}
        self.backend.run([Run(self.backbone, sizes, inputs)])
        hidden = self.backbone.outputs(sizes)["hidden"]
        for r, n in counts.items():
            self.num_computed[r] += n
        return [part.copy() for part in np.split(hidden, query_start[1:-1])]

    def logits(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states [L, E] -> logits [L, V] and best ids [L]."""
        sizes = {L: len(hidden)}
        inputs = {"rows": hidden, "is_wanted": np.ones(len(hidden), np.int32)}
        self.backend.run([Run(self.head, sizes, inputs)])
        outputs = self.head.outputs(sizes)
        return outputs["logits"].copy(), outputs["best_ids"].copy()

    def forget_before(self, window: int, group: int) -> None:
        """What the KV cache does when blocks slide out of the window."""
        for r, computed in enumerate(self.num_computed):
            self.tables[group, r, : max(0, computed - window + 1) // BLOCK_SIZE] = 0
