"""Damaged and hostile files: whatever is in them, they load or are refused with one sentence, in little memory."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from pelton.config import SamplingConfig
from pelton.loader import Checkpoint, load_weights, open_checkpoint
from pelton.models import create_model, record_backbone
from pelton.sampling import record_head
from pelton.tokenizer import load_tokenizer
from tests.support.backends import numpy_target
from tests.support.gguf_file import TypedData, write_file
from tests.support.mutations import (
    GGUF_CHANGES,
    JSON_DAMAGES,
    RAW_DAMAGES,
    Damage,
    Field,
    GGUFChange,
    GGUFParts,
    JSONDamage,
    damaged,
)

SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]
quick_and_thorough = pytest.mark.parametrize(
    "num_examples", [pytest.param(150, id="quick"), pytest.param(10_000, id="thorough", marks=SLOW)]
)

NUM_PARTS = 6
"""How many parts of loading work when nothing is damaged: opening, tokenizer, model, weights, both programs."""
WHOLE_GGUF, WHOLE_FOLDER = 13 + NUM_PARTS, 12 + NUM_PARTS
"""And every tensor."""

VOCABULARY = ["<s>", "</s>", *(chr(33 + i) for i in range(20)), '!"', "é"]
FIELDS = {
    "llama.vocab_size": len(VOCABULARY), "llama.context_length": 64, "llama.embedding_length": 256,
    "llama.block_count": 1, "llama.feed_forward_length": 32, "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1, "llama.rope.dimension_count": 16, "llama.attention.key_length": 16,
    "llama.attention.value_length": 16, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4,
    "tokenizer.ggml.tokens": VOCABULARY, "tokenizer.ggml.token_type": [3, 3] + [1] * (len(VOCABULARY) - 2),
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": True,
}  # fmt: skip
VOCABULARY_FIELDS = {
    "gpt2": {"tokenizer.ggml.pre": "smollm", "tokenizer.ggml.merges": ['! "']},
    "llama": {
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": [-float(i) for i in range(len(VOCABULARY))],
        "tokenizer.ggml.unknown_token_id": 0,
    },
}
TENSORS = {
    "rope_freqs": ("F32", (8,)),
    "token_embd": ("Q5_0", (24, 256)),
    "output": ("Q5_1", (24, 256)),
    "output_norm": ("BF16", (256,)),
    "blk.0.attn_norm": ("Q8_0", (256,)),
    "blk.0.attn_q": ("Q2_K", (32, 256)),
    "blk.0.attn_k": ("Q3_K", (16, 256)),
    "blk.0.attn_v": ("Q4_K", (16, 256)),
    "blk.0.attn_output": ("Q4_0", (256, 32)),
    "blk.0.ffn_norm": ("F16", (256,)),
    "blk.0.ffn_gate": ("Q5_K", (32, 256)),
    "blk.0.ffn_up": ("Q6_K", (32, 256)),
    "blk.0.ffn_down": ("Q4_1", (256, 32)),
}
"""A llama of one layer, with a tensor of every type."""


def tiny_gguf(path: Path, vocabulary: str = "gpt2") -> bytes:
    """The model, with a vocabulary of this kind."""
    tensors: dict[str, np.ndarray | TypedData] = {}
    for name, (type_name, shape) in TENSORS.items():
        tensor_type = gguf.GGMLQuantizationType[type_name]
        if type_name == "F32":
            tensors[f"{name}.weight"] = np.ones(shape, np.float32)
        elif type_name == "F16":
            tensors[f"{name}.weight"] = np.ones(shape, np.float16)
        else:
            blocks = np.zeros(gguf.quant_shape_to_byte_shape(shape, tensor_type), np.uint8)
            tensors[f"{name}.weight"] = (blocks, tensor_type)
    values = FIELDS | VOCABULARY_FIELDS[vocabulary] | {"tokenizer.ggml.model": vocabulary}
    return write_file(path, "llama", values, tensors).read_bytes()


def tiny_folder() -> dict[str, bytes]:
    """The files of a Hugging Face folder in two shards; name -> content."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 24, "hidden_size": 8,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True,
        "eos_token_id": [1], "rope_scaling": None,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i, text in enumerate(VOCABULARY[:2])
        ],
        "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                              "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                            "use_regex": True},
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(VOCABULARY)}, "merges": [["!", "\""]]},
    }  # fmt: skip
    tokenizer_config = {
        "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "chat_template": "{{ messages }}",
        "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
    }  # fmt: skip
    half, brain = torch.float16, torch.bfloat16
    layer = "model.layers.0"
    shards = {
        "model-1.safetensors": {
            "model.embed_tokens.weight": torch.ones(24, 8),
            "model.norm.weight": torch.ones(8, dtype=brain),
            f"{layer}.input_layernorm.weight": torch.ones(8),
            f"{layer}.self_attn.q_proj.weight": torch.ones(8, 8, dtype=half),
            f"{layer}.self_attn.k_proj.weight": torch.ones(4, 8, dtype=half),
            f"{layer}.self_attn.v_proj.weight": torch.ones(4, 8, dtype=half),
        },
        "model-2.safetensors": {
            f"{layer}.self_attn.o_proj.weight": torch.ones(8, 8, dtype=brain),
            f"{layer}.post_attention_layernorm.weight": torch.ones(8, dtype=half),
            f"{layer}.mlp.gate_proj.weight": torch.ones(16, 8, dtype=brain),
            f"{layer}.mlp.up_proj.weight": torch.ones(16, 8, dtype=brain),
            f"{layer}.mlp.down_proj.weight": torch.ones(8, 16),
            f"{layer}.self_attn.rotary_emb.inv_freq": torch.ones(0),
        },
    }
    texts = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": 1},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
        "model.safetensors.index.json": {
            "metadata": {"total_size": 100},
            "weight_map": {tensor: name for name, tensors in shards.items() for tensor in tensors},
        },
    }
    binaries = {name: save(tensors, {"format": "pt"}) for name, tensors in shards.items()}
    return {**{name: json.dumps(content).encode() for name, content in texts.items()}, **binaries}


def attempt(action: Callable[[], object], path: Path) -> bool:
    """Whether it works. It may also be refused, in one line that names the file; nothing else may happen."""
    try:
        action()
    except ValueError as error:
        message = str(error)
        assert path.name in message
        assert message.isprintable()
        assert len(message) < 1500
        return False
    return True


def run_parts(path: Path) -> int:
    """Do all that loading does, as far as it goes. Returns how many parts of it worked."""
    checkpoints: list[Checkpoint] = []
    if not attempt(lambda: checkpoints.append(open_checkpoint(str(path))), path):
        return 0
    (checkpoint,) = checkpoints
    num_worked = 1
    for name in checkpoint.tensor_names():
        num_worked += attempt(lambda name=name: checkpoint.tensor(name).read(), path)
    num_worked += attempt(lambda: load_tokenizer(checkpoint).encode('ab é!"</s>'), path)
    model = create_model(checkpoint.config, numpy_target())
    num_worked += 1
    if attempt(lambda: load_weights(model.parameters(), checkpoint), path):
        record_backbone(model, [0] * len(model.kv_layers), 4)
        record_head(model, SamplingConfig(max_logprobs=5))
        num_worked += 3
    return num_worked


def use(path: Path, num_bytes: int) -> int:
    """`run_parts`, in little memory."""
    tracemalloc.start()
    try:
        num_worked = run_parts(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * num_bytes + 8e6
    return num_worked


def use_file(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return use(path, len(content))


FOLDER = tiny_folder()


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for name, content in FOLDER.items():
        (folder / name).write_bytes(content)
    assert use(folder, 10_000) == WHOLE_FOLDER
    return folder


def use_folder(folder: Path, name: str, content: bytes) -> int:
    """With another content of one of its files."""
    (folder / name).write_bytes(content)
    try:
        return use(folder, len(content) + 10_000)
    finally:
        (folder / name).write_bytes(FOLDER[name])


@quick_and_thorough
def test_damaged_bytes_of_a_gguf_file(num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    content = tiny_gguf(path)
    assert use_file(path, content) == WHOLE_GGUF
    fields = GGUFParts.of(path).fields
    outcomes = set()

    @settings(max_examples=num_examples)
    @given(RAW_DAMAGES)
    def check(damages: list[Damage]) -> None:
        outcomes.add(use_file(path, damaged(content, damages, fields)))

    check()
    assert {0, WHOLE_GGUF} <= outcomes


@quick_and_thorough
@pytest.mark.parametrize("vocabulary", ["gpt2", "llama"])
def test_gguf_files_with_other_entries(vocabulary: str, num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    content = tiny_gguf(path, vocabulary)
    parts = GGUFParts.of(path)
    assert parts.assemble(GGUFChange()) == content
    assert use_file(path, content) == WHOLE_GGUF
    outcomes = set()

    @settings(max_examples=num_examples)
    @given(GGUF_CHANGES)
    def check(change: GGUFChange) -> None:
        outcomes.add(use_file(path, parts.assemble(change)))

    check()
    assert {0, WHOLE_GGUF} < outcomes


@quick_and_thorough
def test_damaged_bytes_in_a_folder(num_examples: int, hostile_folder: Path) -> None:
    outcomes = set()

    @settings(max_examples=num_examples)
    @given(st.sampled_from(sorted(FOLDER)), RAW_DAMAGES)
    def check(name: str, damages: list[Damage]) -> None:
        outcomes.add(use_folder(hostile_folder, name, damaged(FOLDER[name], damages, [Field(0, 8)])))

    check()
    assert {0, WHOLE_FOLDER - 1, WHOLE_FOLDER} <= outcomes


@quick_and_thorough
def test_folders_with_other_json(num_examples: int, hostile_folder: Path) -> None:
    outcomes = set()

    @settings(max_examples=num_examples)
    @given(st.sampled_from(sorted(FOLDER)), JSON_DAMAGES)
    def check(name: str, damage: JSONDamage) -> None:
        content = FOLDER[name]
        if name.endswith(".json"):
            content = damage.apply(content.decode()).encode()
        else:
            header_end = 8 + int.from_bytes(content[:8], "little")
            header = damage.apply(content[8:header_end].decode()).encode()
            content = struct.pack("<Q", len(header)) + header + content[header_end:]
        outcomes.add(use_folder(hostile_folder, name, content))

    check()
    assert {0, WHOLE_FOLDER - 1, WHOLE_FOLDER} <= outcomes
