"""Gemma 3 270M against transformers: every greedy token and its log probability, on both sides of the window."""

from collections.abc import Iterator

import pytest
import torch
from transformers import Gemma3ForCausalLM

from pelton import LLM, SamplingParams
from tests.support.downloads import gemma_gguf
from tests.support.engines import assert_as_reference, generate
from tests.support.gemma import BOS_TOKEN_ID, WINDOW, gemma_reference, passages
from tests.support.tiny_models import logprobs_of

PARAMS = SamplingParams(temperature=0, max_tokens=16, logprobs=5, ignore_eos=True)
ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1)
A_FEW_TOKENS = SamplingParams(temperature=0, max_tokens=8)
QUICK = (1, 16, 17, 511, 512, 513, 1025)
SLOW = (2, 15, 63, 255, 500, 510, 514, 528, 530, 1023, 1024, 1500)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(
        model=str(gemma_gguf()),
        dtype="float32",
        kv_cache_memory_bytes=640 << 20,
        max_model_len=2048,
        max_num_batched_tokens=700,
    )
    yield llm
    llm.llm_engine.shutdown()


@pytest.fixture(scope="module")
def reference() -> Iterator[Gemma3ForCausalLM]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield gemma_reference(gemma_gguf())
    torch.set_num_threads(before)


@pytest.mark.parametrize("lengths", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"])
def test_greedy_tokens_and_logprobs_equal_transformers(
    llm: LLM, reference: Gemma3ForCausalLM, lengths: tuple[int, ...]
) -> None:
    text = llm.get_tokenizer().encode(passages(), add_special_tokens=False)
    prompts = {
        f"{length} tokens": [BOS_TOKEN_ID, *text[11 * n : 11 * n + length - 1]] for n, length in enumerate(lengths)
    }
    assert [len(prompt) for prompt in prompts.values()] == list(lengths)
    largest = assert_as_reference(generate(llm, prompts, PARAMS), logprobs_of(reference))
    print(f"largest difference of a logprob: {largest:.1e}")


def test_the_text_is_long_and_varied(llm: LLM) -> None:
    text = llm.get_tokenizer().encode(passages(), add_special_tokens=False)
    assert len(text) >= 11 * max(len(QUICK), len(SLOW)) + max(*QUICK, *SLOW)
    assert len({tuple(text[start : start + 16]) for start in range(len(text) - 15)}) == len(text) - 15
    assert max(QUICK) > 2 * WINDOW


def test_prompts_begin_with_one_beginning_of_sequence(llm: LLM) -> None:
    prompts = ["The capital of France is", "", " x"]
    token_ids = [output.prompt_token_ids for output in llm.generate(prompts, ONE_TOKEN, use_tqdm=False)]
    assert token_ids[0] == [2, 818, 5279, 529, 7001, 563]
    assert token_ids[1] == [2]
    assert [ids.count(BOS_TOKEN_ID) for ids in token_ids] == [1, 1, 1]
    assert all(ids[0] == BOS_TOKEN_ID for ids in token_ids)


def test_generated_text_is_sensible(llm: LLM) -> None:
    continuations = {
        "The capital city of France is called": " Paris",
        "Rome is the capital of Italy, Madrid is the capital of Spain, and Paris is the capital of": " France",
        "The opposite of hot is": " cold",
        "1, 2, 3, 4, 5, 6, 7,": " 8, 9,",
        "Monday, Tuesday, Wednesday,": " Thursday, Friday",
    }
    for output, begins in zip(
        llm.generate(list(continuations), A_FEW_TOKENS, use_tqdm=False), continuations.values(), strict=True
    ):
        assert output.outputs[0].text.startswith(begins), output.outputs[0].text
