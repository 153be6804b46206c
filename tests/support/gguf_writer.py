"""Writes a model of transformers as a GGUF file, as the format's usual converter does."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as TensorType
from transformers import PreTrainedConfig, PreTrainedModel

from tests.support.tiny_models import SPECIAL_TOKENS, tiny_tokenizer

Encode = Callable[[np.ndarray], tuple[np.ndarray, TensorType]]
"""Turns a matrix into a tensor's bytes, and says of which type they are."""

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
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

    def encode(matrix: np.ndarray) -> tuple[np.ndarray, TensorType]:
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
    arch = _ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_configuration(writer, config, arch)
    _add_tokenizer(writer, config)
    values = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = _to_gguf(name, tensor.numpy(), config, arch)
        data, tensor_type = encode(array) if array.ndim == 2 else (array, TensorType.F32)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, data, raw_dtype=tensor_type)
        values[name] = torch.from_numpy(_from_gguf(name, gguf.dequantize(data, tensor_type), config, arch))
    if arch == gguf.MODEL_ARCH.LLAMA and config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    written = copy.deepcopy(model)
    written.load_state_dict(values, strict=not config.tie_word_embeddings)
    return written


def _heads_in_turns(name: str, config: PreTrainedConfig, arch: gguf.MODEL_ARCH) -> int | None:
    """Heads of a tensor whose rows alternate between the halves of a head, as rotary embeddings of GGUF's Llama do."""
    if arch == gguf.MODEL_ARCH.LLAMA:
        if "q_proj" in name:
            return config.num_attention_heads
        if "k_proj" in name:
            return config.num_key_value_heads
    return None


def _to_gguf(name: str, array: np.ndarray, config: PreTrainedConfig, arch: gguf.MODEL_ARCH) -> np.ndarray:
    if arch == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
        return array + np.float32(1.0)
    heads = _heads_in_turns(name, config, arch)
    if heads is None:
        return array
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _from_gguf(name: str, array: np.ndarray, config: PreTrainedConfig, arch: gguf.MODEL_ARCH) -> np.ndarray:
    if arch == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
        return array - np.float32(1.0)
    heads = _heads_in_turns(name, config, arch)
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


def _add_configuration(writer: gguf.GGUFWriter, config: PreTrainedConfig, arch: gguf.MODEL_ARCH) -> None:
    writer.add_type("model")
    writer.add_name("tiny")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    _add_rope(writer, rope.get("full_attention", rope))
    if arch == gguf.MODEL_ARCH.LLAMA:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if hasattr(config, "head_dim"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if arch == gguf.MODEL_ARCH.GEMMA3:
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        if windowed != [layer % 6 != 5 for layer in range(len(windowed))]:
            writer.add_sliding_window_pattern(windowed)
        if config.attn_logit_softcapping is not None:
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        if config.final_logit_softcapping is not None:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _add_rope(writer: gguf.GGUFWriter, rope: dict) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
    writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:  # the format's is on top of what YaRN recommends
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / (0.1 * math.log(rope["factor"]) + 1.0))
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if "beta_slow" in rope:
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _add_tokenizer(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    backend = tiny_tokenizer()
    tokens = [backend.id_to_token(token_id) for token_id in range(config.vocab_size)]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
