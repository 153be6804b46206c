"""generation_config.json of a Hugging Face folder: what its authors recommend for sampling."""

import math
from pathlib import Path
from typing import Any

from pelton.error_text import in_file, shown
from pelton.loader.hf.folder import GENERATION_CONFIG
from pelton.loader.text_files import is_there, read_json

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_INTEGERS = {"top_k": "top_k", "max_new_tokens": "max_tokens"}
"""The file's key -> the sampling parameter."""


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The file's content, empty if there is no such file. Raises ValueError that names the file."""
    path = folder / GENERATION_CONFIG
    return read_json(path) if is_there(path) else {}


def read_generation_defaults(folder: Path) -> dict[str, float | int]:
    """Sampling parameters by `SamplingParams`' names; a null, like an absent key, sets nothing.

    All other keys are left to others, `do_sample` too: as in vLLM, it does not make requests greedy. Raises ValueError
    that names the file and the key for a value of a wrong type; ranges are for `SamplingParams` to check.
    """
    content = read_generation_config(folder)
    defaults: dict[str, float | int] = {}
    with in_file(folder / GENERATION_CONFIG):
        for key in _NUMBERS:
            if content.get(key) is not None:
                defaults[key] = _number(key, content[key])
        for key, name in _INTEGERS.items():
            if content.get(key) is not None:
                defaults[name] = _integer(key, content[key])
    return defaults


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{key} must be a finite number, got {shown(value)}")
    return number


def _integer(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} must be an integer, got {shown(value)}")
    return value
