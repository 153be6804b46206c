"""How a GGUF file spells its vocabulary."""

from enum import IntEnum

PREFIX = "tokenizer.ggml."
TOKENS, TOKEN_TYPES = PREFIX + "tokens", PREFIX + "token_type"
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Without the prefix: keys of tokens that end a sequence, a turn, or a message."""


class TokenType(IntEnum):
    """What `TOKEN_TYPES` has for each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
