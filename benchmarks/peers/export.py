"""Writes a GGUF file's tensors, dequantized to bfloat16, and its tokenizer, as vLLM and transformers read them.

    .venv/bin/python benchmarks/peers/export.py MODEL FOLDER

MODEL is whatever Pelton takes that is a GGUF file. FOLDER gets config.json, generation_config.json (without an end of
sequence: answers get as long as they may), model.safetensors, tokenizer.json and tokenizer_config.json. Needs the extra
`test`.
"""

import argparse
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import tokenizers
from engines import UnavailableError
from safetensors.numpy import save_file

from pelton.config import DecoderConfig
from pelton.layers import Target
from pelton.loader import Checkpoint, open_checkpoint
from pelton.loader.name_maps import WeightNames
from pelton.models import create_model
from pelton.ops.interpreter import NumpyBackend
from pelton.tokenizer import load_tokenizer

CLASSES = {"llama": ("LlamaForCausalLM", "llama"), "gemma3": ("Gemma3ForCausalLM", "gemma3_text")}


def check(config: DecoderConfig) -> None:
    """Raises UnavailableError for what config.json would not tell."""
    if config.architecture not in CLASSES:
        raise UnavailableError(f"export.py writes {', '.join(CLASSES)}, and no {config.architecture}")
    unwritten = {
        "scaling of the rotary embedding": config.rope.scaling or config.sliding_rope.scaling,
        "biases": config.attention_bias or config.attention_output_bias or config.mlp_bias,
        "soft caps": config.attention_softcap or config.logit_softcap,
        "another attention scale": abs(config.attention_scale * config.head_size**0.5 - 1) > 1e-3,
        "windows": config.architecture == "llama" and any(config.layer_windows),
    }
    if found := [name for name, has in unwritten.items() if has]:
        raise UnavailableError(f"export.py does not write {' and '.join(found)}, which this model has")


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """Raises UnavailableError for a model that it would not describe in full."""
    check(config)
    architecture, model_type = CLASSES[config.architecture]
    fields: dict[str, object] = {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "eos_token_id": config.eos_token_ids[0],
        "hidden_act": "silu",
    }
    if config.architecture == "gemma3":
        windows = config.layer_windows
        fields |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": config.head_size,
            "sliding_window": next(window for window in windows if window is not None),
            "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
            "rope_local_base_freq": config.sliding_rope.theta,
        }
    return fields


def save_weights(checkpoint: Checkpoint, path: Path) -> None:
    config = checkpoint.config
    own, foreign = WeightNames(config, "gguf"), WeightNames(config, "hf")
    tensors = {}
    for name in create_model(config, Target(NumpyBackend())).parameters():
        array = own.tensor(name, checkpoint).read()
        if foreign.is_minus_one(name):
            array = array - np.float32(1.0)
        tensors[foreign.foreign(name)] = array.astype(ml_dtypes.bfloat16)
    save_file(tensors, path, metadata={"format": "pt"})


def save_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    backend: tokenizers.Tokenizer = load_tokenizer(checkpoint)._backend
    backend.save(str(folder / "tokenizer.json"))
    end = backend.id_to_token(checkpoint.config.eos_token_ids[0])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def export(checkpoint: Checkpoint, folder: Path) -> None:
    fields = hf_config(checkpoint.config)
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(checkpoint, folder)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    generation = {"eos_token_id": None, "pad_token_id": checkpoint.config.eos_token_ids[0]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    save_weights(checkpoint, folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        export(open_checkpoint(options.model), options.folder)
    except UnavailableError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
