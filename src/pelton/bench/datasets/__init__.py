"""The requests of a benchmark."""

from pelton.bench.datasets.make import make_requests

__all__ = ["make_requests"]
