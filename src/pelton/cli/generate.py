"""`pelton generate`: complete prompts, streaming to the terminal."""

import argparse
import sys
import time
from dataclasses import dataclass, field

from pelton.config import EngineArgs
from pelton.engine.llm_engine import LLMEngine
from pelton.sampling_params import RequestOutputKind, SamplingParams


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pelton generate",
        description="Complete prompts and stream the text to standard output; figures go to standard error.",
    )
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="text to complete; several run as one batch")
    parser.add_argument(
        "--chat",
        action="store_true",
        help="wrap each prompt as a user's message in the model's chat template",
    )
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=256, help="most tokens per output. Default: 256.")
    sampling.add_argument(
        "--temperature", type=float, default=1.0, help="divides the logits; 0 means greedy. Default: 1.0."
    )
    sampling.add_argument("--top-k", type=int, default=0, help="sample from the k most likely tokens. Default: all.")
    sampling.add_argument("--top-p", type=float, default=1.0, help="sample from this probability mass. Default: 1.0.")
    sampling.add_argument("--seed", type=int, help="makes sampling repeatable.")
    sampling.add_argument("--stop", action="append", metavar="TEXT", help="string that ends the output; repeatable.")
    sampling.add_argument("--stop-token-ids", type=int, nargs="+", metavar="ID", help="tokens that end the output.")
    sampling.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-sequence token.")
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


@dataclass
class _Progress:
    """What the figures at the end are made of."""

    start: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0

    def report(self) -> str:
        seconds = time.perf_counter() - self.start
        first = seconds if self.first_token is None else self.first_token - self.start
        decoding = max(seconds - first, 1e-9)
        return (
            f"{self.num_prompt_tokens} prompt tokens, {self.num_output_tokens} output tokens in {seconds:.2f} s; "
            f"first token after {first:.2f} s, then {max(0, self.num_output_tokens - 1) / decoding:.1f} tokens/s"
        )


def run(options: argparse.Namespace) -> int:
    params = SamplingParams(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
        ignore_eos=options.ignore_eos,
        stop=options.stop,
        stop_token_ids=options.stop_token_ids,
        output_kind=RequestOutputKind.DELTA,
    )
    args = EngineArgs.from_cli_args(options)
    engine = LLMEngine.from_engine_args(args, progress=sys.stderr.isatty())
    progress = _Progress()
    request_ids = []
    for prompt in options.prompts:
        if options.chat:
            prompt = engine.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
        request_ids.append(engine.add_request(prompt, params))
    failures = _stream(engine, request_ids, progress)
    print(progress.report(), file=sys.stderr)
    for failure in failures:
        print(f"pelton: a request failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _stream(engine: LLMEngine, request_ids: list[str], progress: _Progress) -> list[str]:
    """Print the outputs in the order of the prompts: the first unfinished one live, later ones when their turn
    comes. Returns the messages of requests that failed."""
    waiting_text: dict[str, list[str]] = {request_id: [] for request_id in request_ids}
    finished: set[str] = set()
    failures: list[str] = []
    turn = 0
    while turn < len(request_ids):
        for output in engine.step():
            completion = output.outputs[0]
            waiting_text[output.request_id].append(completion.text)
            progress.num_output_tokens += len(completion.token_ids)
            if progress.first_token is None:
                progress.first_token = time.perf_counter()
            if output.finished:
                progress.num_prompt_tokens += len(output.prompt_token_ids)
                finished.add(output.request_id)
                if completion.finish_reason == "error":
                    failures.append(str(completion.stop_reason))
        while turn < len(request_ids):
            current = request_ids[turn]
            print(*waiting_text[current], sep="", end="", flush=True)
            waiting_text[current].clear()
            if current not in finished:
                break
            print()
            turn += 1
    return failures
