"""What may stand between the tokens of JSON."""

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.characters import Ranges, intersection, without
from pelton.grammar.expressions import Expression, characters_of
from pelton.grammar.regex_reader import read_regex

WHITESPACE = r" |\n[ \t]{0,40}"
"""By default: a space, or a new line and its indentation."""
SPACES: Ranges = ((9, 10), (13, 13), (32, 32))
"""All that JSON allows."""


def read_whitespace(pattern: str | None) -> Expression:
    """What `whitespace_pattern` matches, or the default. Raises UnsupportedGrammarError if that is more than spaces."""
    pattern = WHITESPACE if pattern is None else pattern
    expression = read_regex(pattern, "whitespace_pattern")
    if intersection(characters_of(expression), without(SPACES)):
        raise UnsupportedGrammarError(
            f"whitespace_pattern must match nothing but spaces, tabs and line ends, got {shown(pattern)}"
        )
    return expression
