"""Small trained tokenizers of the library's kinds."""

import json
from collections.abc import Callable

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

TRAINING_TEXTS = ["the quick brown fox jumps over the lazy dog", "hello world, hello words", "über die Brücke"] * 20
SPECIAL = [
    AddedToken("<unk>", special=True),
    AddedToken("<s>", special=True),
    AddedToken("</s>", special=True),
]


def trained(backend: tokenizers.Tokenizer, alphabet: list[str] | None = None) -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet or [], show_progress=False
    )
    backend.train_from_iterator(TRAINING_TEXTS, trainer)
    return backend


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trained(backend, pre_tokenizers.ByteLevel.alphabet())
    backend.add_tokens(["<tool call>", "日本"])
    return backend


def with_byte_fallback(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    """In the manner of SentencePiece: spaces become ▁, and what the vocabulary lacks becomes byte tokens."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoder
    trained(backend, ["▁", "\N{REPLACEMENT CHARACTER}"])
    state = json.loads(backend.to_str())
    vocabulary = state["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    restored = tokenizers.Tokenizer.from_str(json.dumps(state))
    restored.add_tokens(["<tool call>"])
    return restored


def word_piece() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(TRAINING_TEXTS, trainer)
    return backend


def undecoded() -> tokenizers.Tokenizer:
    backend = word_piece()
    backend.decoder = None
    return backend


BACKENDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte level": byte_level,
    "metaspace and byte fallback": lambda: with_byte_fallback(
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "llama": lambda: with_byte_fallback(
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(content=" ", left=1),
            ]
        )
    ),
    "word piece": word_piece,
    "no decoder": undecoded,
}
