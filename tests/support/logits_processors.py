"""Logits processors for tests, which servers load by name, as `--logits-processors` has it."""

import numpy as np

from pelton.ops.arrays import Float32, Int32
from pelton.sampling.logits_processor import LogitsProcessor, RowProcessor
from pelton.sampling_params import SamplingParams


class Force(LogitsProcessor):
    """Makes the request generate the tokens in `extra_args["force"]`, then whatever comes."""

    arguments = frozenset({"force"})

    def new_request(self, params: SamplingParams) -> RowProcessor | None:
        forced = (params.extra_args or {}).get("force")
        if forced is None:
            return None

        def change(prompt_ids: Int32, output_ids: Int32, logits: Float32) -> None:
            if len(output_ids) < len(forced):
                logits[forced[len(output_ids)]] = 1e9

        return change


class NotANumber(LogitsProcessor):
    """Makes NaN of all logits when there are `extra_args["nan_after"]` output tokens."""

    arguments = frozenset({"nan_after"})

    def new_request(self, params: SamplingParams) -> RowProcessor | None:
        number = (params.extra_args or {}).get("nan_after")
        if number is None:
            return None

        def change(prompt_ids: Int32, output_ids: Int32, logits: Float32) -> None:
            if len(output_ids) == number:
                logits[:] = np.nan

        return change
