"""From token ids to hidden states, and back to logits."""

from collections.abc import Iterator

from pelton.layers.linear import LinearWeight
from pelton.layers.parameter import Parameter
from pelton.layers.target import Target
from pelton.ops import Recorder, Value


class Embedding:
    """A table with one row per token, packed as the weight of a linear layer, for it may be that of the head too."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, target: Target) -> None:
        self.table = LinearWeight([(name, vocab_size)], hidden_size, target)

    def parameters(self) -> Iterator[Parameter]:
        yield from self.table.parameters()

    def __call__(self, op: Recorder, token_ids: Value, scale: float = 1.0) -> Value:
        """token_ids [T] -> rows times `scale` [T, E] float32."""
        return op.embed(token_ids, self.table.packed, scale)


class Head:
    """From hidden states to logits, with a weight of its own or that of the embedding, which is then stored once."""

    def __init__(self, weight: LinearWeight, softcap: float | None = None) -> None:
        self.weight = weight
        self._softcap = softcap

    def parameters(self) -> Iterator[Parameter]:
        """A weight that is the embedding's too has the same parameter there and here."""
        yield from self.weight.parameters()

    def __call__(self, op: Recorder, rows: Value, is_wanted: Value) -> tuple[Value, Value]:
        """rows [L, E], is_wanted [L] -> logits [L, V], best ids [L].

        Logits are capped to `softcap * tanh(logit / softcap)`. Those of rows that are not wanted are undefined.
        """
        return op.logits(rows, self.weight.packed, self._softcap, is_wanted)
