"""Which model, and how much context."""

import re
from dataclasses import dataclass

from pelton.checks import check_integer
from pelton.config.options import (
    auto_or_human_integer,
    check_dtype,
    check_quantization,
    dtype_option,
    option,
    quantization_option,
)

_REVISION = re.compile(r"(?!/)(?!.*\.\.)\S+")
"""Git's names, roughly; none of them leads out of the folder in which a cache keeps them."""


@dataclass(frozen=True)
class ModelConfig:
    """The model to serve, as the user names it."""

    model: str = option(
        "smollm2",
        "An alias (such as smollm2), a GGUF file, a folder with config.json, safetensors and tokenizer.json, or a hub "
        "id: organisation/name, or organisation/name:QUANT for one of its GGUF files.",
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a hub id. Default: the repository's main branch.", type=str
    )
    dtype: str = dtype_option(
        "Number format of the weights and of what goes into linear layers; sums are float32. float32, bfloat16 "
        "(half the memory), or auto: bfloat16 with the native kernels, float32 without them.",
    )
    quantization: str = quantization_option(
        "Weights in fewer bits than dtype says, with inputs in bfloat16: int8, int4 (embedding and head in int8 unless "
        "stored in four bits), none, or auto: of a GGUF file, each weight in 4, 8 or 16 bits, none in fewer than it is "
        "stored in (float32 in 16), if dtype is auto and the kernels are native; else none.",
    )
    max_model_len: int | None = option(
        None,
        "Longest request, prompt and output, in tokens; flags take 4k for 4,000 and 4K for 4,096. Default, and what "
        "the flag's value auto means: the model's context length, or what the KV cache can hold if that is less.",
        type=auto_or_human_integer,
        metavar="TOKENS",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be a string: an alias, a path or a hub id, got {self.model!r}")
        if self.revision is not None and not (isinstance(self.revision, str) and _REVISION.fullmatch(self.revision)):
            raise ValueError(f"revision must be a branch, a tag or a commit, got {self.revision!r}")
        check_dtype("dtype", self.dtype)
        check_quantization("quantization", self.quantization)
        if self.quantization in ("int8", "int4") and self.dtype == "float32":
            raise ValueError(
                f"quantization is {self.quantization!r}, but dtype is 'float32', and inputs of quantized weights are "
                "bfloat16; leave dtype out, or set quantization to none"
            )
        if self.max_model_len is not None:
            check_integer("max_model_len", self.max_model_len, low=2)  # a prompt and an output
