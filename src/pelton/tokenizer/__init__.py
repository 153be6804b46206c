"""Text to token ids and back."""

from pelton.tokenizer.detokenizer import IncrementalDetokenizer
from pelton.tokenizer.load import load_tokenizer, open_tokenizer
from pelton.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer", "load_tokenizer", "open_tokenizer"]
