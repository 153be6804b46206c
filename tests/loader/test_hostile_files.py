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

from pelton.loader import Checkpoint, open_checkpoint
from pelton.tokenizer import load_tokenizer
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

WHOLE_GGUF, WHOLE_FOLDER = 15, 7
"""How many parts of loading work when nothing is damaged: opening, every tensor, the tokenizer."""

VOCABULARY = ["<s>", "</s>", *(chr(33 + i) for i in range(20)), '!"', "é"]
FIELDS = {
    "vocab_size": len(VOCABULARY), "context_length": 64, "embedding_length": 8, "block_count": 1,
    "feed_forward_length": 16, "attention.head_count": 2, "attention.head_count_kv": 1, "rope.dimension_count": 4,
}  # fmt: skip


def tiny_gguf(path: Path, vocabulary: str = "gpt2") -> bytes:
    """Llama's metadata, a vocabulary of this kind, and a tensor of every type with one row."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in FIELDS.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tokenizer_model(vocabulary)
    writer.add_tokenizer_pre("smollm" if vocabulary == "gpt2" else "default")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3] + [1] * (len(VOCABULARY) - 2))
    if vocabulary == "gpt2":
        writer.add_token_merges(['! "'])
    else:
        writer.add_token_scores([-float(i) for i in range(len(VOCABULARY))])
        writer.add_unk_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        kind = gguf.GGMLQuantizationType[name]
        _, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        dtype = {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)
        block = np.zeros((1, max(num_bytes, 8) // dtype().itemsize), dtype)
        writer.add_tensor(f"blk.0.{name}", block, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


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
    shards = {
        "model-1.safetensors": {
            "a": torch.ones(2, 3),
            "b": torch.ones(2, 3, dtype=torch.float16),
            "c": torch.ones(3, dtype=torch.bfloat16),
        },
        "model-2.safetensors": {"d": torch.ones(4), "e": torch.zeros(0, 3)},
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


def use(path: Path, num_bytes: int) -> int:
    """Do all that loading does, as far as it goes. Returns how many parts of it worked."""
    checkpoints: list[Checkpoint] = []
    num_worked = 0
    tracemalloc.start()
    try:
        if attempt(lambda: checkpoints.append(open_checkpoint(str(path))), path):
            (checkpoint,) = checkpoints
            num_worked += 1
            for name in checkpoint.tensor_names():
                num_worked += attempt(lambda name=name: checkpoint.read(name), path)
            num_worked += attempt(lambda: load_tokenizer(checkpoint).encode('ab é!"</s>'), path)
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
