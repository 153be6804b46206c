"""Structured output: grammars that outputs must keep to."""

from pelton.grammar.backend import OutputVocabulary
from pelton.grammar.manager import StructuredOutputManager

__all__ = ["OutputVocabulary", "StructuredOutputManager"]
