"""Added tokens of a folder's tokenizer: what the files beside tokenizer.json say of them."""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from pelton.error_text import shown
from pelton.tokenizer.backend_errors import backend_errors

_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def token_content(token: object) -> object:
    """A token stands in these files as a string, or as an object with the string as its content."""
    return token.get("content") if isinstance(token, dict) else token


def with_added_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """The tokenizer, with the flags that tokenizer_config.json has for added tokens, as in transformers.

    Special tokens that tokenizer.json holds as ordinary ones become added tokens too, so that a text can spell them
    out; what it does not hold at all is left out, for the model has no row for it. Raises ValueError with the key.
    """
    wanted = _listed(backend, config)
    present = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for content in (*special_tokens.values(), *_more_special_tokens(config)):
        if content not in present and backend.token_to_id(content) is not None:
            wanted.setdefault(content, {"special": True, "normalized": False})
    differing = {
        content: flags
        for content, flags in wanted.items()
        if content in present and any(getattr(present[content], name) != value for name, value in flags.items())
    }
    with backend_errors("the added tokens are not usable"):
        if differing:
            # The library does not change a token that it has, so the whole is written and read again.
            state = json.loads(backend.to_str())
            for token in state["added_tokens"]:
                token |= differing.get(token["content"], {})
            backend = tokenizers.Tokenizer.from_str(json.dumps(state))
        backend.add_tokens([AddedToken(text, **flags) for text, flags in wanted.items() if text not in present])
    return backend


def _listed(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """Content -> flags, from added_tokens_decoder. It may not have other ids than tokenizer.json."""
    added = config.get("added_tokens_decoder")
    if not isinstance(added, dict | None):
        raise ValueError(f"added_tokens_decoder must be an object, got {shown(added)}")
    tokens = {}
    for token_id, token in (added or {}).items():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str):
            raise ValueError(
                f"added_tokens_decoder must hold objects with a content, got {shown(token)} for token {shown(token_id)}"
            )
        if str(backend.token_to_id(content)) != token_id:
            raise ValueError(
                f"added_tokens_decoder has {shown(content)} as token {shown(token_id)}, and tokenizer.json has not"
            )
        tokens[content] = {name: token[name] for name in _FLAGS if name in token}
        if not all(isinstance(flag, bool) for flag in tokens[content].values()):
            raise ValueError(f"added_tokens_decoder has flags that are not true or false: {shown(tokens[content])}")
    return tokens


def _more_special_tokens(config: Mapping[str, Any]) -> list[str]:
    """Special tokens without a role of their own."""
    contents = []
    for key in _LISTS:
        value = config.get(key) or []
        entries = list(value.values()) if isinstance(value, dict) else value
        if not isinstance(entries, list):
            raise ValueError(f"{key} must be a list of tokens, got {shown(value)}")
        for entry in entries:
            content = token_content(entry)
            if not isinstance(content, str):
                raise ValueError(f"{key} must hold strings or objects with a content, got {shown(entry)}")
            contents.append(content)
    return contents
