"""bfloat16 and quantized weights against float32 on a fixed public text: how much less likely the text becomes."""

import math
from functools import cache

import pytest

from pelton import LLM, SamplingParams
from tests.support.downloads import gemma_gguf
from tests.support.gemma import BOS_TOKEN_ID, passages
from tests.support.native import is_slow_machine, needs_native

BOUNDS = {"bfloat16": ({"dtype": "bfloat16"}, 0.002), "int8": ({"quantization": "int8"}, 0.01), "as stored": ({}, 0.01)}
"""Arguments, and by how much the perplexity may differ, relatively. Both files have most of their weights in four bits,
so that as stored they are int4 and int8; in float32 they are the same numbers."""

pytestmark = needs_native


@cache
def perplexity(name: str, **arguments: str) -> float:
    """Of the passages, in pieces of 512 tokens that overlap: many contexts, so that chance counts for less."""
    model, start = ("smollm2", []) if name == "smollm2" else (str(gemma_gguf()), [BOS_TOKEN_ID])
    llm = LLM(model=model, kv_cache_memory_bytes=256 << 20, **arguments)
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


SLOW = [pytest.mark.slow] if is_slow_machine() else []


@pytest.mark.parametrize(
    "choice", [pytest.param(name, marks=SLOW if name in ("bfloat16", "int8") else []) for name in BOUNDS]
)
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma", marks=SLOW)])
def test_perplexity(name, choice, record_property):
    arguments, bound = BOUNDS[choice]
    exact, rounded = perplexity(name, dtype="float32"), perplexity(name, **arguments)
    record_property("perplexities", (exact, rounded))
    print(f"{name}: {exact:.4f} in float32, {rounded:.4f} {choice}, {rounded / exact - 1:+.4%}")
    assert 5 < exact < 60, "the text must be as likely as English is"
    assert abs(rounded / exact - 1) < bound
