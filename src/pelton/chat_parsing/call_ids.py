"""Names for tool calls, by which later messages refer to them."""

import secrets
import string

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """`call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"


def new_mistral_call_id() -> str:
    """Nine letters and digits: Mistral's templates take no others."""
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))
