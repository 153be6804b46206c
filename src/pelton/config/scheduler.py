"""What runs in a step."""

from dataclasses import dataclass

from pelton.checks import check_choice, check_integer
from pelton.config.options import option

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step, and who goes first."""

    max_num_batched_tokens: int = option(2048, "Token budget of a step, over all requests.")
    max_num_seqs: int = option(256, "Most requests that run at once.")
    long_prefill_token_threshold: int = option(
        0, "Most tokens of one prompt per step, so that long prompts do not hold up others; 0 means no limit."
    )
    scheduling_policy: str = option(
        "fcfs",
        "fcfs: first come, first served; priority: lower priority values first, then by arrival.",
        choices=POLICIES,
    )

    @property
    def longest_chunk(self) -> int:
        """Most tokens of one request in a step."""
        if self.long_prefill_token_threshold:
            return min(self.long_prefill_token_threshold, self.max_num_batched_tokens)
        return self.max_num_batched_tokens

    def __post_init__(self) -> None:
        check_integer("max_num_batched_tokens", self.max_num_batched_tokens, low=1)
        check_integer("max_num_seqs", self.max_num_seqs, low=1)
        check_integer("long_prefill_token_threshold", self.long_prefill_token_threshold, low=0)
        check_choice("scheduling_policy", self.scheduling_policy, POLICIES)
