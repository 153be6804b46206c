"""Grammars by xgrammar, an extra that brings torch: `pip install 'pelton[xgrammar]'`.

xgrammar gets context-free grammars that Pelton writes, for schemas, expressions and choices too: what it would make of
those by itself leaves out, without saying so, what it does not know.
"""

import importlib
import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from pelton.error_text import described, shown
from pelton.grammar.backend import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    GrammarVocabulary,
    UnsupportedGrammarError,
)
from pelton.grammar.expressions import Expression, Text, choice
from pelton.grammar.gbnf_reader import gbnf_rules
from pelton.grammar.regex_reader import read_regex
from pelton.grammar.xgrammar_ebnf import Grammar, check_repeats
from pelton.grammar.xgrammar_schema import json_rules, space_of
from pelton.grammar.xgrammar_tags import read_tags
from pelton.ops.arrays import UInt32
from pelton.structured_outputs_params import StructuredOutputsParams

_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
"""What xgrammar's messages begin with: the time, and a line of its source."""


@dataclass(frozen=True)
class _Tokens:
    without_text: Set[int]
    """Those that xgrammar would not just refuse, but also write a warning about."""
    last_word: np.uint32
    """All bits of a mask's last word that are a token's."""


class XgrammarMatcher(GrammarMatcher):
    def __init__(self, matcher: Any, tokens: _Tokens) -> None:
        self._matcher = matcher
        self._tokens = tokens

    def fill_bitmask(self, row: UInt32) -> None:
        self._matcher.fill_next_token_bitmask(row.view(np.int32))
        row[-1] &= self._tokens.last_word  # xgrammar may set bits of tokens that there are not

    def accept(self, token_id: int) -> bool:
        return token_id not in self._tokens.without_text and bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    @property
    def is_accepting(self) -> bool:
        return bool(self._matcher.is_completed())


class XgrammarGrammar(CompiledGrammar):
    def __init__(self, new_matcher: Callable[[], Any], tokens: _Tokens, num_bytes: int) -> None:
        self._new_matcher = new_matcher
        self._tokens = tokens
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def new_matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._new_matcher(), self._tokens)


class XgrammarBackend(GrammarBackend):
    name = "xgrammar"

    @classmethod
    def is_installed(cls) -> bool:
        return find_spec("xgrammar") is not None

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        _source(params)

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        """Imports xgrammar, which takes seconds."""
        self._library = importlib.import_module("xgrammar")
        special = set(vocabulary.special_token_ids)
        # What has no bytes is never allowed; without stop tokens there are none in masks, and nothing ever terminates.
        tokens = [b"" if token_id in special else token for token_id, token in enumerate(vocabulary.token_bytes)]
        information = self._library.TokenizerInfo(
            tokens, self._library.VocabType.RAW, vocab_size=vocabulary.vocab_size, stop_token_ids=[]
        )
        self._tokens = _Tokens(
            frozenset(token_id for token_id, token in enumerate(tokens) if not token),
            np.uint32(2 ** (len(tokens) % 32 or 32) - 1),
        )
        self._compiler = self._library.GrammarCompiler(information, max_threads=1, cache_enabled=False)

    def compile(self, params: StructuredOutputsParams) -> XgrammarGrammar:
        source = _source(params)
        try:
            if isinstance(source, str):
                grammar = self._compiler.compile_grammar(source)
            else:
                grammar = self._compiler.compile_structural_tag(source)
        except (RuntimeError, ValueError, TypeError) as error:
            message = _PLACE.sub("", str(error)) or described(error)
            raise UnsupportedGrammarError(f"{params.kind}: xgrammar cannot compile it: {shown(message)}") from None
        num_bytes = int(grammar.memory_size_bytes)
        return XgrammarGrammar(partial(self._library.GrammarMatcher, grammar), self._tokens, num_bytes)


def _source(params: StructuredOutputsParams) -> str | dict[str, Any]:
    """What xgrammar compiles: a grammar, or a structural tag. Raises UnsupportedGrammarError."""
    if params.structural_tag is not None:
        assert isinstance(params.structural_tag, dict), "params have parsed it"
        names_only = bool(params.disable_additional_properties)
        return read_tags(params.structural_tag, space_of(params), names_only=names_only)
    rules = _rules(params)
    if params.kind in ("regex", "grammar"):
        check_repeats(params.kind, rules)
    return Grammar(params.kind, rules).written()


def _rules(params: StructuredOutputsParams) -> dict[str, Expression]:
    if params.regex is not None:
        return {"root": read_regex(params.regex, "regex")}
    if params.choice is not None:
        return {"root": choice(*map(Text, dict.fromkeys(params.choice)))}
    if params.grammar is not None:
        return gbnf_rules(params.grammar)
    return json_rules(params)
