"""Where a model's reasoning ends, so that a constraint can begin there."""

from collections.abc import Sequence

from pelton.chat_parsing.reasoning_parsers import ReasoningParser
from pelton.core.messages import ReasoningTokens
from pelton.core.request import CONSTRAINT_FAILED
from pelton.tokenizer import Tokenizer

_NUM_LAST_TOKENS = 16
"""Of a prompt that are looked at: enough for a tag and the whitespace after it."""


class ReasoningFinder:
    """Finds the tokens around a model's reasoning."""

    def __init__(self, parser: type[ReasoningParser], tokenizer: Tokenizer) -> None:
        self._parser = parser
        self._tokenizer = tokenizer

    def tokens(self, prompt_token_ids: Sequence[int]) -> ReasoningTokens:
        """For what follows this prompt. Raises ValueError for a model that has no tokens for the tags."""
        start, end = self._token(self._parser.start_tag), self._token(self._parser.end_tag)
        last = self._tokenizer.decode(prompt_token_ids[-_NUM_LAST_TOKENS:], skip_special_tokens=False)
        return ReasoningTokens(start, end, self._parser.begins_inside(last))

    def _token(self, tag: str) -> int:
        token_ids = self._tokenizer.encode(tag, add_special_tokens=False)
        if len(token_ids) != 1 or self._tokenizer.decode(token_ids, skip_special_tokens=False) != tag:
            raise ValueError(
                f"{CONSTRAINT_FAILED}where the model's reasoning ends cannot be told, for it has no token {tag}; leave "
                "the constraint out, or start the engine without reasoning_parser"
            )
        return token_ids[0]
