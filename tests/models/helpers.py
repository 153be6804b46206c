"""Tiny models with random weights, and a stand-in for the engine that drives their programs."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from pelton.config import DecoderConfig
from pelton.models import Model, create_model, record_backbone
from pelton.ops import Interpreter, R, T

torch.set_num_threads(1)  # two thread pools on the same cores slow each other down

BLOCK_SIZE = 4
MAX_BLOCKS = 16

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "attn_implementation": "eager",
}

_NAMES = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.": "attention.",
    "model.": "",
    "_proj": "",
    ".weight": "",
}


def llama(*, tied: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=tied)).eval()


def qwen2_with_windows(window: int, layer_types: list[str]) -> PreTrainedModel:
    """A Llama in structure: Qwen2's biases start at zero and stay there."""
    torch.manual_seed(1)
    config = Qwen2Config(
        **SHAPE,
        use_sliding_window=True,
        sliding_window=window,
        layer_types=layer_types,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def decoder_config(reference: PreTrainedModel) -> DecoderConfig:
    config = reference.config
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return DecoderConfig(
        architecture="llama",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=config.hidden_size // config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=1e4,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        eos_token_ids=(0,),
        layer_windows=tuple(config.sliding_window if t == "sliding_attention" else None for t in types),
    )


def load(reference: PreTrainedModel) -> Model:
    """Our model with the reference's weights."""
    model = create_model(decoder_config(reference), block_size=BLOCK_SIZE, max_model_len=64)
    tensors = {}
    for name, tensor in reference.state_dict().items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        if not name.endswith(".bias"):
            tensors[name] = tensor.numpy()
    if reference.config.tie_word_embeddings:
        del tensors["lm_head"]
    parameters = model.parameters()
    assert sorted(parameters) == sorted(tensors)
    for name, parameter in parameters.items():
        parameter.load(tensors[name])
    return model


class Engine:
    """Runs steps over sequences of known tokens, with shuffled blocks in caches that begin as NaN."""

    def __init__(self, model: Model, layer_groups: list[int], sequences: list[list[int]]) -> None:
        self.sequences = sequences
        self.num_groups = max(layer_groups) + 1
        self.num_computed = [0] * len(sequences)
        num_blocks = 1 + len(sequences) * MAX_BLOCKS * self.num_groups
        ids = np.random.default_rng(0).permutation(np.arange(1, num_blocks, dtype=np.int32))
        self.tables = ids.reshape(self.num_groups, len(sequences), MAX_BLOCKS)
        for layer, spec in zip(model.kv_layers, model.kv_specs(), strict=True):
            shape = (num_blocks, 2, spec.num_kv_heads, spec.block_size, spec.head_size)
            layer.bind(np.full(shape, np.nan, np.float32))
        program = record_backbone(model, layer_groups, MAX_BLOCKS)
        max_sizes = {T: sum(map(len, sequences)), R: len(sequences)}
        self.interpreter = Interpreter(program, max_sizes, check_finite=True)

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
        hidden = self.interpreter.run({T: len(positions), R: len(rows)}, inputs)["hidden"]
        for r, n in counts.items():
            self.num_computed[r] += n
        return [part.copy() for part in np.split(hidden, query_start[1:-1])]

    def forget_before(self, window: int, group: int) -> None:
        """What the KV cache does when blocks slide out of the window."""
        for r, computed in enumerate(self.num_computed):
            self.tables[group, r, : max(0, computed - window + 1) // BLOCK_SIZE] = 0
