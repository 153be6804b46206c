"""Pelton: an inference engine for large language models, CPU first."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pelton.version import __version__ as __version__

if TYPE_CHECKING:
    from pelton.llm import LLM
    from pelton.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]

_MODULES = {"LLM": "pelton.llm", "SamplingParams": "pelton.sampling_params"}


def __getattr__(name: str) -> Any:
    # `LLM` pulls in the whole engine; commands import what they need, when they need it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
