"""Messages between front end, engine core and workers.

All are msgspec structs of plain data, so any of them can cross a process boundary.
"""

from typing import Any

import msgspec

from pelton.sampling_params import SamplingParams


class EngineCoreRequest(msgspec.Struct, array_like=True):
    """Front end to engine core: a request, checked and tokenized."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    """With a seed: the front end draws one where the user gave none."""
    arrival_time: float
    """Seconds of the monotonic clock."""
    eos_token_ids: list[int]
    priority: int = 0
    """Lower is more urgent; only the priority policy looks at it."""
    cache_salt: str | None = None
    """Prefix-cache blocks are shared only among requests of equal salt."""
    choice: int = 0
    """Which of the `n` choices of the user's request this is."""
    bad_words_token_ids: list[list[int]] = []
    """`bad_words` as token ids, every way to write them."""
    reasoning: "ReasoningTokens | None" = None
    """If the constraint on the output holds for what comes after the reasoning."""


class ReasoningTokens(msgspec.Struct, array_like=True, gc=False):
    """Where a model's reasoning ends and its answer begins, for constraints on the answer."""

    start: int
    """The token that begins the reasoning."""
    end: int
    """The one that ends it."""
    is_open: bool
    """Whether the prompt has begun it already; otherwise the output may begin with it."""


class NewRequest(msgspec.Struct, array_like=True, gc=False):
    """Scheduler to workers: a request they do not hold (new, or resumed after preemption), whole."""

    message: EngineCoreRequest
    output_token_ids: list[int]
    """The output so far."""
    block_ids: list[list[int]]
    """The block table, one list per KV-cache group."""
    num_prompt_logprobs: int = 0
    """Prompt tokens whose log probabilities have been delivered already."""


class ForcedTokens(msgspec.Struct, array_like=True, gc=False):
    """Tokens of a request that were not sampled."""

    position: int
    """Of the first one in its request."""
    token_ids: list[int]


class SchedulerOutput(msgspec.Struct, array_like=True, gc=False):
    """Scheduler to workers: one step, as a delta to what the workers hold.

    The per-request lists run in parallel, in scheduling order. Within a step, workers first drop
    `dropped_request_ids`, then take `new_requests`, then append `new_block_ids`.
    """

    step_id: int
    request_ids: list[str]
    num_scheduled_tokens: list[int]
    num_computed_tokens: list[int]
    """Tokens in the cache before this step: the position of the first scheduled token."""
    num_logits: list[int]
    """Logits rows, of the last scheduled tokens: 0 for a chunk that does not reach the end of the request, else 1."""
    new_requests: list[NewRequest]
    new_block_ids: dict[str, list[list[int]]]
    """Blocks to append to the tables of requests the workers hold, one list per KV-cache group."""
    dropped_request_ids: list[str]
    """Finished, aborted and preempted requests."""
    forced_tokens: dict[str, ForcedTokens] = {}
    """Tokens that constraints left no choice about since the last step, of requests the workers hold."""
    constrained_request_ids: list[str] = []
    """Requests whose next token is constrained, in scheduling order."""
    bitmask: bytes = b""
    """[requests, ceil(V / 32)] words of 32 bits, little-endian: what their next tokens may be; bit v % 32 of word
    v // 32 is token v's."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens)


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Log probabilities at one position: first the sampled (or prompt) token, then the most likely ones in order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Rank of the sampled token, 1 for the most likely."""


class RequestError(msgspec.Struct, array_like=True, gc=False):
    """Why a request cannot go on."""

    message: str
    is_damage: bool = False
    """The model itself computed nonsense for it, so that its blocks in the KV cache are doubtful."""


class ModelRunnerOutput(msgspec.Struct, array_like=True, gc=False):
    """Workers to scheduler: what a step produced, in the order of its `SchedulerOutput`."""

    step_id: int
    token_ids: list[list[int]]
    """New tokens per request: none, one, or several."""
    logprobs: dict[str, list[TokenLogprobs]]
    """One entry per new token, only for requests that ask."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    """One entry per prompt token whose predecessor the step computed, only for requests that ask."""
    errors: dict[str, RequestError] = {}
    """Requests that cannot go on. Their tokens are void."""


class EngineCoreOutput(msgspec.Struct, array_like=True, gc=False):
    """Engine core to front end: what a step brought one request."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`; None while the request runs."""
    stop_reason: int | str | None = None
    """The stop token, or the error's message."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Of the next prompt tokens; the first that come are of the second token, for nothing predicts the first."""
    num_cached_tokens: int = 0
    scheduled_time: float = 0.0
    """When the request was first admitted, in seconds of the monotonic clock."""
    is_complete: bool = False
    """Whether it stopped since its constraint leaves nothing to follow: the last token is no stop token."""


class EngineStats(msgspec.Struct, array_like=True, gc=False):
    """The state of an engine core after a step. Counters count since its start."""

    num_running: int
    num_waiting: int
    num_scheduled_tokens: int
    """Tokens of the step that was launched last, in all; 0 if none was launched."""
    kv_cache_usage: float
    """Share of the blocks that requests hold, 0 to 1."""
    num_preemptions: int
    num_prefix_queries: int
    """Tokens looked up in the prefix cache, at admissions."""
    num_prefix_hits: int
    """Tokens found there."""
    num_integrity_failures: int
    """How often the KV cache's bookkeeping could not be trusted any more and was rebuilt."""
    timestamp: float = 0.0
    """When this was so, in seconds of the core's monotonic clock."""


class UtilityCall(msgspec.Struct, array_like=True, gc=False):
    """Front end to engine core: run a function of `EngineCoreProc.UTILITIES` between two steps."""

    call_id: int
    name: str


class UtilityResult(msgspec.Struct, array_like=True, gc=False):
    """Engine core to front end: what came of a `UtilityCall`."""

    call_id: int
    value: Any = None
    error: str | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True, gc=False):
    """Engine core to front end: what one step brought."""

    outputs: list[EngineCoreOutput]
    stats: EngineStats
    rank: int = 0
    """The data-parallel rank of the core."""
    utility_results: list[UtilityResult] = []
    num_received: int = 0
    """Requests that the core has got from this front end; `stats` counts them."""
