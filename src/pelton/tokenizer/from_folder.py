"""The tokenizer of a Hugging Face folder: tokenizer.json, tokenizer_config.json, chat_template.jinja."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from pelton.loader.text_files import read_json, read_text
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.tokenizer import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MAX_TOKENIZER_BYTES = 512_000_000


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Raises ValueError that names the file and what is wrong with it."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"{folder} has no tokenizer.json, which Pelton needs for text")
    text = read_text(path, _MAX_TOKENIZER_BYTES)
    with backend_errors(f"{path} is not a usable tokenizer"):
        backend = tokenizers.Tokenizer.from_str(text)
    # Training leaves these behind; prompts are never cut or filled up.
    backend.no_truncation()
    backend.no_padding()
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.exists() else {}
    template_path = folder / "chat_template.jinja"
    template = read_text(template_path) if template_path.exists() else None
    try:
        _check_config(backend, config)
        special_tokens = _special_tokens(config)
        return Tokenizer(
            backend,
            add_bos_token=_adds_bos(backend, config, special_tokens),
            special_tokens=special_tokens,
            chat_template=_chat_template(config) if template is None else template,
        )
    except ValueError as error:
        raise ValueError(f"{config_path}: {error}") from None


def _check_config(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Refuse a tokenizer_config.json that asks for more than tokenizer.json holds."""
    if "auto_map" in config:
        raise ValueError("auto_map asks to run code from the checkpoint, which Pelton never does")
    added = config.get("added_tokens_decoder")
    if not isinstance(added, dict | None):
        raise ValueError(f"added_tokens_decoder must be an object, got {added!r}")
    for token_id, token in (added or {}).items():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str):
            raise ValueError(
                f"added_tokens_decoder must hold objects with a content, got {token!r} for token {token_id!r}"
            )
        if str(backend.token_to_id(content)) != token_id:
            raise ValueError(f"added_tokens_decoder has {content!r} as token {token_id}, and tokenizer.json has not")


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Role -> token; each is a string, or an object with the string as its content."""
    tokens = {}
    for role in _ROLES:
        value = config.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[role] = content
        elif value is not None:
            raise ValueError(f"{role} must be a string or an object with a content, got {value!r}")
    return tokens


def _adds_bos(backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> bool:
    """What tokenizer_config.json says; if it is silent, what tokenizer.json puts around a text."""
    for name in ("add_bos_token", "add_eos_token"):
        if not isinstance(config.get(name), bool | None):
            raise ValueError(f"{name} must be true or false, got {config[name]!r}")
    if config.get("add_eos_token"):
        raise ValueError("add_eos_token is true, and Pelton never ends a prompt")
    if (stated := config.get("add_bos_token")) is not None:
        return bool(stated)
    with backend_errors("tokenizer.json cannot encode an empty text"):
        around: list[str] = backend.encode("", add_special_tokens=True).tokens
    if around and around != [special_tokens.get("bos_token")]:
        raise ValueError(f"tokenizer.json puts {' '.join(around)} around a text, not only bos_token first")
    return bool(around)


def _chat_template(config: Mapping[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):
        # Named templates: the one for plain conversations is called default.
        if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in template):
            raise ValueError(f"chat_template must be a string or a list of objects with a name, got {template!r}")
        template = {entry["name"]: entry.get("template") for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"chat_template must be a string, got {template!r}")
    return template
