"""What decoder-only models have in common: embedding, layers, norm, head."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from pelton.config import DecoderConfig
from pelton.core.kv_spec import KVCacheSpec
from pelton.layers import (
    Attention,
    AttentionInputs,
    Embedding,
    GatedMLP,
    Head,
    LinearWeight,
    Parameter,
    RMSNorm,
    Rotary,
    Rotation,
    Target,
)
from pelton.models.batch import BatchInputs
from pelton.ops import KVCacheLayer, Recorder, Value


class Part(Protocol):
    """What has parameters."""

    def parameters(self) -> Iterator[Parameter]: ...


class DecoderLayer(Part, Protocol):
    """One layer of the stack."""

    attention: Attention

    def __call__(self, op: Recorder, x: Value, inputs: AttentionInputs, rotation: Rotation) -> Value:
        """x [T, E] -> [T, E]."""


class PreNormLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)): the layer of Llama and its relatives."""

    def __init__(self, name: str, config: DecoderConfig, target: Target, attention: Attention) -> None:
        norm = config.hidden_size, config.rms_norm_eps, target.activation_dtype
        self.attention_norm = RMSNorm(f"{name}.attention_norm", *norm)
        self.attention = attention
        self.mlp_norm = RMSNorm(f"{name}.mlp_norm", *norm)
        self.mlp = GatedMLP(f"{name}.mlp", config, target)

    def parameters(self) -> Iterator[Parameter]:
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from layer.parameters()

    def __call__(self, op: Recorder, x: Value, inputs: AttentionInputs, rotation: Rotation) -> Value:
        x = self.attention(op, self.attention_norm(op, x), inputs, rotation, residual=x)
        return self.mlp(op, self.mlp_norm(op, x), residual=x)


def pre_norm_layers(config: DecoderConfig, target: Target, *, qk_norm: bool = False) -> list[PreNormLayer]:
    """A stack of pre-norm layers, with the windows that the configuration has."""
    layers = []
    for i, window in enumerate(config.layer_windows):
        name = f"layers.{i}"
        attention = Attention(f"{name}.attention", config, target, window=window, qk_norm=qk_norm)
        layers.append(PreNormLayer(name, config, target, attention))
    return layers


class Decoder:
    """A decoder-only model. Its architecture gives the layers and the scale of the embedding."""

    def __init__(
        self, config: DecoderConfig, target: Target, layers: Sequence[DecoderLayer], *, embedding_scale: float = 1.0
    ) -> None:
        self.config = config
        self.activation_dtype = target.activation_dtype
        """Of the hidden states."""
        self.embedding = Embedding("embed_tokens", config.vocab_size, config.hidden_size, target)
        self.layers = layers
        self.norm = RMSNorm("norm", config.hidden_size, config.rms_norm_eps, target.activation_dtype)
        head_weight = self.embedding.table
        if not config.tie_word_embeddings:
            head_weight = LinearWeight([("lm_head", config.vocab_size)], config.hidden_size, target)
        self.lm_head = Head(head_weight, config.logit_softcap)
        self._embedding_scale = embedding_scale
        self._rotary = Rotary(config.rope, config.head_size)
        self._sliding_rotary = self._rotary
        if config.sliding_rope != config.rope:
            self._sliding_rotary = Rotary(config.sliding_rope, config.head_size)

    def parameters(self) -> dict[str, Parameter]:
        """Every tensor that the checkpoint must provide, by canonical name."""
        parts: tuple[Part, ...] = (self.embedding, *self.layers, self.norm, self.lm_head, *self._rotaries())
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
        x = self.embedding(op, batch.token_ids, self._embedding_scale)
        rotations = {rotary: rotary(op, batch.positions) for rotary in self._rotaries()}
        for layer, inputs in zip(self.layers, batch.layers, strict=True):
            x = layer(op, x, inputs, rotations[self._rotary_of(layer)])
        return self.norm(op, x)

    def head(self, op: Recorder, rows: Value, is_wanted: Value) -> tuple[Value, Value]:
        """rows [L, E], is_wanted [L] -> logits [L, V], and the best token's id in each row [L]; see `Head`."""
        return self.lm_head(op, rows, is_wanted)

    def _rotary_of(self, layer: DecoderLayer) -> Rotary:
        return self._rotary if layer.attention.window is None else self._sliding_rotary

    def _rotaries(self) -> tuple[Rotary, ...]:
        """Those in use, each once."""
        return tuple(dict.fromkeys(self._rotary_of(layer) for layer in self.layers))
