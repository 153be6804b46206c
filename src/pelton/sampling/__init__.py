"""Choosing tokens."""

from pelton.sampling.head import record_head

__all__ = ["record_head"]
