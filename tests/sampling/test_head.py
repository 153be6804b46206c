"""The head program: the order of its stages, broken rows, log probabilities in every mode, the scorer."""

import numpy as np
import pytest
import torch

from pelton.config import SamplingConfig
from pelton.config.sampling import LOGPROBS_MODES
from pelton.ops import INVALID_LOGITS, NO_CANDIDATE, B, Backend, C, L, M, P, Run, T
from pelton.sampling import record_head, record_scorer
from tests.sampling.helpers import Edit, edit_arrays, edit_sizes, run, run_program, wanted, warpers
from tests.support.identity import Identity

RNG = np.random.default_rng(7)
LOGITS = RNG.standard_normal((30, 50), dtype=np.float32) * 4


class FavourToken:
    """A hook that adds to one token, in every edited row."""

    def __init__(self, token_id: int, bias: float) -> None:
        self.token_id = token_id
        self.bias = bias

    def apply(self, logits: np.ndarray, edit_index: np.ndarray) -> None:
        logits[edit_index >= 0, self.token_id] += self.bias


def random_edit(rng: np.random.Generator, vocab_size: int) -> Edit | None:
    if rng.random() < 0.3:
        return None
    ids = rng.permutation(vocab_size)
    allowed = None if rng.random() < 0.5 else ids[: vocab_size // 2].tolist()
    bias = {int(i): float(rng.choice([1.0, -3.0])) for i in ids[: rng.integers(0, 9)]}
    counts = {int(i): int(rng.integers(0, 4)) for i in ids[5 : rng.integers(5, 30)]}
    penalties = rng.choice([[1.0, 0.0, 0.0], [1.3, 0.0, 0.0], [1.1, 0.5, -0.5]]).tolist()
    return Edit(allowed, bias, counts, *penalties, banned=ids[: rng.integers(0, 4)].tolist())


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([[0, 3, 3, 1], [2, 2, 2, 2], [-5, -7, -9, -5]], np.float32)
    assert run(logits, temperature=0.0)["token_ids"].tolist() == [1, 0, 0]
    mixed = run(logits, temperature=[0.0, 1.0, 0.0])["token_ids"]
    assert mixed[[0, 2]].tolist() == [1, 0]
    assert run(logits, temperature=0.0, edits=Edit(banned=[1], bias={0: -1.0}))["token_ids"].tolist() == [2, 2, 3]


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_a_row_is_the_same_alone_and_beside_others(mode: str) -> None:
    """Bit by bit, beside rows with every other parameter, broken rows among them."""
    rng = np.random.default_rng(6)
    logits = rng.standard_normal((60, 200), dtype=np.float32) * 3
    logits[5, 7], logits[6, 8], logits[7] = np.nan, np.inf, -np.inf
    operands = {
        "temperature": rng.choice([0.0, 0.6, 1.0], 60),
        "top_k": rng.choice([0, 3, 40], 60),
        "top_p": rng.choice([0.5, 0.95, 1.0], 60),
        "min_p": rng.choice([0.0, 0.02, 0.3], 60),
        "seed": rng.integers(0, 2**64, 60, dtype=np.uint64),
        "choice": rng.integers(0, 5, 60),
        "position": rng.integers(0, 1000, 60),
        "num_logprobs": rng.integers(-1, 5, 60),
    }
    edits = [random_edit(rng, 200) for _ in range(60)]
    together = run(logits, edits=edits, mode=mode, **operands)
    assert together["token_ids"][5:8].tolist() == [INVALID_LOGITS, INVALID_LOGITS, NO_CANDIDATE]
    assert (np.delete(together["token_ids"], [5, 6, 7]) >= 0).all()
    for tile in (1, 7, 60):
        tiled = run(logits, edits=edits, mode=mode, tile=tile, **operands)
        assert all(np.array_equal(tiled[name], output, equal_nan=True) for name, output in together.items()), tile
    for row in range(60):
        own = {name: values[row] for name, values in operands.items()}
        alone = run(logits, [row], edits=[edits[row]], mode=mode, **own)
        for name, output in alone.items():
            assert np.array_equal(output[0], together[name][row], equal_nan=output.dtype == np.float32), name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_are_told_and_not_hidden(temperature: float, value: float) -> None:
    logits = LOGITS[:6].copy()
    logits[[1, 3, 4], 9] = value
    hiding = Edit(allowed=[2, 3], banned=[9])
    parameters = {"top_k": [0, 0, 0, 5, 0, 0], "top_p": 0.9, "min_p": [0, 0, 0, 0, 0.1, 0], "num_logprobs": 2}
    edits = [None, None, None, None, hiding, hiding]
    out = run(logits, temperature=temperature, edits=edits, **parameters)
    assert out["token_ids"][[1, 3, 4]].tolist() == [INVALID_LOGITS] * 3
    assert (out["token_ids"][[0, 2, 5]] >= 0).all()
    for name in ("sampled_logprob", "rank", "top_ids", "top_logprobs"):
        assert not out[name][[1, 3, 4]].any()
        assert out[name][[0, 2, 5]].any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_may_not_be_anything(temperature: float) -> None:
    edits = [Edit(banned=range(50)), None, Edit([4], {4: 100.0}, banned=[4]), Edit([4], banned=[3])]
    for mode in LOGPROBS_MODES:
        out = run(LOGITS[:4], temperature=temperature, edits=edits, num_logprobs=2, mode=mode)
        assert out["token_ids"][[0, 2, 3]].tolist() == [NO_CANDIDATE, NO_CANDIDATE, 4]
        assert out["rank"].tolist()[::2] == [0, 0]


def test_edits_of_another_number_every_step(backend: Backend) -> None:
    """One program: biases and penalties come, grow, and go."""
    rng = np.random.default_rng(9)
    limits = {T: 30, L: 30, C: 30, M: 30, B: 300, P: 900}
    head = backend.compile(record_head(Identity(50), SamplingConfig(max_logprobs=4)), limits, (L, 16))
    logits_rows = np.arange(30, dtype=np.int32)
    fixed = {"hidden": LOGITS, "logits_rows": logits_rows, "seed": np.zeros(30, np.uint64)}
    fixed |= {"warpers": warpers(30, temperature=0.0)}
    fixed |= {name: np.zeros(30, np.int32) for name in ("choice", "position", "num_logprobs")}
    seen = set()
    for step in range(12):
        edits = [random_edit(rng, 50) if step % 4 and rng.random() < 0.5 else None for _ in range(30)]
        if step % 4 == 2:
            edits = [edit and Edit(bias=edit.bias) for edit in edits]
        inputs = fixed | edit_arrays(edits, 50)
        inputs["is_wanted"] = wanted(inputs)
        sizes = edit_sizes(inputs)
        backend.run([Run(head, {T: 30, L: 30, **sizes}, inputs)])
        out = head.outputs({T: 30, L: 30, **sizes})
        expected = run(LOGITS, temperature=0.0, num_logprobs=0, edits=edits)
        assert all(np.array_equal(out[name], expected[name]) for name in out)
        seen.add(tuple(sizes.values()))
    assert (0, 0, 0, 0) in seen
    assert len(seen) > 7


def test_a_step_without_rows() -> None:
    out = run(LOGITS, [])
    assert out["token_ids"].shape == (0,)
    assert out["top_ids"].shape == (0, 4)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    parameters = {"temperature": 0.5, "top_k": 3, "seed": np.arange(30)}
    out = run(LOGITS, num_logprobs=4, edits=Edit(bias={3: 1.0}), **parameters)
    expected = torch.log_softmax(torch.from_numpy(LOGITS), dim=-1)
    top = expected.topk(4)
    np.testing.assert_allclose(out["top_logprobs"], top.values, rtol=1e-5, atol=1e-5)
    assert np.array_equal(out["top_ids"], top.indices)
    sampled = expected[np.arange(30), out["token_ids"]]
    np.testing.assert_allclose(out["sampled_logprob"], sampled, rtol=1e-5, atol=1e-5)
    assert np.array_equal(out["rank"], 1 + (expected > sampled[:, None]).sum(1))
    plain = run(LOGITS, num_logprobs=4, **parameters)
    assert (plain["rank"] <= 3).all()
    logits = run(LOGITS, num_logprobs=4, mode="raw_logits", **parameters)
    assert np.array_equal(logits["token_ids"], plain["token_ids"])
    assert np.array_equal(logits["top_logprobs"], torch.from_numpy(LOGITS).topk(4).values)
    assert np.array_equal(logits["sampled_logprob"], LOGITS[np.arange(30), plain["token_ids"]])


def test_processed_logprobs_are_those_of_the_draw() -> None:
    bias = {3: 1.0, 9: 4.0}
    edit = Edit(bias=bias, banned=[7])
    operands = {"temperature": 0.5, "top_k": 3, "seed": np.arange(30), "num_logprobs": 4, "edits": edit}
    out = run(LOGITS, mode="processed_logprobs", **operands)
    scores = torch.from_numpy(LOGITS).double()
    scores[:, 7] = -torch.inf
    for token_id, value in bias.items():
        scores[:, token_id] += value
    scores = torch.where(scores < scores.topk(3).values[:, -1:], -torch.inf, scores / 0.5)
    expected = torch.log_softmax(scores, dim=-1)
    np.testing.assert_allclose(out["top_logprobs"][:, :3], expected.topk(3).values, rtol=1e-5, atol=1e-5)
    assert np.isneginf(out["top_logprobs"][:, 3]).all()
    assert np.array_equal(out["top_ids"][:, :3], expected.topk(3).indices)
    sampled = expected[np.arange(30), out["token_ids"]]
    np.testing.assert_allclose(out["sampled_logprob"], sampled, rtol=1e-5, atol=1e-5)
    logits = run(LOGITS, mode="processed_logits", **operands)
    np.testing.assert_allclose(logits["top_logprobs"][:, :3], scores.topk(3).values, rtol=1e-5, atol=1e-5)
    for name in ("token_ids", "rank", "top_ids"):
        assert np.array_equal(logits[name], out[name])


def test_a_hook_sees_edited_rows_before_their_edits_and_is_not_in_raw_logprobs() -> None:
    hook = FavourToken(11, 50.0)
    edits = [Edit(), Edit(banned=[11]), None, None, Edit(bias={3: 0.5})] * 6
    favoured = np.isin(np.arange(30) % 5, [0, 4])
    plain = run(LOGITS, temperature=0.0)["token_ids"]
    assert (plain[~favoured] != 11).all()
    for mode in LOGPROBS_MODES:
        parameters = {"temperature": 0.0, "num_logprobs": 4, "mode": mode}
        out = run(LOGITS, edits=edits, hook=hook, **parameters)
        assert np.array_equal(out["token_ids"] == 11, favoured)
        assert np.array_equal(out["token_ids"][~favoured], plain[~favoured])
        best = out["top_ids"][favoured, 0] == 11
        assert best.all() if mode.startswith("processed") else not best.all()
        if mode.startswith("raw"):
            assert np.array_equal(out["top_ids"], run(LOGITS, **parameters)["top_ids"])
    assert "hook=FavourToken)" in str(record_head(Identity(50), SamplingConfig(max_logprobs=4), hook))
    assert "process_logits" not in str(record_head(Identity(50), SamplingConfig(max_logprobs=4)))


def test_a_hook_sees_the_same_edits_in_tiles() -> None:
    """Three rows at a time; edits are told by their index among all."""
    seen = []

    class AddIndex:
        def apply(self, logits: np.ndarray, edit_index: np.ndarray) -> None:
            seen.append(edit_index.tolist())
            for row, index in zip(logits, edit_index.tolist(), strict=True):
                if index >= 0:
                    row[index] += 100.0

    edits = [Edit() if row % 4 else None for row in range(10)]
    out = run(LOGITS[:10], temperature=0.0, edits=edits, hook=AddIndex(), tile=3)
    assert seen == [[-1, 6, 5], [4, -1, 3], [2, 1, -1], [0]]
    best = LOGITS.argmax(1)
    assert out["token_ids"].tolist() == [best[0], 6, 5, 4, best[4], 3, 2, 1, best[8], 0]


def test_hidden_states_have_the_models_dtype() -> None:
    model = Identity(50)
    model.activation_dtype = "bfloat16"
    sampling = SamplingConfig(max_logprobs=4)
    for program in (record_head(model, sampling), record_scorer(model, sampling)):
        assert program.inputs["hidden"].dtype == "bfloat16"
        assert "gathered[L, 50] bfloat16 = gather_rows(" in str(program)


def test_all_of_the_vocabulary() -> None:
    out = run(LOGITS[:3], num_logprobs=[50, -1, 49], max_logprobs=50)
    order = np.argsort(-LOGITS, axis=-1)
    assert np.array_equal(out["top_ids"][0], order[0])
    assert np.array_equal(out["top_ids"][2], [*order[2, :49], 0])
    assert not out["top_ids"][1].any()


def test_equal_logprobs_come_in_order_of_id() -> None:
    out = run(np.array([[1, 2, 2, 0, 2, 1]], np.float32), temperature=0.0, num_logprobs=4)
    assert out["top_ids"].tolist() == [[1, 2, 4, 0]]
    assert out["rank"].tolist() == [1]


def test_rows_that_do_not_ask_get_no_logprobs() -> None:
    out = run(np.eye(3, 8, dtype=np.float32), temperature=0.0, num_logprobs=[-1, 2, 0])
    assert out["rank"].tolist() == [0, 1, 1]
    assert out["top_logprobs"][0].tolist() == [0] * 4
    assert (out["sampled_logprob"][1:] < 0).all()
    assert out["top_ids"].tolist()[1] == [1, 0, 0, 0]


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_scorer(mode: str) -> None:
    """Of chosen rows; one of them is broken, and one does not ask."""
    hidden = LOGITS.copy()
    hidden[4, 2] = np.nan
    logits_rows, token_ids = np.array([[9, 4, 2, 29, 9], [3, 5, 49, 0, 8]], np.int32)
    inputs = {
        "hidden": hidden,
        "logits_rows": logits_rows,
        "is_wanted": np.ones(5, np.int32),
        "token_ids": token_ids,
        "num_logprobs": np.array([2, 2, 0, -1, 1], np.int32),
    }
    sampling = SamplingConfig(max_logprobs=3, logprobs_mode=mode)
    out = run_program(record_scorer(Identity(50), sampling), {T: 30, L: 5}, inputs, tile=2)
    scores = torch.from_numpy(LOGITS[logits_rows])
    if mode.endswith("logprobs"):
        scores = torch.log_softmax(scores, dim=-1)
    scored = scores[np.arange(5), token_ids]
    expected = [scored[0], np.nan, scored[2], 0.0, scored[4]]
    np.testing.assert_allclose(out["sampled_logprob"], expected, rtol=1e-5, atol=1e-5)
    ranks = 1 + (scores > scored[:, None]).sum(-1)
    assert out["rank"].tolist() == [ranks[0], 0, ranks[2], 0, ranks[4]]
    assert out["top_ids"].tolist()[:4] == [[*scores[0].topk(2).indices.tolist(), 0], [0] * 3, [0] * 3, [0] * 3]
    np.testing.assert_allclose(out["top_logprobs"][4], [scores[4].max(), 0, 0], rtol=1e-5, atol=1e-5)
