"""GGUF files: tensors and configuration."""
