"""From token ids to hidden states, and back to logits."""

from collections.abc import Iterator

from pelton.layers.linear import Linear
from pelton.layers.parameter import Parameter
from pelton.ops import Recorder, Value, pack_linear


class Embedding:
    """A table with one row per token."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int) -> None:
        self.weight = Parameter(name, (vocab_size, hidden_size))

    def parameters(self) -> Iterator[Parameter]:
        yield self.weight

    def __call__(self, op: Recorder, token_ids: Value, scale: float = 1.0) -> Value:
        """token_ids [T] -> rows times `scale` [T, E]."""
        return op.embed(token_ids, self.weight.array, scale)


class TiedHead:
    """A head that reads the embedding's table: one array, stored once."""

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding

    def parameters(self) -> Iterator[Parameter]:
        yield from ()

    def __call__(self, op: Recorder, x: Value) -> Value:
        """x [L, E] -> logits [L, V]."""
        return op.linear(x, pack_linear(self._embedding.weight.array))


def head(name: str, embedding: Embedding, *, tied: bool) -> Linear | TiedHead:
    """The layer from hidden states to logits: tied to the embedding, or with its own weight called `name`."""
    vocab_size, hidden_size = embedding.weight.shape
    return TiedHead(embedding) if tied else Linear([(name, vocab_size)], hidden_size)
