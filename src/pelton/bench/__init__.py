"""Measures the engine in this process, and any server with OpenAI's interface; how far the machine is from its limits."""
