"""The sampler, driven through the head program of a model whose hidden states are its logits."""

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from pelton.config import DecoderConfig, RopeConfig
from pelton.ops import Interpreter, L, Recorder, T, Value
from pelton.sampling import record_head


class Identity:
    """Logits are the hidden states."""

    def __init__(self, vocab_size: int) -> None:
        self.config = DecoderConfig(
            architecture="identity",
            vocab_size=vocab_size,
            hidden_size=vocab_size,
            intermediate_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_size=2,
            rms_norm_eps=1e-5,
            rope=RopeConfig(1e4),
            sliding_rope=RopeConfig(1e4),
            attention_scale=1.0,
            max_position_embeddings=1,
            tie_word_embeddings=True,
            eos_token_ids=(0,),
            layer_windows=(None,),
        )

    def head(self, op: Recorder, rows: Value) -> Value:
        return rows


def run(
    logits: np.ndarray,
    rows: object = None,
    *,
    temperature: object = 1.0,
    top_k: object = 0,
    top_p: object = 1.0,
    seed: object = 0,
    position: object = 0,
    num_logprobs: object = -1,
    max_logprobs: int = 4,
) -> dict[str, np.ndarray]:
    """The head's outputs; per-row operands may be given as one number for all rows."""
    logits_rows = np.arange(len(logits), dtype=np.int32) if rows is None else np.array(rows, np.int32)
    num_rows = len(logits_rows)

    def operand(value: object, dtype: str) -> np.ndarray:
        return np.broadcast_to(np.array(value, dtype), num_rows)

    sizes = {T: len(logits), L: num_rows}
    interpreter = Interpreter(record_head(Identity(logits.shape[1]), max_logprobs), sizes, check_finite=True)
    return interpreter.run(
        sizes,
        {
            "hidden": logits,
            "logits_rows": logits_rows,
            "temperature": operand(temperature, "float32"),
            "top_k": operand(top_k, "int32"),
            "top_p": operand(top_p, "float32"),
            "seed": operand(seed, "uint64"),
            "choice": operand(0, "int32"),
            "position": operand(position, "int32"),
            "num_logprobs": operand(num_logprobs, "int32"),
        },
    )


def repeated(row: np.ndarray, count: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(row, (count, len(row))))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    assert not counts[expected == 0].any(), "a token that was ruled out"
    kept = expected > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, -1, 1.0), (2.0, 4, 1.0), (1.0, 0, 0.8), (1.5, 6, 0.7), (1.0, 99, 1.0)],
)
def test_distribution_is_that_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    row = np.random.default_rng(3).standard_normal(10, dtype=np.float32)
    scores = torch.from_numpy(row)[None]
    scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(None, scores)
    scores = TopPLogitsWarper(top_p)(None, scores)
    probabilities = torch.softmax(scores.double(), dim=-1)[0].numpy()

    tokens = run(
        repeated(row, 20_000),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=17,
        position=np.arange(20_000),
    )["token_ids"]
    counts = np.bincount(tokens, minlength=10)
    assert chi_square(counts, probabilities) < 27.9  # 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize(("top_k", "top_p"), [(7, 1.0), (0, 0.4), (0, 0.95), (50, 0.9), (1, 1.0), (0, 1e-6)])
def test_only_tokens_that_transformers_keeps(top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(4).standard_normal((200, 300), dtype=np.float32) * 3
    scores = torch.from_numpy(logits)
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(None, scores)
    kept = torch.isfinite(TopPLogitsWarper(top_p)(None, scores)).numpy()
    for seed in range(5):
        tokens = run(logits, top_k=top_k, top_p=top_p, seed=seed)["token_ids"]
        assert kept[np.arange(200), tokens].all()


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([[0, 3, 3, 1], [2, 2, 2, 2], [-5, -7, -9, -5]], np.float32)
    assert run(logits, temperature=0.0)["token_ids"].tolist() == [1, 0, 0]
    mixed = run(logits, temperature=[0.0, 1.0, 0.0])["token_ids"]
    assert mixed[[0, 2]].tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-10, 3e38])
def test_extreme_temperatures(temperature: float) -> None:
    logits = np.random.default_rng(5).standard_normal((50, 30), dtype=np.float32)
    tokens = run(logits, temperature=temperature, seed=np.arange(50))["token_ids"]
    if temperature < 1:
        assert np.array_equal(tokens, logits.argmax(-1))
    else:
        assert len(set(tokens.tolist())) > 15


def test_top_p_keeps_the_lowest_ids_of_equals() -> None:
    tokens = run(np.zeros((500, 8), np.float32), top_p=0.5, position=np.arange(500))["token_ids"]
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_ruled_out_logits_are_never_sampled() -> None:
    logits = np.full((2000, 6), -np.inf, np.float32)
    logits[:, 2] = logits[:, 4] = 1.0
    head = Interpreter(record_head(Identity(6), 0), {T: 2000, L: 2000})
    ones = np.ones(2000, np.float32)
    zeros = np.zeros(2000, np.int32)
    inputs = {
        "hidden": logits,
        "logits_rows": np.arange(2000, dtype=np.int32),
        "temperature": ones,
        "top_p": ones,
        "top_k": zeros,
        "seed": np.zeros(2000, np.uint64),
        "choice": zeros,
        "position": np.arange(2000, dtype=np.int32),
        "num_logprobs": zeros - 1,
    }
    tokens = head.run({T: 2000, L: 2000}, inputs)["token_ids"]
    assert set(tokens.tolist()) == {2, 4}


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(6)
    logits = rng.standard_normal((40, 200), dtype=np.float32) * 3
    operands = {
        "temperature": rng.choice([0.0, 0.6, 1.0], 40),
        "top_k": rng.choice([0, 3, 40], 40),
        "top_p": rng.choice([0.5, 0.95, 1.0], 40),
        "seed": rng.integers(0, 2**64, 40, dtype=np.uint64),
        "position": rng.integers(0, 1000, 40),
        "num_logprobs": rng.integers(-1, 5, 40),
    }
    together = run(logits, **operands)
    for row in range(40):
        alone = run(logits, [row], **{name: values[row] for name, values in operands.items()})
        for name, output in alone.items():
            assert np.array_equal(output[0], together[name][row]), name


def test_seed_and_position_decide() -> None:
    logits = np.zeros((300, 1000), np.float32)
    by_position = run(logits, seed=1, position=np.arange(300))["token_ids"]
    by_seed = run(logits, seed=np.arange(300), position=1)["token_ids"]
    assert len(set(by_position.tolist())) > 200
    assert len(set(by_seed.tolist())) > 200
    assert np.array_equal(by_position, run(logits, seed=1, position=np.arange(300))["token_ids"])


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = np.random.default_rng(7).standard_normal((30, 50), dtype=np.float32) * 4
    out = run(logits, temperature=0.5, top_k=3, seed=np.arange(30), num_logprobs=4)
    expected = torch.log_softmax(torch.from_numpy(logits), dim=-1)
    top = expected.topk(4)
    np.testing.assert_allclose(out["top_logprobs"], top.values, rtol=1e-5, atol=1e-5)
    assert np.array_equal(out["top_ids"], top.indices)
    sampled = expected[np.arange(30), out["token_ids"]]
    np.testing.assert_allclose(out["sampled_logprob"], sampled, rtol=1e-5, atol=1e-5)
    assert np.array_equal(out["rank"], 1 + (expected > sampled[:, None]).sum(1))
    assert out["rank"].max() <= 3


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
