"""`pelton serve`: answer requests over HTTP."""

import argparse
from dataclasses import replace
from pathlib import Path

from pelton.cli.chat_template_flag import given_chat_template
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.config.serving import add_serving_flags, serving_from_flags


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton serve",
        description="Answer requests over HTTP, with the interface of OpenAI's API, until SIGTERM or Ctrl-C.",
    )
    parser.add_argument("served_model", nargs="?", metavar="MODEL", help="the model to serve; the same as --model")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="refused: Pelton never runs code that comes with a model",
    )
    add_serving_flags(parser.add_argument_group("server"), parser.add_argument_group("several engine cores"))
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the model is refused before anything is started."""
    if options.trust_remote_code:
        raise ValueError(
            "--trust-remote-code is given, but Pelton never runs code that comes with a model; leave it out"
        )
    if options.served_model is not None:
        if hasattr(options, "model"):
            raise ValueError("MODEL and --model are both given; leave one of them out")
        options.model = options.served_model
    args = EngineArgs.from_cli_args(options)
    serve, parallel = serving_from_flags(options)
    if serve.api_key_file is not None:
        serve = replace(serve, api_key=(*serve.api_key, *_read_keys(serve.api_key_file)))
    if serve.chat_template is not None:
        serve = replace(serve, chat_template=given_chat_template(serve.chat_template))
    from pelton.server.launch import run_server  # loads the engine and the HTTP server, which help does without

    return run_server(args, serve, parallel)


def _read_keys(path: str) -> list[str]:
    """The keys of a file. Raises ValueError if it cannot be read, or has none: everybody would be let in."""
    from pelton.loader.text_files import read_any_text  # not for help

    keys = [line.strip() for line in read_any_text(Path(path)).splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"api_key_file is {path!r}, which has no key; write one into it, one a line")
    return keys
