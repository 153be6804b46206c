"""Tokenizers of the vocabularies that GGUF files hold."""
