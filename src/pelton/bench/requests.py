"""One request of a benchmark's dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BenchRequest:
    """What is asked, and how much."""

    prompt: str | tuple[int, ...] | None
    """Text or token ids; None if there are messages."""
    output_len: int
    """Most tokens of the answer; exactly so many with ignore_eos."""
    prompt_len: int | None = None
    """Tokens of the prompt, where the dataset knows."""
    messages: Sequence[dict[str, Any]] | None = None
    """A conversation, of datasets that have them."""
