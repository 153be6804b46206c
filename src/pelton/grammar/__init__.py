"""Structured output: grammars that outputs must keep to."""

from pelton.grammar.backend import GrammarVocabulary
from pelton.grammar.manager import StructuredOutputManager

__all__ = ["GrammarVocabulary", "StructuredOutputManager"]
