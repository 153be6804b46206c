"""Measures the engine, any server with OpenAI's interface, and how far from its limits the machine is."""
