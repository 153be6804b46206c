"""Helpers around a real `LLM`: step traces, poisoned blocks, comparisons of outputs."""

from collections.abc import Mapping, Sequence

import numpy as np

from pelton import LLM, SamplingParams
from pelton.core.messages import SchedulerOutput
from pelton.core.outputs import RequestOutput
from tests.support.fakes import PoisoningPool

NEAR_TIE = 1e-3
"""Logits that differ by less may change places between BLAS calls of different shapes."""


def make_llm(monkeypatch, **kwargs) -> LLM:
    """An LLM whose blocks come in shuffled order, and hold NaN from the moment nobody may rely on them."""
    monkeypatch.setattr("pelton.kv.coordinator.BlockPool", PoisoningPool)
    llm = LLM(**kwargs)
    core = core_of(llm)
    storage = {id(layer.array): layer.array for layer in core._executor._worker._model.kv_layers}.values()

    def poison(block) -> None:
        for array in storage:
            array[block.id] = np.nan

    core.kv.pool.poison = poison
    return llm


def core_of(llm: LLM):
    return llm.llm_engine._client._core


def trace_steps(llm: LLM) -> list[SchedulerOutput]:
    """From now on, every step that is launched is appended to the list returned."""
    trace: list[SchedulerOutput] = []
    executor = core_of(llm)._executor
    launch = executor.launch

    def traced(step: SchedulerOutput) -> None:
        trace.append(step)
        launch(step)

    executor.launch = traced
    return trace


def generate(llm: LLM, prompts: Mapping[str, list[int]], params: SamplingParams) -> dict[str, RequestOutput]:
    outputs = llm.generate(list(prompts.values()), params, use_tqdm=False)
    return dict(zip(prompts, outputs, strict=True))


def assert_same_tokens(output: RequestOutput, reference: RequestOutput, name: str) -> None:
    """Equal tokens, and logprobs within 1e-3, up to a position where the reference's two best are near ties.

    Both need `logprobs` of at least 2.
    """
    mine, theirs = output.outputs[0], reference.outputs[0]
    for position, (a, b) in enumerate(zip(mine.token_ids, theirs.token_ids, strict=False)):
        if a != b:
            assert gap(theirs.logprobs[position]) < NEAR_TIE, f"{name}: other token at {position}: {a}, not {b}"
            return
        difference = abs(mine.logprobs[position][a].logprob - theirs.logprobs[position][a].logprob)
        assert difference < NEAR_TIE, f"{name}: logprob differs by {difference} at {position}"
    assert len(mine.token_ids) == len(theirs.token_ids), name
    assert mine.text == theirs.text, name
    assert mine.finish_reason == theirs.finish_reason, name


def gap(position: Mapping) -> float:
    best = sorted((entry.logprob for entry in position.values()), reverse=True)
    return best[0] - best[1]


def block_ids_of(trace: Sequence[SchedulerOutput], request_id: str) -> list[int]:
    """The last block table of a request's first group that the trace shows."""
    blocks: list[int] = []
    for step in trace:
        for new in step.new_requests:
            if new.request_id == request_id:
                blocks = list(new.block_ids[0])
        blocks += step.new_block_ids.get(request_id, [[]])[0]
    return blocks
