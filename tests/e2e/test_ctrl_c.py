"""Real interrupts at random moments of `LLM.generate`, twice in a row now and then; afterwards all is as before."""

import random
import signal
import time
from contextlib import suppress

import pytest

from pelton import LLM, SamplingParams
from tests.support.engines import core_of
from tests.support.tiny_llama import tiny_llama

PREFIX = [17, 4, 99, 23, 5, 8, 41, 3, 77, 12, 60, 2]
PROMPTS = [[*PREFIX, 1], [*PREFIX[:8], 5, 6, 7], [*PREFIX, 9, 10, 11], [3] * 9, PREFIX]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=1, seed=3, max_tokens=9, top_k=50, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=10, ignore_eos=True),
    SamplingParams(temperature=1, seed=4, max_tokens=6, top_p=0.9, stop=["zzz"], ignore_eos=True),
    SamplingParams(temperature=1, seed=5, max_tokens=5, n=3, repetition_penalty=1.2, prompt_logprobs=1, min_tokens=2),
]


def generate(llm: LLM) -> list[tuple]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [(c.token_ids, c.text, c.finish_reason) for output in outputs for c in output.outputs]


def interrupted_generate(llm: LLM, after: float, again_after: float) -> bool:
    """Whether an interrupt came in time. Another follows it, unless `again_after` is 0."""
    interrupts = []

    def interrupt(signal_number, frame) -> None:
        while frame is not None:  # one that comes too late for the call must not hit the test itself, nor pytest
            if frame.f_globals.get("__name__", "").startswith("_pytest"):
                return
            if frame.f_code is generate.__code__:
                interrupts.append(signal_number)
                if len(interrupts) == 1:
                    signal.setitimer(signal.ITIMER_REAL, again_after)  # not before: this handler takes its time
                raise KeyboardInterrupt
            frame = frame.f_back

    signal.signal(signal.SIGALRM, interrupt)
    with suppress(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, after)
        generate(llm)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return bool(interrupts)


# An interrupt may also fall into somebody's __del__, which Python reports and ignores.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(600, method="thread")  # the other method uses the same timer
@pytest.mark.parametrize("trials", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("twice", [False, True])
def test_any_moment(monkeypatch, twice, trials):
    monkeypatch.delenv("PELTON_STRICT_INVARIANTS")
    rng = random.Random(trials)
    llm = LLM(
        model=tiny_llama(),
        max_num_seqs=2,
        block_size=4,
        max_model_len=48,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=22,
    )
    expected = generate(llm)
    start = time.perf_counter()
    assert generate(llm) == expected
    duration = time.perf_counter() - start
    num_interrupts = 0
    for _ in range(trials):
        again_after = rng.uniform(1e-5, 3e-4) if twice else 0.0
        num_interrupts += interrupted_generate(llm, rng.uniform(1e-5, duration), again_after)
        assert generate(llm) == expected, "what comes right after"
        assert generate(llm) == expected, "and what finds the first one's blocks in the cache"
        core = core_of(llm)
        assert core.kv.integrity_problems() == []
        assert core.kv.pool.num_free == core.kv.pool.num_usable
        assert not core.has_work
        assert not llm.llm_engine.num_unfinished_requests
        batch = core._executor._worker._runner._batch
        assert len(batch._row_of) + len(batch._free_rows) == 2, "rows of the batch"
    assert num_interrupts > trials / 10
