"""The flags of `pelton serve`: read, checked, and written as they are given on a command line."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import NoReturn

from pelton.config import EngineArgs, ParallelConfig, ServeConfig
from pelton.config.options import flag_of
from pelton.config.serving import add_serving_flags, check_serving
from pelton.error_text import shown

Value = int | float | str | bool | None
"""Of a setting; None is a default that has no value of its own."""
Settings = dict[str, Value]
"""Values by the names of fields of `EngineArgs`, `ServeConfig` and `ParallelConfig`."""

_NOT_OURS = {
    "model": "the model is MODEL",
    **dict.fromkeys(("host", "port", "uds", "root_path"), "each trial's server has an address of its own"),
    **dict.fromkeys(
        ("api_key", "api_key_file", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
        "servers that are tuned are reached over plain HTTP and without keys",
    ),
    **dict.fromkeys(
        ("headless", "data_parallel_size_local", "data_parallel_start_rank", "data_parallel_address"),
        "servers are tuned on one node",
    ),
    "data_parallel_rpc_port": "servers are tuned on one node",
}
"""Fields that are neither fixed nor sought, and why."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse_serve_flags(arguments: Sequence[str]) -> dict[str, object]:
    """The fields that are given by these flags, by name. Raises ValueError for those that `pelton serve` or tuning
    refuses."""
    parser = _Parser(prog="pelton serve", add_help=False, allow_abbrev=False)
    add_serving_flags(parser, parser)
    EngineArgs.add_cli_args(parser)
    given = vars(parser.parse_args(arguments))
    for name in given:
        _check_ours(name)
    check_serve_fields(given)
    return given


def check_serve_fields(given: Mapping[str, object]) -> None:
    """Raise ValueError for values that `pelton serve` refuses before it opens the model."""
    serve, parallel = ({f.name for f in fields(kind)} for kind in (ServeConfig, ParallelConfig))
    EngineArgs.create(**{name: value for name, value in given.items() if name not in serve | parallel})
    check_serving(
        ServeConfig(**{name: value for name, value in given.items() if name in serve}),  # type: ignore[arg-type]
        ParallelConfig(**{name: value for name, value in given.items() if name in parallel}),  # type: ignore[arg-type]
    )


def serve_defaults() -> dict[str, object]:
    """All fields with their defaults."""
    return EngineArgs().to_plain() | {
        declared.name: declared.default for kind in (ServeConfig, ParallelConfig) for declared in fields(kind)
    }


def parse_value(name: str, text: str) -> Value:
    """A value of a field, as its flag would take it. Raises ValueError for fields and values that cannot be sought."""
    defaults = serve_defaults()
    if name not in defaults:
        raise ValueError(f"{shown(name)} is no flag of pelton serve")
    _check_ours(name)
    default = defaults[name]
    if not isinstance(default, Value):
        raise ValueError(f"{name} takes lists, which cannot be sought; give it after --")
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, got {shown(text)}")
        return text == "true"
    value = parse_serve_flags([f"{flag_of(name)}={text}"])[name]
    assert isinstance(value, Value)
    return value


def write_flags(settings: Settings) -> list[str]:
    """Arguments of `pelton serve`; fields whose value is None are left out."""
    arguments = []
    for name, value in settings.items():
        if isinstance(value, bool):
            arguments.append(flag_of(name) if value else "--no-" + flag_of(name).removeprefix("--"))
        elif value is not None:
            arguments += [flag_of(name), str(value)]
    return arguments


def serve_arguments(model: str, fixed_flags: Sequence[str], given: Settings) -> list[str]:
    """Of `pelton serve`: the model, the flags that all servers have, and settings."""
    return [model, *fixed_flags, *write_flags(given)]


def _check_ours(name: str) -> None:
    if name in _NOT_OURS:
        raise ValueError(f"{flag_of(name)} cannot be given: {_NOT_OURS[name]}")
