"""A model without weights, for heads."""

import numpy as np

from pelton.config import DecoderConfig, RopeConfig
from pelton.ops import Recorder, Value
from pelton.ops.operator import ArraySpec, Operator
from pelton.ops.reference.best_ids import find_best


def given_logits(x: np.ndarray, is_wanted: np.ndarray, logits: np.ndarray, best_ids: np.ndarray) -> None:
    """Like the operator `logits`, with x itself for the logits; what is not wanted is NaN."""
    logits[:] = x
    best_ids[:] = find_best(x)
    logits[is_wanted == 0] = np.nan


GIVEN_LOGITS = Operator(
    "given_logits",
    lambda x, is_wanted: (ArraySpec("logits", x.shape), ArraySpec("best_ids", x.shape[:1], "int32")),
    given_logits,
    tolerances={},
    is_callback=True,
)


class Identity:
    """A model whose hidden states are its logits."""

    activation_dtype = "float32"

    def __init__(self, vocab_size: int) -> None:
        self.config = DecoderConfig(
            architecture="identity",
            vocab_size=vocab_size,
            hidden_size=vocab_size,
            intermediate_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_size=2,
            rms_norm_eps=1e-5,
            rope=RopeConfig(1e4),
            sliding_rope=RopeConfig(1e4),
            attention_scale=1.0,
            max_position_embeddings=1,
            tie_word_embeddings=True,
            eos_token_ids=(0,),
            layer_windows=(None,),
        )

    def head(self, op: Recorder, rows: Value, is_wanted: Value) -> tuple[Value, Value]:
        logits, best_ids = op.launch(GIVEN_LOGITS, rows, is_wanted)
        return logits, best_ids
