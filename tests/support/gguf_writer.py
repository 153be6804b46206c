"""Writes a model of transformers as a GGUF file, as the format's usual converter does."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as TensorType
from gguf import Keys
from transformers import PreTrainedConfig, PreTrainedModel

from tests.support.gguf_file import TypedData, write_file
from tests.support.tiny_models import SPECIAL_TOKENS, architecture_of, tiny_tokenizer

Encode = Callable[[np.ndarray], TypedData]

_ROW_BYTES_OF_SCALES = {
    TensorType.Q2_K: (80, 82, 3),
    TensorType.Q3_K: (108, None, 0),
    TensorType.Q4_K: (0, 2, 15),
    TensorType.Q5_K: (0, 2, 31),
    TensorType.Q6_K: (208, None, 0),
}
"""In a block of 256: where the float16 scales of values and minima stand, and the largest value."""


def as_type(tensor_type: TensorType) -> Encode:
    return lambda matrix: (gguf.quantize(matrix, tensor_type), tensor_type)


FLOAT32 = as_type(TensorType.F32)


def random_blocks(tensor_types: list[TensorType], scale: float) -> Encode:
    """Blocks of random bits instead of the matrix, of one type after the other; the values spread by about `scale`.

    For types that the gguf package reads but does not write.
    """
    rng = np.random.default_rng(0)
    turn = 0

    def encode(matrix: np.ndarray) -> TypedData:
        nonlocal turn
        tensor_type = tensor_types[turn % len(tensor_types)]
        turn += 1
        at, at_minimum, largest = _ROW_BYTES_OF_SCALES[tensor_type]
        block_size, num_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
        blocks = rng.integers(0, 256, (matrix.size // block_size, num_bytes), np.uint8)

        def set_scale(factor: float) -> None:
            blocks[:, at : at + 2] = np.array([factor], np.float16).view(np.uint8)
            if at_minimum is not None:  # half of the largest value, so that values are about 0 on average
                minimum = np.array([factor * largest / 2], np.float16)
                blocks[:, at_minimum : at_minimum + 2] = minimum.view(np.uint8)

        set_scale(1.0)
        set_scale(scale / gguf.dequantize(blocks, tensor_type).std())
        return blocks.reshape(len(matrix), -1), tensor_type

    return encode


def write_gguf(model: PreTrainedModel, path: Path, encode: Encode = FLOAT32) -> PreTrainedModel:
    """Write the file; vectors stay float32. Returns the model with the values that the file holds."""
    config = model.config
    architecture = architecture_of(config)
    own_names, tensors, values = own_names_of(model), {}, {}
    for name, array in gguf_tensors(model).items():
        data, tensor_type = tensors[name] = encode(array) if array.ndim == 2 else (array, TensorType.F32)
        own_name = own_names[name]
        values[own_name] = torch.from_numpy(_from_gguf(own_name, gguf.dequantize(data, tensor_type), config))
    if architecture == "llama" and config.rope_parameters["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = (_llama3_divisors(model), TensorType.F32)
    metadata = {key.format(arch=architecture): value for key, value in _configuration(config).items()}
    write_file(path, architecture, metadata | _tokenizer(config), tensors)
    written = copy.deepcopy(model)
    written.load_state_dict(values, strict=not config.tie_word_embeddings)
    return written


def gguf_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The model's tensors, named and laid out as in the format."""
    state = model.state_dict()
    return {
        gguf_name: _to_gguf(name, state[name].numpy(), model.config) for gguf_name, name in own_names_of(model).items()
    }


def own_names_of(model: PreTrainedModel) -> dict[str, str]:
    """GGUF's name of each of the model's tensors -> the name in the model. A tied head is not in the file."""
    config = model.config
    (arch,) = [arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture_of(config)]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    return {
        names.get_name(name, try_suffixes=(".weight", ".bias")): name
        for name in model.state_dict()
        if name != "lm_head.weight" or not config.tie_word_embeddings
    }


def _heads_in_turns(name: str, config: PreTrainedConfig) -> int | None:
    """Heads of a tensor whose rows alternate between the halves of a head, as rotary embeddings of GGUF's Llama do."""
    if architecture_of(config) == "llama":
        if "q_proj" in name:
            return config.num_attention_heads
        if "k_proj" in name:
            return config.num_key_value_heads
    return None


def _to_gguf(name: str, array: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    if architecture_of(config) == "gemma3" and name.endswith("norm.weight"):
        return array + np.float32(1.0)
    heads = _heads_in_turns(name, config)
    if heads is None:
        return array
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _from_gguf(name: str, array: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    if architecture_of(config) == "gemma3" and name.endswith("norm.weight"):
        return array - np.float32(1.0)
    heads = _heads_in_turns(name, config)
    if heads is None:
        return np.array(array)
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _llama3_divisors(model: PreTrainedModel) -> np.ndarray:
    """What the scaling of Llama 3 divides each frequency by, [head_dim / 2]."""
    scaled = model.model.rotary_emb.inv_freq.double().numpy()
    config = model.config
    powers = np.arange(0, config.head_dim, 2) / config.head_dim
    return (config.rope_parameters["rope_theta"] ** -powers / scaled).astype(np.float32)


def _configuration(config: PreTrainedConfig) -> dict[str, Any]:
    """Metadata; `{arch}` in a key stands for the architecture."""
    rope = config.rope_parameters
    values = {
        Keys.General.TYPE: "model",
        Keys.General.NAME: "tiny",
        Keys.General.QUANTIZATION_VERSION: gguf.GGML_QUANT_VERSION,
        Keys.LLM.BLOCK_COUNT: config.num_hidden_layers,
        Keys.LLM.CONTEXT_LENGTH: config.max_position_embeddings,
        Keys.LLM.EMBEDDING_LENGTH: config.hidden_size,
        Keys.LLM.FEED_FORWARD_LENGTH: config.intermediate_size,
        Keys.Attention.HEAD_COUNT: config.num_attention_heads,
        Keys.Attention.HEAD_COUNT_KV: config.num_key_value_heads,
        Keys.Attention.LAYERNORM_RMS_EPS: config.rms_norm_eps,
        **_rope(rope.get("full_attention", rope)),
    }
    if hasattr(config, "head_dim"):
        values |= {Keys.Attention.KEY_LENGTH: config.head_dim, Keys.Attention.VALUE_LENGTH: config.head_dim}
    match architecture_of(config):
        case "llama":
            values |= {Keys.LLM.VOCAB_SIZE: config.vocab_size, Keys.Rope.DIMENSION_COUNT: config.head_dim}
        case "gemma3":
            values |= _gemma3(config)
    return values


def _gemma3(config: PreTrainedConfig) -> dict[str, Any]:
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    is_usual = windowed == [layer % 6 != 5 for layer in range(len(windowed))]
    return {
        Keys.Attention.SLIDING_WINDOW: config.sliding_window,
        Keys.Attention.SLIDING_WINDOW_PATTERN: None if is_usual else windowed,
        Keys.Rope.FREQ_BASE_SWA: config.rope_parameters["sliding_attention"]["rope_theta"],
        Keys.LLM.ATTN_LOGIT_SOFTCAPPING: config.attn_logit_softcapping,
        Keys.LLM.FINAL_LOGIT_SOFTCAPPING: config.final_logit_softcapping,
    }


def _rope(rope: dict[str, Any]) -> dict[str, Any]:
    values = {Keys.Rope.FREQ_BASE: rope["rope_theta"]}
    if rope["rope_type"] in ("linear", "yarn"):
        values |= {Keys.Rope.SCALING_TYPE: rope["rope_type"], Keys.Rope.SCALING_FACTOR: rope["factor"]}
    if rope["rope_type"] == "yarn":
        values |= {
            Keys.Rope.SCALING_ORIG_CTX_LEN: rope["original_max_position_embeddings"],
            Keys.Rope.SCALING_YARN_BETA_FAST: rope.get("beta_fast"),
            Keys.Rope.SCALING_YARN_BETA_SLOW: rope.get("beta_slow"),
        }
        if "attention_factor" in rope:  # the format's is on top of what YaRN recommends
            recommended = 0.1 * math.log(rope["factor"]) + 1.0
            values[Keys.Rope.SCALING_ATTN_FACTOR] = rope["attention_factor"] / recommended
    return values


def _tokenizer(config: PreTrainedConfig) -> dict[str, Any]:
    backend = tiny_tokenizer()
    tokens = [backend.id_to_token(token_id) for token_id in range(config.vocab_size)]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    return {
        Keys.Tokenizer.MODEL: "gpt2",
        Keys.Tokenizer.PRE: "smollm",
        Keys.Tokenizer.LIST: tokens,
        Keys.Tokenizer.TOKEN_TYPE: [control if token in SPECIAL_TOKENS else normal for token in tokens],
        Keys.Tokenizer.MERGES: [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]],
        Keys.Tokenizer.BOS_ID: config.bos_token_id,
        Keys.Tokenizer.EOS_ID: config.eos_token_id,
        Keys.Tokenizer.ADD_BOS: False,
    }
