"""Constraints as grammars in llguidance's own notations, after they have been read strictly."""

import json
from functools import lru_cache
from typing import Any

from pelton.error_text import shown
from pelton.grammar.backend import GrammarVocabulary, UnsupportedGrammarError
from pelton.grammar.json_keywords import reduced_schema
from pelton.grammar.json_whitespace import read_whitespace
from pelton.grammar.llguidance_lark import lark_grammar
from pelton.grammar.llguidance_regex import lark_text, write_regex
from pelton.grammar.llguidance_tags import tags_grammar
from pelton.grammar.regex_reader import read_regex
from pelton.structured_outputs_params import StructuredOutputsParams

JSON_ESCAPES = 'nrbtf\\"'
"""Letters after a backslash. Without `u`, a text has one spelling: a key cannot come again in another one."""
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
"""By default, text that must come may only come in the tokens that the tokenizer makes of it."""


def grammar_text(params: StructuredOutputsParams, vocabulary: GrammarVocabulary | None) -> str:
    """For LLMatcher. `vocabulary` is needed for tags that the model has special tokens for; None takes them as text.

    Raises UnsupportedGrammarError.
    """
    return json.dumps({"grammars": [{"lark_grammar": _lark(params, vocabulary) + _OPTIONS}]})


def _lark(params: StructuredOutputsParams, vocabulary: GrammarVocabulary | None) -> str:
    if params.regex is not None:
        return f"start: /{_whole_regex(params.regex)}/"
    if params.choice is not None:
        return "start: T\nT: " + " | ".join(map(lark_text, dict.fromkeys(params.choice)))
    if params.grammar is not None:
        return lark_grammar(params.grammar, lambda schema: json_schema(schema, params, "grammar"))
    if isinstance(params.structural_tag, dict):
        return tags_grammar(params.structural_tag, lambda schema, field: json_schema(schema, params, field), vocabulary)
    if isinstance(params.json, dict | bool):
        return f"start: %json {json.dumps(json_schema(params.json, params, 'json'))}"
    return f"start: %json {json.dumps(json_schema({'type': 'object'}, params, 'json_object'))}"


def json_schema(schema: dict[str, Any] | bool, params: StructuredOutputsParams, field: str) -> dict[str, Any]:
    """A schema for llguidance, which keeps all of it and takes its options from within."""
    reduced = reduced_schema(schema, field, closed=bool(params.disable_additional_properties))
    options: dict[str, Any] = {"json_allowed_escapes": JSON_ESCAPES, "whitespace_flexible": False}
    if not params.disable_any_whitespace:
        pattern = _whitespace_regex(params.whitespace_pattern)
        if pattern:
            options |= {"whitespace_flexible": True, "whitespace_pattern": pattern}
    return {**(reduced if isinstance(reduced, dict) else {}), "x-guidance": options}


@lru_cache(maxsize=64)
def _whitespace_regex(pattern: str | None) -> str:
    return write_regex(read_whitespace(pattern)) or ""


def _whole_regex(pattern: str) -> str:
    written = write_regex(read_regex(pattern, "regex"))
    if written is None:
        raise UnsupportedGrammarError(f"regex: {shown(pattern)} matches nothing")
    return written
