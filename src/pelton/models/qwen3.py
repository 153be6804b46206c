"""Qwen3, dense (Yang et al. 2025, arXiv:2505.09388)."""

from pelton.config import DecoderConfig
from pelton.layers import Target
from pelton.models.decoder import Decoder, pre_norm_layers


def qwen3(config: DecoderConfig, target: Target) -> Decoder:
    """Llama's layers, with queries and keys normalised head by head."""
    return Decoder(config, target, pre_norm_layers(config, target, qk_norm=True))
