"""Whole forward passes of a model, head and sampling included, as the engine runs them.

Decode steps of 1, 8 and 64 requests behind a context of 256 tokens, and prefills of one prompt of 64, 512 and 1,024
tokens: the median of several steps, in tokens per second. Nothing is scheduled; the rest of a worker's step is in. All
of the KV cache that they read was written before, so that it comes from memory as it would in use.

    .venv/bin/python benchmarks/forward.py [--model smollm2] [--dtype bfloat16] [--cells decode:1:256 prefill:512]

Ends with one line of JSON.
"""

import argparse
import json
import statistics
import time
from contextlib import closing

from pelton.bench.steps import StepBench, StepShape
from pelton.config import EngineArgs
from pelton.ops.cpu import CPUBackend
from pelton.sampling_params import SamplingParams

CELLS = ["decode:1:256", "decode:8:256", "decode:64:256", "prefill:64", "prefill:512", "prefill:1024"]


def shape_of(cell: str) -> StepShape:
    kind, *numbers = cell.split(":")
    if kind == "decode":
        num_requests, context = map(int, numbers)
        return StepShape(num_requests, 1, context)
    return StepShape(1, int(numbers[0]), 0)


def measure(bench: StepBench, cell: str, seconds: float) -> dict:
    shape = shape_of(cell)
    for _ in range(2):
        bench.run(shape)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        times.append(bench.run(shape))
    num_tokens = shape.num_requests * shape.num_tokens
    return {
        "cell": cell,
        "tokens_per_s": round(num_tokens / statistics.median(times), 1),
        "best_tokens_per_s": round(num_tokens / min(times), 1),
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
    )
    params = SamplingParams(temperature=0.0)
    if options.top_p is not None:
        params = SamplingParams(temperature=0.8, top_p=options.top_p, seed=1)
    with closing(StepBench(args, [shape_of(cell) for cell in options.cells], params)) as bench:
        cells = [measure(bench, cell, options.seconds) for cell in options.cells]
        barrier = round(bench.backend.barrier_ns()) if isinstance(bench.backend, CPUBackend) else None
    for row in cells:
        print(f"{row['cell']:>16} {row['tokens_per_s']:>9} tok/s {row['median_ms']:>10} ms (best {row['best_ms']})")
    tags = {"model": options.model, "dtype": options.dtype, "quantization": options.quantization}
    tags |= {"backend": bench.backend.name, "barrier_ns": barrier}
    print(json.dumps({"benchmark": "forward", **tags, "top_p": options.top_p, "cells": cells}))


if __name__ == "__main__":
    main()
