"""SentencePiece models, written and read without protobuf's package (sentencepiece_model.proto has the numbers)."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sentencepiece import SentencePieceProcessor

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_BPE = 2


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _blob(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def bpe_model(
    pieces: Iterable[tuple[str, float, int]],
    *,
    unk_id: int,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool = False,
) -> SentencePieceProcessor:
    """A byte-pair model with byte fallback, of (piece, score, type); BOS and EOS are whatever controls there are."""
    entries = b"".join(
        _blob(1, _blob(1, piece.encode()) + _float(2, score) + _number(3, kind)) for piece, score, kind in pieces
    )
    trainer = _number(3, _BPE) + _number(35, 1) + _number(40, unk_id) + b"".join(_number(n, -1) for n in (41, 42, 43))
    normalizer = (
        _blob(1, b"identity") + _number(3, add_dummy_prefix) + _number(4, remove_extra_whitespaces) + _number(5, 1)
    )
    return SentencePieceProcessor(model_proto=entries + _blob(2, trainer) + _blob(3, normalizer))


def model_of(metadata: Mapping[str, Any], *, add_dummy_prefix: bool, **options: bool) -> SentencePieceProcessor:
    """The model of a GGUF file, which writes the spaces of user-defined pieces as spaces."""
    keys = ("tokens", "scores", "token_type")
    pieces = [
        (token.replace(" ", "▁") if kind == USER_DEFINED else token, float(score), int(kind))
        for token, score, kind in zip(*(list(metadata[f"tokenizer.ggml.{key}"]) for key in keys), strict=True)
    ]
    unk_id = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    return bpe_model(pieces, unk_id=unk_id, add_dummy_prefix=add_dummy_prefix, **options)


def metadata_of(model: SentencePieceProcessor) -> dict[str, Any]:
    """What a converter makes of a model without user-defined pieces."""
    ids = range(model.vocab_size())

    def kind(token_id: int) -> int:
        for is_kind, number in (
            (model.is_unknown, UNKNOWN),
            (model.is_control, CONTROL),
            (model.is_byte, BYTE),
            (model.is_unused, UNUSED),
        ):
            if is_kind(token_id):
                return number
        return NORMAL

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [model.id_to_piece(token_id) for token_id in ids],
        "tokenizer.ggml.scores": np.array([model.get_score(token_id) for token_id in ids], np.float32),
        "tokenizer.ggml.token_type": np.array([kind(token_id) for token_id in ids], np.int32),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }
