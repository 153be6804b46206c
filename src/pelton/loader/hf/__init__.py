"""Hugging Face folders, and the hub that they come from."""
