"""Whole forward passes of a model, head and sampling included, as the engine runs them.

Decode steps of 1, 8 and 64 requests behind a context of 256 tokens, and prefills of one prompt of 64, 512 and 1,024
tokens: the median of several steps, in tokens per second. Nothing is scheduled; the rest of a worker's step is in.

    .venv/bin/python benchmarks/forward.py [--model smollm2] [--dtype bfloat16] [--cells decode:1:256 prefill:512]

Ends with one line of JSON.
"""

import argparse
import json
import statistics
import time

import numpy as np

from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreRequest, NewRequest, SchedulerOutput
from pelton.kv.groups import group_layers
from pelton.loader import open_checkpoint
from pelton.ops.cpu import CPUBackend
from pelton.runner import CPUWorker
from pelton.sampling_params import SamplingParams

CELLS = ["decode:1:256", "decode:8:256", "decode:64:256", "prefill:64", "prefill:512", "prefill:1024"]
MAX_MODEL_LEN = 2048


def step_of(num_requests: int, num_tokens: int, context: int, num_groups: int, params: SamplingParams, vocab: int):
    """Three steps: the first brings the requests, the second is the same without bringing them, the last ends them."""
    rng = np.random.default_rng(0)
    length = context + num_tokens
    num_blocks = length // 16 + 1
    ids = [f"r{i}" for i in range(num_requests)]
    new = []
    block = 1
    for request_id in ids:
        tables = []
        for _ in range(num_groups):
            tables.append(list(range(block, block + num_blocks)))
            block += num_blocks
        prompt = rng.integers(0, vocab, length).tolist()
        new.append(NewRequest(EngineCoreRequest(request_id, prompt, params, 0.0, []), [], tables))
    counts = [num_tokens] * num_requests, [context] * num_requests, [1] * num_requests
    first = SchedulerOutput(1, ids, *counts, new, {}, [])
    return first, SchedulerOutput(2, ids, *counts, [], {}, []), SchedulerOutput(3, [], [], [], [], [], {}, ids)


def measure(worker: CPUWorker, cell: str, num_groups: int, params: SamplingParams, vocab: int, seconds: float) -> dict:
    kind, *numbers = cell.split(":")
    size, context = (int(numbers[0]), int(numbers[1])) if kind == "decode" else (int(numbers[0]), 0)
    shape = (size, 1, context) if kind == "decode" else (1, size, 0)
    first, again, last = step_of(*shape, num_groups, params, vocab)
    worker.execute(first)
    worker.execute(again)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        worker.execute(again)
        times.append(time.perf_counter() - start)
    worker._runner._batch.update(last)
    return {
        "cell": cell,
        "tokens_per_s": round(size / statistics.median(times), 1),
        "best_tokens_per_s": round(size / min(times), 1),
        "median_ms": round(statistics.median(times) * 1e3, 3),
        "best_ms": round(min(times) * 1e3, 3),
        "steps": len(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="auto", help="of weights: auto, none, int8 or int4")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="decode:REQUESTS:CONTEXT or prefill:TOKENS")
    parser.add_argument("--seconds", type=float, default=2.0, help="per cell")
    parser.add_argument("--top-p", type=float, default=None, help="sample with this top-p instead of greedily")
    options = parser.parse_args()
    args = EngineArgs.create(
        model=options.model,
        dtype=options.dtype,
        quantization=options.quantization,
        num_threads=options.threads,
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks_override=16384,
        generation_config="none",
    )
    checkpoint = open_checkpoint(options.model)
    worker = CPUWorker(args, checkpoint)
    groups = group_layers(worker.kv_specs())
    worker.initialize(groups, 16384, MAX_MODEL_LEN)
    params = SamplingParams(temperature=0.0)
    if options.top_p is not None:
        params = SamplingParams(temperature=0.8, top_p=options.top_p, seed=1)
    vocab = checkpoint.config.vocab_size
    cells = [measure(worker, cell, len(groups), params, vocab, options.seconds) for cell in options.cells]
    for row in cells:
        print(f"{row['cell']:>16} {row['tokens_per_s']:>9} tok/s {row['median_ms']:>10} ms (best {row['best_ms']})")
    backend = worker._backend
    barrier = round(backend.barrier_ns()) if isinstance(backend, CPUBackend) else None
    tags = {"model": options.model, "dtype": options.dtype, "quantization": options.quantization}
    tags |= {"backend": backend.name, "barrier_ns": barrier}
    print(json.dumps({"benchmark": "forward", **tags, "top_p": options.top_p, "cells": cells}))


if __name__ == "__main__":
    main()
