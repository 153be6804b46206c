"""Replays the programs from hidden states to tokens: the head, and the scorer of prompts."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from pelton.config import SamplingConfig
from pelton.ops import B, C, Interpreter, L, M, P, T
from pelton.ops.arrays import AnyArray, Float32
from pelton.runner.custom_processors import CustomProcessors
from pelton.runner.input_batch import StepInputs
from pelton.runner.prompt_scoring import ScoringInputs
from pelton.runner.step_limits import StepLimits
from pelton.runner.step_results import LogprobRows, StepResults
from pelton.sampling import record_head, record_scorer
from pelton.sampling.head import LogitsModel
from pelton.sampling_params import MAX_LOGIT_BIASES

MAX_SCORED_ROWS = 64
"""Most prompt tokens that are scored at once: a tile of logits, never a whole prompt's."""


class ReplayedHead:
    """A model's head and scorer, recorded once for steps of any size."""

    def __init__(self, model: LogitsModel, limits: StepLimits, sampling: SamplingConfig) -> None:
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
        self._head = Interpreter(record_head(model, sampling, self._processors), sizes)
        self._num_scored_rows = min(MAX_SCORED_ROWS, limits.max_num_tokens)
        self._scorer = Interpreter(record_scorer(model, sampling), sizes | {L: self._num_scored_rows})

    def run(self, hidden: Float32, inputs: StepInputs) -> StepResults:
        """Sample and score from the hidden states [T, E] of a step. The results are valid until the next run.

        With no logits row (every request has more prompt to come) the head's launches have nothing to do.
        """
        sizes = {
            T: len(hidden),
            L: len(inputs.logits_rows),
            C: len(inputs.edits.edited_rows),
            M: len(inputs.edits.masks),
            B: len(inputs.edits.bias_ids),
            P: len(inputs.edits.penalty_ids),
        }
        if self._processors is not None:
            self._processors.prepare(inputs.processor_calls)
        operands = {"hidden": hidden, "logits_rows": inputs.logits_rows}
        outputs = self._head.run(sizes, operands | _fields(inputs.sampling) | _fields(inputs.edits))
        scored = None if inputs.scoring is None else self._score(hidden, inputs.scoring)
        results = StepResults(outputs["token_ids"], _logprob_rows(outputs), scored)
        if self._processors is not None:
            errors = self._processors.errors.items()
            results.processor_errors = {int(inputs.edits.edited_rows[index]): error for index, error in errors}
        return results

    def _score(self, hidden: Float32, scoring: ScoringInputs) -> LogprobRows:
        """Log probabilities of prompt tokens, a tile at a time."""
        tiles = []
        for start in range(0, len(scoring.logits_rows), self._num_scored_rows):
            tile = slice(start, start + self._num_scored_rows)
            operands = {
                "hidden": hidden,
                "logits_rows": scoring.logits_rows[tile],
                "token_ids": scoring.token_ids[tile],
                "num_logprobs": scoring.num_logprobs[tile],
            }
            outputs = self._scorer.run({T: len(hidden), L: len(operands["logits_rows"])}, operands)
            # Outputs are views that the next run overwrites.
            tiles.append({name: output.copy() for name, output in outputs.items()})
        return _logprob_rows({name: np.concatenate([tile[name] for tile in tiles]) for name in tiles[0]})


def _fields(inputs: Any) -> dict[str, AnyArray]:
    return {field.name: getattr(inputs, field.name) for field in fields(inputs)}


def _logprob_rows(outputs: Mapping[str, AnyArray]) -> LogprobRows:
    return LogprobRows(
        logprob=outputs["sampled_logprob"],
        rank=outputs["rank"],
        top_token_ids=outputs["top_ids"],
        top_logprobs=outputs["top_logprobs"],
    )
