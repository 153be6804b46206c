"""How the requests of a batch are sampled: parameters by row, and one step's operands cut from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.core.messages import EngineCoreRequest
from pelton.ops.arrays import Float32, Int32, Int64, UInt32, UInt64
from pelton.runner.custom_processors import CustomProcessors
from pelton.runner.row_edits import RowEdits, mask_words

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_NO_IDS = np.zeros(0, np.int32)
_NO_BIAS = np.zeros(0, np.float32)
_NO_PENALTIES = np.zeros((0, 3), np.float32)
_ZERO = np.zeros(1, np.int32)
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)


@dataclass(slots=True)
class EditInputs:
    """What is done to the logits of C of the step's rows before sampling; see the operator `edit_logits`.

    Names are those of the head program's inputs.
    """

    edited_index: Int32
    """[L] index of each logits row among the edited ones, or -1."""
    edited_rows: Int32
    """[C] logits rows."""
    mask_index: Int32
    """[C] index of the row's mask, or -1."""
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


@dataclass(slots=True)
class SamplingInputs:
    """How each of the step's L logits rows is sampled; all arrays have L entries.

    Names are those of the head program's inputs.
    """

    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: UInt64
    choice: Int32
    """Which of the request's choices it is."""
    position: Int32
    """Position of the token to be sampled."""
    num_logprobs: Int32
    """Log probabilities to report; -1 for none, 0 for the sampled token's only."""


class SamplingState:
    """The parameters of up to `max_num_seqs` requests, one row each."""

    def __init__(self, max_num_seqs: int, vocab_size: int, processors: CustomProcessors) -> None:
        self._vocab_size = vocab_size
        self._processors = processors
        rows = max_num_seqs
        self._parameters = SamplingInputs(
            temperature=np.zeros(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            top_p=np.zeros(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
            seed=np.zeros(rows, np.uint64),
            choice=np.zeros(rows, np.int32),
            position=np.zeros(0, np.int32),
            num_logprobs=np.zeros(rows, np.int32),
        )
        self._num_prompt_tokens = np.zeros(rows, np.int32)
        self._edits: dict[int, RowEdits] = {}
        self._no_masks = np.zeros((0, mask_words(vocab_size)), np.uint32)

    def set_row(self, row: int, message: EngineCoreRequest, output_ids: Sequence[int]) -> None:
        """A request, with the output it has so far, takes a row."""
        params = message.sampling_params
        assert params.is_greedy or params.seed is not None, "the front end draws the seed"
        values = self._parameters
        # A temperature that float32 rounds to 0 would mean greedy decoding.
        values.temperature[row] = 0.0 if params.is_greedy else _within_float32(params.temperature)
        values.top_k[row] = max(0, min(params.top_k, np.iinfo(np.int32).max))
        values.top_p[row] = _within_float32(params.top_p)
        values.min_p[row] = params.min_p
        values.seed[row] = params.seed or 0
        values.choice[row] = message.choice
        values.num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self._num_prompt_tokens[row] = len(message.prompt_token_ids)
        self.clear_row(row)
        if RowEdits.concern(message):
            self._edits[row] = RowEdits(message, output_ids, self._vocab_size)
        self._processors.set_row(row, message)

    def clear_row(self, row: int) -> None:
        """The row's request has gone."""
        self._edits.pop(row, None)
        self._processors.clear_row(row)

    def inputs(self, rows: Int64, positions: Int64) -> SamplingInputs:
        """Of a step's logits rows: their rows of the batch, and the positions of the tokens to be sampled."""
        values = self._parameters
        return SamplingInputs(
            temperature=values.temperature[rows],
            top_k=values.top_k[rows],
            top_p=values.top_p[rows],
            min_p=values.min_p[rows],
            seed=values.seed[rows],
            choice=values.choice[rows],
            position=positions.astype(np.int32),
            num_logprobs=values.num_logprobs[rows],
        )

    def edit_inputs(self, rows: Int64, positions: Int64, token_ids: Int32) -> EditInputs:
        """The same for edits; `token_ids` are the tokens of all rows of the batch."""
        if not self._processors.is_idle:
            self._processors.prepare(rows, self._num_prompt_tokens[rows], positions, token_ids)
        edited = self._edited(rows, positions, token_ids) if self._edits else []
        if not edited:
            return self._without_edits(len(rows))
        masks = [edit.mask for _, edit, _ in edited if edit.mask is not None]
        has_mask = np.array([edit.mask is not None for _, edit, _ in edited], bool)
        biases = [biases for _, _, biases in edited]
        counts = [edit.counts for _, edit, _ in edited]
        edited_index = np.full(len(rows), -1, np.int32)
        edited_rows = np.array([index for index, _, _ in edited], np.int32)
        edited_index[edited_rows] = np.arange(len(edited))
        return EditInputs(
            edited_index=edited_index,
            edited_rows=edited_rows,
            mask_index=np.where(has_mask, np.cumsum(has_mask) - 1, -1).astype(np.int32),
            masks=np.array(masks, np.uint32).reshape(len(masks), mask_words(self._vocab_size)),
            bias_start=_starts([len(ids) for ids, _ in biases]),
            bias_ids=np.concatenate([_NO_IDS, *(ids for ids, _ in biases)]),
            bias=np.concatenate([_NO_BIAS, *(values for _, values in biases)]),
            penalty_start=_starts([0 if count is None else len(count) for count in counts]),
            penalty_ids=np.concatenate([_NO_IDS, *(count.ids for count in counts if count is not None)]),
            penalty_counts=np.concatenate([_NO_IDS, *(count.counts for count in counts if count is not None)]),
            penalties=np.array([edit.penalties for _, edit, _ in edited], np.float32).reshape(len(edited), 3),
        )

    def _edited(
        self, rows: Int64, positions: Int64, token_ids: Int32
    ) -> list[tuple[int, RowEdits, tuple[Int32, Float32]]]:
        """The logits rows that are edited: their indices, what is done to them, and their biases."""
        edited = []
        starts = self._num_prompt_tokens[rows].tolist()
        for index, (row, start, end) in enumerate(zip(rows.tolist(), starts, positions.tolist(), strict=True)):
            if (edit := self._edits.get(row)) is not None:
                biases = edit.biases_at(token_ids[row, start:end])
                if edit.mask is not None or edit.counts is not None or len(biases[0]):
                    edited.append((index, edit, biases))
        return edited

    def _without_edits(self, num_rows: int) -> EditInputs:
        return EditInputs(
            edited_index=np.full(num_rows, -1, np.int32),
            edited_rows=_NO_IDS,
            mask_index=_NO_IDS,
            masks=self._no_masks,
            bias_start=_ZERO,
            bias_ids=_NO_IDS,
            bias=_NO_BIAS,
            penalty_start=_ZERO,
            penalty_ids=_NO_IDS,
            penalty_counts=_NO_IDS,
            penalties=_NO_PENALTIES,
        )

    def append_sampled(self, rows: Int64, sampled: Int32) -> None:
        """One more output token of each of these rows of the batch."""
        if self._edits:
            for row, token_id in zip(rows.tolist(), sampled.tolist(), strict=True):
                edit = self._edits.get(row)
                if edit is not None and edit.counts is not None:
                    edit.counts.add(token_id)


def _within_float32(value: float) -> float:
    """A positive number, kept from overflowing to infinity or to 0 in float32."""
    return min(max(value, _FLOAT32_TINY), _FLOAT32_MAX)


def _starts(lengths: Sequence[int]) -> Int32:
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts
