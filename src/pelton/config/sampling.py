"""Sampling: what the engine allows and adds, beside each request's own parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pelton.checks import check_choice, check_integer
from pelton.config.options import option
from pelton.error_text import shown

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
GENERATION_CONFIGS = ("auto", "none")


@dataclass(frozen=True)
class SamplingConfig:
    """Log probabilities, default parameters, and logits processors of the user's own."""

    max_logprobs: int = option(
        20, "Most log probabilities per token that a request may ask for; -1 means the whole vocabulary."
    )
    logprobs_mode: str = option(
        "raw_logprobs",
        "What the log probabilities of outputs are: raw_logprobs: of the model's logits; processed_logprobs: after "
        "penalties, biases, temperature, top-k, top-p and min-p; raw_logits, processed_logits: the logits instead.",
        choices=LOGPROBS_MODES,
    )
    generation_config: str = option(
        "auto",
        "Default sampling parameters: auto: those of the model's generation_config.json; none: Pelton's own.",
        choices=GENERATION_CONFIGS,
    )
    logits_processors: Sequence[str | type[Any]] = option(
        (),
        "A logits processor of your own, as package.module:Class; repeatable.",
        action="append",
        type=str,
        metavar="MODULE:CLASS",
    )

    def __post_init__(self) -> None:
        check_integer("max_logprobs", self.max_logprobs, low=-1)
        check_choice("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        check_choice("generation_config", self.generation_config, GENERATION_CONFIGS)
        given = self.logits_processors
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ValueError(f"logits_processors must be a list of classes or of their names, got {shown(given)}")
        for processor in given:
            if not isinstance(processor, str | type):
                raise ValueError(f"logits_processors must hold classes or names module:Class, got {shown(processor)}")

    @property
    def reports_processed(self) -> bool:
        """Whether log probabilities of outputs are of what tokens are drawn from, not of the model's logits."""
        return self.logprobs_mode.startswith("processed")

    @property
    def reports_logits(self) -> bool:
        """Whether logits take the place of log probabilities."""
        return self.logprobs_mode.endswith("logits")

    def most_logprobs(self, vocab_size: int) -> int:
        """What `max_logprobs` comes to with a vocabulary of this size."""
        return vocab_size if self.max_logprobs == -1 else min(self.max_logprobs, vocab_size)
