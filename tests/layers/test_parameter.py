import numpy as np
import pytest

from pelton.layers import Parameter
from pelton.layers.parameter import WeightPart
from pelton.ops.packed_linear import FORMATS


def test_loading_checks() -> None:
    parameter = Parameter("norm", (4,))
    with pytest.raises(AssertionError, match="norm is not loaded"):
        _ = parameter.array
    with pytest.raises(ValueError, match=r"norm must have shape \[4\], got \[3\]"):
        parameter.load(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="norm must be float32, got float64"):
        parameter.load(np.zeros(4))
    array = np.arange(4, dtype=np.float32)
    parameter.load(array)
    assert parameter.array is array
    with pytest.raises(ValueError, match="norm is loaded twice"):
        parameter.load(array)


def test_unaligned_and_transposed_arrays_are_put_in_order() -> None:
    raw = np.zeros(4 * 6 + 1, np.uint8)[1:].view(np.float32).reshape(2, 3)
    for array in (raw, np.zeros((3, 2), np.float32).T):
        parameter = Parameter("x", (2, 3))
        parameter.load(array)
        assert parameter.array.flags.c_contiguous
        assert parameter.array.flags.aligned


def test_what_it_takes_is_told_by_how_it_is_kept() -> None:
    assert (Parameter("norm", (4, 3)).format, Parameter("norm", (4, 3)).num_bytes) == ("fp32", 48)
    sizes = {name: WeightPart("linear", (4, 33), name, lambda start, rows: None).num_bytes for name in FORMATS}
    assert sizes == {"fp32": 528, "bf16": 264, "int8": 132 + 4 * 4, "int4": 4 * 2 * (16 + 4)}
