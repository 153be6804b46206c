"""Layers sorted into groups of equal size."""

import pytest

from pelton.core.kv_spec import FullAttentionSpec, SlidingWindowSpec, layer_groups
from pelton.kv import group_layers
from tests.support.fakes import full_spec, sliding_spec


def test_equal_layers_are_one_group():
    groups = group_layers([full_spec()] * 30)
    assert [group.layers for group in groups] == [tuple(range(30))]


def test_gemma_3_270m():
    """Five sliding layers to one full: 15 sliding and 3 full layers make six groups of three."""
    specs = [full_spec() if layer % 6 == 5 else sliding_spec(512) for layer in range(18)]
    groups = group_layers(specs)
    assert len(groups) == 6
    assert all(len(group.layers) == 3 for group in groups)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(18))
    for group in groups:
        assert all(specs[layer] == group.spec for layer in group.layers)
    assert sum(isinstance(group.spec, FullAttentionSpec) for group in groups) == 1
    assert [layer in groups[index].layers for layer, index in enumerate(layer_groups(groups))] == [True] * 18


def test_the_last_group_of_a_spec_may_be_smaller():
    groups = group_layers([sliding_spec(8)] * 5 + [full_spec()] * 2)
    assert sorted(len(group.layers) for group in groups) == [1, 2, 2, 2]


def test_different_windows_are_different_groups():
    groups = group_layers([sliding_spec(8), sliding_spec(16)])
    assert [group.spec.window for group in groups if isinstance(group.spec, SlidingWindowSpec)] == [8, 16]


def test_blocks_of_different_bytes_are_refused():
    wide = FullAttentionSpec(4, num_kv_heads=2, head_size=2, dtype="float32")
    with pytest.raises(ValueError, match="different sizes"):
        group_layers([full_spec(), wide])


def test_block_bytes():
    """2 (keys and values) * block size * KV heads * head size * bytes per number."""
    assert FullAttentionSpec(16, num_kv_heads=3, head_size=64, dtype="float32").block_bytes == 2 * 16 * 3 * 64 * 4


def test_a_window_must_be_positive():
    with pytest.raises(ValueError, match="window must be at least 1"):
        sliding_spec(0)
