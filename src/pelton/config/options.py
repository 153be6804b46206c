"""Configuration fields that carry their own documentation."""

import math
from dataclasses import Field, field
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


def option(default: _T, doc: str, **cli: Any) -> _T:
    """A dataclass field whose `doc` is its `--help` text; `cli` is passed to `add_argument`."""
    return field(default=default, metadata={"doc": doc, "cli": cli})


def doc_of(declared: "Field[Any]") -> str:
    return str(declared.metadata["doc"])


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
