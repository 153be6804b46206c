"""The parts that a tokenizer's component is made of."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

_INNER = ("processors", "pretokenizers", "normalizers")
"""What a sequence calls its parts, by the kind of component."""


class Component(Protocol):
    """A post-processor, pre-tokenizer or normalizer of the library."""

    def __getstate__(self) -> Any: ...


def component_parts(component: Component | None) -> list[Mapping[str, Any]]:
    """Each part as tokenizer.json describes it, sequences taken apart. Without a component there are none."""
    return [] if component is None else _flat(json.loads(component.__getstate__()))


def _flat(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [part for name in _INNER for inner in state.get(name, ()) for part in _flat(inner)]
