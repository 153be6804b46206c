"""Context-free grammars for llguidance: in Lark's notation with llguidance's additions, or in GBNF."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pelton.error_text import message_of, shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.gbnf_reader import gbnf_rules
from pelton.grammar.llguidance_gbnf import gbnf_as_lark
from pelton.grammar.llguidance_lark_rules import ANYTHING, has_finite_text

MAX_LEVELS = 1_000
"""Rules, and brackets within brackets of each of them."""

ReduceSchema = Callable[[Any], dict[str, Any]]

_GBNF_RULE = re.compile(r"^[^\S\n]*[A-Za-z_][\w.-]*\s*::=", re.MULTILINE)
_START_RULE = re.compile(r"^[ \t]*[?!]*start\b[^:\n]*:", re.MULTILINE)
_TOKEN = re.compile(
    r"""
    (?P<comment> //[^\n]* | \#[^\n]* )
    | (?P<text> "(?:[^"\\\n]|\\.)*"i? )
    | (?P<regex> /(?:[^/\\\n]|\\.)+/[imslux]* )
    | (?P<directive> %[A-Za-z_]+ )
    | (?P<attribute> \b\w+ (?=\s*=) )
    | (?P<special> <[^\s>]*>? )
    | (?P<other> \w+ | \s+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)


_SPACE = re.compile(r"\s*")
_REST_IS_SPACE = re.compile(r"[^\S\n]*(?:\n|\Z)")


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_number)


def lark_grammar(text: str, reduce_schema: ReduceSchema) -> str:
    """The grammar for llguidance. Schemas within are reduced, as everywhere. Raises UnsupportedGrammarError."""
    if _GBNF_RULE.search(text):
        return checked_levels(gbnf_as_lark(gbnf_rules(text)), "grammar")
    if not _START_RULE.search(text):
        raise UnsupportedGrammarError(
            "grammar: it has no rule start (start: ..., in Lark's notation) and no rule root (root ::= ..., in GBNF)"
        )
    reduced = checked_levels(_with_reduced_schemas(text, reduce_schema), "grammar")
    if not has_finite_text(_without_content(text)):
        raise UnsupportedGrammarError("grammar: no finite output satisfies it")
    return reduced


def _without_content(text: str) -> str:
    """With `ANYTHING` in place of texts, expressions and schemas, and without comments."""
    pieces = []
    for token in _tokens(text):
        is_content = token.lastgroup in ("text", "regex") or token[0] == "%json"
        pieces.append(ANYTHING if is_content else "" if token.lastgroup == "comment" else token[0])
    return "".join(pieces)


def checked_levels(text: str, field: str) -> str:
    """The grammar itself, if llguidance can go from rule to rule through all of it: it does so on the stack.

    Raises UnsupportedGrammarError.
    """
    num_levels = depth = deepest = 0
    for token in _tokens(text):
        depth += (token[0] in ("(", "[")) - (token[0] in (")", "]"))
        deepest = max(deepest, depth)
        if token[0] == ":":
            num_levels += 1 + deepest
            depth = deepest = 0
    num_levels += deepest
    if num_levels > MAX_LEVELS:
        raise UnsupportedGrammarError(
            f"{field}: the grammar has {num_levels} rules and brackets within each other, and {MAX_LEVELS} is the most"
        )
    return text


def _tokens(text: str) -> Iterator[re.Match[str]]:
    """Without schemas and options, which are passed over."""
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token is not None
        if token.lastgroup == "other" and token[0] in '"/':
            raise UnsupportedGrammarError(f"grammar: the {token[0]} at character {position} has no end on its line")
        yield token
        position = token.end()
        if token[0] in ("%json", "%llguidance"):
            _, position = _json_at(text, position)


def _with_reduced_schemas(text: str, reduce_schema: ReduceSchema) -> str:
    pieces: list[str] = []
    for token in _tokens(text):
        if token.lastgroup == "attribute":
            _refuse(token[0], "an attribute")
        if token.lastgroup == "special":
            _refuse(token[0], "a special token, which is no text, or the number of one")
        if token[0] == "%ignore" and _REST_IS_SPACE.match(text, token.end()):
            _refuse(token[0], "a directive about nothing")
        if token[0] == "%json":
            schema, _ = _json_at(text, token.end())
            pieces.append(f"%json {json.dumps(reduce_schema(schema))}")
        elif token[0] == "%llguidance":
            options, _ = _json_at(text, token.end())
            if options:
                _refuse(f"%llguidance {shown(options)}", "an option")
        else:
            pieces.append(token[0])
    return "".join(pieces)


def _refuse(what: str, kind: str) -> NoReturn:
    raise UnsupportedGrammarError(f"grammar: {shown(what)} is {kind} that is not supported; leave it out")


def _json_at(text: str, position: int) -> tuple[Any, int]:
    space = _SPACE.match(text, position)
    assert space is not None
    try:
        return _DECODER.raw_decode(text, space.end())
    except (ValueError, RecursionError) as error:
        raise UnsupportedGrammarError(f"grammar: there is no JSON where it must be: {message_of(error)}") from None
