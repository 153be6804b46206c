"""Llama and the models built like it (Touvron et al. 2023, arXiv:2302.13971)."""

from collections.abc import Iterator

from pelton.config import DecoderConfig
from pelton.core.kv_spec import KVCacheSpec
from pelton.layers import Attention, AttentionInputs, Embedding, GatedMLP, Parameter, RMSNorm, Rotary, head
from pelton.models.batch import BatchInputs
from pelton.ops import KVCacheLayer, Recorder, Value


class LlamaLayer:
    def __init__(self, name: str, config: DecoderConfig, window: int | None, block_size: int, rotary: Rotary) -> None:
        self.attention_norm = RMSNorm(f"{name}.attention_norm", config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(
            f"{name}.attention",
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            window=window,
            block_size=block_size,
            rotary=rotary,
        )
        self.mlp_norm = RMSNorm(f"{name}.mlp_norm", config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(f"{name}.mlp", hidden_size=config.hidden_size, intermediate_size=config.intermediate_size)

    def parameters(self) -> Iterator[Parameter]:
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from layer.parameters()

    def __call__(self, op: Recorder, x: Value, inputs: AttentionInputs) -> Value:
        x = self.attention(op, self.attention_norm(op, x), x, inputs)
        return self.mlp(op, self.mlp_norm(op, x), x)


class LlamaModel:
    """Pre-norm decoder: grouped-query attention with rotary positions, then a gated MLP."""

    def __init__(self, config: DecoderConfig, *, block_size: int, max_model_len: int) -> None:
        self.config = config
        rotary = Rotary(head_size=config.head_size, theta=config.rope_theta, num_positions=max_model_len)
        self.embedding = Embedding("embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = [
            LlamaLayer(f"layers.{i}", config, window, block_size, rotary)
            for i, window in enumerate(config.layer_windows)
        ]
        self.norm = RMSNorm("norm", config.hidden_size, config.rms_norm_eps)
        self.lm_head = head("lm_head", self.embedding, tied=config.tie_word_embeddings)

    def parameters(self) -> dict[str, Parameter]:
        """Every tensor that the checkpoint must provide, by canonical name."""
        parts = (self.embedding, *self.layers, self.norm, self.lm_head)
        return {parameter.name: parameter for part in parts for parameter in part.parameters()}

    @property
    def kv_layers(self) -> list[KVCacheLayer]:
        """The KV cache of each attention layer, to be bound."""
        return [layer.attention.kv_cache for layer in self.layers]

    def kv_specs(self) -> list[KVCacheSpec]:
        """What each attention layer asks of the KV cache."""
        return [layer.attention.kv_spec for layer in self.layers]

    def forward(self, op: Recorder, batch: BatchInputs) -> Value:
        """-> the hidden states of all tokens, normalised [T, E]."""
        x = self.embedding(op, batch.token_ids)
        for layer, inputs in zip(self.layers, batch.layers, strict=True):
            x = layer(op, x, inputs)
        return self.norm(op, x)

    def head(self, op: Recorder, rows: Value) -> Value:
        """rows [L, E] -> logits [L, V]."""
        return self.lm_head(op, rows)
