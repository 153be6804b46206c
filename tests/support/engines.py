"""Helpers around a real `LLM`: step traces, poisoned blocks, comparisons of outputs."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pelton import LLM, SamplingParams
from pelton.core.messages import SchedulerOutput
from pelton.core.outputs import Logprob, RequestOutput
from pelton.engine.llm_engine import LLMEngine
from tests.support.fakes import PoisoningPool

NEAR_TIE = 1e-3
"""Logits that differ by less may change places between BLAS calls of different shapes."""
MIN_COMPARED = 0.95
"""Share of all tokens that a comparison must reach before near ties end it."""
POOL_BYTES = 512 << 20


def make_llm(monkeypatch, **kwargs) -> LLM:
    """An LLM whose blocks come in shuffled order, and hold NaN from the moment nobody may rely on them.

    Its pool is small unless the caller sizes it: in shuffled order, all of its memory is soon written to. It
    computes in float32 unless the caller says otherwise.
    """
    kwargs.setdefault("dtype", "float32")
    monkeypatch.setattr("pelton.kv.coordinator.BlockPool", PoisoningPool)
    if not kwargs.keys() & {"kv_cache_memory_bytes", "num_gpu_blocks_override"}:
        kwargs["kv_cache_memory_bytes"] = POOL_BYTES
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


def num_finished(engine: LLM | LLMEngine) -> dict[str, int]:
    """Finish reason -> how many requests have ended so."""
    return {m.labels["finished_reason"]: m.value for m in engine.get_metrics() if "finished_reason" in m.labels}


def trace_steps(monkeypatch, llm: LLM) -> list[SchedulerOutput]:
    """From now on until the test ends, every step that is launched is appended to the list returned."""
    trace: list[SchedulerOutput] = []
    executor = core_of(llm)._executor
    launch = executor.launch

    def traced(step: SchedulerOutput) -> None:
        trace.append(step)
        launch(step)

    monkeypatch.setattr(executor, "launch", traced)
    return trace


def generate(llm: LLM, prompts: Mapping[str, list[int]], params: SamplingParams) -> dict[str, RequestOutput]:
    outputs = llm.generate(list(prompts.values()), params, use_tqdm=False)
    return dict(zip(prompts, outputs, strict=True))


def bits_of(output: RequestOutput) -> list[tuple]:
    """What the user gets for every choice, floats by their bits."""
    prompt_logprobs = _logprob_bits(output.prompt_logprobs)
    return [
        (
            completion.token_ids,
            _logprob_bits(completion.logprobs),
            prompt_logprobs,
            completion.text,
            completion.finish_reason,
            completion.stop_reason,
        )
        for completion in output.outputs
    ]


def _logprob_bits(positions: Sequence[Mapping[int, Logprob] | None] | None) -> list[list[tuple]] | None:
    if positions is None:
        return None
    return [
        [(token_id, entry.logprob.hex(), entry.rank) for token_id, entry in (position or {}).items()]
        for position in positions
    ]


def assert_same_bits(outputs: Mapping[str, RequestOutput], references: Mapping[str, RequestOutput]) -> None:
    """Every output is the reference of its name, bit by bit."""
    differing = [name for name, output in outputs.items() if bits_of(output) != bits_of(references[name])]
    assert not differing


def assert_as_reference(
    outputs: Mapping[str, RequestOutput], logprobs_of: Callable[[list[int], int], np.ndarray]
) -> float:
    """Greedy tokens and log probabilities, by induction: given the same tokens before, the reference chooses the same.

    `logprobs_of(token_ids, n)`: the reference's log probabilities [n, V] of what follows each of the last n tokens.
    Near ties may not keep more than a few tokens from being compared. Returns the largest difference of a logprob.
    """
    largest, num_compared, num_tokens = 0.0, 0, 0
    for name, output in outputs.items():
        completion = output.outputs[0]
        assert completion.finish_reason in ("length", "stop"), f"{name}: {completion.stop_reason}"
        num_tokens += len(completion.token_ids)
        expected = logprobs_of(output.prompt_token_ids + completion.token_ids[:-1], len(completion.token_ids))
        for position, (token_id, row) in enumerate(zip(completion.token_ids, expected, strict=True)):
            first, second = np.sort(row)[[-1, -2]]
            if first - second >= NEAR_TIE:
                assert token_id == row.argmax(), f"{name}: token {position} is {token_id}, and not {row.argmax()}"
                num_compared += 1
            for candidate, entry in completion.logprobs[position].items():
                difference = abs(entry.logprob - row[candidate])
                assert difference < 1e-3, f"{name}: logprob of {candidate} at {position} differs by {difference}"
                largest = max(largest, difference)
            assert completion.logprobs[position][token_id].rank == 1
    assert num_compared >= MIN_COMPARED * num_tokens, f"near ties: only {num_compared} of {num_tokens} were compared"
    return largest


def block_ids_of(trace: Sequence[SchedulerOutput], request_id: str) -> list[int]:
    """The last block table of a request's first group that the trace shows."""
    blocks: list[int] = []
    for step in trace:
        for new in step.new_requests:
            if new.message.request_id == request_id:
                blocks = list(new.block_ids[0])
        blocks += step.new_block_ids.get(request_id, [[]])[0]
    return blocks
