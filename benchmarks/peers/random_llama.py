"""Writes GGUF files of a Llama with random weights, by default of Llama 3.2 1B's shape (1.24 billion parameters).

    .venv/bin/python benchmarks/peers/random_llama.py FOLDER Q4_0 Q8_0

FOLDER gets TYPE.gguf for each type, all of the same random weights. The vocabulary is SmolLM2's, filled up with tokens
that stand for nothing; prompts are token ids. Head and embedding are one table. Needs the extra `test`, and 3 GB.
"""

import argparse
from pathlib import Path

import gguf
import gguf_writing
import numpy as np
from gguf import GGUFValueType as Kind
from gguf_writing import TABLE, Entry, Tensor

from pelton.loader import open_checkpoint

HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 64
HIDDEN, INTERMEDIATE, VOCABULARY = HEADS * HEAD_SIZE, 8192, 128_256
STANDARD_DEVIATION = 0.02


def configuration(num_layers: int) -> list[Entry]:
    sizes = {
        "block_count": num_layers,
        "context_length": 8192,
        "embedding_length": HIDDEN,
        "feed_forward_length": INTERMEDIATE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": HEAD_SIZE,
        "vocab_size": VOCABULARY,
    }
    numbers = {"rope.freq_base": 500_000.0, "attention.layer_norm_rms_epsilon": 1e-5}
    return [
        *(Entry(f"llama.{name}", value, Kind.UINT32) for name, value in sizes.items()),
        *(Entry(f"llama.{name}", value, Kind.FLOAT32) for name, value in numbers.items()),
    ]


def vocabulary() -> list[Entry]:
    """SmolLM2's, filled up."""
    entries = []
    for entry in gguf_writing.read_entries(gguf.GGUFReader(open_checkpoint("smollm2").path)):
        if not entry.name.startswith("tokenizer.ggml."):
            continue
        value = entry.value
        if entry.name == "tokenizer.ggml.tokens":
            value = value + [f"[PAD{i}]" for i in range(len(value), VOCABULARY)]
        elif entry.name == "tokenizer.ggml.token_type":
            value = value + [int(gguf.TokenType.UNUSED)] * (VOCABULARY - len(value))
        entries.append(Entry(entry.name, value, entry.kind, entry.item_kind))
    return entries


def tensors(num_layers: int) -> list[Tensor]:
    """Each has a generator of its own, so that all files have the same weights."""
    matrices = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INTERMEDIATE, HIDDEN),
        "ffn_up": (INTERMEDIATE, HIDDEN),
        "ffn_down": (HIDDEN, INTERMEDIATE),
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
    }
    shapes = {TABLE: (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.{i}.{name}.weight": shape for i in range(num_layers) for name, shape in matrices.items()}
    return [
        Tensor(name, shape, lambda seed=seed, shape=shape: weights(seed, shape))
        for seed, (name, shape) in enumerate(shapes.items())
    ]


def weights(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(STANDARD_DEVIATION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("types", nargs="+", choices=list(gguf_writing.FILE_TYPES))
    parser.add_argument("--table", choices=list(gguf_writing.FILE_TYPES), help="type of the embedding table")
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    entries = configuration(options.layers) + vocabulary()
    entries.append(Entry("general.quantization_version", 2, Kind.UINT32))
    for file_type in options.types:
        target = options.folder / gguf_writing.file_name(file_type, options.table)
        gguf_writing.write(target, "llama", entries, tensors(options.layers), file_type, options.table)


if __name__ == "__main__":
    main()
