"""Seconds that one batch of requests takes."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from tqdm import tqdm

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.datasets import make_requests
from pelton.bench.latency_config import LatencyConfig
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
from pelton.config import EngineArgs
from pelton.engine.input_processor import Prompt
from pelton.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)


def run_latency(config: LatencyConfig, args: EngineArgs) -> dict[str, Any]:
    """Load the model, and time batches of random prompts, one after the other. Progress is shown on terminals.

    Returns vLLM's `avg_latency` (seconds), `latencies` and `percentiles` ({"10": seconds, ...}); beside them

    - `output_tokens_per_second`, `total_tokens_per_second` (prompts included): of all timed batches
    - `ms_per_output_token`: average time of a batch, its prompts included, for each token of an output
    - `preemptions` of the timed batches; `settings`, and what `measured_on` tells

    Raises ValueError for a model that cannot be read and for a batch that does not run at once, FailedRequestsError for
    requests that fail.
    """
    if config.batch_size * config.n > args.scheduler.max_num_seqs:
        raise ValueError(
            f"batch_size times n is {config.batch_size * config.n}, but max_num_seqs is {args.scheduler.max_num_seqs}, "
            "so that they would not run at once; raise max_num_seqs"
        )
    machine = machine_for(args)
    llm = LLM(**args.to_plain())
    try:
        check_fits(llm, config.input_len + config.output_len, "input_len + output_len")
        return (
            measured_on("latency", llm.llm_engine.description, args, machine)
            | {"settings": asdict(config)}
            | _measure(llm, config)
        )
    finally:
        llm.shutdown()


def _measure(llm: LLM, config: LatencyConfig) -> dict[str, Any]:
    batches = _batches(llm, config)
    params = sampling_params(config.output_len, n=config.n, seed=config.seed, detokenize=not config.disable_detokenize)
    latencies = []
    num_in = num_out = 0
    before = engine_counts(llm)
    for number, batch in enumerate(tqdm(batches, "Batches", leave=False, disable=None)):
        if number == config.num_iters_warmup:
            before = engine_counts(llm)
        seconds, outputs = timed_generate(llm, batch, [params] * config.batch_size)
        if number >= config.num_iters_warmup:
            latencies.append(seconds)
            num_in += num_prompt_tokens(outputs)
            num_out += num_output_tokens(outputs)
    total = sum(latencies)
    average = total / len(latencies)
    return {
        "avg_latency": average,
        "latencies": latencies,
        "percentiles": {str(percent): float(np.percentile(latencies, percent)) for percent in PERCENTILES},
        "output_tokens_per_second": num_out / total,
        "total_tokens_per_second": (num_in + num_out) / total,
        "ms_per_output_token": 1e3 * average / config.output_len,
        "preemptions": engine_counts(llm)["preemptions"] - before["preemptions"],
    }


def _batches(llm: LLM, config: LatencyConfig) -> list[list[Prompt]]:
    """Prompts of all batches, no two of them alike, so that none comes from the prefix cache."""
    num_batches = config.num_iters_warmup + config.num_iters
    dataset = DatasetConfig(
        num_prompts=num_batches * config.batch_size,
        random_input_len=config.input_len,
        random_output_len=config.output_len,
        seed=config.seed,
    )
    tokenizer = llm.get_tokenizer()
    prompts = [prompt_of(request, tokenizer) for request in make_requests(dataset, tokenizer)]
    return [prompts[start : start + config.batch_size] for start in range(0, len(prompts), config.batch_size)]


def report(result: Mapping[str, Any]) -> str:
    """For people. The lines on latency are vLLM's."""
    settings = result["settings"]
    each = f"{settings['input_len']} prompt and {settings['output_len']} output tokens each"
    choices = f", {settings['n']} outputs per request" if settings["n"] > 1 else ""
    caching = "on" if result["engine_args"]["enable_prefix_caching"] else "off"
    times = f"{settings['num_iters_warmup']} warm-ups, then {settings['num_iters']} timed"
    lines = [
        heading(result),
        f"Batch: {settings['batch_size']} requests, {each}{choices}; prefix caching {caching}; {times}",
        f"Avg latency: {result['avg_latency']:.4f} seconds",
    ]
    for percent, seconds in result["percentiles"].items():
        lines.append(f"{percent}% percentile latency: {seconds:.4f} seconds")
    rates = f"{result['output_tokens_per_second']:.2f} output, {result['total_tokens_per_second']:.2f} total"
    lines.append(f"Tokens per second: {rates}")
    lines.append(f"Per output token of a request, its prompt included: {result['ms_per_output_token']:.3f} ms")
    if result["preemptions"]:
        lines.append(f"Preemptions: {result['preemptions']}; the KV cache is too small for this batch")
    return "\n".join(lines)
