"""Norms of queries and keys, as the operators see them."""

from dataclasses import dataclass

from pelton.ops.arrays import Float32


@dataclass(frozen=True, eq=False)
class QKNorm:
    """Weights of an `rms_norm` over each head of the queries, and of the keys."""

    q: Float32
    """[head_size]."""
    k: Float32
    """[head_size]."""
    eps: float

    def __str__(self) -> str:
        return f"[{len(self.q)}] eps={self.eps}"
