"""The engine: front end, core, and the client between them."""

from pelton.engine.engine_core import EngineCore
from pelton.engine.llm_engine import LLMEngine

__all__ = ["EngineCore", "LLMEngine"]
