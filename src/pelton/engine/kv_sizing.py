"""How many KV-cache blocks there are, and how long a request may get."""

from collections.abc import Sequence
from logging import getLogger

from pelton.config import EngineArgs
from pelton.core.kv_spec import KVCacheGroup

logger = getLogger(__name__)


def bytes_per_block(groups: Sequence[KVCacheGroup]) -> int:
    """Memory that one block id reserves: the largest group's layers (all groups share the storage)."""
    return max(len(group.layers) * group.spec.block_bytes for group in groups)


def size_kv_cache(args: EngineArgs, groups: Sequence[KVCacheGroup], available_bytes: int, max_model_len: int) -> int:
    """Number of blocks, the null block included.

    Never more than `max_num_seqs` requests of `max_model_len` tokens can hold.
    Raises ValueError if the memory holds no block at all.
    """
    if args.cache.num_gpu_blocks_override is not None:
        return args.cache.num_gpu_blocks_override
    per_block = bytes_per_block(groups)
    num_bytes = args.cache.kv_cache_memory_bytes or available_bytes
    per_request = -(-max_model_len // args.cache.block_size) * len(groups)
    num_blocks = min(num_bytes // per_block, args.scheduler.max_num_seqs * per_request + 1)
    if num_blocks < 2:
        raise ValueError(
            f"{num_bytes} bytes hold {num_blocks} KV-cache blocks of {per_block} bytes, at least 2 are needed; "
            f"raise kv_cache_memory_bytes"
        )
    logger.info(
        "KV cache: %d blocks of %d tokens, up to %.2f GB",
        num_blocks,
        args.cache.block_size,
        num_blocks * per_block / 1e9,
    )
    return num_blocks


def requested_model_len(args: EngineArgs, longest: int) -> int:
    """The context length to prepare for. Raises ValueError if the model cannot do what was asked."""
    asked = args.model.max_model_len
    if asked is None:
        return longest
    if asked > longest:
        raise ValueError(f"max_model_len is {asked}, but the model's context length is {longest}; lower max_model_len")
    return asked


def longest_request(args: EngineArgs, fitting: int, max_model_len: int) -> int:
    """The context length to serve when the KV cache holds a request of `fitting` tokens.

    A length that the user asked for is kept or refused; the model's own is lowered to what fits, and said so.
    """
    if fitting >= max_model_len:
        return max_model_len
    knob = "kv_cache_memory_bytes" if args.cache.num_gpu_blocks_override is None else "num_gpu_blocks_override"
    if args.model.max_model_len is not None:
        raise ValueError(
            f"max_model_len is {max_model_len}, but the KV cache holds a request of at most {fitting} tokens; "
            f"lower max_model_len or raise {knob}"
        )
    if fitting < 2:
        raise ValueError(f"the KV cache does not hold a single token of a request; raise {knob}")
    logger.warning(
        "the KV cache holds a request of at most %d tokens, so max_model_len is that instead of the model's %d; "
        "raise %s for more",
        fitting,
        max_model_len,
        knob,
    )
    return fitting
