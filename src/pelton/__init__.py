"""Pelton: an inference engine for large language models, CPU first."""

from typing import TYPE_CHECKING, Any

from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.llm import LLM

__all__ = ["LLM", "SamplingParams"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `LLM` pulls in the whole engine; `pelton --help` and the messages do without.
    if name == "LLM":
        from pelton.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
