"""One step on one worker: batch in, tokens out."""

from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from pelton.core.messages import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from pelton.ops.arrays import Float32, Int32
from pelton.runner.input_batch import InputBatch, StepInputs


@dataclass(slots=True)
class SampledTokens:
    """What the model makes of a step's L logits rows."""

    token_ids: Int32
    """[L]"""
    logprob: Float32
    """[L] log probability of the sampled token; meaningful where log probabilities were asked for, like all below."""
    rank: Int32
    """[L] rank of the sampled token, 1 for the most likely."""
    top_token_ids: Int32
    """[L, most log probabilities]"""
    top_logprobs: Float32
    """[L, most log probabilities]"""


class StepModel(Protocol):
    """A model that computes a step: it writes keys and values of all tokens, and samples the logits rows."""

    def run(self, inputs: StepInputs) -> SampledTokens: ...


class ModelRunner:
    """Keeps the batch, runs the model on each step, and reports what was sampled."""

    def __init__(self, model: StepModel, batch: InputBatch) -> None:
        self._model = model
        self._batch = batch

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self._batch.update(step)
        inputs = self._batch.prepare(step)
        sampled = self._model.run(inputs)
        self._batch.append_sampled(inputs, sampled.token_ids)
        rows = iter(sampled.token_ids.tolist())
        token_ids = [list(islice(rows, num_logits)) for num_logits in step.num_logits]
        return ModelRunnerOutput(step.step_id, token_ids, _collect_logprobs(step, inputs, sampled))


def _collect_logprobs(
    step: SchedulerOutput, inputs: StepInputs, sampled: SampledTokens
) -> dict[str, list[TokenLogprobs]]:
    wanted = inputs.sampling.num_logprobs
    if not (wanted >= 0).any():
        return {}
    row_owners = np.repeat(np.array(step.request_ids, object), step.num_logits)
    logprobs: dict[str, list[TokenLogprobs]] = {}
    for row in np.flatnonzero(wanted >= 0).tolist():
        top = int(wanted[row])
        entry = TokenLogprobs(
            token_ids=[int(sampled.token_ids[row]), *sampled.top_token_ids[row, :top].tolist()],
            logprobs=[float(sampled.logprob[row]), *sampled.top_logprobs[row, :top].tolist()],
            rank=int(sampled.rank[row]),
        )
        logprobs.setdefault(row_owners[row], []).append(entry)
    return logprobs
