"""The head program of a model whose hidden states are its logits, and real logits to run it on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pelton.config import SamplingConfig
from pelton.loader import load_weights, open_checkpoint
from pelton.models import create_model
from pelton.ops import B, C, Dim, L, LogitsHook, M, P, Program, Run, T, mask_words
from pelton.ops.backend import Backend
from pelton.ops.interpreter import NumpyBackend
from pelton.sampling import record_head
from tests.models.helpers import BLOCK_SIZE, Engine
from tests.support.backends import numpy_target
from tests.support.identity import Identity
from tests.support.prompts import prompts
from tests.support.tiny_llama import smollm2_tokenizer

BACKEND: Backend = NumpyBackend()
"""What programs run on; tests of this folder have each backend in turn (conftest)."""


@dataclass
class Edit:
    """What happens to one row's logits."""

    allowed: Iterable[int] | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    """Occurrences in the output, of every token of prompt and output."""
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    banned: Iterable[int] = ()

    def mask(self, vocab_size: int) -> np.ndarray | None:
        """Whether each token may be sampled."""
        if self.allowed is None and not self.banned:
            return None
        ids = np.arange(vocab_size)
        allowed = np.ones(vocab_size, bool) if self.allowed is None else np.isin(ids, list(self.allowed))
        return allowed & ~np.isin(ids, list(self.banned))


def edit_arrays(edits: Sequence[Edit | None], vocab_size: int) -> dict[str, np.ndarray]:
    """The head's inputs for row l having edits[l]. Edits are in the reverse order of rows, to tell them apart."""
    edited_rows = [row for row, edit in enumerate(edits) if edit is not None][::-1]
    present = [edits[row] for row in edited_rows]
    masks = [edit.mask(vocab_size) for edit in present]
    has_mask = np.array([mask is not None for mask in masks], bool)
    edit_index = np.full(len(edits), -1, np.int32)
    edit_index[edited_rows] = np.arange(len(edited_rows))
    return {
        "edit_index": edit_index,
        "mask_index": np.where(has_mask, np.cumsum(has_mask) - 1, -1).astype(np.int32),
        "masks": _packed([mask for mask in masks if mask is not None], vocab_size),
        "bias_start": np.cumsum([0, *(len(edit.bias) for edit in present)], dtype=np.int32),
        "bias_ids": np.array([i for edit in present for i in edit.bias], np.int32),
        "bias": np.array([x for edit in present for x in edit.bias.values()], np.float32),
        "penalty_start": np.cumsum([0, *(len(edit.counts) for edit in present)], dtype=np.int32),
        "penalty_ids": np.array([i for edit in present for i in edit.counts], np.int32),
        "penalty_counts": np.array([n for edit in present for n in edit.counts.values()], np.int32),
        "penalties": np.array([(e.repetition, e.frequency, e.presence) for e in present], np.float32).reshape(-1, 3),
    }


def _packed(masks: Sequence[np.ndarray], vocab_size: int) -> np.ndarray:
    bits = np.zeros((len(masks), mask_words(vocab_size) * 32), np.uint64)
    for row, mask in enumerate(masks):
        bits[row, :vocab_size] = mask
    words = bits.reshape(len(masks), mask_words(vocab_size), 32) << np.arange(32, dtype=np.uint64)
    return words.sum(-1).astype(np.uint32)


def warpers(
    num_rows: int, temperature: object = 1.0, top_k: object = 0, top_p: object = 1.0, min_p: object = 0.0
) -> np.ndarray:
    """Values for all rows, or one for each. -> [num_rows, 4]"""
    values = (np.broadcast_to(np.array(value, np.float32), num_rows) for value in (temperature, top_k, top_p, min_p))
    return np.stack(list(values), axis=1)


def edit_sizes(arrays: Mapping[str, np.ndarray]) -> dict[Dim, int]:
    sources = {C: "mask_index", M: "masks", B: "bias_ids", P: "penalty_ids"}
    return {dim: len(arrays[name]) for dim, name in sources.items()}


def run(
    logits: np.ndarray,
    rows: object = None,
    *,
    edits: Sequence[Edit | None] | Edit | None = None,
    max_logprobs: int = 4,
    mode: str = "raw_logprobs",
    hook: LogitsHook | None = None,
    tile: int = 64,
    **operands: object,
) -> dict[str, np.ndarray]:
    """The head's outputs. Per-row operands, and edits, may be given as one for all rows."""
    logits_rows = np.arange(len(logits), dtype=np.int32) if rows is None else np.array(rows, np.int32)
    num_rows, vocab_size = len(logits_rows), logits.shape[1]
    if not isinstance(edits, Sequence):
        edits = [edits] * num_rows
    warped = {name: operands.pop(name) for name in ("temperature", "top_k", "top_p", "min_p") if name in operands}
    values: dict[str, tuple[object, str]] = {
        "seed": (0, "uint64"),
        "choice": (0, "int32"),
        "position": (0, "int32"),
        "num_logprobs": (-1, "int32"),
    }
    values |= {name: (value, values[name][1]) for name, value in operands.items()}
    inputs = {
        "hidden": logits,
        "logits_rows": logits_rows,
        "warpers": warpers(num_rows, **warped),
        **{name: _per_row(value, dtype, num_rows) for name, (value, dtype) in values.items()},
        **edit_arrays(edits, vocab_size),
    }
    inputs["is_wanted"] = wanted(inputs)
    sampling = SamplingConfig(max_logprobs=max_logprobs, logprobs_mode=mode)
    program = record_head(Identity(vocab_size), sampling, hook)
    return run_program(program, {T: len(logits), L: num_rows, **edit_sizes(inputs)}, inputs, tile)


def _per_row(value: object, dtype: str, num_rows: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(np.array(value, dtype), num_rows))


def wanted(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rows of which more than the most likely token is needed."""
    is_random, is_asked = inputs["warpers"][:, 0] > 0.0, inputs["num_logprobs"] >= 0
    return (is_random | is_asked | (inputs["edit_index"] >= 0)).astype(np.int32)


def run_program(
    program: Program, sizes: Mapping[Dim, int], inputs: Mapping[str, np.ndarray], tile: int = 64
) -> dict[str, np.ndarray]:
    compiled = BACKEND.compile(program, sizes, (L, tile))
    BACKEND.run([Run(compiled, sizes, inputs)])
    return compiled.outputs(sizes)


def repeated(row: np.ndarray, count: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(row, (count, len(row))))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    assert not counts[expected == 0].any(), "a token that was ruled out"
    kept = expected > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


def real_logits() -> tuple[list[list[int]], np.ndarray]:
    """Varied prompts of SmolLM2, and its logits after them."""
    checkpoint = open_checkpoint("smollm2")
    target = numpy_target(block_size=BLOCK_SIZE)
    model = create_model(checkpoint.config, target)
    load_weights(model.parameters(), checkpoint)
    token_ids = [ids for ids in prompts(smollm2_tokenizer(), longest=17).values() if len(ids) <= 40]
    engine = Engine(model, target.backend, [0] * len(model.kv_layers), token_ids)
    hidden = np.stack([rows[-1] for rows in engine.step({r: len(ids) for r, ids in enumerate(token_ids)})])
    logits, _ = engine.logits(hidden)
    return token_ids, logits
