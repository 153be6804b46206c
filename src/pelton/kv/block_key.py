"""What a full block is findable by: its tokens, everything before them, and typed extras."""

import hashlib
from array import array
from collections.abc import Callable, Sequence

import msgspec

Extras = tuple[tuple[str, str], ...]
"""What else the keys and values depend on, as (type, value) pairs, such as `("cache_salt", "tenant-7")`."""

HashFunction = Callable[["BlockKey | None", tuple[int, ...], Extras], bytes | int]
"""Digest of (parent key, the block's token ids, extras)."""


class BlockKey:
    """Identity of a full block's content: a chain through the keys of the blocks before it.

    The digest finds, equality decides: two keys are equal only if tokens and extras of the whole chain are, so
    a hash collision costs time and never serves foreign keys and values.
    """

    __slots__ = ("digest", "extras", "parent", "token_ids")

    def __init__(
        self, parent: "BlockKey | None", token_ids: tuple[int, ...], extras: Extras, digest: bytes | int
    ) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.extras = extras
        self.digest = digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockKey):
            return NotImplemented
        mine: BlockKey | None = self
        theirs: BlockKey | None = other
        # Chains that found each other in the prefix map share their parents, so this mostly ends after one.
        while mine is not theirs:
            if mine is None or theirs is None:
                return False
            if mine.digest != theirs.digest or mine.token_ids != theirs.token_ids or mine.extras != theirs.extras:
                return False
            mine, theirs = mine.parent, theirs.parent
        return True

    def __repr__(self) -> str:
        return f"BlockKey({list(self.token_ids)}, extras={self.extras}, digest={self.digest!r})"


_ROOT = bytes(32)
"""Stands for the parent of the first block: fields of fixed size keep the hashed bytes unambiguous."""


def sha256_digest(parent: BlockKey | None, token_ids: tuple[int, ...], extras: Extras) -> bytes:
    """SHA-256: the same in every process, and infeasible to collide on purpose."""
    before = _ROOT if parent is None else parent.digest
    assert isinstance(before, bytes)
    digest = hashlib.sha256(before)
    digest.update(array("q", token_ids).tobytes())
    if extras:
        digest.update(msgspec.msgpack.encode(extras))
    return digest.digest()


def builtin_digest(parent: BlockKey | None, token_ids: tuple[int, ...], extras: Extras) -> int:
    """Python's own hash: faster, and meaningful only in this process."""
    return hash((parent.digest if parent else None, token_ids, extras))


HASH_FUNCTIONS: dict[str, HashFunction] = {"sha256": sha256_digest, "builtin": builtin_digest}


def extend_keys(
    keys: list[BlockKey],
    token_ids: Sequence[int],
    num_blocks: int,
    block_size: int,
    extras: Extras,
    digest: HashFunction,
) -> None:
    """Append to `keys` until it covers the first `num_blocks` full blocks of `token_ids`."""
    for index in range(len(keys), num_blocks):
        parent = keys[-1] if keys else None
        tokens = tuple(token_ids[index * block_size : (index + 1) * block_size])
        own_extras = extras if index == 0 else ()
        keys.append(BlockKey(parent, tokens, own_extras, digest(parent, tokens, own_extras)))
