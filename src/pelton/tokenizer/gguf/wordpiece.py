"""WordPiece vocabularies (`tokenizer.ggml.model` is bert)."""

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from pelton.error_text import shown
from pelton.loader.gguf.vocabulary_keys import PREFIX, TokenType
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.gguf.vocabulary import GGUFVocabulary

_PRE_TOKENIZERS = ("default", "bert-bge", "bert-bge-large", "jina-v2-en")
"""All cut at spaces and punctuation; what differs is said by other keys."""
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"
_CONTINUATION = "##"
_MAX_WORD_LENGTH = 100


def wordpiece_backend(vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    if (pre := vocabulary.entries.get("pre", "default")) not in _PRE_TOKENIZERS:
        raise ValueError(
            f"{PREFIX}pre is {shown(pre)}, and for {PREFIX}model bert Pelton reads only {', '.join(_PRE_TOKENIZERS)}"
        )
    unknown_id = vocabulary.token_id("unknown_token_id")
    if unknown_id is None:
        raise ValueError(f"{PREFIX}unknown_token_id is missing, which {PREFIX}model bert needs")
    words = _words(vocabulary)
    with backend_errors(f"{PREFIX}tokens is not a usable vocabulary"):
        model = models.WordPiece(
            {word: token_id for token_id, word in enumerate(words)},
            unk_token=words[unknown_id],
            max_input_chars_per_word=_MAX_WORD_LENGTH,
            continuing_subword_prefix=_CONTINUATION,
        )
    backend = tokenizers.Tokenizer(model)
    lowercase = vocabulary.flag("normalizer.lowercase", True)
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=vocabulary.flag("normalizer.strip_accents", lowercase)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(_CONTINUATION)
    return backend


def _words(vocabulary: GGUFVocabulary) -> list[str]:
    """The tokens as the library wants them, with ## before what continues a word.

    The file has U+2581 before what begins one instead, and leaves special tokens and [...] alone.
    """
    words = []
    for token, kind in zip(vocabulary.tokens, vocabulary.types.tolist(), strict=True):
        if kind != TokenType.NORMAL or (token.startswith("[") and token.endswith("]")):
            words.append(token)
        elif token.startswith(_WORD_START):
            words.append(token.removeprefix(_WORD_START))
        else:
            words.append(_CONTINUATION + token)
    if len(set(words)) < len(words):
        raise ValueError(f"{PREFIX}tokens has words twice, once they are written with {_CONTINUATION}")
    return words
