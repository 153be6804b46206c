"""Configuration fields that carry their own documentation."""

import argparse
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import Field, field, fields
from typing import Any, TypeVar

from pelton.error_text import shown

_T = TypeVar("_T")

DTYPES = ("auto", "float32", "bfloat16")
QUANTIZATIONS = ("auto", "none", "int8", "int4")
_DTYPE_REMEDIES = dict.fromkeys(("float16", "half"), "; bfloat16 takes as little memory") | {"float": "; write float32"}
_QUANTIZATION_REMEDIES: dict[str | None, str] = {
    None: "; write auto to take the weights of a GGUF file as they are stored, or none to widen them",
    "fp8": "; int8 takes as little memory",
    "awq": "; int4 takes as little memory, and is made of weights that are not quantized",
    "gptq": "; int4 takes as little memory, and is made of weights that are not quantized",
    "bitsandbytes": "; int8 and int4 take as little memory",
}
"""Other spellings and formats that users of other engines know."""


_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_HUMAN_INTEGER = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?([kmgKMG])?")


def option(default: _T, doc: str, *, aliases: Sequence[str] = (), secret: bool = False, **cli: Any) -> _T:
    """A dataclass field whose `doc` is its `--help` text; `cli` is passed to `add_argument`.

    `aliases` are further flags for it. A secret's value is left out of the dataclass's `repr`.
    """
    return field(default=default, repr=not secret, metadata={"doc": doc, "aliases": tuple(aliases), "cli": cli})


def doc_of(declared: "Field[Any]") -> str:
    return str(declared.metadata["doc"])


def flag_of(name: str) -> str:
    """The flag of a field, or of any other name."""
    return "--" + name.replace("_", "-")


def add_flags(parser: "argparse._ActionsContainer", declared: "Iterable[Field[Any]]") -> None:
    """Add each field as `--flag`, with its documentation. What is not given has no attribute in the namespace."""
    for one in declared:
        options: dict[str, Any] = {"help": doc_of(one).replace("%", "%%"), "default": argparse.SUPPRESS}
        if isinstance(one.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = type(one.default)
        if one.default not in (None, (), ""):
            options["help"] += f" Default: {one.default}."
        parser.add_argument(
            *one.metadata["aliases"], flag_of(one.name), dest=one.name, **(options | one.metadata["cli"])
        )


def given_flags(namespace: argparse.Namespace, declared: "Iterable[Field[Any]]") -> dict[str, Any]:
    """The values of those fields that were given on the command line, by their names."""
    given = vars(namespace)
    return {one.name: given[one.name] for one in declared if one.name in given}


def from_flags(kind: type[_T], namespace: argparse.Namespace) -> _T:
    """An instance of a dataclass whose fields are flags. Raises ValueError for values that it refuses."""
    return kind(**given_flags(namespace, fields(kind)))  # type: ignore[arg-type]


def human_integer(text: str) -> int:
    """An integer, possibly with a unit: 4k is 4,000 and 4K is 4,096; likewise m and M, g and G; 1.5k is 1,500.

    Raises argparse.ArgumentTypeError for other texts.
    """
    match = _HUMAN_INTEGER.fullmatch(text.strip())
    if match is not None:
        whole, fraction, unit = match.groups()
        value = int(whole + (fraction or "")) * _MULTIPLES.get(unit, 1)
        divisor = int("1" + "0" * len(fraction or ""))
        if value % divisor == 0 and (fraction is None or unit in ("k", "m", "g")):
            return value // divisor
    raise argparse.ArgumentTypeError(f"must be an integer such as 4096, 4k (4000) or 4K (4096), got {shown(text)}")


def auto_or_human_integer(text: str) -> int | None:
    """`human_integer`, or None for `auto`, and for -1, which is vLLM's `auto`."""
    return None if text.strip() in ("auto", "-1") else human_integer(text)


def dtype_option(doc: str) -> str:
    """A field that takes one of `DTYPES`. It is checked by `check_dtype`, which says more than the parser of flags."""
    return option("auto", doc, metavar=f"{{{','.join(DTYPES)}}}")


def check_dtype(name: str, value: Any) -> None:
    """Raise ValueError unless it is one of `DTYPES`."""
    if not isinstance(value, str) or value not in DTYPES:
        remedy = _DTYPE_REMEDIES.get(value, "") if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(DTYPES)}, got {shown(value)}{remedy}")


def quantization_option(doc: str) -> str:
    """A field that takes one of `QUANTIZATIONS`, checked by `check_quantization`."""
    return option("auto", doc, metavar=f"{{{','.join(QUANTIZATIONS)}}}")


def check_quantization(name: str, value: Any) -> None:
    """Raise ValueError unless it is one of `QUANTIZATIONS`."""
    if not isinstance(value, str) or value not in QUANTIZATIONS:
        remedy = "; auto takes the weights of a GGUF file as they are stored"
        if isinstance(value, str | None):
            remedy = _QUANTIZATION_REMEDIES.get(value, remedy)
        raise ValueError(f"{name} must be one of {', '.join(QUANTIZATIONS)}, got {shown(value)}{remedy}")


def check_positive(section: object, *names: str) -> None:
    """Raise ValueError unless these fields of `section` are finite numbers above 0."""
    for name in names:
        value = getattr(section, name)
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")


def json_object(text: str) -> dict[str, Any]:
    """The type of a flag."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object, but {error}") from None
    if not isinstance(content, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {shown(text)}")
    return content
