"""Layers with sliding windows, through the paged cache and its faults: every answer is that of transformers.

Blocks come in shuffled order and hold NaN from the moment nobody may rely on them.
"""

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig

from pelton import LLM, SamplingParams
from pelton.core.kv_spec import SlidingWindowSpec
from pelton.core.outputs import RequestOutput
from pelton.kv import KVCacheCoordinator
from pelton.kv.block import Block
from tests.support.downloads import gemma_gguf
from tests.support.engines import assert_as_reference, core_of, generate, make_llm, trace_steps
from tests.support.gemma import BOS_TOKEN_ID, WINDOW, gemma_reference, passages
from tests.support.tiny_models import VOCAB_SIZE, build, logprobs_of, randomized, save_folder
from tests.support.vocabularies import vocabulary_tokenizer

BLOCK_SIZE = 16
NUM_TOKENS = 20
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logprobs=3, ignore_eos=True)


@dataclass(frozen=True)
class Served:
    """A model with windows, and how to make and check its prompts.

    Of the tiny ones, one has a window of whole blocks. In the other, the first position in view is the last one of its
    block just when a generation needs another block.
    """

    path: str
    window: int
    bos: list[int]
    text: list[int]
    logprobs_of: Callable[[list[int], int], np.ndarray]

    @property
    def is_large(self) -> bool:
        return bool(self.bos)

    def serve(self, monkeypatch: pytest.MonkeyPatch, **engine_args: Any) -> LLM:
        """With room for everything, unless `engine_args` say otherwise."""
        room = {"num_gpu_blocks_override": 5000 if self.is_large else 1000}
        return make_llm(monkeypatch, model=self.path, **room | engine_args)

    def prompt(self, length: int, start: int = 0) -> list[int]:
        """From `start` on, all texts differ."""
        prompt = [*self.bos, *self.text[start : start + length - len(self.bos)]]
        assert len(prompt) == length
        return prompt

    def branch(self, prefix: list[int], length: int, *, other_than: int) -> list[int]:
        """The prefix, and so many tokens that do not begin with this one."""
        start = next(start for start in range(1000, 1100) if self.text[start] != other_than)
        return [*prefix, *self.text[start : start + length]]

    def check(self, llm: LLM, outputs: Mapping[str, RequestOutput]) -> None:
        """Tokens, logprobs, and a KV cache in which nothing is left behind."""
        assert_as_reference(outputs, self.logprobs_of)
        assert_idle(core_of(llm).kv)


def assert_idle(kv: KVCacheCoordinator) -> None:
    assert not kv.integrity_problems()
    assert kv.pool.num_free == kv.pool.num_usable
    assert not kv._requests


@pytest.fixture(scope="module", params=[32, 18, pytest.param("gemma", marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if request.param == "gemma":
        path = gemma_gguf()
        text = vocabulary_tokenizer("gemma").encode(passages(), add_special_tokens=False)
        torch.set_num_threads(2)
        yield Served(str(path), WINDOW, [BOS_TOKEN_ID], text, logprobs_of(gemma_reference(path)))
        torch.set_num_threads(1)
        return
    window = request.param
    options = {
        "layer_types": ["sliding_attention" if kind == "s" else "full_attention" for kind in "ssfssfs"],
        "num_hidden_layers": 7,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "max_position_embeddings": 512,
        "sliding_window": window,
    }
    model = randomized(build(Gemma3TextConfig, options), seed=1)
    folder = save_folder(model, tmp_path_factory.mktemp("tiny-gemma"))
    text = np.random.default_rng(2).integers(3, VOCAB_SIZE, 2000).tolist()
    yield Served(str(folder), window, [], text, logprobs_of(model))


@pytest.fixture(autouse=True)
def free_models(served: Served) -> Iterator[None]:
    """Only the large ones: collecting takes longer than most of the tests with a tiny model."""
    yield
    if served.is_large:
        gc.collect()


def sliding_groups(kv: KVCacheCoordinator) -> list[int]:
    return [index for index, group in enumerate(kv.groups) if isinstance(group.spec, SlidingWindowSpec)]


def test_groups(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """What these tests are about: several groups with windows, one without."""
    llm = served.serve(monkeypatch)
    kv = core_of(llm).kv
    assert len(sliding_groups(kv)) == len(kv.groups) - 1 == (5 if served.is_large else 3)
    assert {kv.groups[index].spec.window for index in sliding_groups(kv)} == {served.window}


@pytest.mark.parametrize(
    ("chunk", "caching"), [(1, False), (7, False), (7, True), (16, False), (16, True), (17, True), (64, False)]
)
def test_chunk_sizes(monkeypatch: pytest.MonkeyPatch, served: Served, chunk: int, caching: bool) -> None:
    """Prompts that end just before, at and after the window's size, and generations that grow over it."""
    llm = served.serve(monkeypatch, long_prefill_token_threshold=chunk, enable_prefix_caching=caching)
    trace = trace_steps(monkeypatch, llm)
    lengths = [served.window + more for more in ((-1, 0, 1, 50) if served.is_large else (-17, -1, 0, 1, 17, 50))]
    prompts = {f"{length} tokens": served.prompt(length, 10 * n) for n, length in enumerate(lengths)}
    served.check(llm, generate(llm, prompts, PARAMS))
    assert max(num for step in trace for num in step.num_scheduled_tokens) == chunk


@pytest.mark.parametrize(("num_windows", "more"), [(0.5, 0), (1, -1), (1, 0), (1, 1), (2, 3)])
def test_shared_prefixes(monkeypatch: pytest.MonkeyPatch, served: Served, num_windows: float, more: int) -> None:
    """The second prompt begins like the first for so many tokens and then differs; the third is the first again."""
    num_shared = int(num_windows * served.window) + more
    llm = served.serve(monkeypatch, max_num_batched_tokens=100)
    first = served.prompt(num_shared + 40)
    second = served.branch(first[:num_shared], 30, other_than=first[num_shared])
    outputs = {}
    for name, prompt in (("first", first), ("second", second), ("third", first)):
        outputs[name] = generate(llm, {name: prompt}, PARAMS)[name]
    served.check(llm, outputs)
    num_cached = [output.num_cached_tokens for output in outputs.values()]
    assert num_cached == [0, num_shared // BLOCK_SIZE * BLOCK_SIZE, (len(first) - 1) // BLOCK_SIZE * BLOCK_SIZE]


def cached_block(kv: KVCacheCoordinator, group: int, index: int) -> Block:
    """The findable block at this place of the only prompt that was ever computed."""

    def depth(block: Block) -> int:
        key, num = block.key, 0
        while (key := key.parent) is not None:
            num += 1
        return num

    (found,) = [block for block in kv.pool.prefix_maps[group].values() if depth(block) == index]
    return found


def test_hits_need_the_blocks_of_the_window_and_no_others(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """Single blocks are taken out of the cache: a hit becomes shorter only if it needs them."""
    llm = served.serve(monkeypatch, max_num_batched_tokens=100)
    kv = core_of(llm).kv
    in_window = -(-(served.window - 1) // BLOCK_SIZE)
    num_shared = in_window + 8
    first = served.prompt(num_shared * BLOCK_SIZE + 10)
    end = num_shared * BLOCK_SIZE
    second = served.branch(first[:end], 30, other_than=first[end])
    sliding, full = sliding_groups(kv)[-1], next(i for i in range(9) if i not in sliding_groups(kv))
    cases = {
        "nothing is missing": (None, num_shared),
        "the last block": ((sliding, num_shared - 1), num_shared - 1),
        "the window's first block": ((sliding, num_shared - in_window), num_shared - in_window),
        "the block before the window": ((sliding, num_shared - in_window - 1), num_shared),
        "the first block": ((sliding, 0), num_shared),
        "one that full attention needs": ((full, in_window), in_window),
        "the very first that full attention needs": ((full, 0), 0),
    }
    for name, (missing, num_hit_blocks) in cases.items():
        llm.llm_engine.reset_prefix_cache()
        generate(llm, {"first": first}, SamplingParams(temperature=0, max_tokens=1))
        if missing is not None:
            block = cached_block(kv, *missing)
            kv.pool.evict_block(block)
            kv.pool.poison(block)
        outputs = generate(llm, {name: second}, PARAMS)
        assert outputs[name].num_cached_tokens == num_hit_blocks * BLOCK_SIZE, name
        served.check(llm, outputs)


def test_hits_while_blocks_are_evicted(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """Prompts of few families in a pool that forgets: some blocks of a prefix are found, others are not."""
    rng = random.Random(4)
    longest = served.window + 90
    prompts = {}
    for number in range(7 if served.is_large else 40):
        family = rng.randrange(3)
        num_shared = rng.choice([16, served.window - 1, served.window, served.window + 1, served.window + 48])
        tail = rng.randrange(300, 1500)
        prompt = [*served.prompt(num_shared, 100 * family), *served.text[tail : tail + rng.randint(1, 30)]]
        prompts[f"{number}: {num_shared} of family {family}"] = prompt
    llm = served.serve(
        monkeypatch,
        max_num_batched_tokens=48,
        max_num_seqs=3,
        max_model_len=longest + NUM_TOKENS,
        num_gpu_blocks_override=2 * most_blocks(served, longest + NUM_TOKENS, 48) + 1,
    )
    kv = core_of(llm).kv
    served.check(llm, generate(llm, prompts, PARAMS))
    roomy = served.serve(monkeypatch, max_num_seqs=3)
    generate(roomy, prompts, SamplingParams(temperature=0, max_tokens=1))
    assert 0 < kv.num_prefix_hits < core_of(roomy).kv.num_prefix_hits


def most_blocks(served: Served, num_tokens: int, chunk: int) -> int:
    """Blocks that a request may hold: all for full attention, otherwise those of a window and a chunk."""
    num_sliding = 5 if served.is_large else 3
    in_view = -(-(served.window - 1 + chunk) // BLOCK_SIZE) + 1
    num_full = -(-num_tokens // BLOCK_SIZE)
    return num_full + num_sliding * min(num_full, in_view)


def test_preemption(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """Generations that cross the window's size, in a pool that is too small for all of them."""
    num_tokens = 48 if served.is_large else 96
    params = SamplingParams(temperature=0, max_tokens=num_tokens, logprobs=3, ignore_eos=True)
    lengths = [served.window - 12 + 5 * n for n in range(3 if served.is_large else 5)]
    prompts = {f"{length} tokens": served.prompt(length, 10 * n) for n, length in enumerate(lengths)}
    longest = max(lengths) + num_tokens
    llm = served.serve(
        monkeypatch,
        max_num_batched_tokens=64,
        max_model_len=longest,
        # Room for two requests to begin, and not to end.
        num_gpu_blocks_override=396 if served.is_large else int(2.2 * most_blocks(served, longest, 64)),
    )
    served.check(llm, generate(llm, prompts, params))
    assert core_of(llm).scheduler.num_preemptions >= (1 if served.is_large else 2)


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
def test_blocks_that_leave_the_window_are_free(monkeypatch: pytest.MonkeyPatch, served: Served, caching: bool) -> None:
    """What a long request holds grows for full attention only."""
    chunk = 24
    llm = served.serve(monkeypatch, max_num_batched_tokens=chunk, enable_prefix_caching=caching)
    kv, engine = core_of(llm).kv, llm.llm_engine
    prompt = served.prompt(2 * served.window + 100)
    engine.add_request(prompt, PARAMS)
    held, outputs = [], []
    while engine.num_unfinished_requests:
        outputs += engine.step()
        held.append(round(engine.stats.kv_cache_usage * kv.pool.num_usable))
        num_blocks = next((state.num_blocks for state in kv._requests.values()), 0)
        assert held[-1] <= most_blocks(served, num_blocks * BLOCK_SIZE, chunk)
    assert held[-1] == 0
    num_blocks = -(-(len(prompt) + NUM_TOKENS - 1) // BLOCK_SIZE)
    # While it generates one token at a time, the windows' blocks, of which one may be cut at either end.
    in_view = -(-(served.window - 1) // BLOCK_SIZE) + 1
    assert held[-2] <= num_blocks + (len(kv.groups) - 1) * in_view
    assert held[-2] < len(kv.groups) * num_blocks / 1.5
    served.check(llm, {"long": outputs[-1]})
