"""Sorts attention layers into equal-size groups."""

from collections.abc import Sequence

from pelton.core.kv_spec import KVCacheGroup, KVCacheSpec


def group_layers(specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
    """Put layers of equal specs into groups of one common size.

    All groups draw on one pool, so a block id must reserve the same bytes whichever group takes it: that needs
    equal bytes per layer and an equal number of layers. The size is the smallest number of layers that any
    spec has; the last group of a spec may have fewer layers, and wastes what it leaves unused. (Gemma 3 270M:
    15 sliding and 3 full layers make six groups of three.)

    Raises ValueError when layers differ in block size or bytes per block.
    """
    by_spec: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(layer)
    if len({(spec.block_size, spec.block_bytes) for spec in by_spec}) > 1:
        raise ValueError(
            "attention layers need KV blocks of different sizes, which is not supported: "
            + ", ".join(f"{spec.kind} {spec.block_bytes} bytes" for spec in by_spec)
        )
    size = min(len(layers) for layers in by_spec.values())
    return [
        KVCacheGroup(spec, tuple(layers[start : start + size]))
        for spec, layers in by_spec.items()
        for start in range(0, len(layers), size)
    ]
