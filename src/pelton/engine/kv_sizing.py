"""How many KV-cache blocks there are, and how long a request may get."""

from collections.abc import Sequence
from logging import getLogger

from pelton.config import EngineArgs
from pelton.core.kv_spec import KVCacheGroup
from pelton.kv.managers import blocks_for

logger = getLogger(__name__)

DEFAULT_SHARE = 0.4
DEFAULT_MAX_BYTES = 4 * 1024**3


def bytes_per_block(groups: Sequence[KVCacheGroup]) -> int:
    """Memory that one block id reserves: the largest group's layers (all groups share the storage)."""
    return max(len(group.layers) * group.spec.block_bytes for group in groups)


def size_kv_cache(args: EngineArgs, groups: Sequence[KVCacheGroup], available_bytes: int, max_model_len: int) -> int:
    """Number of blocks, the null block included.

    By default 40 % of the available memory, at most 4 GiB, and no more than `max_num_seqs` requests of
    `max_model_len` tokens can hold. The operating system gives memory only as blocks are first written, so an idle
    engine is small whatever the size.
    Raises ValueError if the memory holds no block at all, or less than what was asked for.
    """
    per_block = bytes_per_block(groups)
    override, asked = args.cache.num_gpu_blocks_override, args.cache.kv_cache_memory_bytes
    if override is not None:
        _check_available("num_gpu_blocks_override", override, override * per_block, available_bytes)
        return override
    if asked is not None:
        _check_available("kv_cache_memory_bytes", asked, asked, available_bytes)
    num_bytes = asked or min(int(DEFAULT_SHARE * available_bytes), DEFAULT_MAX_BYTES)
    per_request = blocks_for(max_model_len, args.cache.block_size) * len(groups)
    num_blocks = min(num_bytes // per_block, args.scheduler.max_num_seqs * per_request + 1)
    if num_blocks < 2:
        raise ValueError(
            f"{num_bytes} bytes hold {num_blocks} KV-cache blocks of {per_block} bytes, at least 2 are needed; "
            "raise kv_cache_memory_bytes"
        )
    logger.info(
        "KV cache: %d blocks of %d tokens, up to %.2f GB",
        num_blocks,
        args.cache.block_size,
        num_blocks * per_block / 1e9,
    )
    return num_blocks


def _check_available(name: str, value: int, num_bytes: int, available_bytes: int) -> None:
    if num_bytes > available_bytes:
        raise ValueError(
            f"{name} is {value}, which takes {num_bytes / 1e9:.2f} GB, but this process can still take "
            f"{available_bytes / 1e9:.2f} GB; lower {name}"
        )


def requested_model_len(args: EngineArgs, longest: int) -> int:
    """The context length to prepare for. Raises ValueError if the model cannot do what was asked."""
    asked = args.model.max_model_len
    if asked is None:
        return longest
    if asked > longest:
        raise ValueError(f"max_model_len is {asked}, but the model's context length is {longest}; lower max_model_len")
    return asked


def served_model_len(args: EngineArgs, fitting: int, max_model_len: int) -> int:
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
