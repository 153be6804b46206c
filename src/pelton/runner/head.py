"""Replays the programs from hidden states to tokens: the head, and the scorer of prompts."""

from collections.abc import Mapping, Sequence

import numpy as np

from pelton.config import SamplingConfig
from pelton.ops import B, Backend, C, Dim, L, M, P, Run, T
from pelton.ops.arrays import Activations, AnyArray
from pelton.runner.custom_processors import CustomProcessors
from pelton.runner.input_batch import StepInputs
from pelton.runner.prompt_scoring import ScoringInputs
from pelton.runner.step_limits import StepLimits
from pelton.runner.step_results import LogprobRows, StepResults
from pelton.sampling import record_head, record_scorer
from pelton.sampling.head import LogitsModel
from pelton.sampling_params import MAX_LOGIT_BIASES

ROW_TILE = 64
"""Rows whose logits are computed at a time. With more, a vocabulary's logits fill memory (64 rows of Gemma's are 67
MB); with fewer, a head's weights are read more often."""


class ReplayedHead:
    """A model's head and scorer, compiled once for steps of any size."""

    def __init__(self, backend: Backend, model: LogitsModel, limits: StepLimits, sampling: SamplingConfig) -> None:
        vocab_size, rows = model.config.vocab_size, limits.max_num_seqs
        self._processors = CustomProcessors() if sampling.logits_processors else None
        sizes = {
            T: limits.max_num_tokens,
            L: rows,
            C: rows,
            M: rows,
            B: rows * min(vocab_size, MAX_LOGIT_BIASES),
            P: rows * min(vocab_size, limits.max_model_len),
        }
        self._head = backend.compile(record_head(model, sampling, self._processors), sizes, (L, ROW_TILE))
        scored = sizes | {L: limits.max_num_tokens}
        self._scorer = backend.compile(record_scorer(model, sampling), scored, (L, ROW_TILE))

    def prepare(self, hidden: Activations, inputs: StepInputs) -> list[Run]:
        """What samples and scores from the hidden states [T, E] of a step.

        With no logits row (every request has more prompt to come) the head's launches have nothing to do.
        """
        if self._processors is not None:
            self._processors.prepare(inputs.processor_calls)
        operands = {"hidden": hidden, "logits_rows": inputs.logits_rows}
        operands |= inputs.sampling.operands()
        operands |= inputs.edits.operands
        runs = [Run(self._head, _head_sizes(len(hidden), inputs), operands)]
        if inputs.scoring is not None:
            sizes = {T: len(hidden), L: len(inputs.scoring.logits_rows)}
            runs.append(Run(self._scorer, sizes, _scorer_operands(hidden, inputs.scoring)))
        return runs

    def results(self, runs: Sequence[Run], inputs: StepInputs) -> StepResults:
        """What the runs of `prepare` have left; valid until the next step."""
        sizes = runs[0].sizes
        logprobs = scored = None
        if inputs.sampling.has_logprobs:
            logprobs = _logprob_rows(self._head.outputs(sizes))
        if inputs.scoring is not None:
            scored = _logprob_rows(self._scorer.outputs(runs[1].sizes))
        results = StepResults(self._head.output("token_ids", sizes), logprobs, scored)
        if self._processors is not None:
            errors = self._processors.errors.items()
            results.processor_errors = {int(inputs.edits.rows[index]): error for index, error in errors}
        return results


def _head_sizes(num_tokens: int, inputs: StepInputs) -> dict[Dim, int]:
    edits = inputs.edits
    return {
        T: num_tokens,
        L: len(inputs.logits_rows),
        C: len(edits.rows),
        M: len(edits.masks),
        B: len(edits.bias_ids),
        P: len(edits.penalty_ids),
    }


def _scorer_operands(hidden: Activations, scoring: ScoringInputs) -> dict[str, AnyArray]:
    return {
        "hidden": hidden,
        "logits_rows": scoring.logits_rows,
        "is_wanted": np.ones(len(scoring.logits_rows), np.int32),
        "token_ids": scoring.token_ids,
        "num_logprobs": scoring.num_logprobs,
    }


def _logprob_rows(outputs: Mapping[str, AnyArray]) -> LogprobRows:
    return LogprobRows(
        logprob=outputs["sampled_logprob"],
        rank=outputs["rank"],
        top_token_ids=outputs["top_ids"],
        top_logprobs=outputs["top_logprobs"],
    )
