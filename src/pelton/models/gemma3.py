"""Gemma 3, text (Gemma Team 2025, arXiv:2503.19786)."""

from collections.abc import Iterator

from pelton.config import DecoderConfig
from pelton.layers import Attention, AttentionInputs, GatedMLP, Parameter, RMSNorm, Rotation, Target
from pelton.models.decoder import Decoder
from pelton.ops import Recorder, Value


class Gemma3Layer:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, name: str, config: DecoderConfig, target: Target, window: int | None) -> None:
        def norm(part: str, out_dtype: str) -> RMSNorm:
            return RMSNorm(f"{name}.{part}", config.hidden_size, config.rms_norm_eps, out_dtype)

        self.attention_norm = norm("attention_norm", target.activation_dtype)
        self.attention = Attention(f"{name}.attention", config, target, window=window, qk_norm=True)
        self.post_attention_norm = norm("post_attention_norm", "float32")
        self.mlp_norm = norm("mlp_norm", target.activation_dtype)
        self.mlp = GatedMLP(f"{name}.mlp", config, target, activation="gelu_tanh")
        self.post_mlp_norm = norm("post_mlp_norm", "float32")

    def parameters(self) -> Iterator[Parameter]:
        norms = (self.attention_norm, self.post_attention_norm, self.mlp_norm, self.post_mlp_norm)
        for layer in (*norms, self.attention, self.mlp):
            yield from layer.parameters()

    def __call__(self, op: Recorder, x: Value, inputs: AttentionInputs, rotation: Rotation) -> Value:
        attended = self.attention(op, self.attention_norm(op, x), inputs, rotation)
        x = self.post_attention_norm(op, attended, residual=x)
        return self.post_mlp_norm(op, self.mlp(op, self.mlp_norm(op, x)), residual=x)


def gemma3(config: DecoderConfig, target: Target) -> Decoder:
    """Mostly sliding windows, every sixth layer full; the two kinds rotate with different frequencies."""
    layers = [Gemma3Layer(f"layers.{i}", config, target, window) for i, window in enumerate(config.layer_windows)]
    return Decoder(config, target, layers, embedding_scale=config.hidden_size**0.5)
