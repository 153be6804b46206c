"""Structured output: what the engine allows and adds, beside each request's own constraint."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from pelton.checks import check_choice, check_flag, check_integer, finite_float
from pelton.config.options import json_object, option
from pelton.error_text import shown

_MAX_SECONDS = 86_400.0


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """The entries of `structured_outputs_config`."""

    backend: str = "auto"
    """Who compiles the constraints of requests that do not say."""
    disable_any_whitespace: bool = False
    """JSON of all requests is without whitespace between its tokens."""
    disable_additional_properties: bool = True
    """Objects have only the properties that the schema names, unless the schema or the request says otherwise."""
    max_check_seconds: float = 3.0
    """A server refuses a request whose constraint takes more processor time to be checked."""
    max_compile_seconds: float = 30.0
    """A request whose constraint takes longer ends with an error."""
    cache_size: int = 256
    """Compiled constraints that are kept."""

    def __post_init__(self) -> None:
        from pelton.structured_outputs_params import BACKEND_ALIASES, BACKENDS  # not for --help

        object.__setattr__(self, "backend", BACKEND_ALIASES.get(self.backend, self.backend))
        check_choice("backend", self.backend, BACKENDS)
        check_flag("disable_any_whitespace", self.disable_any_whitespace)
        check_flag("disable_additional_properties", self.disable_additional_properties)
        for name in ("max_check_seconds", "max_compile_seconds"):
            if not 0.0 < finite_float(name, getattr(self, name)) <= _MAX_SECONDS:
                raise ValueError(f"{name} must be more than 0, and at most {_MAX_SECONDS:g}, got {getattr(self, name)}")
        check_integer("cache_size", self.cache_size, low=1)


_NAMES = [declared.name for declared in fields(StructuredOutputsConfig)]


@dataclass(frozen=True)
class StructuredOutputsArgs:
    """Structured output, and reasoning before it."""

    structured_outputs_config: Mapping[str, Any] | None = option(
        None,
        f"Settings of structured output, as a JSON object with any of {', '.join(_NAMES)}.",
        type=json_object,
        metavar="JSON",
    )

    reasoning_parser: str | None = option(
        None,
        "How the model marks its reasoning: deepseek_r1 or qwen3. Constraints hold for what comes after it, and chat "
        "answers have it apart. Default: all is the answer.",
        type=str,
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        given = self.structured_outputs_config
        if not isinstance(given, Mapping | None):
            raise ValueError(f"structured_outputs_config must be a dict, got {shown(given)}")
        for name in given or ():
            if name not in _NAMES:
                raise ValueError(f"structured_outputs_config has no entry {shown(name)}; there are {', '.join(_NAMES)}")
        try:
            _ = self.config
        except ValueError as error:
            raise ValueError(f"structured_outputs_config: {error}") from None

    @cached_property
    def config(self) -> StructuredOutputsConfig:
        return StructuredOutputsConfig(**(self.structured_outputs_config or {}))
