"""The tokenizer of a Hugging Face folder: tokenizer.json, and the files beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from pelton.error_text import in_file, shown
from pelton.loader.hf.folder import SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG
from pelton.loader.text_files import is_there, read_json, read_text
from pelton.tokenizer.added_tokens import token_content, with_added_tokens
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.component_parts import component_parts
from pelton.tokenizer.folder_templates import folder_templates
from pelton.tokenizer.post_processor import surrounding_ids
from pelton.tokenizer.tokenizer import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MAX_TOKENIZER_BYTES = 512_000_000
_OTHER_FORMS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
"""Vocabularies in forms that Pelton does not read."""


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Raises ValueError that names the file and what is wrong with it."""
    path, config_path, map_path = folder / TOKENIZER, folder / TOKENIZER_CONFIG, folder / SPECIAL_TOKENS_MAP
    backend = _backend(path)
    config, roles = (read_json(file) if is_there(file) else {} for file in (config_path, map_path))
    with in_file(map_path):
        special_tokens = _special_tokens(roles)
    with in_file(config_path):
        _check_config(backend, config)
        special_tokens |= _special_tokens(config)
        backend = with_added_tokens(backend, config, special_tokens)
    with in_file(path):
        prefix, suffix = surrounding_ids(backend)
    with in_file(config_path):
        prefix = _with_token(backend, prefix, "bos_token", config, special_tokens)
        suffix = _with_token(backend, suffix, "eos_token", config, special_tokens)
    template, named_templates = folder_templates(folder, config)
    return Tokenizer(
        backend,
        prefix=prefix,
        suffix=suffix,
        special_tokens=special_tokens,
        chat_template=template,
        named_templates=named_templates,
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    if not is_there(path):
        problem = f"{path.parent} has no {TOKENIZER}"
        if others := [name for name in _OTHER_FORMS if (path.parent / name).exists()]:
            remedy = "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            raise ValueError(f"{problem}, only {others[0]}; make one from it ({remedy})")
        raise ValueError(f"{problem}, which Pelton needs for text; copy it from where the model comes from")
    text = read_text(path, _MAX_TOKENIZER_BYTES)
    with backend_errors(f"{path} is not a usable tokenizer"):
        backend = tokenizers.Tokenizer.from_str(text)
    # Training leaves these behind; prompts are never cut or filled up.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _check_config(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Refuse what tokenizer_config.json asks for and Pelton does not do."""
    if "auto_map" in config:
        raise ValueError("auto_map asks to run code from the checkpoint, which Pelton never does")
    if config.get("split_special_tokens"):
        raise ValueError("split_special_tokens is set, and Pelton always takes special tokens whole")
    parts = component_parts(backend.pre_tokenizer)
    byte_level = any(part["type"] == "ByteLevel" for part in parts)
    if config.get("add_prefix_space") and byte_level and not any(part.get("add_prefix_space") for part in parts):
        raise ValueError("add_prefix_space is set, and the byte-level pre-tokenizer of tokenizer.json does not do it")


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Role -> token."""
    tokens = {}
    for role in _ROLES:
        value = config.get(role)
        content = token_content(value)
        if isinstance(content, str):
            tokens[role] = content
        elif value is not None:
            raise ValueError(f"{role} must be a string or an object with a content, got {shown(value)}")
    return tokens


def _with_token(
    backend: tokenizers.Tokenizer,
    ids: Sequence[int],
    role: str,
    config: Mapping[str, Any],
    special_tokens: Mapping[str, str],
) -> list[int]:
    """What tokenizer.json puts on one side of a text, with or without one token as tokenizer_config.json says."""
    key = f"add_{role}"
    stated = config.get(key)
    if not isinstance(stated, bool | None):
        raise ValueError(f"{key} must be true or false, got {shown(stated)}")
    token = special_tokens.get(role)
    token_id = None if token is None else backend.token_to_id(token)
    if stated is None:
        return list(ids)
    if not stated:
        return [other for other in ids if other != token_id]
    if token_id is None:
        raise ValueError(f"{key} is true, and the tokenizer has no {role}")
    if token_id in ids:
        return list(ids)
    return [token_id, *ids] if role == "bos_token" else [*ids, token_id]
