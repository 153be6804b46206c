"""The backbone program of a model."""

from collections.abc import Sequence

from pelton.models.batch import BatchInputs
from pelton.models.registry import Model
from pelton.ops import Program, Recorder


def record_backbone(model: Model, layer_groups: Sequence[int], max_blocks: int) -> Program:
    """Record a loaded model from token ids to the output `hidden` [T, E].

    `BatchInputs.record` lists the inputs. `max_blocks` is the width of the block tables.
    """
    op = Recorder("backbone")
    batch = BatchInputs.record(op, layer_groups, max_blocks)
    return op.finish({"hidden": model.forward(op, batch)})
