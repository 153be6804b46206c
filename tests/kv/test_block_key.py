"""Block keys: what is equal, what is not, and that collisions cannot fool anyone."""

import itertools
import os
import subprocess
import sys

import pytest

from pelton.kv.block_key import HASH_FUNCTIONS, BlockKey, extend_keys


def keys_of(token_ids, extras=(), digest=HASH_FUNCTIONS["sha256"], block_size=4):
    keys: list[BlockKey] = []
    extend_keys(keys, token_ids, len(token_ids) // block_size, block_size, extras, digest)
    return keys


@pytest.mark.parametrize("algorithm", HASH_FUNCTIONS)
def test_equal_chains_are_equal(algorithm):
    digest = HASH_FUNCTIONS[algorithm]
    a, b = keys_of(list(range(12)), digest=digest), keys_of(list(range(14)), digest=digest)
    assert a == b
    assert [hash(key) for key in a] == [hash(key) for key in b]
    assert len({*a, *b}) == 3


@pytest.mark.parametrize(
    "digest", [*HASH_FUNCTIONS.values(), lambda parent, tokens, extras: 0], ids=[*HASH_FUNCTIONS, "all collide"]
)
def test_any_difference_in_the_chain_counts(digest):
    """Also where every digest is the same: equality decides, not the hash."""
    salt = (("cache_salt", "a"),)
    chains = {
        "plain": keys_of([1, 2, 3, 4, 5, 6, 7, 8], digest=digest),
        "own token": keys_of([1, 2, 3, 4, 5, 6, 7, 9], digest=digest),
        "earlier token": keys_of([0, 2, 3, 4, 5, 6, 7, 8], digest=digest),
        "salt": keys_of([1, 2, 3, 4, 5, 6, 7, 8], salt, digest=digest),
        "type of extra": keys_of([1, 2, 3, 4, 5, 6, 7, 8], (("lora", "a"),), digest=digest),
        "other salt": keys_of([1, 2, 3, 4, 5, 6, 7, 8], (("cache_salt", "b"),), digest=digest),
        "two extras": keys_of([1, 2, 3, 4, 5, 6, 7, 8], (*salt, ("lora", "a")), digest=digest),
        "no parent": keys_of([5, 6, 7, 8], digest=digest),
    }
    last = {name: keys[-1] for name, keys in chains.items()}
    for (name, key), (other_name, other) in itertools.combinations(last.items(), 2):
        assert key != other, f"{name} equals {other_name}"
    assert len(set(last.values())) == len(last)


def test_salt_is_in_the_first_block_only():
    first, second = keys_of(list(range(8)), (("cache_salt", "a"),))
    assert first.extras == (("cache_salt", "a"),)
    assert second.extras == ()


def test_sha256_is_the_same_in_every_process_and_builtin_need_not_be():
    code = (
        "from pelton.kv.block_key import *; keys = [];"
        "extend_keys(keys, list(range(40)), 2, 16, (('cache_salt', 'x'),), HASH_FUNCTIONS['sha256']);"
        "print(keys[-1].digest.hex())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_keys_are_not_equal_to_other_things():
    assert keys_of([1, 2, 3, 4])[0] != "key"
