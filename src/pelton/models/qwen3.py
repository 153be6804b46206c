"""Qwen3, dense (Yang et al. 2025, arXiv:2505.09388)."""

from pelton.config import DecoderConfig
from pelton.models.decoder import Decoder, pre_norm_layers


def qwen3(config: DecoderConfig, *, block_size: int) -> Decoder:
    """Llama's layers, with queries and keys normalised head by head."""
    return Decoder(config, pre_norm_layers(config, block_size=block_size, qk_norm=True))
