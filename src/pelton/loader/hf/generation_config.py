"""generation_config.json of a Hugging Face folder: what its authors recommend for sampling."""

from pathlib import Path
from typing import Any

from pelton.error_text import in_file
from pelton.loader.hf.folder import GENERATION_CONFIG
from pelton.loader.text_files import is_there, read_json
from pelton.sampling_params import SamplingParams

_PARAMETERS = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
_PARAMETERS["max_new_tokens"] = "max_tokens"
"""The file's key -> the sampling parameter."""


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The file's content, empty if there is no such file. Raises ValueError that names the file."""
    path = folder / GENERATION_CONFIG
    return read_json(path) if is_there(path) else {}


def read_generation_defaults(folder: Path) -> dict[str, float | int]:
    """Sampling parameters by `SamplingParams`' names; a null, like an absent key, sets nothing.

    All other keys are left to others, `do_sample` too: as in vLLM, it does not make requests greedy. Raises ValueError
    that names the file and the key for a value that no request could have.
    """
    content = read_generation_config(folder)
    defaults: dict[str, float | int] = {}
    with in_file(folder / GENERATION_CONFIG):
        for key, name in _PARAMETERS.items():
            if content.get(key) is not None:
                defaults[name] = content[key]
                _check(key, name, content[key])
    return defaults


def _check(key: str, name: str, value: Any) -> None:
    try:
        SamplingParams(**{name: value})
    except ValueError as error:
        raise ValueError(f"{key}{str(error).removeprefix(name)}") from None
