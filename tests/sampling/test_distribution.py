"""What the sampler draws, on small vocabularies: chi-square tests at p = 0.001, with fixed seeds."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.sampling.helpers import Edit, chi_square, repeated, run

NUM_DRAWS = 8_000
ROW = np.random.default_rng(3).standard_normal(10, dtype=np.float32) * np.float32(1.5)

PARAMETERS = {
    "nothing": {},
    "temperature below 1": {"temperature": 0.7},
    "temperature above 1": {"temperature": 2.0},
    "top_k": {"top_k": 4},
    "top_k of 1": {"top_k": 1},
    "top_k beyond the vocabulary": {"top_k": 99},
    "top_p": {"top_p": 0.8},
    "tiny top_p": {"top_p": 1e-6},
    "min_p": {"min_p": 0.1},
    "min_p of 1": {"min_p": 1.0},
    "top_k, top_p": {"top_k": 6, "top_p": 0.7},
    "temperature, top_p": {"temperature": 1.5, "top_p": 0.7},
    "temperature, min_p": {"temperature": 2.0, "min_p": 0.3},
    "min_p before top_p": {"min_p": 0.15, "top_p": 0.9},
    "all": {"temperature": 1.7, "top_k": 8, "top_p": 0.93, "min_p": 0.05},
}
EDITS = {
    "no edit": None,
    "bias": Edit(bias={0: 1.5, 3: -2.0, 9: 3.0}),
    "ban": Edit(banned=[int(ROW.argmax())]),
    "allowed": Edit(allowed=[1, 2, 5, 7, 8, 9]),
    "penalties": Edit(counts={0: 1, 2: 3, 4: 0, 7: 2}, repetition=1.4, frequency=0.3, presence=0.5),
    "rewards": Edit(counts={1: 2, 5: 0}, repetition=0.7, frequency=-0.5, presence=-1.0),
    "everything": Edit([0, 2, 3, 4, 6, 7, 8], {2: 1.0}, {0: 2, 2: 0, 5: 3, 6: 1}, 1.2, 0.2, -0.4, [8]),
}
CASES = [(name, "no edit") for name in PARAMETERS] + [(name, edit) for name in ("nothing", "all") for edit in EDITS]


def edited(scores: np.ndarray, edit: Edit | None) -> np.ndarray:
    """Token by token."""
    scores = scores.astype(np.float64)
    if edit is None:
        return scores
    for token_id in range(len(scores)):
        if token_id in edit.banned or (edit.allowed is not None and token_id not in edit.allowed):
            scores[token_id] = -np.inf
        scores[token_id] += edit.bias.get(token_id, 0.0)
        if token_id in edit.counts:
            score, count = scores[token_id], edit.counts[token_id]
            score = score / edit.repetition if score > 0 else score * edit.repetition
            scores[token_id] = score - edit.frequency * count - edit.presence * (count > 0)
    return scores


def probabilities(parameters: dict[str, float], edit: Edit | None) -> np.ndarray:
    scores = torch.from_numpy(edited(ROW, edit))[None]
    if parameters.get("top_k", 0) > 0:
        scores = TopKLogitsWarper(parameters["top_k"])(None, scores)
    scores = TemperatureLogitsWarper(float(parameters.get("temperature", 1.0)))(None, scores)
    if "min_p" in parameters:
        scores = MinPLogitsWarper(parameters["min_p"])(None, scores)
    scores = TopPLogitsWarper(parameters.get("top_p", 1.0))(None, scores)
    return torch.softmax(scores, dim=-1)[0].numpy()


@pytest.mark.parametrize(("name", "edit"), dict.fromkeys(CASES))
def test_tokens_are_drawn_with_their_probabilities(name: str, edit: str) -> None:
    parameters = PARAMETERS[name]
    operands = {"seed": 17, "position": np.arange(NUM_DRAWS)}
    tokens = run(repeated(ROW, NUM_DRAWS), edits=EDITS[edit], **parameters, **operands)["token_ids"]
    counts = np.bincount(tokens, minlength=10)
    expected = probabilities(parameters, EDITS[edit])
    assert chi_square(counts, expected) < 27.9  # 9 degrees of freedom at most
    assert counts[expected > 0].all(), "a candidate that was never drawn"


STREAMS = {
    "positions": ({"position": np.arange(NUM_DRAWS)}, {"position": np.arange(NUM_DRAWS) + 1}),
    "choices": ({"position": np.arange(NUM_DRAWS)}, {"position": np.arange(NUM_DRAWS), "choice": 1}),
    "neighbouring choices": ({"choice": np.arange(NUM_DRAWS)}, {"choice": np.arange(NUM_DRAWS) + 1}),
    "seeds": ({"position": np.arange(NUM_DRAWS)}, {"position": np.arange(NUM_DRAWS), "seed": 1}),
    "neighbouring seeds": ({"seed": np.arange(NUM_DRAWS)}, {"seed": np.arange(NUM_DRAWS) + 1}),
    "upper halves of seeds": ({"seed": np.arange(NUM_DRAWS)}, {"seed": np.arange(NUM_DRAWS) + 2**32}),
    "choice or position": ({"choice": np.arange(NUM_DRAWS)}, {"position": np.arange(NUM_DRAWS)}),
    "choice or seed": ({"choice": np.arange(1, NUM_DRAWS + 1)}, {"seed": np.arange(1, NUM_DRAWS + 1)}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_draws_are_independent(name: str) -> None:
    """Pairs of tokens have the product of their probabilities. Streams that overlap are shifted by one, so that equal
    streams would show as a token's dependence on the next."""
    row = np.array([0.0, 0.5, 1.0, 0.0], np.float32)
    single = np.exp(row) / np.exp(row).sum()
    first, second = (run(repeated(row, NUM_DRAWS), **operands)["token_ids"] for operands in STREAMS[name])
    counts = np.bincount(4 * first + second, minlength=16)
    if name == "choice or position":
        counts[5 * first[0]] -= 1  # both are 0 there: the same draw
    assert chi_square(counts, np.outer(single, single).ravel().astype(np.float64)) < 37.7  # 15 degrees of freedom


def test_streams_are_told_by_seed_position_and_choice() -> None:
    logits = np.zeros((300, 1000), np.float32)
    for varied in ("seed", "position", "choice"):
        tokens = run(logits, **{"seed": 1, "position": 1, varied: np.arange(300)})["token_ids"]
        assert len(set(tokens.tolist())) > 200, varied
        again = run(logits, **{"seed": 1, "position": 1, varied: np.arange(300)})["token_ids"]
        assert np.array_equal(tokens, again)
    assert len(set(run(logits, seed=1, position=1)["token_ids"].tolist())) == 1


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
    for parameters in ({}, {"top_k": 5}, {"top_p": 0.99}, {"min_p": 1e-6}):
        tokens = run(logits, position=np.arange(2000), **parameters)["token_ids"]
        assert set(tokens.tolist()) == {2, 4}
