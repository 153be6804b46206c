"""Runs the user's own logits processors on the rows of the requests that want them."""

from collections.abc import Sequence

import numpy as np

from pelton.core.messages import EngineCoreRequest
from pelton.ops.arrays import Float32, Int32, Int64
from pelton.sampling.logits_processor import LogitsProcessor, RowProcessor


class CustomProcessors:
    """The `LogitsHook` of the head program: per row of the batch, the functions to call."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._processors = processors
        self._functions: dict[int, list[RowProcessor]] = {}
        self._failed: dict[int, str] = {}
        """Rows whose processor could not be made, with the reason."""
        self._calls: list[tuple[int, list[RowProcessor], Int32, Int32]] = []
        self.errors: dict[int, str] = {}
        """Logits rows of the last step that failed, with the reason."""

    def set_row(self, row: int, message: EngineCoreRequest) -> None:
        functions: list[RowProcessor] = []
        for processor in self._processors:
            try:
                function = processor.new_request(message.sampling_params)
            except Exception as error:  # the user's code, at the cost of this request only
                self._failed[row] = _reason(type(processor).__name__, error)
                return
            if function is not None:
                functions.append(function)
        if functions:
            self._functions[row] = functions

    def clear_row(self, row: int) -> None:
        self._functions.pop(row, None)
        self._failed.pop(row, None)
        self._calls, self.errors = [], {}

    @property
    def is_idle(self) -> bool:
        """Whether no request wants anything."""
        return not self._functions and not self._failed

    def prepare(self, rows: Int64, num_prompt_tokens: Int32, positions: Int64, token_ids: Int32) -> None:
        """What the next `apply` works on: of each logits row its row of the batch, [L], the length of its prompt, and
        the position of the token to be sampled; `token_ids` are those of all rows of the batch."""
        self.errors = {}
        self._calls = []
        starts, ends = num_prompt_tokens.tolist(), positions.tolist()
        for index, (row, start, end) in enumerate(zip(rows.tolist(), starts, ends, strict=True)):
            if row in self._failed:
                self.errors[index] = self._failed[row]
            elif row in self._functions:
                prompt_ids, output_ids = _read_only(token_ids[row, :start]), _read_only(token_ids[row, start:end])
                self._calls.append((index, self._functions[row], prompt_ids, output_ids))

    def apply(self, logits: Float32) -> None:
        """Change the rows of logits [L, V] in place."""
        for index, functions, prompt_ids, output_ids in self._calls:
            if not _is_usable(logits[index]):
                continue  # the model's fault, which the sampler finds
            for function in functions:
                try:
                    changed = function(prompt_ids, output_ids, logits[index])
                    if changed is not None:
                        logits[index] = _checked(changed, logits.shape[1])
                    if not _is_usable(logits[index]):
                        raise ValueError("it made logits that are NaN or infinity")
                except Exception as error:  # the user's code, at the cost of this request only
                    self.errors[index] = _reason(getattr(function, "__qualname__", type(function).__name__), error)
                    break

    def __str__(self) -> str:
        return f"({', '.join(type(processor).__name__ for processor in self._processors)})"


def _is_usable(logits: Float32) -> bool:
    """Whether none of them is NaN or infinity; -inf rules a token out."""
    return bool(logits.max() < np.inf)


def _read_only(tokens: Int32) -> Int32:
    tokens.flags.writeable = False
    return tokens


def _checked(logits: object, vocab_size: int) -> Float32:
    array = np.asarray(logits, np.float32)
    if array.shape != (vocab_size,):
        raise ValueError(f"it must return logits [{vocab_size}] or None, got shape {list(array.shape)}")
    return array


def _reason(name: str, error: Exception) -> str:
    return f"the logits processor {name} failed: {type(error).__name__}: {error}"
