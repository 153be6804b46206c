"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671)."""

from pelton.config import DecoderConfig
from pelton.models.decoder import Decoder, pre_norm_layers


def qwen2(config: DecoderConfig, *, block_size: int) -> Decoder:
    """Llama's layers, with biases on queries, keys and values."""
    assert config.attention_bias
    assert not config.attention_output_bias
    return Decoder(config, pre_norm_layers(config, block_size=block_size))
