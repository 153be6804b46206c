"""Array types of the operator set, and bfloat16, which numpy knows only by a package of its own."""

from typing import Any

import ml_dtypes  # noqa: F401  registers the dtype "bfloat16"
import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
BFloat16 = NDArray[Any]
"""Elements are ml_dtypes.bfloat16, the upper halves of float32 numbers."""
Activations = Float32 | BFloat16
"""What flows between layers, and lies in KV caches."""

FLOAT32 = np.dtype("float32")
BFLOAT16 = np.dtype("bfloat16")


def widened(array: Activations) -> Float32:
    """The same numbers in float32; an array that is float32 already is not copied."""
    if array.dtype == BFLOAT16:
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert array.dtype == FLOAT32, array.dtype
    return array
