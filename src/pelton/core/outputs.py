"""What users get back, with vLLM's field names."""

from dataclasses import dataclass


@dataclass(slots=True)
class Logprob:
    """Log probability of one token at one position; `logprobs_mode` says from which logits."""

    logprob: float
    rank: int
    """1 for the most likely token of the vocabulary."""
    decoded_token: str | None
    """The token's text; None if the request does not detokenize."""


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request."""

    index: int
    """Which of the request's `n` choices this is."""
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum of the sampled tokens' log probabilities; None unless logprobs were asked for."""
    logprobs: list[dict[int, Logprob]] | None
    """One dict per token, the sampled token first."""
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`; None while the choice runs."""
    stop_reason: int | str | None = None
    """The stop string or stop token that ended the output, or an error's message."""

    def finished(self) -> bool:
        """Whether this choice has ended; others of its request may go on."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When a request's milestones were, in seconds of the monotonic clock; None for those it did not reach.

    Of several choices, the first that got there counts, and the last one's last token.
    """

    arrival_time: float
    scheduled_ts: float | None
    """Its first admission to a step."""
    first_token_ts: float | None
    last_token_ts: float | None
    first_token_latency: float | None
    """Seconds from arrival to the first token."""
    num_generation_tokens: int
    """Tokens of all choices."""


@dataclass(slots=True)
class RequestOutput:
    """The state of one request, as its `output_kind` asks for it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """The choices in order of their index; with DELTA only those that have something new."""
    finished: bool
    """Whether all choices have ended."""
    num_cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache, for choice 0."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """One dict per token of the prompt, that token first, and None for the first token, which nothing predicts.

    None unless asked for, and until all are there; with DELTA in one output only. A request whose choice 0 ends
    before its prompt is processed has those that came.
    """
    metrics: RequestMetrics | None = None
    """Of finished requests."""
