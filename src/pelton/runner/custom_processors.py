"""Runs the user's own logits processors on the rows of the requests that want them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.error_text import described, shown
from pelton.ops.arrays import Float32, Int32
from pelton.sampling.logits_processor import LogitsProcessor, RowProcessor
from pelton.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RowFunction:
    """What one processor does to the logits of one request."""

    name: str
    """The processor's class."""
    process: RowProcessor


@dataclass(slots=True)
class ProcessorCall:
    """One edit and the functions that it consists of, in this order."""

    index: int
    """Among the step's edits."""
    functions: Sequence[RowFunction]
    prompt_ids: Int32
    output_ids: Int32


def make_functions(processors: Sequence[LogitsProcessor], params: SamplingParams) -> list[RowFunction]:
    """What to call for each token of a request. Where a processor raises, a function that raises the same."""
    functions = []
    for processor in processors:
        try:
            process = processor.new_request(params.clone())
            if process is not None and not callable(process):
                raise TypeError(f"new_request must return a function or None, got {shown(process)}")
        except Exception as error:  # the user's code, at the cost of this request only
            process = _failing(error)
        if process is not None:
            functions.append(RowFunction(type(processor).__name__, process))
    return functions


def _failing(error: Exception) -> RowProcessor:
    def fail(prompt_ids: Int32, output_ids: Int32, logits: Float32) -> None:
        raise error

    return fail


class CustomProcessors:
    """The `LogitsHook` of the head program."""

    def __init__(self) -> None:
        self._calls: dict[int, ProcessorCall] = {}
        self.errors: dict[int, str] = {}
        """Edits of the last step that failed, with the reason."""

    def prepare(self, calls: Sequence[ProcessorCall]) -> None:
        """What a step does, in one or more calls of `apply`."""
        self._calls, self.errors = {call.index: call for call in calls}, {}

    def apply(self, logits: Float32, edit_index: Int32) -> None:
        """Change the rows of logits [l, V] whose edits have functions, in place."""
        for row, index in zip(logits, edit_index.tolist(), strict=True):
            call = self._calls.get(index)
            if call is None or not _is_usable(row):
                continue  # logits that are broken are the model's fault, which the sampler finds
            for function in call.functions:
                try:
                    changed = function.process(call.prompt_ids, call.output_ids, row)
                    if changed is not None:
                        row[:] = _checked(changed, len(row))
                    if not _is_usable(row):
                        raise ValueError("it made logits that are NaN or infinity")
                except Exception as error:  # the user's code, at the cost of this request only
                    self.errors[index] = f"the logits processor {function.name} failed: {described(error)}"
                    break


def _is_usable(logits: Float32) -> bool:
    """Whether none of them is NaN or infinity; -inf rules a token out."""
    return bool(logits.max() < np.inf)


def _checked(logits: object, vocab_size: int) -> Float32:
    array = np.asarray(logits, np.float32)
    if array.shape != (vocab_size,):
        raise ValueError(f"it must return logits [{vocab_size}] or None, got shape {list(array.shape)}")
    return array
