"""The tokenizer that belongs to a checkpoint."""

from pelton.error_text import in_file
from pelton.loader import Checkpoint, GGUFCheckpoint
from pelton.tokenizer.tokenizer import Tokenizer


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Raises ValueError that names the file and what is missing, wrong or not implemented."""
    # What one kind of checkpoint needs is not loaded for the other.
    if isinstance(checkpoint, GGUFCheckpoint):
        from pelton.tokenizer.from_gguf import tokenizer_from_gguf

        with in_file(checkpoint.path):
            return tokenizer_from_gguf(checkpoint.metadata)
    from pelton.tokenizer.from_folder import tokenizer_from_folder

    return tokenizer_from_folder(checkpoint.path)
