"""One step on one worker: batch in, tokens out."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, repeat
from typing import Protocol

import numpy as np

from pelton.core.messages import ModelRunnerOutput, RequestError, SchedulerOutput, TokenLogprobs
from pelton.core.request import NO_TOKEN_LEFT
from pelton.ops import INVALID_LOGITS, NO_CANDIDATE
from pelton.runner.input_batch import InputBatch, StepInputs
from pelton.runner.prompt_scoring import ScoringInputs
from pelton.runner.step_results import LogprobRows, StepResults

_ERRORS = {
    INVALID_LOGITS: RequestError("the model's logits are not finite (NaN or infinity)", is_damage=True),
    NO_CANDIDATE: RequestError(
        f"{NO_TOKEN_LEFT}structured_outputs, allowed_token_ids, bad_words, min_tokens or a logits processor rule out "
        "all"
    ),
}


class StepModel(Protocol):
    """A model that computes a step: it writes keys and values of all tokens, samples the logits rows, and scores
    prompt tokens."""

    def run(self, inputs: StepInputs) -> StepResults: ...


class ModelRunner:
    """Keeps the batch, runs the model on each step, and reports what was sampled."""

    def __init__(self, model: StepModel, batch: InputBatch) -> None:
        self._model = model
        self._batch = batch

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self._batch.update(step)
        inputs = self._batch.prepare(step)
        results = self._model.run(inputs)
        self._batch.append_sampled(inputs, results.token_ids)
        sampled = results.token_ids.tolist()
        rows = iter(sampled)
        output = ModelRunnerOutput(step.step_id, [list(islice(rows, num)) for num in step.num_logits], {})
        if results.processor_errors or min(sampled, default=0) < 0:
            output.errors = _errors(step, sampled, results.processor_errors)
        if results.logprobs is not None:
            output.logprobs = _collect_logprobs(step, inputs, results.logprobs, sampled)
            output.errors |= _broken(results.logprobs, _row_owners(step))
        if inputs.scoring is not None:
            assert results.prompt_logprobs is not None, "the model scores what it is asked to"
            output.prompt_logprobs = _collect_prompt_logprobs(inputs.scoring, results.prompt_logprobs)
            output.errors |= _broken(results.prompt_logprobs, _repeated(inputs.scoring.counts.items()))
        return output


def _errors(step: SchedulerOutput, sampled: list[int], processor_errors: Mapping[int, str]) -> dict[str, RequestError]:
    """Requests that got no token, and those whose logits processors failed."""
    errors: dict[str, RequestError] = {}
    for index, (owner, token_id) in enumerate(zip(_row_owners(step), sampled, strict=True)):
        if index in processor_errors:
            errors[owner] = RequestError(processor_errors[index])
        elif token_id < 0:
            errors[owner] = _ERRORS[token_id]
    return errors


def _broken(rows: LogprobRows, owners: Iterable[str]) -> dict[str, RequestError]:
    """Requests with log probabilities that are NaN."""
    broken = np.isnan(rows.logprob)
    if not broken.any():
        return {}
    return {owner: _ERRORS[INVALID_LOGITS] for owner, is_broken in zip(owners, broken, strict=True) if is_broken}


def _row_owners(step: SchedulerOutput) -> Iterator[str]:
    """The request of each logits row."""
    return _repeated(zip(step.request_ids, step.num_logits, strict=True))


def _repeated(counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    for request_id, count in counts:
        yield from repeat(request_id, count)


def _collect_logprobs(
    step: SchedulerOutput, inputs: StepInputs, rows: LogprobRows, sampled: list[int]
) -> dict[str, list[TokenLogprobs]]:
    logprobs: dict[str, list[TokenLogprobs]] = {}
    wanted = inputs.sampling.num_logprobs.tolist()
    for index, (owner, token_id, num_top) in enumerate(zip(_row_owners(step), sampled, wanted, strict=True)):
        if num_top >= 0:
            logprobs.setdefault(owner, []).append(rows.entry(index, token_id, num_top))
    return logprobs


def _collect_prompt_logprobs(scoring: ScoringInputs, rows: LogprobRows) -> dict[str, list[TokenLogprobs]]:
    wanted = zip(scoring.token_ids.tolist(), scoring.num_logprobs.tolist(), strict=True)
    entries = iter([rows.entry(index, token_id, num_top) for index, (token_id, num_top) in enumerate(wanted)])
    return {request_id: list(islice(entries, count)) for request_id, count in scoring.counts.items()}
