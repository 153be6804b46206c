"""A request as the engine core sees it."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from pelton.core.messages import EngineCoreRequest, ForcedTokens


class RequestStatus(Enum):
    BLOCKED = "blocked"
    """Something it needs is not there yet, such as its compiled grammar."""
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"


class OutputConstraint(Protocol):
    """Rules out tokens of one request's output, as it grows."""

    def advance(self, token_ids: Sequence[int]) -> list[int]:
        """Take the output's next tokens. Returns those that must follow, since no others may; none were sampled.

        Raises ConstraintError if the output cannot go on.
        """

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow, not even a stop token."""

    @property
    def must_end(self) -> bool:
        """Whether nothing but stop tokens may follow, if they may."""

    def mask_bytes(self) -> bytes:
        """One row of the bitmask: what may come next."""

    @property
    def group(self) -> int:
        """Those of different groups can be advanced at the same time."""


CONSTRAINT_FAILED = "structured_outputs: "
"""How the message of a request begins whose constraint cannot be compiled or followed, which is its own fault."""
NO_TOKEN_LEFT = "no token is left to sample: "
"""How the message of a request begins that rules out all tokens, which is its own fault."""


class ConstraintError(RuntimeError):
    """A constraint can be followed no further; the message is for the request's user."""


Advance = Callable[[Sequence[tuple[OutputConstraint, list[int]]]], list[list[int] | ConstraintError]]
"""`advance` of many constraints, with the tokens of each; what it raises in place of what it returns."""


def advance_in_turn(followed: Sequence[tuple[OutputConstraint, list[int]]]) -> list[list[int] | ConstraintError]:
    """`Advance`, one after the other."""
    results: list[list[int] | ConstraintError] = []
    for constraint, token_ids in followed:
        try:
            results.append(constraint.advance(token_ids))
        except ConstraintError as error:
            results.append(error)
    return results


class Request:
    """One request's tokens and counters.

    A request *catches up*: every step moves `num_computed_tokens` towards `num_tokens`. When it gets there,
    the step samples the next token, which makes the request one token longer.
    """

    __slots__ = (
        "arrival_time",
        "cache_salt",
        "constraint",
        "eos_token_ids",
        "id",
        "is_complete",
        "max_total_tokens",
        "message",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "num_tokens",
        "priority",
        "scheduled_time",
        "sort_key",
        "status",
        "stop_reason",
        "stop_token_ids",
        "token_ids",
        "untold",
    )

    def __init__(self, message: EngineCoreRequest, max_model_len: int) -> None:
        params = message.sampling_params
        self.id = message.request_id
        self.message = message
        self.priority = message.priority
        self.arrival_time = message.arrival_time
        self.cache_salt = message.cache_salt
        self.token_ids = list(message.prompt_token_ids)
        """Prompt and output tokens that are known."""
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = self.num_prompt_tokens
        """Tokens there are or will be: known ones and those that steps in flight are sampling."""
        self.num_pending_tokens = 0
        """Tokens that steps in flight are sampling: `num_tokens - len(token_ids)`."""
        self.num_computed_tokens = 0
        """Tokens whose keys and values are in the cache once every scheduled step is done."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache at the first admission."""
        self.num_preemptions = 0
        """How often its blocks were taken away. Results of steps launched before that are void."""
        self.num_prompt_logprobs = 0
        """Prompt tokens whose log probabilities have been delivered: the first so many after the first token."""
        self.scheduled_time = 0.0
        """When it was first admitted, in seconds of the monotonic clock."""
        self.max_total_tokens = max_model_len
        if params.max_tokens is not None:
            self.max_total_tokens = min(max_model_len, self.num_prompt_tokens + params.max_tokens)
        self.eos_token_ids = frozenset(() if params.ignore_eos else message.eos_token_ids)
        self.stop_token_ids = frozenset(params.stop_token_ids or ())
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.constraint: OutputConstraint | None = None
        """Of the tokens to come; None: there is none, or it is not ready."""
        self.is_complete = False
        """Whether it has stopped without a stop token, since its constraint leaves nothing to follow."""
        self.untold: ForcedTokens | None = None
        """Tokens that no worker knows yet, since none has sampled them."""
        self.sort_key: tuple[float, ...] = ()
        """The scheduling policy's order; assigned by the waiting queue."""

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that are known."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def max_computed_tokens(self) -> int:
        """Most tokens that ever get keys and values: nothing is sampled from the last output token."""
        return max(self.num_prompt_tokens, self.max_total_tokens - 1)

    @property
    def max_cached_tokens(self) -> int:
        """Most tokens that may come from the prefix cache: one is computed to sample from, and so is every token
        whose logits tell the log probability of the next prompt token."""
        limit = len(self.token_ids) - 1
        wants_more = self.message.sampling_params.prompt_logprobs is not None
        if wants_more and self.num_prompt_logprobs < self.num_prompt_tokens - 1:
            return min(limit, self.num_prompt_logprobs)
        return limit

    def append_sampled(self, token_ids: list[int]) -> int:
        """Take the tokens that one step sampled, in place of one pending, up to the one that ends the request.

        Returns how many were taken; `status` says whether the request has ended.
        """
        num_taken = 0
        if len(self.token_ids) >= self.max_total_tokens:  # max_tokens is 0: only the prompt was wanted
            self.status = RequestStatus.FINISHED_LENGTH
            token_ids = []
        for token_id in token_ids:
            self.token_ids.append(token_id)
            num_taken += 1
            if self._ends_with(token_id):
                break
        self.num_pending_tokens -= 1
        self.num_tokens = len(self.token_ids) + self.num_pending_tokens
        return num_taken

    def append_forced(self, token_ids: Sequence[int]) -> list[int]:
        """Take tokens that were not sampled, up to the one that ends the request. Returns those taken.

        There must be no token pending.
        """
        assert not self.num_pending_tokens, "what is forced depends on every token before"
        position = len(self.token_ids)
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if self._ends_with(token_id):
                break
        taken = self.token_ids[position:]
        self.num_tokens = len(self.token_ids)
        if taken:
            self.untold = ForcedTokens(position, taken)
        return taken

    def _ends_with(self, token_id: int) -> bool:
        if token_id in self.eos_token_ids:
            self.status = RequestStatus.FINISHED_STOPPED
        elif token_id in self.stop_token_ids:
            self.status = RequestStatus.FINISHED_STOPPED
            self.stop_reason = token_id
        elif len(self.token_ids) >= self.max_total_tokens:
            self.status = RequestStatus.FINISHED_LENGTH
        else:
            return False
        return True

    def fail(self, message: str) -> None:
        """End with an error, and with a message for its user."""
        self.status, self.stop_reason = RequestStatus.FINISHED_ERROR, message

    def forget_computed(self) -> None:
        """Start over from the known tokens: nothing is in the cache and nothing in flight counts."""
        self.num_preemptions += 1
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0
        self.num_tokens = len(self.token_ids)
