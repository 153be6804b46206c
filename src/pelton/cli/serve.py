"""`pelton serve`: answer requests over HTTP."""

import argparse
from dataclasses import replace

from pelton.cli.chat_template_flag import given_chat_template
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.config.options import flag_of
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
    _check_model_is_no_value(options)
    args = EngineArgs.from_cli_args(options)
    serve, parallel = serving_from_flags(options)
    if serve.chat_template is not None:
        serve = replace(serve, chat_template=given_chat_template(serve.chat_template))
    if serve.tool_call_parser != "auto":
        from pelton.chat_parsing import find_tool_parser

        find_tool_parser(serve.tool_call_parser)  # whether there is such a one
    from pelton.server.launch import run_server  # loads the engine and the HTTP server, which help does without

    return run_server(args, serve, parallel)


def _check_model_is_no_value(options: argparse.Namespace) -> None:
    """`--api-key KEY MODEL` would serve the default model, and let in whoever knows MODEL. Raises ValueError."""
    if hasattr(options, "model"):
        return
    for name in ("api_key", "served_model_name"):
        if len(getattr(options, name, ())) > 1:
            raise ValueError(
                f"{flag_of(name)} has several values, and no model is given, so that the last value may be meant as "
                "MODEL; write MODEL before the flags"
            )
