"""The tokens at which a model of a GGUF file stops."""

from collections.abc import Mapping

import numpy as np

from pelton.error_text import shown
from pelton.loader.config_table import check_eos_token_ids
from pelton.loader.gguf.file import MetadataValue
from pelton.loader.gguf.vocabulary_keys import END_KEYS, PREFIX, TOKEN_TYPES, TOKENS, TokenType

_TURN_ENDS = frozenset({
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3.1, before it waits for a tool
    "<|im_end|>",  # ChatML: Qwen, SmolLM2 and many more
    "<end_of_turn>",  # Gemma
    "<|end|>",  # Phi
    "<|end_of_turn|>",  # OpenChat
    "<|END_OF_TURN_TOKEN|>",  # Command R
    "<EOT>",  # DeepSeek Coder and others of its time
})  # fmt: skip
"""Control tokens that end a turn of a chat. Models emit them although many files name only the token that ends a
document, and a GGUF file has no generation_config.json that would list both."""


def end_token_ids(metadata: Mapping[str, MetadataValue], vocab_size: int) -> set[int]:
    """Raises ValueError that names the key: of another type, or beyond the vocabulary."""
    token_ids: set[int] = set()
    for key in END_KEYS:
        value = metadata.get(PREFIX + key)
        if isinstance(value, int) and not isinstance(value, bool):
            token_ids |= check_eos_token_ids(PREFIX + key, [value], vocab_size)
        elif value is not None:
            raise ValueError(f"{PREFIX}{key} must be an integer, got {shown(value)}")
    return token_ids | check_eos_token_ids(TOKENS, _turn_ends(metadata), vocab_size)


def _turn_ends(metadata: Mapping[str, MetadataValue]) -> list[int]:
    tokens, types = metadata.get(TOKENS), metadata.get(TOKEN_TYPES)
    if tokens is None or types is None:
        return []
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types):
        raise ValueError(f"{TOKENS} and {TOKEN_TYPES} must be lists of the same length")
    return [i for i in np.flatnonzero(types == TokenType.CONTROL).tolist() if tokens[i] in _TURN_ENDS]
