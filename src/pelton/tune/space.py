"""The settings that are tried: which values each has, and which of them come to the same."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.error_text import one_line
from pelton.tune.serve_flags import Settings, Value, check_serve_fields, parse_value, serve_defaults

NUM_HALVINGS = 4
"""How many numbers of threads, and of replicas, are tried by default: the most, half of it, and so on."""
_DEFAULT_VALUES: dict[str, tuple[Value, ...]] = {
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256, 512),
    "max_num_batched_tokens": (256, 512, 1024, 2048, 4096, 8192),
    "long_prefill_token_threshold": (128, 256, 512, 1024, 0),
    "quantization": ("auto", "int8", "int4"),
}
_OF_CORES = ("num_threads", "data_parallel_size")
_MAX_DRAWS = 1000
"""Whoever finds nothing new in so many draws has seen all, or nearly so."""


@dataclass(frozen=True)
class Dimension:
    """A setting, and its values: the default is one of them; numbers ascend."""

    name: str
    values: tuple[Value, ...]
    default: Value

    @property
    def is_ordered(self) -> bool:
        """Whether neighbouring values are likely to do alike."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class Space:
    """All combinations of the dimensions' values, with the flags that are the same for all."""

    dimensions: tuple[Dimension, ...]
    fixed: Mapping[str, Any]
    """Fields of `pelton serve` that have one value."""
    num_cores: int
    max_concurrency: int
    """Most requests that the load has in flight."""

    @property
    def default(self) -> Settings:
        return self.normal({dimension.name: dimension.default for dimension in self.dimensions})

    def normal(self, settings: Settings) -> Settings:
        """One form for all settings that come to the same, so that nothing is measured twice.

        Threads beyond the cores of a replica are left out, a limit of running requests that the load never reaches is
        the default or the lowest such, and a limit of prompts' chunks that is no lower than a step's is 0.
        """
        settings = dict(settings)
        if "num_threads" in settings:
            settings["num_threads"] = min(int(self._value("num_threads", settings)), self._cores_per_replica(settings))
        if "max_num_seqs" in settings and settings["max_num_seqs"] >= self.max_concurrency:  # type: ignore[operator]
            (dimension,) = (one for one in self.dimensions if one.name == "max_num_seqs")
            ample = [value for value in dimension.values if value >= self.max_concurrency]  # type: ignore[operator]
            settings["max_num_seqs"] = dimension.default if dimension.default in ample else ample[0]
        if "long_prefill_token_threshold" in settings:
            threshold = self._value("long_prefill_token_threshold", settings)
            if threshold >= self._value("max_num_batched_tokens", settings):
                settings["long_prefill_token_threshold"] = 0
        return settings

    def given(self, settings: Settings) -> Settings:
        """Those of them that have to be given as flags: they differ from what the server would take by itself."""
        defaults = {dimension.name: dimension.default for dimension in self.dimensions}
        if "num_threads" in defaults:
            defaults["num_threads"] = self._cores_per_replica(settings)
        return {name: value for name, value in settings.items() if value != defaults[name]}

    def draw(self, generator: random.Random, tried: Sequence[Settings]) -> Settings | None:
        """Settings, in normal form, that were not tried; None if there seem to be none left."""
        for _ in range(_MAX_DRAWS):
            settings = self.normal({one.name: generator.choice(one.values) for one in self.dimensions})
            if self.is_new(settings, tried):
                return settings
        return None

    def is_new(self, settings: Settings, tried: Sequence[Settings]) -> bool:
        """Whether these, in normal form, were not tried, and `pelton serve` takes them together."""
        return settings not in tried and _are_taken({**self.fixed, **self.given(settings)})

    def as_plain(self) -> dict[str, Any]:
        """For study.json."""
        return {one.name: list(one.values) for one in self.dimensions}

    def _cores_per_replica(self, settings: Settings) -> int:
        return max(1, self.num_cores // int(self._value("data_parallel_size", settings)))

    def _value(self, name: str, settings: Settings) -> Any:
        return settings[name] if name in settings else self.fixed.get(name, serve_defaults()[name])


def make_space(search: Sequence[str], fixed: Mapping[str, Any], num_cores: int, max_concurrency: int) -> Space:
    """The dimensions that `search` names (`max_num_seqs=16,32`), or else those by default, without those that are fixed
    and those that have one value. The default of a setting is one of its values. By default, values that `pelton serve`
    refuses beside the fixed ones are left out.

    Raises ValueError for what `pelton serve` does not take, and for more threads than `num_cores`.
    """
    sought: dict[str, tuple[Value, ...]] = {}
    for text in search:
        name, values = _parse_search(text)
        if name in sought:
            raise ValueError(f"--search {name} is given twice; give all values in one list")
        sought[name] = values
    _check_sought(sought, fixed, num_cores)
    replicas, threads = _cores_shared_out(sought, fixed, num_cores)
    candidates = _DEFAULT_VALUES | {"data_parallel_size": replicas, "num_threads": threads}
    if sought:
        candidates = {name: candidates[name] if name in _OF_CORES else values for name, values in sought.items()}
    else:  # those of the user's own have been checked
        candidates = {
            name: tuple(value for value in values if _are_taken({**fixed, name: value}))
            for name, values in candidates.items()
        }
    dimensions = []
    for name, values in candidates.items():
        default: Any = max(threads) if name == "num_threads" else serve_defaults()[name]
        all_values = tuple(sorted({*values, default}, key=lambda value: _order(name, value)))
        if name not in fixed and len(all_values) > 1:
            dimensions.append(Dimension(name, all_values, default))
    if not dimensions:
        raise ValueError("every setting has one value, so that there is nothing to seek; name values with --search")
    return Space(tuple(dimensions), dict(fixed), num_cores, max_concurrency)


def _parse_search(text: str) -> tuple[str, tuple[Value, ...]]:
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    try:
        if not equals or not name:
            raise ValueError("it must be NAME=VALUE,VALUE, such as max_num_seqs=16,32")
        if name == "revision":
            raise ValueError("it is one model that is tuned; give --revision after --")
        return name, tuple(dict.fromkeys(parse_value(name, value.strip()) for value in values.split(",")))
    except ValueError as error:
        raise ValueError(f"--search {one_line(text)}: {error}") from None


def _are_taken(given: Mapping[str, Any]) -> bool:
    """Whether `pelton serve` takes these fields together."""
    try:
        check_serve_fields(given)
    except ValueError:
        return False
    return True


def _check_sought(sought: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any], num_cores: int) -> None:
    for name, values in sought.items():
        if name in fixed:
            raise ValueError(f"--search {name} is given, but {name} is fixed after --; leave one of them out")
        for value in values:
            check_serve_fields({**fixed, name: value})
    for name, other in (("num_threads", "data_parallel_size"), ("data_parallel_size", "num_threads")):
        most = num_cores // (fixed.get(other) or 1)
        if max(sought.get(name, (1,))) > max(1, most):
            raise ValueError(
                f"--search {name} goes up to {max(sought[name])}, but {other} is {fixed.get(other) or 1} and there are "
                f"{num_cores} cores; give values up to {max(1, most)}"
            )


def _cores_shared_out(
    sought: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any], num_cores: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of replicas, and of threads of each; the highest number of threads is what the server has by default."""
    room = max(1, num_cores // (fixed.get("num_threads") or 1))
    doubled = () if sought else tuple(2**power for power in range(NUM_HALVINGS) if 2**power <= room)
    replicas = (1, *sought.get("data_parallel_size", doubled))
    if "data_parallel_size" in fixed:
        replicas = (fixed["data_parallel_size"],)
    shares = [max(1, num_cores // number) for number in replicas]
    halved = (max(shares) // 2**power for power in range(NUM_HALVINGS))
    threads = [number for number in sought.get("num_threads", halved) if 1 <= number <= max(shares)]
    return tuple(set(replicas)), tuple({*threads, *shares})


def _order(name: str, value: Value) -> tuple[bool, float, str]:
    """Numbers ascend, and no limit is the highest; the rest follows by its text."""
    if isinstance(value, int | float):
        is_unlimited = name == "long_prefill_token_threshold" and value == 0
        return (False, math.inf if is_unlimited else value, "")
    return (True, 0.0, str(value))
