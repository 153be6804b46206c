"""`pelton models`: list the models that are here, or describe one."""

import argparse
import sys
from collections.abc import Sequence

from pelton.cli.cached_models import cached_models
from pelton.cli.messages import show
from pelton.cli.model_details import describe, programs, size_text
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.loader import open_checkpoint
from pelton.loader.aliases import Alias, known_aliases

_OF_PROGRAMS = ("dtype", "quantization")
"""Engine arguments that make a difference to programs."""
_OTHERS = """\
Other models, by
  the path of a GGUF file
  the path of a folder with config.json, safetensors and tokenizer.json
  a hub id: organisation/name, or organisation/name:QUANT for one of its GGUF files"""


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="pelton models", description="List the models that are here, or describe one.")
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="model to describe; one of a hub is fetched if it is not here yet"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--show-program", action="store_true", help="load the model, and print the programs that it runs as"
    )
    EngineArgs.add_cli_args(parser.add_argument_group("with --show-program"), _OF_PROGRAMS)
    return parser


def run(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in _OF_PROGRAMS if hasattr(options, name)}
    if given and not options.show_program:
        raise ValueError(f"--{next(iter(given))} is given, but it is for the programs only; add --show-program")
    if options.model is None:
        if options.show_program or options.revision is not None:
            flag = "--show-program" if options.show_program else "--revision"
            raise ValueError(f"{flag} is given, but no MODEL; name one")
        _list_models()
        return 0
    progress = sys.stderr.isatty()
    checkpoint = open_checkpoint(options.model, options.revision, progress=progress)
    if options.show_program:
        for program in programs(checkpoint, EngineArgs.create(**given), progress=progress):
            show(str(program))
    else:
        _print_table(describe(checkpoint))
    return 0


def _list_models() -> None:
    aliases = [alias for name, alias in known_aliases().items() if name == alias.names[0]]
    show("Models with a short name")
    _print_table([(", ".join(alias.names), _alias_text(alias)) for alias in aliases], indent="  ")
    show("\nModels in the hub's cache")
    _print_table(cached_models() or [("none", "")], indent="  ")
    show(f"\n{_OTHERS}")


def _alias_text(alias: Alias) -> str:
    """What it is, where it comes from, and whether it is here."""
    what = f"{alias.file.rpartition('/')[2]} in {alias.distribution} {alias.version}, {alias.licence}"
    try:
        return f"{what}; installed, {size_text(alias.locate().stat().st_size)}"
    except ValueError as error:
        return f"{what}; {error}"


def _print_table(rows: Sequence[tuple[str, str]], indent: str = "") -> None:
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        show(f"{indent}{name:{width}}  {text}".rstrip())
