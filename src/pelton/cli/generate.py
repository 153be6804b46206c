"""`pelton generate`: complete prompts, streaming to the terminal."""

import argparse
import sys
import time
from dataclasses import dataclass, field

from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.core.outputs import RequestOutput
from pelton.engine.llm_engine import LLMEngine
from pelton.sampling_params import RequestOutputKind, SamplingParams


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
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
    sampling.add_argument(
        "--stop-token-ids", type=int, action="append", metavar="ID", help="token that ends the output; repeatable."
    )
    sampling.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-sequence token.")
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


@dataclass
class _Figures:
    """What is said at the end."""

    start: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cut: int = 0
    """Outputs that ended for their length."""
    failures: list[str] = field(default_factory=list)
    """Messages of requests that failed."""

    def add(self, output: RequestOutput) -> None:
        completion = output.outputs[0]
        self.num_output_tokens += len(completion.token_ids)
        if self.first_token is None:
            self.first_token = time.perf_counter()
        if output.finished:
            self.num_prompt_tokens += len(output.prompt_token_ids)
            self.num_cut += completion.finish_reason == "length"
        if completion.finish_reason == "error":
            self.failures.append(str(completion.stop_reason))

    def report(self) -> str:
        seconds = time.perf_counter() - self.start
        first = seconds if self.first_token is None else self.first_token - self.start
        decoding = max(seconds - first, 1e-9)
        return (
            f"{self.num_prompt_tokens} prompt tokens, {self.num_output_tokens} output tokens in {seconds:.2f} s; "
            f"first token after {first:.2f} s, then {max(0, self.num_output_tokens - 1) / decoding:.1f} tokens/s"
            + (f"; {self.num_cut} cut off by --max-tokens or the context length" if self.num_cut else "")
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
    figures = _Figures()
    texts: dict[str, str] = {}
    for prompt in options.prompts:
        text = prompt
        if options.chat:
            text = engine.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
        request_id = engine.add_request(text, params)
        texts[request_id] = f"=== {prompt}\n" if len(options.prompts) > 1 else ""
    _stream(engine, texts, figures)
    print(figures.report(), file=sys.stderr)
    for failure in figures.failures:
        print(f"pelton: a request failed: {failure}", file=sys.stderr)
    return 1 if figures.failures else 0


def _stream(engine: LLMEngine, texts: dict[str, str], figures: _Figures) -> None:
    """Print the outputs in the order of the prompts: the first unfinished one live, later ones in their turn.

    `texts` holds what each request still has to print, to begin with its heading.
    """
    finished: set[str] = set()
    while texts:
        for output in engine.step():
            figures.add(output)
            texts[output.request_id] += output.outputs[0].text
            if output.finished:
                finished.add(output.request_id)
        for request_id in list(texts):
            print(texts[request_id], end="", flush=True)
            texts[request_id] = ""
            if request_id not in finished:
                break
            print()
            del texts[request_id]
