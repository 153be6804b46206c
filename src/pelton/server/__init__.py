"""The OpenAI-compatible server: requests over HTTP, answers from an `AsyncLLM`."""
