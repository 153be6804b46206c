"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671)."""

from pelton.config import DecoderConfig
from pelton.layers import Target
from pelton.models.decoder import Decoder, pre_norm_layers


def qwen2(config: DecoderConfig, target: Target) -> Decoder:
    """Llama's layers; the configuration always has biases on queries, keys and values."""
    return Decoder(config, target, pre_norm_layers(config, target))
