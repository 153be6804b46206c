"""Byte-level byte-pair vocabularies (`tokenizer.ggml.model` is gpt2)."""

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from pelton.error_text import shown
from pelton.loader.gguf.vocabulary_keys import PREFIX
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.gguf.pre_tokenizers import PRE_TOKENIZATIONS, PreTokenization
from pelton.tokenizer.gguf.vocabulary import GGUFVocabulary


def pre_tokenization(vocabulary: GGUFVocabulary) -> PreTokenization:
    """Raises ValueError for a name that is not known, and where there is none."""
    name = vocabulary.entries.get("pre")
    if name is None or name == "default":
        found = "is missing" if name is None else "is 'default', which says nothing"
        raise ValueError(
            f"{PREFIX}pre {found}: an old converter made this file, and how its texts are cut into words is unknown; "
            "convert the original model anew"
        )
    if not isinstance(name, str) or name not in PRE_TOKENIZATIONS:
        raise ValueError(f"{PREFIX}pre is {shown(name)}, and Pelton reads only {', '.join(PRE_TOKENIZATIONS)}")
    return PRE_TOKENIZATIONS[name]


def byte_level_backend(vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    pre = pre_tokenization(vocabulary)
    parts = (merge.partition(" ") for merge in vocabulary.strings("merges"))
    merges = [(left, right) for left, _, right in parts]
    with backend_errors(f"{PREFIX}merges does not fit the vocabulary"):
        model = models.BPE(vocabulary.token_ids, merges, ignore_merges=pre.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(pre.steps()))
    backend.decoder = decoders.ByteLevel()
    return backend
