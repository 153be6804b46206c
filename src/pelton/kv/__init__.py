"""The paged KV cache's bookkeeping: which block holds what. No arrays live here."""

from pelton.kv.coordinator import KVCacheCoordinator, PrefixHit
from pelton.kv.groups import group_layers

__all__ = ["KVCacheCoordinator", "PrefixHit", "group_layers"]
