"""The requests a worker holds, as arrays; and one step's inputs cut from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.core.kv_spec import KVCacheGroup
from pelton.core.messages import NewRequest, SchedulerOutput
from pelton.ops.arrays import Int32, Int64, UInt32
from pelton.runner.custom_processors import ProcessorCall
from pelton.runner.prompt_scoring import PromptScoring, ScoringInputs
from pelton.runner.sampling_state import EditInputs, SamplingInputs, SamplingState
from pelton.runner.step_layout import StepLayout


@dataclass(slots=True)
class StepInputs:
    """One step as the model sees it: all requests flattened into one super-sequence of T tokens.

    Written by `InputBatch.prepare`, read by the model. R requests, G groups, L logits rows.
    """

    token_ids: Int32
    """[T]"""
    positions: Int32
    """[T] position of each token in its request."""
    query_start: Int32
    """[R + 1] request r has the tokens query_start[r] to query_start[r + 1]."""
    seq_lens: Int32
    """[R] tokens in the cache after this step's are written."""
    slot_mapping: list[Int64]
    """Per group, [T]: where each token's keys and values go, block id * block size + offset."""
    block_tables: list[Int32]
    """Per group, [R, most blocks of a request]: entries past a request's blocks are meaningless."""
    logits_rows: Int32
    """[L] tokens whose logits are needed."""
    sampled_rows: Int64
    """[L] row of the batch that each logits row belongs to."""
    sampling: SamplingInputs
    edits: EditInputs
    processor_calls: list[ProcessorCall]
    """Of the edited rows whose requests have processors of their own."""
    scoring: ScoringInputs | None
    """Prompt tokens whose log probabilities are wanted; None if there are none."""


class InputBatch:
    """Persistent state of up to `max_num_seqs` requests, one row each; steps change it by deltas."""

    def __init__(
        self, groups: Sequence[KVCacheGroup], max_num_seqs: int, max_model_len: int, sampling: SamplingState
    ) -> None:
        self.block_size = groups[0].spec.block_size
        self.max_blocks = -(-max_model_len // self.block_size)
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
        self.block_tables = [np.zeros((max_num_seqs, self.max_blocks), np.int32) for _ in groups]
        self._num_blocks = [0] * max_num_seqs
        self._sampling = sampling
        self._scoring = PromptScoring()
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._layout: tuple[tuple[list[int], list[int], list[int]], StepLayout] | None = None

    def __len__(self) -> int:
        return len(self._row_of)

    def update(self, step: SchedulerOutput) -> None:
        """Apply the step's changes: dropped requests, new ones, forced tokens, new blocks."""
        if step.dropped_request_ids:
            for request_id in step.dropped_request_ids:
                self._drop(request_id)
            # Counted anew, so that a row that an interrupted update left to nobody is found again.
            self._free_rows = sorted(set(range(len(self.token_ids))).difference(self._row_of.values()), reverse=True)
        for request in step.new_requests:
            self._add(request)
        for request_id, forced in step.forced_tokens.items():
            end = forced.position + len(forced.token_ids)
            self.token_ids[self._row_of[request_id], forced.position : end] = forced.token_ids
        for request_id, block_ids in step.new_block_ids.items():
            self._append_blocks(self._row_of[request_id], block_ids)

    def _drop(self, request_id: str) -> None:
        row = self._row_of.pop(request_id, None)
        if row is not None:  # a request dropped before its first step was never here
            self._sampling.clear_row(row)
            self._scoring.drop(request_id)

    def _add(self, request: NewRequest) -> None:
        message, output_ids = request.message, request.output_token_ids
        assert message.request_id not in self._row_of, "a request is dropped before it comes anew"
        row = self._free_rows.pop()
        self._row_of[message.request_id] = row
        num_prompt_tokens = len(message.prompt_token_ids)
        self.token_ids[row, :num_prompt_tokens] = message.prompt_token_ids
        self.token_ids[row, num_prompt_tokens : num_prompt_tokens + len(output_ids)] = output_ids
        self._num_blocks[row] = 0
        self._append_blocks(row, request.block_ids)
        self._sampling.set_row(row, message)
        self._scoring.add(row, request)

    def _append_blocks(self, row: int, block_ids: list[list[int]]) -> None:
        start = self._num_blocks[row]
        end = start + len(block_ids[0])
        for table, ids in zip(self.block_tables, block_ids, strict=True):
            table[row, start:end] = ids
        self._num_blocks[row] = end

    def prepare(self, step: SchedulerOutput) -> StepInputs:
        """Flatten the step's requests into one super-sequence.

        Most of what does not change from step to step is the same arrays again: after each step, what Python touches
        has left the processor's caches.
        """
        layout = self._layout_of(step)
        starts = np.array(step.num_computed_tokens, np.int64)
        positions = starts[layout.owners] + layout.offsets
        blocks, offsets = np.divmod(positions, self.block_size)
        sampled_positions = positions[layout.logits_rows] + 1
        edits, processor_calls = self._sampling.edits(
            layout.sampled_rows, sampled_positions, self.token_ids, self._constraints(step)
        )
        return StepInputs(
            token_ids=self.token_ids[layout.token_rows, positions],
            positions=positions.astype(np.int32),
            query_start=layout.query_start,
            seq_lens=(starts + layout.counts).astype(np.int32),
            slot_mapping=[
                table[layout.token_rows, blocks] * np.int64(self.block_size) + offsets for table in self.block_tables
            ],
            block_tables=[table[layout.rows] for table in self.block_tables],
            logits_rows=layout.logits_rows,
            sampled_rows=layout.sampled_rows,
            sampling=self._sampling.inputs(layout.sampled_rows, sampled_positions),
            edits=edits,
            processor_calls=processor_calls,
            scoring=self._scoring.inputs(
                step.request_ids, step.num_computed_tokens, layout.query_start, self.token_ids
            ),
        )

    def _constraints(self, step: SchedulerOutput) -> dict[int, UInt32]:
        """By row: the tokens that may come next, where a constraint rules out others."""
        request_ids = step.constrained_request_ids
        if not request_ids:
            return {}
        masks = np.frombuffer(step.bitmask, "<u4").astype(np.uint32, copy=False).reshape(len(request_ids), -1)
        return {self._row_of[request_id]: mask for request_id, mask in zip(request_ids, masks, strict=True)}

    def _layout_of(self, step: SchedulerOutput) -> StepLayout:
        """The last step's, if nothing has changed."""
        rows = [self._row_of[request_id] for request_id in step.request_ids]
        key = rows, step.num_scheduled_tokens, step.num_logits
        if self._layout is None or key != self._layout[0]:
            self._layout = key, StepLayout.of(*key)
        return self._layout[1]

    def append_sampled(self, inputs: StepInputs, sampled: Int32) -> None:
        """Write the sampled tokens, [L], where the next step reads them.

        Where none was sampled the value is negative. Such a request ends, but a step in flight may still read it.
        """
        self.token_ids[inputs.sampled_rows, inputs.sampling.position] = np.maximum(sampled, 0)
