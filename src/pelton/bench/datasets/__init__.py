"""The requests of a benchmark."""

from pelton.bench.datasets.make import make_requests, make_with_warmups

__all__ = ["make_requests", "make_with_warmups"]
