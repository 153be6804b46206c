"""Choosing tokens, and judging them."""

from pelton.sampling.head import record_head, record_scorer

__all__ = ["record_head", "record_scorer"]
