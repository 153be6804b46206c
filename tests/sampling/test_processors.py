"""Logits after each parameter, against transformers' processors, for all tokens of a real vocabulary."""

from collections import Counter

import numpy as np
import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.sampling.helpers import Edit, real_logits, run

VOCAB_SIZE = 49152


class Real:
    """Prompts and the logits after them."""

    def __init__(self) -> None:
        self.token_ids, self.logits = real_logits()
        self.scores = torch.from_numpy(self.logits)
        self.best = self.logits.argmax(-1)

    def processed(self, processor: object) -> np.ndarray:
        """By a processor of transformers, row by row."""
        rows = [
            processor(torch.tensor([ids]), scores[None].clone())
            for ids, scores in zip(self.token_ids, self.scores, strict=True)
        ]
        return torch.cat(rows).numpy()

    def ours(self, edits: object = None, **operands: object) -> np.ndarray:
        """Logits of all tokens, as outputs report them."""
        options = {"max_logprobs": VOCAB_SIZE, "num_logprobs": VOCAB_SIZE, "mode": "processed_logits"}
        out = run(self.logits, edits=edits, **{"temperature": 0.0, **options, **operands})
        logits = np.full_like(self.logits, np.nan)
        np.put_along_axis(logits, out["top_ids"], out["top_logprobs"], axis=1)
        return logits


@pytest.fixture(scope="module")
def real() -> Real:
    return Real()


def assert_same(ours: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [0.8, 1.1, 2.0])
def test_repetition_penalty(real: Real, penalty: float) -> None:
    edits = [Edit(counts=dict.fromkeys(ids, 0), repetition=penalty) for ids in real.token_ids]
    ours = real.ours(edits)
    assert_same(ours, real.processed(RepetitionPenaltyLogitsProcessor(penalty)))
    assert (ours != real.logits).any(-1).all()


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.0), (0.0, 1.5), (1.0, -0.7), (-2.0, 2.0)])
def test_frequency_and_presence_penalties(real: Real, frequency: float, presence: float) -> None:
    """OpenAI's formula: logit - count * frequency - (count > 0) * presence. The first half counts as the prompt, which
    has no part in it."""
    edits, expected = [], real.logits.astype(np.float64)
    for row, ids in enumerate(real.token_ids):
        counts = Counter(ids[len(ids) // 2 :])
        edits.append(Edit(counts=dict.fromkeys(ids, 0) | counts, frequency=frequency, presence=presence))
        for token_id, count in counts.items():
            expected[row, token_id] -= count * frequency + presence
    assert_same(real.ours(edits), expected)


def test_all_penalties_together(real: Real) -> None:
    """The repetition penalty comes first."""
    edits, expected = [], real.processed(RepetitionPenaltyLogitsProcessor(1.3)).astype(np.float64)
    for row, ids in enumerate(real.token_ids):
        edits.append(Edit(counts=Counter(ids), repetition=1.3, frequency=0.4, presence=0.6))
        for token_id, count in Counter(ids).items():
            expected[row, token_id] -= count * 0.4 + 0.6
    assert_same(real.ours(edits), expected)


def test_logit_bias(real: Real) -> None:
    bias = {5: -100.0, 49151: 3.5, 0: -0.25, **dict.fromkeys(range(300, 400), 7.0)}
    processor = SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()])
    assert_same(real.ours(Edit(bias=bias)), real.processed(processor))


def test_bans(real: Real) -> None:
    """Of the tokens that would have come."""
    banned = sorted({*real.best.tolist(), 0, 49151})
    ours = real.ours(Edit(banned=banned))
    assert_same(ours, real.processed(SuppressTokensLogitsProcessor(banned)))
    assert not np.isin(ours.argmax(-1), banned).any()


def test_bad_words(real: Real) -> None:
    """Words of one token, and of two: the second is banned after the first."""
    words = [[int(token_id)] for token_id in real.best[:5]]
    words += [[ids[-1], int(best)] for ids, best in zip(real.token_ids[5:], real.best[5:], strict=True)]
    edits = []
    for ids in real.token_ids:
        banned = [word[-1] for word in words if word[:-1] == ids[len(ids) - len(word) + 1 :]]
        edits.append(Edit(banned=banned))
    ours = real.ours(edits)
    assert_same(ours, real.processed(NoBadWordsLogitsProcessor(words)))
    assert (ours.argmax(-1) != real.best).all()


def test_min_tokens(real: Real) -> None:
    end_tokens = [0, 2, int(real.best[3])]
    edits = [Edit(banned=end_tokens) if len(ids) < 20 else None for ids in real.token_ids]
    assert_same(real.ours(edits), real.processed(MinNewTokensLengthLogitsProcessor(0, 20, end_tokens)))


@pytest.mark.parametrize("allowed", [[7], [0, 31, 32, 63, 64, 49151], range(100, 40_000)], ids=["one", "edges", "many"])
def test_allowed_tokens(real: Real, allowed: list[int]) -> None:
    processor = PrefixConstrainedLogitsProcessor(lambda batch, ids: list(allowed), num_beams=1)
    ours = real.ours(Edit(allowed=allowed))
    assert_same(ours, real.processed(processor))
    assert np.isin(ours.argmax(-1), list(allowed)).all()


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0])
def test_temperature(real: Real, temperature: float) -> None:
    assert_same(real.ours(temperature=temperature), real.processed(TemperatureLogitsWarper(temperature)))


@pytest.mark.parametrize("k", [1, 2, 50, 2000, 49151])
def test_top_k(real: Real, k: int) -> None:
    ours = real.ours(temperature=1.0, top_k=k)
    assert_same(ours, real.processed(TopKLogitsWarper(k)))
    assert np.isfinite(ours).sum(-1).min() >= k


@pytest.mark.parametrize("top_p", [1e-4, 0.3, 0.95, 0.9999, 1 - 2.0**-24])
def test_top_p(real: Real, top_p: float) -> None:
    """Between the sets of a little more and a little less: the sums that decide round differently."""
    kept = np.isfinite(real.ours(temperature=1.0, top_p=top_p))
    more, less = (kept_by(real, TopPLogitsWarper(p)) for p in (min(1.0, top_p + 1e-6), max(0.0, top_p - 1e-6)))
    assert (kept <= more).all()
    assert (less <= kept).all()
    if top_p < 0.99999:
        assert (more.sum(-1) - less.sum(-1) < 0.03 * more.sum(-1) + 2).all(), "this compares little"


@pytest.mark.parametrize("min_p", [1e-6, 0.01, 0.3, 0.99])
def test_min_p(real: Real, min_p: float) -> None:
    kept = np.isfinite(real.ours(temperature=1.0, min_p=min_p))
    more, less = (kept_by(real, MinPLogitsWarper(p)) for p in (min_p * (1 - 1e-6), min_p * (1 + 1e-6)))
    assert (kept <= more).all()
    assert (less <= kept).all()
    assert (more.sum(-1) - less.sum(-1) <= 2).all(), "this compares little"


def kept_by(real: Real, warper: object) -> np.ndarray:
    return torch.isfinite(warper(None, real.scores.double())).numpy()
