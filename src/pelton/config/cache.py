"""The KV cache."""

from dataclasses import dataclass

from pelton.checks import check_choice, check_flag, check_integer
from pelton.config.options import check_dtype, dtype_option, option

HASH_ALGORITHMS = ("sha256", "builtin")


@dataclass(frozen=True)
class CacheConfig:
    """Size and behaviour of the paged KV cache."""

    block_size: int = option(16, "Tokens per KV-cache block.")
    kv_cache_dtype: str = dtype_option(
        "Number format of keys and values in the cache: float32, bfloat16 (twice as many blocks in the same memory), "
        "or auto: that of dtype.",
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Memory for the KV cache, in bytes. Default: 40 % of the memory this process may still use "
        "(control-group limits included), at most 4 GiB.",
        type=int,
    )
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV-cache blocks, whatever memory they take; for tests.", type=int
    )
    enable_prefix_caching: bool = option(True, "Reuse the blocks of prompts that begin alike.")
    prefix_caching_hash_algo: str = option(
        "sha256",
        "Hash of prefix-cache keys: sha256, or builtin (Python's own hash: faster, valid in this process only).",
        choices=HASH_ALGORITHMS,
    )

    def __post_init__(self) -> None:
        check_integer("block_size", self.block_size, low=1)
        check_dtype("kv_cache_dtype", self.kv_cache_dtype)
        if self.kv_cache_memory_bytes is not None:
            check_integer("kv_cache_memory_bytes", self.kv_cache_memory_bytes, low=1)
        if self.num_gpu_blocks_override is not None:
            # Block 0 is the null block.
            check_integer("num_gpu_blocks_override", self.num_gpu_blocks_override, low=2)
            if self.kv_cache_memory_bytes is not None:
                raise ValueError("set only one of num_gpu_blocks_override and kv_cache_memory_bytes")
        check_flag("enable_prefix_caching", self.enable_prefix_caching)
        check_choice("prefix_caching_hash_algo", self.prefix_caching_hash_algo, HASH_ALGORITHMS)
