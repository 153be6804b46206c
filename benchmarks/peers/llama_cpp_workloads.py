"""workloads.py for llama.cpp, through its Python bindings, in an environment of its own.

    python3 -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python    # compiles for minutes
    /tmp/llama/bin/python benchmarks/peers/llama_cpp_workloads.py FILE.gguf

export.py makes a file with bfloat16 weights of another GGUF file.
"""

import argparse
import ctypes
import json
import os
import random
import time

import llama_cpp

WORKLOADS = {"offline": (64, 128, 128), "stream": (1, 32, 128), "prefill": (4, 1024, 1)}
BATCH = 2048


def prompts(num_requests, num_tokens):
    rng = random.Random(0)
    return [[rng.randrange(1000, 40_000) for _ in range(num_tokens)] for _ in range(num_requests)]


class Engine:
    """A context with a sequence for each request, as long as they get, decoded together."""

    def __init__(self, model, threads, num_requests, num_tokens):
        params = llama_cpp.llama_context_default_params()
        length = -(-num_tokens // 256) * 256
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = (
            num_requests * length,
            BATCH,
            512,
            num_requests,
        )
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        self.context = llama_cpp.llama_init_from_model(model, params)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(self, entries):
        """entries: (token, position, sequence, wants logits). -> the best token of each that wants logits."""
        found = []
        for start in range(0, len(entries), BATCH):
            part = entries[start : start + BATCH]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, wants) in enumerate(part):
                self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wants
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            assert llama_cpp.llama_decode(self.context, self.batch) == 0
            for i, entry in enumerate(part):
                if entry[3]:
                    found.append(self._best(i))
        return found

    def _best(self, index):
        return llama_cpp.llama_sampler_sample(self.greedy, self.context, index)

    def run(self, requests, num_out):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.greedy = llama_cpp.llama_sampler_init_greedy()
        last = len(requests[0]) - 1
        entries = [(t, p, s, p == last) for s, ids in enumerate(requests) for p, t in enumerate(ids)]
        tokens = self.decode(entries)
        for step in range(1, num_out):
            tokens = self.decode([(token, last + step, s, True) for s, token in enumerate(tokens)])
        assert len(tokens) == len(requests)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()
    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(options.model.encode(), llama_cpp.llama_model_default_params())
    engines = {
        name: Engine(model, options.threads, num_requests, num_in + num_out)
        for name, (num_requests, num_in, num_out) in WORKLOADS.items()
    }
    for number in range(options.rounds):
        for name in options.workloads:
            num_requests, num_in, num_out = WORKLOADS[name]
            engine = engines[name]
            if number == 0:
                engine.run(prompts(num_requests, 16), 2)
            start = time.perf_counter()
            engine.run(prompts(num_requests, num_in), num_out)
            seconds = time.perf_counter() - start
            tokens = num_requests * (num_in if name == "prefill" else num_out)
            row = {"engine": "llama.cpp", "workload": name, "round": number, "seconds": round(seconds, 4)}
            print(json.dumps(row | {"tokens_per_s": round(tokens / seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
