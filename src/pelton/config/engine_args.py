"""One list of engine arguments, for `LLM(...)` and for the command line."""

import argparse
from collections.abc import Collection, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

from pelton.config.cache import CacheConfig
from pelton.config.execution import ExecutionConfig
from pelton.config.model import ModelConfig
from pelton.config.options import doc_of
from pelton.config.sampling import SamplingConfig
from pelton.config.scheduler import SchedulerConfig

_SECTIONS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "sampling": SamplingConfig,
    "execution": ExecutionConfig,
}


@dataclass(frozen=True)
class EngineArgs:
    """The engine's configuration, one section per concern."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)

    def __post_init__(self) -> None:
        for name, kind in _SECTIONS.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(
                    f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}; "
                    "EngineArgs.create(...) takes arguments by their own names"
                )

    @classmethod
    def create(cls, **kwargs: Any) -> "EngineArgs":
        """Sort flat keyword arguments into the sections.

        Raises ValueError for unknown names and for values that the sections refuse.
        """
        unknown = sorted(set(kwargs) - set(cls.names()))
        if unknown:
            raise ValueError(f"unknown engine argument {', '.join(unknown)}; there are {', '.join(cls.names())}")
        return cls(
            **{
                section: kind(**{f.name: kwargs[f.name] for f in fields(kind) if f.name in kwargs})
                for section, kind in _SECTIONS.items()
            }
        )

    @classmethod
    def names(cls) -> list[str]:
        return [declared.name for declared in cls._declared()]

    @classmethod
    def add_cli_args(cls, parser: "argparse._ActionsContainer", names: Collection[str] | None = None) -> None:
        """Add every argument, or those of these names, as `--flag`, with its documentation."""
        for declared in cls._declared():
            if names is not None and declared.name not in names:
                continue
            flag = "--" + declared.name.replace("_", "-")
            options: dict[str, Any] = {
                "help": doc_of(declared).replace("%", "%%"),
                "default": argparse.SUPPRESS,
            }
            if isinstance(declared.default, bool):
                options["action"] = argparse.BooleanOptionalAction
            else:
                options["type"] = type(declared.default)
            if declared.default not in (None, ()):
                options["help"] += f" Default: {declared.default}."
            parser.add_argument(flag, **(options | declared.metadata["cli"]))

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> "EngineArgs":
        given = vars(namespace)
        return cls.create(**{name: given[name] for name in cls.names() if name in given})

    @classmethod
    def _declared(cls) -> "Iterator[Field[Any]]":
        for kind in _SECTIONS.values():
            yield from fields(kind)
