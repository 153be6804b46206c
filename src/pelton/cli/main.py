"""Entry point of the `pelton` command."""

import argparse
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from pelton import __version__
from pelton.cli.messages import complain
from pelton.cli.parser import CommandParser

COMMANDS = {
    "generate": ("pelton.cli.generate", "complete prompts"),
    "chat": ("pelton.cli.chat", "talk with a model"),
    "serve": ("pelton.cli.serve", "answer requests over HTTP"),
    "run-batch": ("pelton.cli.run_batch", "answer the requests of a file"),
    "models": ("pelton.cli.models", "list models, or describe one"),
    "bench": ("pelton.cli.bench", "measure the engine, a server, or the machine"),
    "tune": ("pelton.cli.tune", "find the settings of a server that serve a workload best"),
}
"""Command: (module with `make_parser` and `run`, what it does). Loaded when used, so that help is quick."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for a failure, 2 for a mistake in what was asked."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Models write any character; a terminal that cannot show one must not end the program.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _logging_to_stderr():
            return _run_command(arguments)
    except ValueError as error:
        complain(str(error))
        return 2
    except MemoryError as error:
        complain(f"the memory does not suffice{f' ({error})' if str(error) else ''}; ask for less at a time")
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # then whoever read our output has gone, and knows it
            complain(f"{error.filename or 'the system says'}: {error.strerror or error}")
        # What is left of the output can go nowhere; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _open_standard_streams() -> None:
    """Where one was closed, as by `<&-`: the next file or socket would take its place, and libuv aborts on that."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


@contextmanager
def _logging_to_stderr() -> Iterator[None]:
    """Show what Pelton logs, and only that: other libraries' loggers stay as they are."""
    logger = logging.getLogger("pelton")
    handler = logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _run_command(arguments: Sequence[str] | None) -> int:
    parser = CommandParser(
        prog="pelton",
        description="Inference engine for large language models.",
        epilog="commands: " + "; ".join(f"{name}: {does}" for name, (_, does) in COMMANDS.items()),
    )
    parser.add_argument("--version", action="version", version=f"pelton {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="`pelton COMMAND --help` says more")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the command takes")
    options = parser.parse_args(arguments)
    command = import_module(COMMANDS[options.command][0])
    return int(command.run(command.make_parser().parse_args(options.arguments)))


if __name__ == "__main__":
    sys.exit(main())
