"""Tokens per second for many requests at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pelton.bench.dataset_config import DatasetConfig, needs_tokenizer
from pelton.bench.datasets import make_requests
from pelton.bench.offline import (
    check_fits,
    engine_counts,
    heading,
    machine_for,
    measured_on,
    num_output_tokens,
    num_prompt_tokens,
    prompt_of,
    sampling_params,
    timed_generate,
)
from pelton.bench.requests import BenchRequest
from pelton.bench.throughput_config import ThroughputConfig
from pelton.config import EngineArgs
from pelton.core.outputs import RequestOutput
from pelton.engine.input_processor import Prompt
from pelton.engine.llm_engine import LLMEngine
from pelton.llm import LLM
from pelton.sampling_params import SamplingParams


def run_throughput(
    config: ThroughputConfig, dataset: DatasetConfig, args: EngineArgs, *, use_tqdm: bool = False
) -> dict[str, Any]:
    """Load the model, and time one call of `LLM.generate` with all requests of the dataset.

    Returns vLLM's `elapsed_time` (seconds), `num_requests`, `total_num_tokens`, `requests_per_second` and
    `tokens_per_second` (prompts included); beside them

    - `total_input_tokens`, `total_output_tokens`, `output_tokens_per_second`; `cached_input_tokens`: those that came
      from the prefix cache, for the first output of each request
    - `num_cut`: outputs with fewer tokens than asked for, since the context was full
    - `prefill_share`: the part of the time in which a prompt was being processed, beside whatever else ran
    - `steps`, `scheduled_tokens` (of prompts and outputs, in all steps), `preemptions`, `peak_kv_cache_usage` (0 to 1)
    - `settings`, `dataset`, and what `measured_on` tells

    Raises ValueError for a model or dataset that cannot be read, and for requests that are not acceptable,
    FailedRequestsError for requests that fail.
    """
    if config.num_warmups > dataset.num_prompts:
        raise ValueError(
            f"num_warmups is {config.num_warmups}, but num_prompts is {dataset.num_prompts}; lower the first"
        )
    # Files of text are read before the model is.
    requests = [] if needs_tokenizer(dataset) else make_requests(dataset, None)
    machine = machine_for(args)
    llm = LLM(**args.to_plain())
    try:
        requests = requests or make_requests(dataset, llm.get_tokenizer())
        _check_lengths(llm, requests)
        told = {"settings": asdict(config), "dataset": asdict(dataset)}
        measured = _measure(llm, requests, config, dataset.seed, use_tqdm)
        return measured_on("throughput", llm.llm_engine.description, args, machine) | told | measured
    finally:
        llm.shutdown()


def _check_lengths(llm: LLM, requests: Iterable[BenchRequest]) -> None:
    """As far as the dataset knows them: the engine would cut outputs, and they would be no longer comparable."""
    for request in requests:
        if request.prompt_len is not None:
            parts = f"a request of {request.prompt_len} prompt and {request.output_len} output tokens"
            check_fits(llm, request.prompt_len + request.output_len, parts)


def _measure(
    llm: LLM, requests: Sequence[BenchRequest], config: ThroughputConfig, seed: int, use_tqdm: bool
) -> dict[str, Any]:
    prompts = [prompt_of(request, llm.get_tokenizer()) for request in requests]
    params = [
        sampling_params(request.output_len, n=config.n, seed=seed, detokenize=not config.disable_detokenize)
        for request in requests
    ]
    _warm_up(llm, prompts[: config.num_warmups], params[: config.num_warmups])
    before = engine_counts(llm)
    with _peak_kv_cache_usage(llm.llm_engine) as peak:
        seconds, outputs = timed_generate(llm, prompts, params, use_tqdm=use_tqdm)
    counts = {name: count - before[name] for name, count in engine_counts(llm).items()}
    return _figures(seconds, outputs, params) | counts | {"peak_kv_cache_usage": max(peak)}


def _warm_up(llm: LLM, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> None:
    if prompts:
        timed_generate(llm, prompts, params)
        llm.reset_prefix_cache()


@contextmanager
def _peak_kv_cache_usage(engine: LLMEngine) -> Iterator[list[float]]:
    """Within this context, the share of blocks in use after each step, from 0 on, whenever it is higher than before."""
    peaks = [0.0]
    step = engine.step

    def watched_step() -> list[RequestOutput]:
        outputs = step()
        if engine.stats is not None and engine.stats.kv_cache_usage > peaks[-1]:
            peaks.append(engine.stats.kv_cache_usage)
        return outputs

    engine.step = watched_step  # type: ignore[method-assign]
    try:
        yield peaks
    finally:
        del engine.step


def _figures(seconds: float, outputs: Sequence[RequestOutput], params: Sequence[SamplingParams]) -> dict[str, Any]:
    num_in, num_out = num_prompt_tokens(outputs), num_output_tokens(outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "total_num_tokens": num_in + num_out,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": (num_in + num_out) / seconds,
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "output_tokens_per_second": num_out / seconds,
        "cached_input_tokens": sum(output.num_cached_tokens for output in outputs),
        "num_cut": sum(
            len(choice.token_ids) < asked.max_tokens
            for output, asked in zip(outputs, params, strict=True)
            for choice in output.outputs
            if asked.max_tokens is not None
        ),
        "prefill_share": min(1.0, covered(_prefills(outputs)) / seconds),
    }


def _prefills(outputs: Iterable[RequestOutput]) -> Iterator[tuple[float, float]]:
    """When each prompt was being processed."""
    for output in outputs:
        times = output.metrics
        if times is not None and times.scheduled_ts is not None and times.first_token_ts is not None:
            yield times.scheduled_ts, times.first_token_ts


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of what these intervals, of beginning and end, cover together."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def report(result: Mapping[str, Any]) -> str:
    """For people. The line on throughput and those with the numbers of tokens are vLLM's."""
    dataset, settings = result["dataset"]["dataset_name"], result["settings"]
    choices = f", {settings['n']} outputs per request" if settings["n"] > 1 else ""
    requests = f"{result['num_requests']} of dataset {dataset}{choices}; {settings['num_warmups']} before as warm-up"
    rates = (
        f"{result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.2f} total tokens/s, "
        f"{result['output_tokens_per_second']:.2f} output tokens/s"
    )
    cached = f"{result['cached_input_tokens']} of them from the prefix cache"
    cut = f" (outputs cut off at the end of the context: {result['num_cut']})" if result["num_cut"] else ""
    prefill = 100 * result["prefill_share"]
    shares = f"{prefill:.0f} % of it with prompts being processed, {100 - prefill:.0f} % with decoding only"
    usage = f"at most {100 * result['peak_kv_cache_usage']:.1f} % in use; preemptions: {result['preemptions']}"
    return "\n".join(
        [
            heading(result),
            f"Requests: {requests}",
            f"Throughput: {rates}",
            f"Total num prompt tokens:  {result['total_input_tokens']} ({cached})",
            f"Total num output tokens:  {result['total_output_tokens']}{cut}",
            f"Time: {result['elapsed_time']:.2f} seconds, {shares}",
            f"Steps: {result['steps']}, {result['scheduled_tokens'] / max(1, result['steps']):.1f} tokens each",
            f"KV cache: {usage}",
        ]
    )
