"""`pelton run-batch`: answer the requests of a file, in the format of OpenAI's batches."""

import argparse
from contextlib import ExitStack
from dataclasses import Field, fields, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from pelton.cli.chat_template_flag import given_chat_template
from pelton.cli.messages import OUTPUT, complain, note, system_errors_of
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.config.options import add_flags, from_flags
from pelton.config.serving import ParallelConfig, ServeConfig

if TYPE_CHECKING:
    from pelton.cli.nonblocking_lines import NonblockingLines

STANDARD_OUTPUT = "-"

_DESCRIPTION = (
    "Answer the requests of a file in the format of OpenAI's batches: lines with custom_id, method (POST), url "
    "(/v1/chat/completions or /v1/completions) and body. Each answer is written as soon as it is there, so their "
    "order is not that of the requests; custom_id tells which is whose. A line that is refused or fails has an answer "
    "with an error, and costs no other line anything. Exit status: 0, 1 if a request failed, 2 for a mistake in what "
    "was asked, 130 after Ctrl-C, when all that is finished has been written."
)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="pelton run-batch", description=_DESCRIPTION)
    parser.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="requests in JSON lines, - for standard input"
    )
    parser.add_argument(
        "-o",
        "--output-file",
        required=True,
        metavar="FILE",
        help="where answers go, - for standard output; what the file has is overwritten",
    )
    add_flags(parser, _SERVE_FLAGS)
    add_flags(parser, _PARALLEL_FLAGS)
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


def _some(kind: Any, *names: str) -> "list[Field[Any]]":
    return [declared for declared in fields(kind) if declared.name in names]


_SERVE_FLAGS = _some(
    ServeConfig,
    "served_model_name",
    "chat_template",
    "trust_request_chat_template",
    "tool_call_parser",
    "enable_auto_tool_choice",
)
_PARALLEL_FLAGS = _some(ParallelConfig, "data_parallel_size")


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the model is refused before anything is started."""
    args = EngineArgs.from_cli_args(options)
    serve, parallel = from_flags(ServeConfig, options), from_flags(ParallelConfig, options)
    serve = replace(serve, chat_template=given_chat_template(serve.chat_template))
    from pelton.cli.jsonl_files import open_files

    output = None if options.output_file == STANDARD_OUTPUT else options.output_file
    files = open_files(options.input_file, output, source_flag="--input-file", output_flag="--output-file")
    with files as (source, target):
        return _run(args, serve, parallel, source, target)


def _run(
    args: EngineArgs, serve: ServeConfig, parallel: ParallelConfig, source: "NonblockingLines", target: BinaryIO
) -> int:
    # Help does without these.
    from tqdm import tqdm

    from pelton.cli.jsonl_files import empty
    from pelton.engine.errors import EngineDeadError
    from pelton.server.run_batch import run_batch

    def write(line: bytes) -> None:
        with system_errors_of(OUTPUT):
            target.write(line)
            target.flush()

    with ExitStack() as stack:
        bars: list[tqdm[Any]] = []

        def begin() -> None:
            empty(target)
            # None: on terminals only.
            bar = tqdm(total=source.num_bytes, unit="B", unit_scale=True, leave=False, disable=None)
            bars.append(stack.enter_context(bar))

        def advance(num_bytes: int) -> None:
            bars[0].update(num_bytes)

        try:
            figures = run_batch(
                args,
                serve,
                parallel,
                aiter(source),
                write,
                max_line_bytes=source.max_line_bytes,
                on_ready=begin,
                on_answered=advance,
            )
        except EngineDeadError as error:
            complain(f"{error}; some requests have no answers")
            return 1
    note(figures.report())
    if figures.num_failed:
        complain(f"{figures.num_failed} of {figures.num_requests} requests failed; their answers say why")
    return 1 if figures.num_failed else 0
