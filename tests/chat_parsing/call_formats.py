"""Tool calls as models write them, and texts around them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.chat_parsing.streams import ALPHABET

Call = tuple[str, dict[str, Any]]

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("True", "False", "None", "true", "false", "null")
)
STRINGS = st.one_of(
    st.text(ALPHABET, max_size=12),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
    st.sampled_from(["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '"}]}\\"', "</think>", "'''"]),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), STRINGS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STRINGS, inner, max_size=3)),
    max_leaves=4,
)
CALLS: st.SearchStrategy[Call] = st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=4))


def object_of(call: Call, key: str = "arguments", **style: Any) -> str:
    return json.dumps({"name": call[0], key: call[1]}, **style)


def hermes(call: Call) -> str:
    return f"<tool_call>\n{object_of(call, ensure_ascii=False)}\n</tool_call>"


def mistral_list(calls: Sequence[Call]) -> str:
    return f"[TOOL_CALLS][{', '.join(object_of(call) for call in calls)}]"


def mistral_named(call: Call) -> str:
    return f"[TOOL_CALLS]{call[0]}[ARGS]{json.dumps(call[1])}"


def llama3(calls: Sequence[Call]) -> str:
    return "; ".join(object_of(call, "parameters") for call in calls)


def json_list(calls: Sequence[Call]) -> str:
    return json.dumps([{"name": name, "parameters": arguments} for name, arguments in calls], indent=1)


def pythonic(calls: Sequence[Call]) -> str:
    texts = [f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})" for name, values in calls]
    return f"[{', '.join(texts)}]"


WHOLE: dict[str, Callable[[Sequence[Call]], str]] = {
    "hermes": lambda calls: "\n".join(map(hermes, calls)),
    "json": json_list,
    "llama3_json": llama3,
    "mistral": mistral_list,
    "pythonic": pythonic,
}
"""Parser -> writes several calls as a whole output."""
