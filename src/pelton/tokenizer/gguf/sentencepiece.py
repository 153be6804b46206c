"""SentencePiece vocabularies with scores instead of merges (`tokenizer.ggml.model` is llama)."""

from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers

from pelton.error_text import shown
from pelton.loader.gguf.vocabulary_keys import PREFIX, TokenType
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.gguf.cuts import cut_tokens
from pelton.tokenizer.gguf.vocabulary import GGUFVocabulary

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in these vocabularies."""

_MOST_MERGES, _MOST_MERGES_PER_TOKEN = 100_000, 16
"""Gemma's vocabulary has 2 per token. One that is made for the purpose has far more than memory holds."""


def sentencepiece_backend(vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    if (pre := vocabulary.entries.get("pre", "default")) != "default":
        raise ValueError(f"{PREFIX}pre is {shown(pre)}, and for {PREFIX}model llama Pelton reads only 'default'")
    merges = merges_by_score(_ranked(vocabulary))
    with backend_errors(f"{PREFIX}tokens is not a usable vocabulary"):
        model = models.BPE(
            vocabulary.token_ids,
            merges,
            unk_token=_unknown_token(vocabulary),
            fuse_unk=True,
            byte_fallback=all(f"<0x{byte:02X}>" in vocabulary.token_ids for byte in range(256)),
        )
    backend = tokenizers.Tokenizer(model)
    prefix_space = vocabulary.flag("add_space_prefix", True)
    backend.normalizer = _normalizer(prefix_space, vocabulary.flag("remove_extra_whitespaces", False))
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
    return backend


def merges_by_score(ranked: Sequence[str]) -> list[tuple[str, str]]:
    """The merges of tokens that are given best first: every way to cut one in two tokens.

    SentencePiece joins the neighbours whose union has the best score, the leftmost first. With these merges in
    this order byte-pair encoding does the same, as long as no two scores are equal: neighbours that give one
    token by different cuts never overlap, since everything inside a stretch of text happens as if it stood alone.
    """
    merges: list[tuple[str, str]] = []
    most = _MOST_MERGES + _MOST_MERGES_PER_TOKEN * len(ranked)
    try:
        for pairs in cut_tokens(ranked):
            merges += pairs
            if len(merges) > most:
                raise ValueError(f"it has more than {most} merges")
    except ValueError as error:
        raise ValueError(f"{PREFIX}tokens is not a usable vocabulary: {error}") from None
    return merges


def _ranked(vocabulary: GGUFVocabulary) -> list[str]:
    """The tokens that merges may produce, best score first; equal ones in the order of their ids."""
    order = np.argsort(-vocabulary.scores(), kind="stable")
    normal = order[vocabulary.types[order] == TokenType.NORMAL]
    return [vocabulary.tokens[token_id] for token_id in normal.tolist()]


def _unknown_token(vocabulary: GGUFVocabulary) -> str | None:
    """What the file names, else the first token of that type."""
    found = np.flatnonzero(vocabulary.types == TokenType.UNKNOWN).tolist()
    stated = vocabulary.token("unknown_token_id")
    return vocabulary.tokens[found[0]] if stated is None and found else stated


def _normalizer(prefix_space: bool, remove_extra_whitespaces: bool) -> normalizers.Normalizer:
    """Between two special tokens: the space before a text, and spaces as these vocabularies write them."""
    steps: list[normalizers.Normalizer] = []
    if remove_extra_whitespaces:
        # In this order: at most one space is left at either end, and the search stays linear.
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
    if prefix_space:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
