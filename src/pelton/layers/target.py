"""What a model is built for."""

from dataclasses import dataclass

from pelton.core.kv_spec import DTYPE_BYTES
from pelton.ops.backend import Backend
from pelton.ops.packed_linear import FORMAT_DTYPES


@dataclass(frozen=True)
class Target:
    """The kernels that will run a model, and its number formats: all that layers need beside the architecture.

    Raises ValueError for a format that does not exist.
    """

    backend: Backend
    weight_format: str = "fp32"
    """`fp32` or `bf16`: of the weights of linear layers, embedding and head included."""
    kv_cache_dtype: str = "float32"
    """`float32` or `bfloat16`."""
    block_size: int = 16
    """Tokens per KV-cache block."""

    def __post_init__(self) -> None:
        if self.weight_format not in FORMAT_DTYPES:
            raise ValueError(f"unknown weight format {self.weight_format!r}; there are: {', '.join(FORMAT_DTYPES)}")
        if self.kv_cache_dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise ValueError(f"unknown dtype {self.kv_cache_dtype!r} of the KV cache; there are: {known}")

    @property
    def activation_dtype(self) -> str:
        """Of what goes into linear layers."""
        return FORMAT_DTYPES[self.weight_format]
