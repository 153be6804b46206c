"""Three workloads, offline, for comparisons with other engines: greedy, prompts of random tokens, nothing cached.

    .venv/bin/python benchmarks/workloads.py [--model smollm2] [--dtype bfloat16] [--rounds 3]

- offline: 64 requests of 128 prompt and 128 output tokens, all at once; output tokens/s.
- stream: one request of 32 prompt and 128 output tokens; output tokens/s.
- prefill: 4 prompts of 1,024 tokens with one output token; prompt tokens/s.

Prints one line of JSON per round and workload. peers/ has the same for other engines, compare.py runs all in turn.
"""

import argparse
import json
import random
import time

from pelton import LLM, SamplingParams

WORKLOADS = {"offline": (64, 128, 128), "stream": (1, 32, 128), "prefill": (4, 1024, 1)}
"""Requests, prompt tokens, output tokens."""


def prompts(num_requests: int, num_tokens: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1000, 40_000) for _ in range(num_tokens)] for _ in range(num_requests)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()
    llm = LLM(model=options.model, dtype=options.dtype, enable_prefix_caching=False, max_model_len=2048)
    llm.generate(prompts(2, 16), SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    for number in range(options.rounds):
        for name in options.workloads:
            num_requests, num_in, num_out = WORKLOADS[name]
            params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True, detokenize=False)
            start = time.perf_counter()
            outputs = llm.generate(prompts(num_requests, num_in), params, use_tqdm=False)
            seconds = time.perf_counter() - start
            assert all(len(output.outputs[0].token_ids) == num_out for output in outputs)
            tokens = num_requests * (num_in if name == "prefill" else num_out)
            row = {"engine": "pelton", "workload": name, "round": number, "seconds": round(seconds, 4)}
            print(json.dumps(row | {"tokens_per_s": round(tokens / seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
