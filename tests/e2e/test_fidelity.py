"""bfloat16 against float32 on a fixed public text: how much less likely the text becomes."""

import math

import pytest

from pelton import LLM, SamplingParams
from tests.support.downloads import gemma_gguf
from tests.support.gemma import BOS_TOKEN_ID, passages
from tests.support.native import needs_native

BOUND = 0.002
"""Relative difference of the perplexities."""

pytestmark = needs_native


def perplexity(model, dtype: str, start: list[int]) -> float:
    """Of the passages, in pieces of 512 tokens that overlap: many contexts, so that chance counts for less."""
    llm = LLM(model=str(model), dtype=dtype, kv_cache_memory_bytes=256 << 20)
    ids = llm.get_tokenizer().encode(passages(), add_special_tokens=False)
    pieces = [start + ids[at : at + 512] for at in range(0, len(ids) - 64, 128)]
    outputs = llm.generate(pieces, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    losses = [
        -position[token_id].logprob
        for output in outputs
        for token_id, position in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    ]
    llm.llm_engine.shutdown()
    assert len(losses) > 1400
    return math.exp(sum(losses) / len(losses))


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_perplexity(name, record_property):
    model, start = ("smollm2", []) if name == "smollm2" else (gemma_gguf(), [BOS_TOKEN_ID])
    exact, rounded = (perplexity(model, dtype, start) for dtype in ("float32", "bfloat16"))
    record_property("perplexities", (exact, rounded))
    print(f"{name}: {exact:.4f} in float32, {rounded:.4f} in bfloat16, {rounded / exact - 1:+.4%}")
    assert 5 < exact < 60, "the text must be as likely as English is"
    assert abs(rounded / exact - 1) < BOUND
