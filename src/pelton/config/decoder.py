"""The shape of a decoder-only transformer, read once from a checkpoint's own configuration."""

from dataclasses import dataclass

from pelton.config.options import check_positive
from pelton.config.rope import RopeConfig


@dataclass(frozen=True)
class DecoderConfig:
    """Everything a model file needs to know, whatever format the checkpoint has."""

    architecture: str
    """Key of the model registry, such as `llama`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope: RopeConfig
    """Of layers with full attention."""
    sliding_rope: RopeConfig
    """Of layers with a window."""
    max_position_embeddings: int
    """The context length, scaling of the rotary embedding included."""
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    """Every token that ends a sequence or a turn."""
    layer_windows: tuple[int | None, ...]
    """Per layer: the sliding window in tokens, or None for full attention."""
    attention_scale: float
    """Multiplies the products of queries and keys."""
    attention_bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    attention_softcap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    logit_softcap: float | None = None
    """Logits become cap * tanh(logit / cap)."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_size",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})")
        if self.head_size % 2:
            raise ValueError(f"head_size must be even for rotary embeddings, got {self.head_size}")
        if len(self.layer_windows) != self.num_layers:
            raise ValueError(f"{len(self.layer_windows)} layer windows for {self.num_layers} layers")
        for window in self.layer_windows:
            if window is not None and window < 1:
                raise ValueError(f"a sliding window must be at least 1 token, got {window}")
        check_positive(self, "rms_norm_eps", "attention_scale")
        for name in ("attention_softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                check_positive(self, name)
