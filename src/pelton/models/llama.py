"""Llama (Touvron et al. 2023, arXiv:2302.13971) and what is built like it: TinyLlama, SmolLM2, Mistral."""

from pelton.config import DecoderConfig
from pelton.layers import Target
from pelton.models.decoder import Decoder, pre_norm_layers


def llama(config: DecoderConfig, target: Target) -> Decoder:
    """Grouped-query attention and a gated MLP; biases and windows where the configuration has them."""
    return Decoder(config, target, pre_norm_layers(config, target))
