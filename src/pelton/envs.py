"""The environment variables that Pelton reads: all of them, in one place (at most ten)."""

import os


def strict_invariants() -> bool:
    """`PELTON_STRICT_INVARIANTS=1`: raise on a broken KV-cache invariant instead of recovering from it."""
    return os.environ.get("PELTON_STRICT_INVARIANTS", "0") == "1"


ENVIRONMENT_VARIABLES = ("PELTON_STRICT_INVARIANTS",)
