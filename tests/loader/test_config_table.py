import math
from typing import Any

import numpy as np
import pytest

from pelton.loader.config_table import ConfigTable, Key, constant, number, read_fields, size


@pytest.mark.parametrize(
    ("problem", "wrong"),
    [
        ("no field of DecoderConfig", {"fields": {"hiden_size": Key("hidden_size", size)}}),
        ("no field of DecoderConfig", {"derived": {"layer_window": constant(None)}}),
        ("a field among the inputs", {"inputs": {"hidden_size": Key("hidden_size", size)}}),
        ("nothing to be the same as", {"same_as": {"width": "hidden_size"}}),
    ],
)
def test_a_table_whose_entries_would_be_lost_cannot_be_made(problem: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=problem):
        ConfigTable(**wrong)


def test_inputs_come_after_fields() -> None:
    table = ConfigTable(
        inputs={"window": Key("window", size, default=lambda fields: fields["hidden_size"])},
        fields={"hidden_size": Key("width", size)},
        read_elsewhere=frozenset({"name"}),
    )
    assert read_fields({"width": 8, "name": "x"}, table) == {"hidden_size": 8, "window": 8}
    assert read_fields({"width": 8, "window": 4}, table) == {"hidden_size": 8, "window": 4}
    with pytest.raises(ValueError, match="does not know the key names"):
        read_fields({"width": 8, "names": "x"}, table)


@pytest.mark.parametrize("value", [1e-30, 1e-6, 1, 1e30])
def test_numbers_and_their_inverses_are_normal_in_float32(value: float) -> None:
    smallest = np.finfo(np.float32).smallest_normal
    assert number("x", value) == value
    assert smallest < np.float32(value) < math.inf
    assert smallest < np.float32(1) / np.float32(value) < math.inf


@pytest.mark.parametrize("value", [0, -1.0, 1e-300, 9e-31, 1.1e30, 1e300, 10**400, math.inf, math.nan])
def test_other_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"x must be positive, from 1e-30 to 1e\+30, got "):
        number("x", value)
