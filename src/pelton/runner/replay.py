"""Runs a model's recorded programs on a step's inputs."""

from collections.abc import Sequence

from pelton.core.kv_spec import KVCacheGroup, layer_groups
from pelton.models import Model, record_backbone
from pelton.ops import Backend, R, Run, T
from pelton.ops.arrays import AnyArray
from pelton.runner.head import ReplayedHead
from pelton.runner.input_batch import StepInputs
from pelton.runner.step_limits import StepLimits
from pelton.runner.step_results import StepResults


class ReplayedModel:
    """A model's backbone, compiled once for steps of any size, its head, and the KV cache's memory.

    The i-th layers of all groups share one storage array, for a block id belongs to one group at a time.
    """

    def __init__(
        self,
        backend: Backend,
        model: Model,
        groups: Sequence[KVCacheGroup],
        num_blocks: int,
        limits: StepLimits,
        head: ReplayedHead,
    ) -> None:
        _bind_storage(backend, model, groups, num_blocks)
        sizes = {T: limits.max_num_tokens, R: limits.max_num_seqs}
        program = record_backbone(model, layer_groups(groups), limits.max_blocks)
        self._backend = backend
        self._backbone = backend.compile(program, sizes)
        self._head = head

    def run(self, inputs: StepInputs) -> StepResults:
        """One native call, unless logits processors of the user's own have to be called in between."""
        sizes = {T: len(inputs.token_ids), R: len(inputs.seq_lens)}
        arrays: dict[str, AnyArray] = {
            "token_ids": inputs.token_ids,
            "positions": inputs.positions,
            "query_start": inputs.query_start,
            "seq_lens": inputs.seq_lens,
        }
        for group, (slots, table) in enumerate(zip(inputs.slot_mapping, inputs.block_tables, strict=True)):
            arrays[f"slot_mapping.{group}"] = slots
            arrays[f"block_table.{group}"] = table
        hidden = self._backbone.output("hidden", sizes)
        head_runs = self._head.prepare(hidden, inputs)
        self._backend.run([Run(self._backbone, sizes, arrays), *head_runs])
        return self._head.results(head_runs, inputs)


def _bind_storage(backend: Backend, model: Model, groups: Sequence[KVCacheGroup], num_blocks: int) -> None:
    block_bytes = groups[0].spec.block_bytes  # the same in all groups
    storage = [backend.zeros(num_blocks * block_bytes) for _ in range(max(len(g.layers) for g in groups))]
    for group in groups:
        spec = group.spec
        shape = (num_blocks, 2, spec.num_kv_heads, spec.block_size, spec.head_size)
        for memory, layer in zip(storage, group.layers, strict=False):
            model.kv_layers[layer].bind(memory.view(spec.dtype).reshape(shape), backend.cache_layout)
