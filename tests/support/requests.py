"""Messages about requests, made with what a test cares about."""

from collections.abc import Sequence

from pelton import SamplingParams
from pelton.core.messages import EngineCoreRequest, NewRequest, SchedulerOutput


def core_request(
    request_id: str, prompt_ids: Sequence[int], params: SamplingParams, *, eos: Sequence[int] = (), **fields
) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, list(prompt_ids), params, 0.0, list(eos), **fields)


def new_request(
    request_id: str,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    block_ids: Sequence[Sequence[int]] = (),
    *,
    output: Sequence[int] = (),
    num_prompt_logprobs: int = 0,
    **fields,
) -> NewRequest:
    message = core_request(request_id, prompt_ids, params, **fields)
    return NewRequest(message, list(output), [list(ids) for ids in block_ids], num_prompt_logprobs)


def step_of(requests, *, new=(), blocks=None, dropped=(), step_id=1) -> SchedulerOutput:
    """`requests`: id -> (scheduled tokens, computed before, logits rows)."""
    scheduled, computed, logits = zip(*requests.values(), strict=True)
    return SchedulerOutput(
        step_id=step_id,
        request_ids=list(requests),
        num_scheduled_tokens=list(scheduled),
        num_computed_tokens=list(computed),
        num_logits=list(logits),
        new_requests=list(new),
        new_block_ids=blocks or {},
        dropped_request_ids=list(dropped),
    )
