"""The inputs of a backbone."""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.layers import AttentionInputs
from pelton.ops import R1, R, Recorder, T, Value


@dataclass(frozen=True)
class BatchInputs:
    """The step's tokens, all requests flattened into one sequence, and where their keys and values live."""

    token_ids: Value
    """[T] int32."""
    positions: Value
    """[T] int32, of each token within its request."""
    layers: tuple[AttentionInputs, ...]
    """One per attention layer; layers of one KV-cache group share theirs."""

    @classmethod
    def record(cls, op: Recorder, layer_groups: Sequence[int], max_blocks: int) -> "BatchInputs":
        """Declare the inputs. `layer_groups` holds the KV-cache group of each attention layer.

        Inputs: token_ids [T], positions [T], query_start [R + 1], seq_lens [R] int32 and, for each group g,
        `slot_mapping.g` [T] int64 and `block_table.g` [R, max_blocks] int32.
        """
        token_ids = op.input("token_ids", (T,), "int32")
        positions = op.input("positions", (T,), "int32")
        query_start = op.input("query_start", (R1,), "int32")
        seq_lens = op.input("seq_lens", (R,), "int32")
        groups = {
            group: AttentionInputs(
                query_start,
                seq_lens,
                slot_mapping=op.input(f"slot_mapping.{group}", (T,), "int64"),
                block_table=op.input(f"block_table.{group}", (R, max_blocks), "int32"),
            )
            for group in sorted(set(layer_groups))
        }
        return cls(token_ids, positions, tuple(groups[group] for group in layer_groups))
