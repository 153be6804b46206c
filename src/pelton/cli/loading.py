"""Loading a model for a command: an engine, and what holds for requests that say nothing else."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pelton.config import EngineArgs
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.engine.llm_engine import LLMEngine


def load_engine(
    args: EngineArgs, given: Mapping[str, Any], *, max_tokens: int | None
) -> "tuple[LLMEngine, SamplingParams]":
    """An engine, and the model's default parameters, changed by what was given on the command line.

    `max_tokens` is for the case that neither the model nor the user says how many: the default of `SamplingParams` is
    short for a command. Raises ValueError for a model that cannot be read, and for parameters that contradict each
    other.
    """
    from pelton.engine.llm_engine import LLMEngine  # not for help, nor for mistakes in what was asked

    engine = LLMEngine.from_engine_args(args, progress=sys.stderr.isatty())
    return engine, SamplingParams(**{"max_tokens": max_tokens, **engine.generation_defaults, **given})
