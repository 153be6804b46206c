"""How the requests of a batch are sampled: parameters by row, and one step's operands cut from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pelton.core.messages import EngineCoreRequest
from pelton.ops import mask_words
from pelton.ops.arrays import AnyArray, Float32, Int32, Int64, UInt32, UInt64
from pelton.runner.custom_processors import ProcessorCall, make_functions
from pelton.runner.row_edits import RowEdits, needs_edits, within_float32
from pelton.sampling.logits_processor import LogitsProcessor

N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True, eq=False)
class EditInputs:
    """Which of the step's L logits rows are needed, and what is done to C of them before sampling.

    Names are those of the head program's inputs; see the operators `logits` and `edit_logits`.
    """

    is_wanted: Int32
    """[L] 0 where nothing but the most likely token is needed."""
    edit_index: Int32
    """[L] index of the row's edit, or -1. Edits are numbered in the order of their rows."""
    mask_index: Int32
    """[C] index of the edit's mask, or -1."""
    masks: UInt32
    """[M, ceil(V / 32)] bits of the tokens that are allowed."""
    bias_start: Int32
    """[C + 1]"""
    bias_ids: Int32
    """[B]"""
    bias: Float32
    """[B]"""
    penalty_start: Int32
    """[C + 1]"""
    penalty_ids: Int32
    """[P] tokens of prompt and output."""
    penalty_counts: Int32
    """[P] occurrences in the output."""
    penalties: Float32
    """[C, 3] repetition, frequency, presence."""

    @cached_property
    def rows(self) -> Int64:
        """[C] the logits row of each edit."""
        return np.flatnonzero(self.edit_index >= 0)

    @cached_property
    def operands(self) -> dict[str, AnyArray]:
        """What the head program takes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, eq=False)
class SamplingInputs:
    """How each of the step's L logits rows is sampled. Names are those of the head program's inputs."""

    warpers: Float32
    """[L, 4] temperature, top_k, top_p, min_p."""
    seed: UInt64
    """[L]"""
    choice: Int32
    """[L] which of the request's choices it is."""
    position: Int32
    """[L] position of the token to be sampled."""
    num_logprobs: Int32
    """[L] log probabilities to report; -1 for none, 0 for the sampled token's only."""
    has_logprobs: bool
    """Whether any row reports some."""

    def operands(self) -> dict[str, AnyArray]:
        """What the head program takes."""
        return {
            "warpers": self.warpers,
            "seed": self.seed,
            "choice": self.choice,
            "position": self.position,
            "num_logprobs": self.num_logprobs,
        }


@dataclass(slots=True)
class _EditedRow:
    """A logits row that is edited."""

    logits_row: int
    edits: RowEdits
    prompt_ids: Int32
    output_ids: Int32
    mask: UInt32 | None


class SamplingState:
    """The parameters of up to `max_num_seqs` requests, one row each."""

    def __init__(self, max_num_seqs: int, vocab_size: int, processors: Sequence[LogitsProcessor] = ()) -> None:
        self._vocab_size = vocab_size
        self._processors = processors
        self._warpers = np.zeros((max_num_seqs, 4), np.float32)
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._choices = np.zeros(max_num_seqs, np.int32)
        self._num_logprobs = np.zeros(max_num_seqs, np.int32)
        self._num_prompt_tokens = np.zeros(max_num_seqs, np.int32)
        self._edits: dict[int, RowEdits] = {}
        no_rows = np.zeros(0, np.int32)
        self._no_edits = self._edit_inputs(no_rows, no_rows, [])
        # What was cut last, and for which rows: the same again until a request takes a row or goes.
        self._last_inputs: tuple[Int64, SamplingInputs] | None = None
        self._last_plain: tuple[Int64, EditInputs] | None = None

    def set_row(self, row: int, message: EngineCoreRequest) -> None:
        """A request takes a row."""
        params = message.sampling_params
        assert params.is_greedy or params.seed is not None, "the front end draws the seed"
        self._warpers[row] = (
            # A temperature that float32 rounds to 0 would mean greedy decoding.
            0.0 if params.is_greedy else within_float32(params.temperature),
            min(max(params.top_k, 0), self._vocab_size),
            within_float32(params.top_p),
            params.min_p,
        )
        self._seeds[row] = params.seed or 0
        self._choices[row] = message.choice
        self._num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self._num_prompt_tokens[row] = len(message.prompt_token_ids)
        self.clear_row(row)
        functions = make_functions(self._processors, params)
        if functions or needs_edits(message):
            self._edits[row] = RowEdits(message, functions, self._vocab_size)

    def clear_row(self, row: int) -> None:
        """The row's request has gone."""
        self._edits.pop(row, None)
        self._last_inputs = self._last_plain = None

    def inputs(self, rows: Int64, positions: Int64) -> SamplingInputs:
        """Of a step's logits rows: their rows of the batch, and the positions of the tokens to be sampled.

        But for the positions they are kept; nobody may change `rows` afterwards.
        """
        position = positions.astype(np.int32)
        if self._last_inputs is not None and self._last_inputs[0] is rows:
            last = self._last_inputs[1]
            return SamplingInputs(last.warpers, last.seed, last.choice, position, last.num_logprobs, last.has_logprobs)
        num_logprobs = self._num_logprobs[rows]
        inputs = SamplingInputs(
            warpers=self._warpers[rows],
            seed=self._seeds[rows],
            choice=self._choices[rows],
            position=position,
            num_logprobs=num_logprobs,
            has_logprobs=bool((num_logprobs >= 0).any()),
        )
        self._last_inputs = rows, inputs
        return inputs

    def edits(
        self, rows: Int64, positions: Int64, token_ids: Int32, constraints: Mapping[int, UInt32]
    ) -> tuple[EditInputs, list[ProcessorCall]]:
        """The same for edits. `token_ids` are the tokens of all rows of the batch; `constraints` the masks of those
        whose output is constrained."""
        edited = self._edited_rows(rows, positions, token_ids, constraints) if self._edits else []
        if not edited and self._last_plain is not None and self._last_plain[0] is rows:
            return self._last_plain[1], []
        edit_index = np.full(len(rows), -1, np.int32)
        edit_index[[row.logits_row for row in edited]] = np.arange(len(edited))
        is_plain = (self._warpers[rows, 0] == 0.0) & (self._num_logprobs[rows] < 0) & (edit_index < 0)
        is_wanted = (~is_plain).astype(np.int32)
        if not edited:
            plain = replace(self._no_edits, is_wanted=is_wanted, edit_index=edit_index)
            self._last_plain = rows, plain
            return plain, []
        calls = [
            ProcessorCall(index, row.edits.functions, row.prompt_ids, row.output_ids)
            for index, row in enumerate(edited)
            if row.edits.functions
        ]
        return self._edit_inputs(is_wanted, edit_index, edited), calls

    def _edited_rows(
        self, rows: Int64, positions: Int64, token_ids: Int32, constraints: Mapping[int, UInt32]
    ) -> list[_EditedRow]:
        edited = []
        token_ids = token_ids.view()
        token_ids.flags.writeable = False  # users' functions see them
        starts = self._num_prompt_tokens[rows].tolist()
        for index, (row, start, end) in enumerate(zip(rows.tolist(), starts, positions.tolist(), strict=True)):
            edits = self._edits.get(row)
            if edits is not None:
                output_ids = token_ids[row, start:end]
                mask = edits.mask_at(output_ids, constraints.get(row))
                if mask is not None or not edits.is_mask_only:
                    edited.append(_EditedRow(index, edits, token_ids[row, :start], output_ids, mask))
        return edited

    def _edit_inputs(self, is_wanted: Int32, edit_index: Int32, edited: Sequence[_EditedRow]) -> EditInputs:
        masks = [row.mask for row in edited if row.mask is not None]
        has_mask = np.array([row.mask is not None for row in edited], bool)
        bias_start, bias_ids, bias = _joined([row.edits.biases for row in edited], np.float32)
        penalty_start, penalty_ids, penalty_counts = _joined(_counts(edited), np.int32)
        return EditInputs(
            is_wanted=is_wanted,
            edit_index=edit_index,
            mask_index=np.where(has_mask, np.cumsum(has_mask) - 1, -1).astype(np.int32),
            masks=np.array(masks, np.uint32).reshape(len(masks), mask_words(self._vocab_size)),
            bias_start=bias_start,
            bias_ids=bias_ids,
            bias=bias,
            penalty_start=penalty_start,
            penalty_ids=penalty_ids,
            penalty_counts=penalty_counts,
            penalties=np.array([row.edits.penalties for row in edited], np.float32).reshape(len(edited), 3),
        )


def _counts(edited: Sequence[_EditedRow]) -> list[tuple[Int32, Int32]]:
    """What each row's penalties look at. `counts_at` writes over what it gave last, so several rows of a request get
    copies."""
    is_repeated = len({id(row.edits) for row in edited}) < len(edited)
    counts = []
    for row in edited:
        ids, numbers = row.edits.counts_at(row.output_ids)
        counts.append((ids.copy(), numbers.copy()) if is_repeated else (ids, numbers))
    return counts


def _joined(entries: Sequence[tuple[Int32, NDArray[N]]], dtype: type[N]) -> tuple[Int32, Int32, NDArray[N]]:
    """Ids and values of several rows, one row after the other: where each begins, all ids, all values."""
    starts = np.zeros(len(entries) + 1, np.int32)
    np.cumsum([len(ids) for ids, _ in entries], dtype=np.int32, out=starts[1:])
    ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in entries)])
    return starts, ids, np.concatenate([np.zeros(0, dtype), *(values for _, values in entries)])
