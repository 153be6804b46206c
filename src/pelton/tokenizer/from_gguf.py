"""The tokenizer in a GGUF file's metadata."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pelton.loader.gguf import MetadataValue
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.tokenizer import Tokenizer

_PREFIX = "tokenizer.ggml."
_BYTE_PAIR_MODEL = "gpt2"

_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}
"""`tokenizer.ggml.pre` -> how a text is cut before the merges."""

_SPECIAL_TOKENS = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
}
"""Key -> role, as chat templates know it."""

_KNOWN = {"model", "pre", "tokens", "token_type", "merges", "add_bos_token", *_SPECIAL_TOKENS}
_HARMLESS = {
    "add_space_prefix", "cls_token_id", "eom_token_id", "eot_token_id", "fim_mid_token_id",
    "fim_pad_token_id", "fim_pre_token_id", "fim_rep_token_id", "fim_sep_token_id", "fim_suf_token_id",
    "mask_token_id", "scores", "seperator_token_id", "separator_token_id", "token_type_count",
}  # fmt: skip
"""Read elsewhere, or without a meaning for byte-pair vocabularies."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_TOKEN_TYPES = (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)


def tokenizer_from_gguf(metadata: Mapping[str, MetadataValue]) -> Tokenizer:
    """Raises ValueError that names the key that is missing, wrong or not implemented."""
    entries = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    if not entries:
        raise ValueError("the file has no tokenizer")
    _refuse_unknown(entries)
    tokens = _strings(entries, "tokens")
    special_tokens = {
        role: tokens[_token_id(entries, key, len(tokens))] for key, role in _SPECIAL_TOKENS.items() if key in entries
    }
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ValueError("tokenizer.chat_template must be a string")
    return Tokenizer(
        _backend(entries, tokens),
        add_bos_token=_flag(entries, "add_bos_token"),
        special_tokens=special_tokens,
        chat_template=template,
    )


def _refuse_unknown(entries: Mapping[str, MetadataValue]) -> None:
    if (model := entries.get("model")) != _BYTE_PAIR_MODEL:
        raise ValueError(f"{_PREFIX}model is {model!r}, and Pelton reads only {_BYTE_PAIR_MODEL!r}")
    pre = entries.get("pre")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise ValueError(f"{_PREFIX}pre is {pre!r}, and Pelton reads only {', '.join(_PRE_TOKENIZERS)}")
    if _flag(entries, "add_eos_token"):
        raise ValueError(f"{_PREFIX}add_eos_token is true, and Pelton never ends a prompt")
    unknown = set(entries) - _KNOWN - _HARMLESS - {"add_eos_token"}
    if unknown:
        raise ValueError(f"Pelton does not know the key {_PREFIX}{min(unknown)}, so it cannot honour it")


def _backend(entries: Mapping[str, MetadataValue], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ValueError(f"{_PREFIX}tokens holds {len(tokens) - len(vocabulary)} tokens twice")
    pairs = (merge.partition(" ") for merge in _strings(entries, "merges"))
    with backend_errors(f"{_PREFIX}merges does not fit the vocabulary"):
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, [(left, right) for left, _, right in pairs]))
    backend.pre_tokenizer = _PRE_TOKENIZERS[str(entries["pre"])]()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(_added_tokens(entries, tokens))
    return backend


def _added_tokens(entries: Mapping[str, MetadataValue], tokens: Sequence[str]) -> list[AddedToken]:
    """Tokens that a text may spell out, and that no merge produces."""
    types = entries.get("token_type")
    if types is None:
        return []
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        raise ValueError(f"{_PREFIX}token_type must hold one number for each of the {len(tokens)} tokens")
    known = np.isin(types, _TOKEN_TYPES)
    if not known.all():
        raise ValueError(f"{_PREFIX}token_type holds {types[~known][0]}, which Pelton does not know")
    return [
        AddedToken(tokens[token_id], special=bool(types[token_id] != _USER_DEFINED), normalized=False)
        for token_id in np.flatnonzero(np.isin(types, (_UNKNOWN, _CONTROL, _USER_DEFINED))).tolist()
    ]


def _strings(entries: Mapping[str, MetadataValue], key: str) -> list[str]:
    value = entries.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{_PREFIX}{key} must be a list of strings")
    return value


def _flag(entries: Mapping[str, MetadataValue], key: str) -> bool:
    value = entries.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{_PREFIX}{key} must be true or false, got {value!r}")
    return value


def _token_id(entries: Mapping[str, MetadataValue], key: str, vocab_size: int) -> int:
    value = entries[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ValueError(f"{_PREFIX}{key} must be a token id below {vocab_size}, got {value!r}")
    return value
