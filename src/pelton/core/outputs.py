"""What users get back, with vLLM's field names."""

from dataclasses import dataclass


@dataclass(slots=True)
class Logprob:
    """Log probability of one token at one position, from the raw logits."""

    logprob: float
    rank: int
    """1 for the most likely token of the vocabulary."""
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum of the sampled tokens' log probabilities; None unless logprobs were asked for."""
    logprobs: list[dict[int, Logprob]] | None
    """One dict per token, the sampled token first."""
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`; None while the request runs."""
    stop_reason: int | str | None = None
    """The stop string or stop token that ended the output, or an error's message."""


@dataclass(slots=True)
class RequestOutput:
    """The state of one request, as its `output_kind` asks for it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache."""
