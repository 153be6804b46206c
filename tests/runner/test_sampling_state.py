"""The operands of the sampler, cut from the rows of a batch."""

import numpy as np

from pelton import SamplingParams
from pelton.runner.sampling_state import SamplingState
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import StructuredOutputsParams
from tests.support.requests import core_request

V = 40
TOKENS = np.zeros((5, 20), np.int32)


class Marked(LogitsProcessor):
    """For requests with a minimal probability."""

    def new_request(self, params):
        return self.change if params.min_p else None

    def change(self, prompt_ids, output_ids, logits):
        return None


MARKED = Marked()


def make_state(**rows: tuple[list[int], list[int], SamplingParams]) -> SamplingState:
    """Row number -> prompt, output, parameters."""
    state = SamplingState(5, V, [MARKED])
    for name, (prompt, output, params) in rows.items():
        row = int(name[1:])
        TOKENS[row, : len(prompt) + len(output)] = prompt + output
        state.set_row(row, core_request(name, prompt, params, eos=[2], choice=row))
    return state


def edits_of(state: SamplingState, rows: list[int], positions: list[int], constraints=None):
    return state.edits(np.array(rows, np.int64), np.array(positions, np.int64), TOKENS, constraints or {})[0]


def check(array, expected, dtype):
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)


def test_parameters_by_row():
    params = SamplingParams(temperature=0.5, top_p=0.25, top_k=9, min_p=0.125, seed=2**63, logprobs=4)
    inputs = make_state(r0=([1], [], SamplingParams(temperature=0)), r3=([1], [], params)).inputs(
        np.array([3, 0, 3]), np.array([1, 5, 2])
    )
    check(inputs.warpers, [[0.5, 9, 0.25, 0.125], [0, 0, 1, 0], [0.5, 9, 0.25, 0.125]], np.float32)
    check(inputs.seed, np.array([2**63, 0, 2**63], np.uint64), np.uint64)
    check(inputs.choice, [3, 0, 3], np.int32)
    check(inputs.position, [1, 5, 2], np.int32)
    check(inputs.num_logprobs, [4, -1, 4], np.int32)


def test_no_edits_cost_no_rows():
    edits = edits_of(make_state(r0=([1], [], SamplingParams(temperature=0))), [0, 0], [1, 2])
    check(edits.edit_index, [-1, -1], np.int32)
    check(edits.is_wanted, [0, 0], np.int32)
    assert edits.masks.shape == (0, 2)
    assert edits.penalties.shape == (0, 3)
    check(edits.bias_start, [0], np.int32)
    check(edits.penalty_start, [0], np.int32)
    for array in (edits.rows, edits.mask_index, edits.bias_ids, edits.bias, edits.penalty_ids):
        assert array.shape == (0,)


def test_logits_are_wanted_where_the_best_token_is_not_all():
    greedy = {"temperature": 0}
    state = make_state(
        r0=([1], [], SamplingParams(**greedy)),
        r1=([1], [], SamplingParams(temperature=1e-20, seed=1)),
        r2=([1], [], SamplingParams(**greedy, logprobs=0)),
        r3=([1], [], SamplingParams(**greedy, min_p=0.5)),  # has a processor
        r4=([1, 1], [5], SamplingParams(**greedy, min_tokens=2)),
    )
    check(edits_of(state, [0, 1, 2, 3, 4, 4], [1, 1, 1, 1, 3, 4]).is_wanted, [0, 1, 1, 1, 1, 0], np.int32)
    check(edits_of(state, [0, 1, 2], [1, 1, 1]).is_wanted, [0, 1, 1], np.int32)
    check(edits_of(state, [], []).is_wanted, [], np.int32)


def test_edits_of_several_rows():
    state = make_state(
        r0=([1], [], SamplingParams(temperature=0, allowed_token_ids=[3])),
        r1=([7, 8, 7], [8, 9], SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=0.25)),
        r2=([1], [], SamplingParams(temperature=0)),
        r3=([1], [], SamplingParams(temperature=0, logit_bias={4: 1.0, 5: -1.0}, frequency_penalty=0.5)),
        r4=([1], [], SamplingParams(temperature=0, allowed_token_ids=[39, 0], min_tokens=1)),
    )
    edits = edits_of(state, [3, 2, 4, 1, 0], [1, 1, 1, 5, 1])
    check(edits.edit_index, [0, -1, 1, 2, 3], np.int32)
    check(edits.is_wanted, [1, 0, 1, 1, 1], np.int32)
    assert edits.rows.tolist() == [0, 2, 3, 4]
    assert "rows" not in edits.operands
    assert edits.operands["edit_index"] is edits.edit_index
    check(edits.mask_index, [-1, 0, -1, 1], np.int32)
    check(edits.masks, [[1, 1 << 7], [1 << 3, 0]], np.uint32)
    check(edits.bias_start, [0, 2, 2, 2, 2], np.int32)
    check(edits.bias_ids, [4, 5], np.int32)
    check(edits.bias, [1, -1], np.float32)
    check(edits.penalty_start, [0, 0, 0, 3, 3], np.int32)
    check(edits.penalty_ids, [7, 8, 9], np.int32)
    check(edits.penalty_counts, [0, 1, 1], np.int32)
    check(edits.penalties, [[1, 0.5, 0], [1, 0, 0], [1.5, 0, 0.25], [1, 0, 0]], np.float32)


def test_every_row_of_a_request_has_the_counts_of_its_position():
    """As with tokens that are guessed and verified: after [], [7] and [7, 7] in one step."""
    params = SamplingParams(temperature=0, frequency_penalty=0.5, bad_words=["x"], min_tokens=1)
    state = SamplingState(5, V)
    TOKENS[1, :3] = [9, 7, 7]
    state.set_row(1, core_request("a", [9], params, eos=[2], bad_words_token_ids=[[7, 7, 31]]))
    edits = edits_of(state, [1, 1, 1], [1, 2, 3])
    check(edits.penalty_start, [0, 0, 1, 2], np.int32)
    check(edits.penalty_ids, [7, 7], np.int32)
    check(edits.penalty_counts, [1, 2], np.int32)
    check(edits.mask_index, [0, -1, 1], np.int32)
    check(edits.masks[:, 0], [2**32 - 1 - 4, 2**31 - 1], np.uint32)
    TOKENS[1, 2] = 5  # the second guess was wrong
    edits = edits_of(state, [1], [3])
    check(edits.penalty_ids, [7, 5], np.int32)
    check(edits.penalty_counts, [1, 1], np.int32)


def test_rows_with_processors_of_their_own_are_edited():
    state = make_state(
        r0=([1], [4], SamplingParams(temperature=0)),
        r1=([1, 2], [3], SamplingParams(temperature=0, min_p=0.5)),
        r2=([1], [5], SamplingParams(temperature=0, logit_bias={4: 1.0})),
    )
    edits, calls = state.edits(np.array([2, 0, 1]), np.array([2, 2, 3]), TOKENS, {})
    check(edits.edit_index, [0, -1, 1], np.int32)
    assert edits.rows.tolist() == [0, 2]
    check(edits.mask_index, [-1, -1], np.int32)
    (call,) = calls
    assert (call.index, [function.process for function in call.functions]) == (1, [MARKED.change])
    assert (call.prompt_ids.tolist(), call.output_ids.tolist()) == ([1, 2], [3])
    assert not call.prompt_ids.flags.writeable
    assert not call.output_ids.flags.writeable
    assert TOKENS.flags.writeable


def test_constraints_are_masks():
    """Of a request that has one, whatever else rules out tokens; while it has none, nothing is edited."""
    constraint = StructuredOutputsParams(regex="a")
    state = make_state(
        r0=([1], [], SamplingParams(temperature=0)),
        r1=([1], [], SamplingParams(temperature=0, structured_outputs=constraint)),
        r2=([1], [], SamplingParams(temperature=0, structured_outputs=constraint, allowed_token_ids=[3, 33])),
    )
    masks = {1: np.array([0b110, 1], np.uint32), 2: np.array([0b1111, 0], np.uint32)}
    edits = edits_of(state, [0, 1, 2], [1, 1, 1], masks)
    check(edits.edit_index, [-1, 0, 1], np.int32)
    check(edits.masks, [[0b110, 1], [0b1000, 0]], np.uint32)
    edits = edits_of(state, [0, 1, 2], [1, 1, 1])
    check(edits.edit_index, [-1, -1, 0], np.int32)
    check(edits.masks, [[0b1000, 0b10]], np.uint32)


def test_min_tokens_alone_is_no_edit_once_it_is_reached():
    state = make_state(r0=([1, 1], [5], SamplingParams(temperature=0, min_tokens=2)))
    check(edits_of(state, [0], [3]).edit_index, [0], np.int32)
    check(edits_of(state, [0], [4]).edit_index, [-1], np.int32)


def test_a_row_forgets_its_last_request():
    state = make_state(r0=([1], [], SamplingParams(temperature=0, logit_bias={1: 1.0})))
    state.set_row(0, core_request("new", [1], SamplingParams(temperature=0)))
    assert len(edits_of(state, [0], [1]).rows) == 0
    state = make_state(r0=([1], [], SamplingParams(temperature=0, logit_bias={1: 1.0})))
    state.clear_row(0)
    assert len(edits_of(state, [0], [1]).rows) == 0
