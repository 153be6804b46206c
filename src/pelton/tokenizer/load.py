"""The tokenizer that belongs to a model."""

from pathlib import Path

from pelton.error_text import in_file
from pelton.loader import Checkpoint, GGUFCheckpoint, open_for_texts
from pelton.tokenizer.tokenizer import Tokenizer


def open_tokenizer(model: str) -> Tokenizer:
    """By alias, path or hub id; of a hub, weights are fetched only where the tokenizer is in the same file.

    Raises ValueError that says what is accepted, or what is wrong with the files.
    """
    return load_tokenizer(open_for_texts(model))


def load_tokenizer(checkpoint: Checkpoint | Path) -> Tokenizer:
    """Of a checkpoint, or of a folder. Raises ValueError that names the file and what is missing, wrong or not
    implemented."""
    # What one kind of checkpoint needs is not loaded for the other.
    if isinstance(checkpoint, GGUFCheckpoint):
        from pelton.tokenizer.from_gguf import tokenizer_from_gguf

        with in_file(checkpoint.path):
            return tokenizer_from_gguf(checkpoint.metadata)
    from pelton.tokenizer.from_folder import tokenizer_from_folder

    return tokenizer_from_folder(checkpoint if isinstance(checkpoint, Path) else checkpoint.path)
