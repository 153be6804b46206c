"""What the benchmarks of an engine in this process share: `LLM.generate` with a stop-watch around it."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from time import perf_counter
from typing import Any

from pelton.bench.machine import describe_machine
from pelton.bench.requests import BenchRequest
from pelton.config import EngineArgs
from pelton.core.metrics import Counter, Histogram
from pelton.core.outputs import RequestOutput
from pelton.engine.chat import render_chat
from pelton.engine.input_processor import Prompt
from pelton.llm import LLM
from pelton.runner.execution import start_backend
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer


class FailedRequestsError(RuntimeError):
    """Requests failed, so that figures of the rest would say nothing. The message tells how many, and why."""


def sampling_params(output_len: int, *, n: int, seed: int, detokenize: bool) -> SamplingParams:
    """Exactly so many tokens: greedy ones, or for several choices, which random numbers tell apart, drawn ones."""
    return SamplingParams(
        n=n,
        temperature=0.0 if n == 1 else 1.0,
        seed=None if n == 1 else seed,
        max_tokens=output_len,
        ignore_eos=True,
        detokenize=detokenize,
    )


def prompt_of(request: BenchRequest, tokenizer: Tokenizer) -> Prompt:
    """As `LLM.generate` takes it. A conversation is written by the model's chat template."""
    if request.messages is not None:
        return render_chat(tokenizer, request.messages)
    assert request.prompt is not None
    return request.prompt if isinstance(request.prompt, str) else list(request.prompt)


def timed_generate(
    llm: LLM, prompts: Sequence[Prompt], params: Sequence[SamplingParams], *, use_tqdm: bool = False
) -> tuple[float, list[RequestOutput]]:
    """Seconds of the call, and what it gave.

    Raises FailedRequestsError if a request failed, and ValueError for one that is not acceptable.
    """
    start = perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=use_tqdm)
    seconds = perf_counter() - start
    failed = [output for output in outputs if any(choice.finish_reason == "error" for choice in output.outputs)]
    if failed:
        reason = next(choice.stop_reason for choice in failed[0].outputs if choice.finish_reason == "error")
        raise FailedRequestsError(f"{len(failed)} of {len(outputs)} requests failed: {reason}")
    return seconds, outputs


def num_prompt_tokens(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(output.prompt_token_ids) for output in outputs)


def num_output_tokens(outputs: Sequence[RequestOutput]) -> int:
    """Of all choices."""
    return sum(len(choice.token_ids) for output in outputs for choice in output.outputs)


def check_fits(llm: LLM, num_tokens: int, parts: str) -> None:
    """Raise ValueError if the model takes no request of so many tokens, which `parts` describes."""
    longest = llm.llm_engine.max_model_len
    if num_tokens > longest:
        raise ValueError(f"{parts} is {num_tokens} tokens, but requests may have {longest}; lower one of them")


def engine_counts(llm: LLM) -> dict[str, int]:
    """What the engine has done since its start, to be subtracted from what it has done later."""
    counts = {"preemptions": 0, "steps": 0, "scheduled_tokens": 0}
    for metric in llm.get_metrics():
        if isinstance(metric, Counter) and metric.name == "vllm:num_preemptions":
            counts["preemptions"] = metric.value
        elif isinstance(metric, Histogram) and metric.name == "vllm:iteration_tokens_total":
            counts |= {"steps": metric.count, "scheduled_tokens": round(metric.sum)}
    return counts


def machine_for(args: EngineArgs) -> dict[str, object]:
    """The machine, with the kernels and threads of these arguments. They run idle for a moment: not beside an engine.

    Raises ValueError for threads or kernels that cannot be had.
    """
    with closing(start_backend(args.execution)) as backend:
        return describe_machine(backend)


def measured_on(benchmark: str, kernels: str, args: EngineArgs, machine: Mapping[str, object]) -> dict[str, Any]:
    """The part of a result that says what was measured; without it a figure is worth nothing.

    `kernels`: what the engine says of them, and of the formats of the weights.
    """
    return {
        "benchmark": benchmark,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "model": args.model.model,
        "kernels": kernels,
        "engine_args": args.to_plain(),
        "machine": dict(machine),
    }


def heading(result: Mapping[str, Any]) -> str:
    """The same for people, on two lines."""
    machine = result["machine"]
    parts = [machine["cpu"], f"{machine['cores']} cores", f"Pelton {machine['pelton']}"]
    return "\n".join(
        [
            f"Model: {result['model']}; {result['kernels']}",
            f"Machine: {', '.join(part for part in parts if part)}",
        ]
    )
