"""One list of engine arguments, for `LLM(...)` and for the command line."""

import argparse
from collections.abc import Collection, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

from pelton.config.cache import CacheConfig
from pelton.config.execution import ExecutionConfig
from pelton.config.model import ModelConfig
from pelton.config.options import add_flags, given_flags
from pelton.config.sampling import SamplingConfig
from pelton.config.scheduler import SchedulerConfig
from pelton.config.structured_outputs import StructuredOutputsArgs
from pelton.import_names import class_name

_SECTIONS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "sampling": SamplingConfig,
    "structured_outputs": StructuredOutputsArgs,
    "execution": ExecutionConfig,
}


@dataclass(frozen=True)
class EngineArgs:
    """The engine's configuration, one section per concern."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    structured_outputs: StructuredOutputsArgs = field(default_factory=StructuredOutputsArgs)
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

    def to_plain(self) -> dict[str, Any]:
        """All arguments as plain data, for `create` in another process: classes become their names.

        Raises ValueError for a class that another process could not find by its name.
        """
        plain = {
            declared.name: getattr(getattr(self, section), declared.name)
            for section, kind in _SECTIONS.items()
            for declared in fields(kind)
        }
        return plain | {
            "logits_processors": [class_name(given, "logits_processors") for given in self.sampling.logits_processors]
        }

    @classmethod
    def names(cls) -> list[str]:
        return [declared.name for declared in cls._declared()]

    @classmethod
    def add_cli_args(cls, parser: "argparse._ActionsContainer", names: Collection[str] | None = None) -> None:
        """Add every argument, or those of these names, as `--flag`, with its documentation."""
        add_flags(parser, (one for one in cls._declared() if names is None or one.name in names))

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> "EngineArgs":
        return cls.create(**given_flags(namespace, cls._declared()))

    @classmethod
    def _declared(cls) -> "Iterator[Field[Any]]":
        for kind in _SECTIONS.values():
            yield from fields(kind)
