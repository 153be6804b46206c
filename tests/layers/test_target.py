import pytest

from tests.support.backends import numpy_target


def test_the_format_of_weights_says_what_goes_into_linear_layers() -> None:
    assert numpy_target("fp32").activation_dtype == "float32"
    for weight_format in ("bf16", "int8", "int4"):
        assert numpy_target(weight_format, "float32").activation_dtype == "bfloat16"


def test_unknown_formats() -> None:
    with pytest.raises(ValueError, match="unknown weight format 'int3'; there are: fp32, bf16, int8, int4"):
        numpy_target("int3")
    with pytest.raises(ValueError, match="unknown dtype 'fp8' of the KV cache; there are: float32, bfloat16"):
        numpy_target("fp32", "fp8")
