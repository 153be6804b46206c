"""Logits processors of the user's own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from pelton.error_text import described, shown
from pelton.import_names import load_class
from pelton.ops.arrays import Float32, Int32
from pelton.sampling_params import SamplingParams

RowProcessor = Callable[[Int32, Int32, Float32], Float32 | None]
"""Called for every token of one request with three numpy arrays: its prompt ids and its output ids so far, both int32
and read-only, and the model's logits [V], float32. Changes the logits in place, or returns others."""


class LogitsProcessor(ABC):
    """Changes the logits of requests, each on its own, before all that `SamplingParams` says.

    The engine makes one of each class that it is given (`logits_processors`); the constructor gets no arguments. Only
    requests that want it pay for it. A row's result must be a function of the request alone (its parameters, prompt and
    output so far): after a preemption `new_request` is called anew, and what it returns sees the same tokens. Each call
    gets parameters of its own, and may change them to no effect.
    """

    arguments: ClassVar[frozenset[str]] = frozenset()
    """Names that it understands in a request's `extra_args`, any collection of strings; others are refused."""

    @classmethod  # noqa: B027
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise ValueError, naming the argument and the remedy, for a request that cannot be served.

        Other exceptions refuse the request too, and their messages name the class.
        """

    @abstractmethod
    def new_request(self, params: SamplingParams) -> RowProcessor | None:
        """What to call for each token of a request with these parameters; None leaves its logits alone.

        An exception here, or in what it returns, ends that request with an error, and so does any other result.
        """


def load_logits_processors(given: Sequence[str | type[Any]]) -> list[type[LogitsProcessor]]:
    """Classes, or names `package.module:Class` -> classes. Raises ValueError for what is none."""
    return [_load(processor) for processor in given]


def make_logits_processors(given: Sequence[str | type[Any]]) -> list[LogitsProcessor]:
    """One of each class. Raises ValueError also for a class that cannot be made."""
    return [_make(processor) for processor in load_logits_processors(given)]


def _make(processor: type[LogitsProcessor]) -> LogitsProcessor:
    try:
        return processor()
    except Exception as error:  # whatever the class does
        raise ValueError(f"logits processor {processor.__name__} cannot be made: {described(error)}") from error


def _load(processor: str | type[Any]) -> type[LogitsProcessor]:
    found: type[LogitsProcessor] = load_class(processor, LogitsProcessor, "logits processor")
    names: Any = found.arguments
    if (
        isinstance(names, str | bytes)
        or not isinstance(names, Collection)
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(
            f"logits processor {shown(processor)} must have a set of names (strings) as arguments, got {shown(names)}"
        )
    return found
