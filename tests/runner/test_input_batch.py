"""The batch's rows and the super-sequence cut from them, against arrays written out by hand."""

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.core.kv_spec import KVCacheGroup
from pelton.core.messages import ForcedTokens
from pelton.runner.input_batch import InputBatch
from pelton.runner.sampling_state import SamplingState
from pelton.sampling_params import StructuredOutputsParams
from tests.support.fakes import full_spec, sliding_spec
from tests.support.requests import new_request, step_of

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.5, top_k=7, top_p=0.25, seed=2**64 - 1, logprobs=3)


def two_groups(max_num_seqs=3, max_model_len=12):
    groups = [KVCacheGroup(full_spec(4), (0,)), KVCacheGroup(sliding_spec(6, 4), (1,))]
    sampling = SamplingState(max_num_seqs, 100)
    return InputBatch(groups, max_num_seqs, max_model_len, sampling)


def run(batch, output):
    batch.update(output)
    return batch.prepare(output)


def check(array, expected, dtype):
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)


def test_what_stays_is_kept_while_requests_decode():
    batch = two_groups()
    a, b = new_request("a", [1, 2], SAMPLED, [[1], [1]]), new_request("b", [3], GREEDY, [[2], [2]])
    run(batch, step_of({"a": (2, 0, 1), "b": (1, 0, 1)}, new=[a, b]))
    first = run(batch, step_of({"a": (1, 2, 1), "b": (1, 1, 1)}))
    second = run(batch, step_of({"a": (1, 3, 1), "b": (1, 2, 1)}))
    for name in ("query_start", "logits_rows", "sampled_rows", "edits"):
        assert getattr(first, name) is getattr(second, name)
    assert first.sampling.warpers is second.sampling.warpers
    check(second.positions, [3, 2], np.int32)
    check(second.sampling.position, [4, 3], np.int32)


def test_what_is_kept_ends_with_its_request():
    """Another request in the same row, in a step of the same shape."""
    batch = two_groups()
    run(batch, step_of({"a": (1, 0, 1)}, new=[new_request("a", [1], SAMPLED, [[1], [1]])]))
    logprobs = SamplingParams(temperature=0, logprobs=2)
    inputs = run(batch, step_of({"b": (1, 0, 1)}, new=[new_request("b", [4], logprobs, [[2], [2]])], dropped=["a"]))
    check(inputs.token_ids, [4], np.int32)
    check(inputs.sampling.warpers, [[0, 0, 1, 0]], np.float32)
    check(inputs.edits.is_wanted, [1], np.int32)
    assert inputs.sampling.has_logprobs
    check(inputs.block_tables[0][:, 0], [2], np.int32)
    inputs = run(batch, step_of({"c": (1, 0, 1)}, new=[new_request("c", [5], GREEDY, [[3], [3]])], dropped=["b"]))
    check(inputs.edits.is_wanted, [0], np.int32)
    assert not inputs.sampling.has_logprobs


def test_chunk_and_decode_in_one_step():
    batch = two_groups()
    a = new_request("a", [10, 11, 12, 13, 14, 15, 16], SAMPLED, [[5, 6], [7, 8]])
    b = new_request("b", [20, 21, 22], GREEDY, [[9], [3]])

    # Step 1: a chunk of a (5 of 7 tokens, nothing sampled), all of b.
    inputs = run(batch, step_of({"a": (5, 0, 0), "b": (3, 0, 1)}, new=[a, b]))
    check(inputs.token_ids, [10, 11, 12, 13, 14, 20, 21, 22], np.int32)
    check(inputs.positions, [0, 1, 2, 3, 4, 0, 1, 2], np.int32)
    check(inputs.query_start, [0, 5, 8], np.int32)
    check(inputs.seq_lens, [5, 3], np.int32)
    check(inputs.slot_mapping[0], [20, 21, 22, 23, 24, 36, 37, 38], np.int64)
    check(inputs.slot_mapping[1], [28, 29, 30, 31, 32, 12, 13, 14], np.int64)
    check(inputs.block_tables[0][0, :2], [5, 6], np.int32)
    check(inputs.block_tables[1][:, 0], [7, 3], np.int32)
    assert inputs.block_tables[0].shape == (2, 3)
    check(inputs.logits_rows, [7], np.int32)
    check(inputs.sampling.warpers, [[0, 0, 1, 0]], np.float32)
    check(inputs.sampling.num_logprobs, [-1], np.int32)
    check(inputs.sampling.position, [3], np.int32)
    batch.append_sampled(inputs, np.array([23], np.int32))

    # Step 2: b decodes (4 tokens: still its first block), a's last chunk reaches its end.
    inputs = run(batch, step_of({"b": (1, 3, 1), "a": (2, 5, 1)}))
    check(inputs.token_ids, [23, 15, 16], np.int32)
    check(inputs.positions, [3, 5, 6], np.int32)
    check(inputs.query_start, [0, 1, 3], np.int32)
    check(inputs.seq_lens, [4, 7], np.int32)
    check(inputs.slot_mapping[0], [39, 25, 26], np.int64)
    check(inputs.slot_mapping[1], [15, 33, 34], np.int64)
    check(inputs.block_tables[0][:, 0], [9, 5], np.int32)
    check(inputs.logits_rows, [0, 2], np.int32)
    check(inputs.sampling.warpers, [[0, 0, 1, 0], [0.5, 7, 0.25, 0]], np.float32)
    check(inputs.sampling.seed, np.array([0, 2**64 - 1], np.uint64), np.uint64)
    check(inputs.sampling.choice, [0, 0], np.int32)
    check(inputs.sampling.position, [4, 7], np.int32)
    check(inputs.sampling.num_logprobs, [-1, 3], np.int32)
    batch.append_sampled(inputs, np.array([24, 17], np.int32))

    # Step 3: new blocks for b, in both groups.
    inputs = run(batch, step_of({"b": (1, 4, 1), "a": (1, 7, 1)}, blocks={"b": [[2], [1]]}))
    check(inputs.token_ids, [24, 17], np.int32)
    check(inputs.slot_mapping[0], [8, 27], np.int64)
    check(inputs.slot_mapping[1], [4, 35], np.int64)
    check(inputs.block_tables[0][0, :2], [9, 2], np.int32)
    check(inputs.block_tables[1][0, :2], [3, 1], np.int32)


def test_a_cached_prefix_begins_later():
    batch = two_groups()
    new = new_request("a", list(range(30, 39)), GREEDY, [[5, 6, 7], [0, 8, 9]])
    inputs = run(batch, step_of({"a": (1, 8, 1)}, new=[new]))
    check(inputs.token_ids, [38], np.int32)
    check(inputs.positions, [8], np.int32)
    check(inputs.seq_lens, [9], np.int32)
    check(inputs.slot_mapping[1], [36], np.int64)


def test_rows_are_reused():
    """A dropped request's row goes to the next one, and nothing of it shows through."""
    batch = two_groups(max_num_seqs=1)
    old = new_request("old", list(range(12)), SAMPLED, [[5, 6, 7], [8, 9, 10]])
    run(batch, step_of({"old": (12, 0, 1)}, new=[old]))
    assert len(batch) == 1
    new = new_request("new", [50, 51], GREEDY, [[1], [2]])
    inputs = run(batch, step_of({"new": (2, 0, 1)}, new=[new], dropped=["old", "never seen"]))
    assert len(batch) == 1
    check(inputs.token_ids, [50, 51], np.int32)
    check(inputs.slot_mapping[0], [4, 5], np.int64)
    check(inputs.sampling.warpers, [[0, 0, 1, 0]], np.float32)
    check(inputs.sampling.num_logprobs, [-1], np.int32)
    batch.append_sampled(inputs, np.array([52], np.int32))
    inputs = run(batch, step_of({"new": (1, 2, 1)}, blocks={"new": [[3], [4]]}))
    check(inputs.token_ids, [52], np.int32)
    check(inputs.block_tables[0][0, :2], [1, 3], np.int32)


def test_a_preempted_request_comes_back_whole():
    """Dropped and new in one step: its tokens now hold the output so far."""
    batch = two_groups(max_num_seqs=1)
    run(batch, step_of({"a": (2, 0, 1)}, new=[new_request("a", [1, 2], GREEDY, [[5], [6]])]))
    resumed = new_request("a", [1, 2], GREEDY, [[7, 8], [9, 10]], output=[3, 4, 5])
    inputs = run(batch, step_of({"a": (5, 0, 1)}, new=[resumed], dropped=["a"]))
    check(inputs.token_ids, [1, 2, 3, 4, 5], np.int32)
    check(inputs.slot_mapping[0], [28, 29, 30, 31, 32], np.int64)
    assert len(batch) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1e300}, [np.finfo(np.float32).max, 0, 1, 0]),
        ({"temperature": 1e-300}, [np.finfo(np.float32).tiny, 0, 1, 0]),
        ({"temperature": 0, "min_p": 1}, [0, 0, 1, 1]),
        ({"top_p": 1e-300}, [1, 0, np.finfo(np.float32).tiny, 0]),
        ({"top_k": -1}, [1, 0, 1, 0]),
        ({"top_k": 2**63 - 1}, [1, 100, 1, 0]),
    ],
)
def test_extreme_parameters_fit_the_arrays(fields, expected):
    batch = two_groups()
    new = new_request("a", [1], SamplingParams(seed=0, logprobs=0, **fields), [[1], [2]])
    inputs = run(batch, step_of({"a": (1, 0, 1)}, new=[new]))
    check(inputs.sampling.warpers, np.array([expected], np.float32), np.float32)
    check(inputs.sampling.num_logprobs, [0], np.int32)


def test_sampling_needs_a_seed():
    batch = two_groups()
    with pytest.raises(AssertionError, match="draws the seed"):
        batch.update(step_of({"a": (1, 0, 1)}, new=[new_request("a", [1], SamplingParams(), [[1], [2]])]))


def test_forced_tokens_are_written_before_the_step():
    """They are known to the scheduler only; the step may compute some of them."""
    batch = two_groups()
    run(batch, step_of({"a": (2, 0, 1)}, new=[new_request("a", [1, 2], GREEDY, [[1, 2], [1, 2]])]))
    step = step_of({"a": (2, 2, 0)})
    step.forced_tokens = {"a": ForcedTokens(3, [7, 8])}
    batch.token_ids[0, 2] = 5  # sampled
    check(run(batch, step).token_ids, [5, 7], np.int32)
    check(run(batch, step_of({"a": (1, 4, 1)})).token_ids, [8], np.int32)


def test_masks_of_constraints_go_to_their_rows():
    batch = two_groups()
    constrained = SamplingParams(temperature=0, structured_outputs=StructuredOutputsParams(regex="a"))
    new = [new_request(name, [1], params, [[1], [1]]) for name, params in [("a", GREEDY), ("b", constrained)]]
    step = step_of({"a": (1, 0, 1), "b": (1, 0, 1)}, new=new)
    step.constrained_request_ids = ["b"]
    step.bitmask = np.array([1, 2, 3, 4], "<u4").tobytes()
    edits = run(batch, step).edits
    check(edits.edit_index, [-1, 0], np.int32)
    check(edits.masks, [[1, 2, 3, 4]], np.uint32)
