"""What a step costs besides the model, with 1, 64 and 256 running requests.

The whole engine runs (scheduler, KV cache, batch, output processor with detokenization), only the model is a
fake that returns ready-made tokens. Reports the median time per decode step, the model's own share taken off. What the
replay of a program costs (checking inputs, taking their addresses) counts as the model's.

    .venv/bin/python benchmarks/step_overhead.py [--steps 200] [--requests 1 64 256]

Ends with one line of JSON.
"""

import argparse
import json
import platform
import statistics
import time

import numpy as np

from pelton.config import EngineArgs
from pelton.core.kv_spec import FullAttentionSpec
from pelton.engine.core_client import InprocClient
from pelton.engine.engine_core import EngineCore
from pelton.engine.input_processor import InputProcessor
from pelton.engine.llm_engine import LLMEngine
from pelton.engine.output_processor import OutputProcessor
from pelton.executor import UniprocExecutor
from pelton.loader import open_checkpoint
from pelton.runner.input_batch import InputBatch, StepInputs
from pelton.runner.model_runner import ModelRunner
from pelton.runner.sampling_state import SamplingState
from pelton.runner.step_results import StepResults
from pelton.sampling_params import RequestOutputKind, SamplingParams
from pelton.tokenizer import load_tokenizer

AIMS_MS = {1: 0.1, 64: 1.0, 256: 3.0}
PROMPT_TOKENS = 128
MAX_MODEL_LEN = 2048


class FakeModel:
    """Returns random tokens of the vocabulary, and knows how long it took."""

    def __init__(self, vocab_size: int, max_num_seqs: int) -> None:
        rng = np.random.default_rng(0)
        self._tokens = rng.integers(0, vocab_size, (64, max_num_seqs), dtype=np.int32)
        self._step = 0
        self.seconds = 0.0

    def run(self, inputs: StepInputs) -> StepResults:
        start = time.perf_counter()
        self._step += 1
        results = StepResults(self._tokens[self._step % 64, : len(inputs.logits_rows)])
        self.seconds = time.perf_counter() - start
        return results


class FakeWorker:
    def __init__(self, args: EngineArgs, vocab_size: int) -> None:
        self._args = args
        self._vocab_size = vocab_size
        self.model = FakeModel(vocab_size, args.scheduler.max_num_seqs)

    def kv_specs(self):
        return [FullAttentionSpec(self._args.cache.block_size, 3, 64, "float32")] * 30

    def available_memory(self) -> int:
        return 1 << 40

    def initialize(self, groups, num_blocks, max_model_len) -> None:
        max_num_seqs = self._args.scheduler.max_num_seqs
        sampling = SamplingState(max_num_seqs, self._vocab_size)
        self._runner = ModelRunner(self.model, InputBatch(groups, max_num_seqs, max_model_len, sampling))

    def execute(self, step):
        return self._runner.execute(step)

    def shutdown(self) -> None:
        pass


def measure(num_requests: int, num_steps: int, params: SamplingParams) -> dict[str, float]:
    checkpoint = open_checkpoint("smollm2")
    tokenizer = load_tokenizer(checkpoint)
    args = EngineArgs.create(max_model_len=MAX_MODEL_LEN, num_gpu_blocks_override=256 * 128 + 1)
    worker = FakeWorker(args, checkpoint.config.vocab_size)
    core = EngineCore(args, UniprocExecutor(worker), MAX_MODEL_LEN)
    inputs = InputProcessor(args, tokenizer, [2], checkpoint.config.vocab_size, MAX_MODEL_LEN)
    engine = LLMEngine(InprocClient(core), inputs, OutputProcessor(tokenizer), tokenizer)
    rng = np.random.default_rng(1)
    for _ in range(num_requests):
        engine.add_request(rng.integers(0, 49_000, PROMPT_TOKENS).tolist(), params)
    while core.scheduler.waiting or any(
        request.num_computed_tokens < PROMPT_TOKENS for request in core.scheduler.running
    ):
        engine.step()
    times = []
    for _ in range(num_steps):
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start - worker.model.seconds) * 1e3)
    assert engine.num_unfinished_requests == num_requests, "the batch must not shrink while it is measured"
    times.sort()
    return {
        "requests": num_requests,
        "median_ms": round(statistics.median(times), 4),
        "p10_ms": round(times[len(times) // 10], 4),
        "p90_ms": round(times[len(times) * 9 // 10], 4),
        "aim_ms": AIMS_MS.get(num_requests),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--requests", type=int, nargs="+", default=list(AIMS_MS))
    parser.add_argument("--stream", action="store_true", help="emit an output for every token, as a server does")
    parser.add_argument("--edits", action="store_true", help="requests with top-p, all penalties and a stop string")
    options = parser.parse_args()
    edits = {
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "stop": ["\n\n\n\n\n"],
    }
    params = SamplingParams(
        **(edits if options.edits else {}),
        temperature=0.8,
        seed=1,
        max_tokens=options.steps + 100,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA if options.stream else RequestOutputKind.FINAL_ONLY,
    )
    results = [measure(num, options.steps, params) for num in options.requests]
    print(f"{'requests':>8} {'median ms':>10} {'p10':>8} {'p90':>8} {'aim':>6} {'us/request':>11}")
    for row in results:
        print(
            f"{row['requests']:>8} {row['median_ms']:>10.3f} {row['p10_ms']:>8.3f} {row['p90_ms']:>8.3f} "
            f"{row['aim_ms'] or '-':>6} {row['median_ms'] / row['requests'] * 1e3:>11.2f}"
        )
    print(json.dumps({"benchmark": "step_overhead", "python": platform.python_version(), "results": results}))


if __name__ == "__main__":
    main()
