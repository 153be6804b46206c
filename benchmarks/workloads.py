"""Offline workloads, for comparisons between engines: greedy, prompts of random tokens, nothing cached, no text.

    .venv/bin/python benchmarks/workloads.py                                     # Pelton, bfloat16
    .venv/bin/python benchmarks/workloads.py --engine pelton:int4 --model FILE.gguf --workloads stream
    /tmp/llama/bin/python benchmarks/workloads.py --engine llama.cpp:Q4_0 --model FILE.gguf

- offline: 64 requests of 128 prompt and 128 output tokens, all at once; output tokens/s.
- stream: one request of 32 prompt and 128 output tokens; output tokens/s.
- prefill: 4 prompts of 1,024 tokens with one output token; prompt tokens/s.
- short_stream, short_batch: 1 and 32 requests of 32 prompt and 32 output tokens, for larger models; output tokens/s.
- smoke: 2 requests of 16 and 8 tokens, to see whether an engine works.

Prints one line of JSON per repetition and workload. What is loaded and allocated, and a short warm-up of each workload,
are not timed. Other engines need environments of their own (docs/benchmarks.md); compare.py runs several in turn.
"""

import argparse
import importlib
import json
import os
import random
import time
from typing import Protocol

WORKLOADS = {
    "offline": (64, 128, 128),
    "stream": (1, 32, 128),
    "prefill": (4, 1024, 1),
    "short_stream": (1, 32, 32),
    "short_batch": (32, 32, 32),
    "smoke": (2, 16, 8),
}
"""Requests, prompt tokens, output tokens."""
DEFAULT_WORKLOADS = ["offline", "stream", "prefill"]
PEERS = {"llama.cpp": "peers.llama_cpp_engine", "openvino": "peers.openvino_engine", "vllm": "peers.vllm_engine"}
"""Engine -> module with its `create(model, num_threads)`. It is imported in the engine's own environment."""
PELTON_FORMATS = {
    "fp32": {"dtype": "float32", "quantization": "none"},
    "bf16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "auto": {},
}
"""Arguments of `LLM`."""


class Engine(Protocol):
    def prepare(self, num_requests: int, num_tokens: int) -> None:
        """Make room for so many requests of so many tokens each, prompt and output."""

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        """Number of tokens that each request got."""


class PeltonEngine:
    def __init__(self, model: str, weight_format: str, num_threads: int) -> None:
        from pelton import LLM

        arguments = PELTON_FORMATS[weight_format] | {"num_threads": num_threads, "max_model_len": 2048}
        self.llm = LLM(model=model, enable_prefix_caching=False, **arguments)

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        from pelton import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def create_engine(spec: str, model: str, num_threads: int) -> Engine:
    """`spec` is pelton:FORMAT, or a peer's name; what follows its colon is the model's type, and only shown."""
    name, _, weight_format = spec.partition(":")
    if name == "pelton":
        return PeltonEngine(model, weight_format, num_threads)
    engine: Engine = importlib.import_module(PEERS[name]).create(model, num_threads)
    return engine


def prompts(num_requests: int, num_tokens: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1000, 40_000) for _ in range(num_tokens)] for _ in range(num_requests)]


def measure(engine: Engine, workload: str, repetition: int) -> dict[str, object]:
    num_requests, num_in, num_out = WORKLOADS[workload]
    engine.prepare(num_requests, num_in + num_out)
    engine.generate(prompts(num_requests, 16, seed=-1), min(num_out, 4))
    requests = prompts(num_requests, num_in, seed=repetition)
    start = time.perf_counter()
    lengths = engine.generate(requests, num_out)
    seconds = time.perf_counter() - start
    assert lengths == [num_out] * num_requests, lengths
    num_tokens = num_requests * (num_in if workload == "prefill" else num_out)
    row = {"workload": workload, "repetition": repetition, "seconds": round(seconds, 4)}
    return row | {"tokens_per_s": round(num_tokens / seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="pelton:bf16", help=f"pelton:FORMAT ({', '.join(PELTON_FORMATS)}), or a "
                        f"peer ({', '.join(PEERS)}) and a name for the model's type")  # fmt: skip
    parser.add_argument("--model", default="smollm2", help="what the engine takes; other engines need a path")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=DEFAULT_WORKLOADS, choices=list(WORKLOADS))
    options = parser.parse_args()
    engine = create_engine(options.engine, options.model, options.threads)
    for repetition in range(options.repetitions):
        for workload in options.workloads:
            row = {"engine": options.engine} | measure(engine, workload, repetition)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
