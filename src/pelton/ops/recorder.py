"""The recorder: models call it as `op`, and every call appends a launch to the program."""

from collections.abc import Mapping

import numpy as np

from pelton.ops import operators
from pelton.ops.arrays import Float32
from pelton.ops.dims import Shape
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.logits_hook import LogitsHook
from pelton.ops.operator import Operator
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.program import Argument, Launch, Program, Value
from pelton.ops.qk_norm import QKNorm
from pelton.ops.reference.activations import Activation


class Recorder:
    """Records one program. Each operator's meaning is told where its reference is.

    Every method raises ValueError if shapes or dtypes do not fit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: dict[str, Value] = {}
        self._launches: list[Launch] = []
        self._num_values = 0

    def input(self, name: str, shape: Shape, dtype: str = "float32") -> Value:
        """Declare an input of the program."""
        if name in self._inputs:
            raise ValueError(f"{self._name}: two inputs are called {name!r}")
        self._inputs[name] = value = self._value(name, shape, dtype)
        return value

    def finish(self, outputs: Mapping[str, Value]) -> Program:
        """The program recorded so far, with these outputs."""
        return Program(self._name, dict(self._inputs), dict(outputs), tuple(self._launches))

    def embed(self, token_ids: Value, table: PackedLinear, scale: float = 1.0) -> Value:
        return self._one(operators.EMBED, token_ids, table, scale)

    def rms_norm(
        self, x: Value, weight: Float32, eps: float, residual: Value | None = None, out_dtype: str = "float32"
    ) -> Value:
        return self._one(operators.RMS_NORM, x, weight, eps, residual, out_dtype)

    def linear(self, x: Value, weight: PackedLinear, residual: Value | None = None) -> Value:
        return self._one(operators.LINEAR, x, weight, residual)

    def gated_linear(self, x: Value, weight: PackedLinear, activation: Activation) -> Value:
        return self._one(operators.GATED_LINEAR, x, weight, activation)

    def rotary(self, positions: Value, frequencies: Float32, factor: float = 1.0) -> tuple[Value, Value]:
        """cos and sin."""
        cos, sin = self.launch(operators.ROTARY, positions, frequencies, factor)
        return cos, sin

    def rope_and_cache(
        self,
        qkv: Value,
        cos: Value,
        sin: Value,
        slot_mapping: Value,
        cache: KVCacheLayer,
        norms: QKNorm | None = None,
    ) -> Value:
        return self._one(operators.ROPE_AND_CACHE, qkv, cos, sin, slot_mapping, cache, norms)

    def attention(
        self,
        q: Value,
        cache: KVCacheLayer,
        block_table: Value,
        query_start: Value,
        seq_lens: Value,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        out_dtype: str = "float32",
    ) -> Value:
        batch = block_table, query_start, seq_lens
        return self._one(operators.ATTENTION, q, cache, *batch, scale, window, softcap, out_dtype)

    def gather_rows(self, x: Value, rows: Value) -> Value:
        return self._one(operators.GATHER_ROWS, x, rows)

    def logits(self, x: Value, weight: PackedLinear, softcap: float | None, is_wanted: Value) -> tuple[Value, Value]:
        """Logits, and the most likely token of each row."""
        logits, best_ids = self.launch(operators.LOGITS, x, weight, softcap, is_wanted)
        return logits, best_ids

    def process_logits(self, logits: Value, edit_index: Value, hook: LogitsHook) -> Value:
        return self._one(operators.PROCESS_LOGITS, logits, edit_index, hook)

    def edit_logits(
        self,
        logits: Value,
        edit_index: Value,
        mask_index: Value,
        masks: Value,
        bias_start: Value,
        bias_ids: Value,
        bias: Value,
        penalty_start: Value,
        penalty_ids: Value,
        penalty_counts: Value,
        penalties: Value,
    ) -> Value:
        masked = edit_index, mask_index, masks
        biased = bias_start, bias_ids, bias
        penalized = penalty_start, penalty_ids, penalty_counts, penalties
        return self._one(operators.EDIT_LOGITS, logits, *masked, *biased, *penalized)

    def sample(
        self,
        logits: Value,
        best_ids: Value,
        edited: Value,
        edit_index: Value,
        warpers: Value,
        seed: Value,
        choice: Value,
        position: Value,
    ) -> Value:
        return self._one(operators.SAMPLE, logits, best_ids, edited, edit_index, warpers, seed, choice, position)

    def warp_logits(
        self, logits: Value, edited: Value, edit_index: Value, warpers: Value, num_logprobs: Value
    ) -> Value:
        return self._one(operators.WARP_LOGITS, logits, edited, edit_index, warpers, num_logprobs)

    def logprobs(
        self, logits: Value, token_ids: Value, num_logprobs: Value, max_logprobs: int, normalize: bool
    ) -> tuple[Value, ...]:
        """The given tokens' log probabilities, their ranks, the most likely tokens and theirs."""
        return self.launch(operators.LOGPROBS, logits, token_ids, num_logprobs, max_logprobs, normalize)

    def launch(self, operator: Operator, *arguments: Argument) -> tuple[Value, ...]:
        """Append a launch of any operator. -> its outputs"""
        try:
            specs = operator.infer(*arguments)
        except ValueError as error:
            raise ValueError(f"{self._name}, launch {len(self._launches)}, {operator}: {error}") from None
        outputs = tuple(self._value(*spec) for spec in specs)
        self._launches.append(Launch(operator, arguments, outputs))
        return outputs

    def _one(self, operator: Operator, *arguments: Argument) -> Value:
        (output,) = self.launch(operator, *arguments)
        return output

    def _value(self, name: str, shape: Shape, dtype: str) -> Value:
        self._num_values += 1
        return Value(self._num_values - 1, name, shape, np.dtype(dtype))
