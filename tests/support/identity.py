"""A model without weights, for heads."""

from pelton.config import DecoderConfig, RopeConfig
from pelton.ops import Recorder, Value


class Identity:
    """A model whose hidden states are its logits."""

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

    def head(self, op: Recorder, rows: Value) -> Value:
        return rows
