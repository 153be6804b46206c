"""The tokenizer in a GGUF file's metadata."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers

from pelton.error_text import shown
from pelton.loader.gguf.file import MetadataValue
from pelton.loader.gguf.vocabulary_keys import END_KEYS, PREFIX
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.gguf.bpe import byte_level_backend, pre_tokenization
from pelton.tokenizer.gguf.sentencepiece import sentencepiece_backend
from pelton.tokenizer.gguf.vocabulary import GGUFVocabulary, read_vocabulary
from pelton.tokenizer.gguf.wordpiece import wordpiece_backend
from pelton.tokenizer.tokenizer import Tokenizer

_SECTION = "tokenizer."
_TEMPLATE, _TEMPLATE_NAMES = "tokenizer.chat_template", "tokenizer.chat_templates"
_SKIPPED = {"tokenizer.huggingface.json"}
"""A copy of tokenizer.json. The vocabulary beside it says the same in the form that all GGUF files have."""

_SPECIAL_TOKENS = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
    "seperator_token_id": "sep_token",
    "separator_token_id": "sep_token",
    "cls_token_id": "cls_token",
    "mask_token_id": "mask_token",
}
"""Key -> role, as chat templates know it. Most files spell separator in the first way."""

_COMMON = {"model", "pre", "tokens", "token_type", "add_bos_token", "add_eos_token", "add_sep_token", *_SPECIAL_TOKENS}
_READ_ELSEWHERE = {*END_KEYS}
_HARMLESS = {
    "fim_mid_token_id", "fim_pad_token_id", "fim_pre_token_id", "fim_rep_token_id", "fim_sep_token_id",
    "fim_suf_token_id", "middle_token_id", "prefix_token_id", "suffix_token_id", "token_type_count",
}  # fmt: skip
"""For the most part roles of tokens that only the caller can give a meaning."""


@dataclass(frozen=True)
class _Kind:
    """What a value of `tokenizer.ggml.model` stands for."""

    backend: Callable[[GGUFVocabulary], tokenizers.Tokenizer]
    known: frozenset[str]
    """Keys of this kind alone."""
    harmless: frozenset[str]
    """Keys that other kinds need, and that converters write for this one too."""
    begins: Callable[[GGUFVocabulary], bool]
    """Whether a text gets a token at its beginning, if the file does not say."""
    begin_keys: tuple[str, ...] = ("bos_token_id",)
    """The token at the beginning: the first of these that the file has."""
    ends_with_separator: bool = False
    """Whether the separator ends a text, if the file does not say; else it only stands between two texts."""


_KINDS = {
    "gpt2": _Kind(
        byte_level_backend,
        known=frozenset({"merges"}),
        harmless=frozenset({"scores", "add_space_prefix", "remove_extra_whitespaces"}),
        begins=lambda vocabulary: pre_tokenization(vocabulary).add_bos_token,
    ),
    "llama": _Kind(
        sentencepiece_backend,
        known=frozenset({"scores", "add_space_prefix", "remove_extra_whitespaces"}),
        harmless=frozenset({"merges"}),
        begins=lambda vocabulary: True,
    ),
    "bert": _Kind(
        wordpiece_backend,
        known=frozenset({"normalizer.lowercase", "normalizer.strip_accents"}),
        harmless=frozenset({"scores", "merges", "add_space_prefix", "remove_extra_whitespaces"}),
        begins=lambda vocabulary: True,
        begin_keys=("cls_token_id", "bos_token_id"),
        ends_with_separator=True,
    ),
}


def tokenizer_from_gguf(metadata: Mapping[str, MetadataValue]) -> Tokenizer:
    """Raises ValueError that names the key that is missing, wrong or not implemented."""
    entries = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    if not entries:
        raise ValueError("the file has no tokenizer")
    model = entries.get("model")
    if not isinstance(model, str) or model not in _KINDS:
        raise ValueError(f"{PREFIX}model is {shown(model)}, and Pelton reads only {', '.join(_KINDS)}")
    kind = _KINDS[model]
    template, named_templates = _templates(metadata)
    _refuse_unknown(metadata, kind)
    vocabulary = read_vocabulary(entries)
    special_tokens = {
        role: token for key, role in _SPECIAL_TOKENS.items() if (token := vocabulary.token(key)) is not None
    }
    backend = kind.backend(vocabulary)
    with backend_errors(f"{PREFIX}tokens holds special tokens that are not usable"):
        backend.add_tokens(vocabulary.added_tokens())
    return Tokenizer(
        backend,
        prefix=_prefix(vocabulary, kind),
        suffix=_suffix(vocabulary, kind),
        special_tokens=special_tokens,
        chat_template=template,
        named_templates=named_templates,
    )


def _refuse_unknown(metadata: Mapping[str, MetadataValue], kind: _Kind) -> None:
    known = {PREFIX + key for key in _COMMON | _READ_ELSEWHERE | _HARMLESS | kind.known | kind.harmless}
    known |= {_TEMPLATE, _TEMPLATE_NAMES} | _SKIPPED
    unknown = {
        key for key in metadata if key.startswith(_SECTION) and key not in known and not key.startswith(f"{_TEMPLATE}.")
    }
    if unknown:
        raise ValueError(f"Pelton does not know the key {min(unknown)}, so it cannot honour it")


def _templates(metadata: Mapping[str, MetadataValue]) -> tuple[str | None, dict[str, str]]:
    """The chat template, and further ones by name."""
    templates = {}
    for key, value in metadata.items():
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}."):
            if not isinstance(value, str):
                raise ValueError(f"{key} must be a string")
            templates[key.removeprefix(_TEMPLATE).removeprefix(".")] = value
    names = metadata.get(_TEMPLATE_NAMES, [])
    if not isinstance(names, list):
        raise ValueError(f"{_TEMPLATE_NAMES} must be a list of strings")
    if missing := [name for name in names if name not in templates]:
        raise ValueError(f"{_TEMPLATE_NAMES} names {shown(missing[0])}, and there is no {_TEMPLATE} of that name")
    return templates.pop("", None), templates


def _prefix(vocabulary: GGUFVocabulary, kind: _Kind) -> list[int]:
    wanted = vocabulary.flag("add_bos_token", kind.begins(vocabulary))
    return [_first_id(vocabulary, kind.begin_keys)] if wanted else []


def _suffix(vocabulary: GGUFVocabulary, kind: _Kind) -> list[int]:
    ids = []
    if vocabulary.flag("add_eos_token", False):
        ids.append(_first_id(vocabulary, ("eos_token_id",)))
    if vocabulary.flag("add_sep_token", kind.ends_with_separator) and kind.ends_with_separator:
        separator = _first_id(vocabulary, ("seperator_token_id", "separator_token_id"))
        # Converters of BERT models call the separator the end of the sequence, too.
        ids += [separator] if separator not in ids else []
    return ids


def _first_id(vocabulary: GGUFVocabulary, keys: Sequence[str]) -> int:
    """The first that the file has."""
    found = [token_id for key in keys if (token_id := vocabulary.token_id(key)) is not None]
    if not found:
        raise ValueError(f"the tokenizer puts a token around a text, and {PREFIX}{keys[0]} is missing")
    return found[0]
