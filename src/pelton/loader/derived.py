"""What follows from a checkpoint's configuration in most architectures, in either format."""

from pelton.loader.config_table import Derive, full_attention
from pelton.loader.rope import context_length

DERIVED: dict[str, Derive] = {
    "attention_scale": lambda fields: fields["head_size"] ** -0.5,
    "layer_windows": full_attention,
    "max_position_embeddings": context_length,
}
"""Field of `DecoderConfig` -> how it follows; architectures replace what is otherwise with them."""
