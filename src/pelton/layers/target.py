"""What a model is built for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pelton.core.kv_spec import DTYPE_BYTES
from pelton.ops.backend import Backend
from pelton.ops.packed_linear import FORMATS, widest


@dataclass(frozen=True)
class Target:
    """The kernels that will run a model, and its number formats: all that layers need beside the architecture.

    Raises ValueError for a format that does not exist.
    """

    backend: Backend
    weight_format: str = "fp32"
    """Of the weights of linear layers, embedding and head included; one of `FORMATS`."""
    kv_cache_dtype: str = "float32"
    """`float32` or `bfloat16`."""
    block_size: int = 16
    """Tokens per KV-cache block."""
    part_format: Callable[[str], str] | None = None
    """Name of a weight, or of a part of one -> its format, where they are not all in `weight_format`. All formats have
    the same dtype of inputs."""

    def __post_init__(self) -> None:
        if self.weight_format not in FORMATS:
            raise ValueError(f"unknown weight format {self.weight_format!r}; there are: {', '.join(FORMATS)}")
        if self.kv_cache_dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise ValueError(f"unknown dtype {self.kv_cache_dtype!r} of the KV cache; there are: {known}")

    @property
    def activation_dtype(self) -> str:
        """Of what goes into linear layers."""
        return FORMATS[self.weight_format].input_dtype

    def format_of(self, parts: Sequence[str]) -> str:
        """Of a weight that is made of these parts: the widest that one of them needs."""
        if self.part_format is None:
            return self.weight_format
        weight_format = widest([self.part_format(part) for part in parts])
        assert FORMATS[weight_format].input_dtype == self.activation_dtype, f"{parts} in {weight_format}"
        return weight_format
