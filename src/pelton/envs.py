"""The environment variables that Pelton reads at run time: all of them, in one place (at most ten)."""

import os
from pathlib import Path


def strict_invariants() -> bool:
    """`PELTON_STRICT_INVARIANTS=1`: raise on a broken KV-cache invariant instead of recovering from it."""
    return os.environ.get("PELTON_STRICT_INVARIANTS", "0") == "1"


def cpu_isa() -> str | None:
    """`PELTON_CPU_ISA`: the instruction-set level of the kernels (portable, avx2, avx512, amx), or `numpy` for none."""
    return os.environ.get("PELTON_CPU_ISA") or None


def native_libraries() -> Path | None:
    """`PELTON_NATIVE_LIBRARIES`: folder of the kernel libraries, instead of those that were installed; for tests."""
    folder = os.environ.get("PELTON_NATIVE_LIBRARIES")
    return Path(folder) if folder else None


def openai_api_key() -> str | None:
    """`OPENAI_API_KEY`: what `pelton bench serve` shows the server it measures, as OpenAI's own client does."""
    return os.environ.get("OPENAI_API_KEY") or None


ENVIRONMENT_VARIABLES = ("OPENAI_API_KEY", "PELTON_CPU_ISA", "PELTON_NATIVE_LIBRARIES", "PELTON_STRICT_INVARIANTS")
