"""Offline workloads, the same for every engine, and the program that runs them in one engine's own environment.

    .venv/bin/python benchmarks/peers/workloads.py --engine pelton:int8 --model smollm2 --workloads stream
    ENVIRONMENT/bin/python benchmarks/peers/workloads.py --engine llama.cpp:Q4_0 --model FILE.gguf

All greedy, with prompts of random tokens, other ones in every repetition, without end of sequence and text. Loading is
not timed, nor a warm-up of each workload: as many requests of the same lengths, of other tokens. Prints one line of
JSON when the engine is ready, and one per repetition and workload. `benchmarks/peers` runs this for several engines in
turn. Uses only Python's standard library, and the engine.
"""

import argparse
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol


@dataclass(frozen=True)
class Workload:
    """Requests that come at once; lengths in tokens."""

    num_requests: int
    prompt_len: int
    output_len: int
    prefix_len: int = 0
    """Of what all prompts begin with, before the `prompt_len` that are a request's own."""
    counts_prompt: bool = False
    """The figure is prompt tokens per second, instead of output tokens."""

    @property
    def counted_tokens(self) -> int:
        return self.num_requests * (self.prompt_len if self.counts_prompt else self.output_len)


WORKLOADS = {
    "offline": Workload(64, 128, 128),
    "stream": Workload(1, 32, 128),
    "prefill": Workload(4, 1024, 1, counts_prompt=True),
    "shared_prefix": Workload(64, 32, 16, prefix_len=1024),
    "short_batch": Workload(32, 32, 32),
    "short_prefill": Workload(2, 512, 1, counts_prompt=True),
    "short_stream": Workload(1, 32, 32),
    "smoke": Workload(2, 16, 8),
}
DEFAULT_WORKLOADS = ("offline", "stream", "prefill", "shared_prefix")
MOST_TOKENS = 2048
"""Of a request, prompt and output: room for all workloads."""
MOST_REQUESTS = 64
MOST_WARMUP_OUTPUT = 1024
"""Output tokens of all requests of a warm-up together: large batches get fewer steps, which are all alike."""
MODULES = {
    "pelton": "pelton_engine",
    "llama.cpp": "llama_cpp_engine",
    "openvino": "openvino_engine",
    "vllm": "vllm_engine",
    "transformers": "transformers_engine",
}
"""Engine -> module with its `create(model, weight_format, num_threads, settings)`."""


class Engine(Protocol):
    def prepare(self, num_requests: int, num_tokens: int) -> None:
        """Make room for so many requests of so many tokens each, prompt and output."""

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        """Number of tokens that each request got."""


def prompts(num_requests: int, num_tokens: int, purpose: str) -> list[list[int]]:
    """Random tokens, other ones for every purpose: a prefix cache finds nothing of one in another."""
    rng = random.Random(purpose)
    return [[rng.randrange(1000, 40_000) for _ in range(num_tokens)] for _ in range(num_requests)]


def common_prefix(token_ids: Sequence[list[int]]) -> list[int]:
    """What all begin with, without the last token of any: for engines that compute it once by themselves."""
    if len(token_ids) == 1:
        return []
    shared = takewhile(lambda column: len(set(column)) == 1, zip(*token_ids, strict=False))
    return [column[0] for column in shared][: min(map(len, token_ids)) - 1]


def requests(name: str, repetition: int, purpose: str) -> list[list[int]]:
    """The prompts of a workload. `purpose`: warm-up, or timed."""
    workload = WORKLOADS[name]
    (prefix,) = prompts(1, workload.prefix_len, f"{name} {repetition} {purpose} prefix")
    own = prompts(workload.num_requests, workload.prompt_len, f"{name} {repetition} {purpose}")
    return [prefix + ids for ids in own]


def measure(engine: Engine, name: str, repetition: int) -> dict[str, object]:
    workload = WORKLOADS[name]
    num_requests, num_out = workload.num_requests, workload.output_len
    engine.prepare(num_requests, workload.prefix_len + workload.prompt_len + num_out)
    engine.generate(requests(name, repetition, "warm-up"), min(num_out, MOST_WARMUP_OUTPUT // num_requests))
    timed = requests(name, repetition, "timed")
    start = time.perf_counter()
    lengths = engine.generate(timed, num_out)
    seconds = time.perf_counter() - start
    if lengths != [num_out] * num_requests:
        raise RuntimeError(f"{name}: asked for {num_out} tokens of each request, and got {sorted(set(lengths))}")
    row = {"workload": name, "repetition": repetition, "seconds": round(seconds, 4)}
    return row | {"tokens_per_s": round(workload.counted_tokens / seconds, 1)}


def run(engine_name: str, model: str, num_threads: int, settings: Mapping[str, Any], names: Sequence[str],
        repetitions: range, tell: Any) -> None:  # fmt: skip
    name, _, weight_format = engine_name.partition(":")
    start = time.perf_counter()
    engine: Engine = importlib.import_module(MODULES[name]).create(model, weight_format, num_threads, settings)
    tell({"engine": engine_name, "load_seconds": round(time.perf_counter() - start, 2)})
    for repetition in repetitions:
        for workload in names:
            tell({"engine": engine_name} | measure(engine, workload, repetition))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="pelton:bf16", help=f"ENGINE:FORMAT; engines: {', '.join(MODULES)}")
    parser.add_argument("--model", default="smollm2", help="what the engine takes; other engines need a path")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--settings", type=json.loads, default={}, help="of the engine's module, as JSON")
    parser.add_argument("--first-repetition", type=int, default=0, help="repetitions have prompts of their own")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--workloads", nargs="+", default=DEFAULT_WORKLOADS, choices=list(WORKLOADS))
    options = parser.parse_args()
    # Engines write to standard output too, some of them from C++: they get standard error.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    repetitions = range(options.first_repetition, options.first_repetition + options.repetitions)

    def tell(row: Mapping[str, object]) -> None:
        print(json.dumps(row), file=lines, flush=True)

    run(options.engine, options.model, options.threads, options.settings, options.workloads, repetitions, tell)
    sys.stdout.flush()
    lines.flush()


if __name__ == "__main__":
    main()
