"""A tokenizer's vocabulary, as grammar backends want it."""

from functools import cached_property

from pelton.tokenizer import Tokenizer


class TokenizerVocabulary:
    """The tokens that a model has logits for: V rows, of which the tokenizer may know fewer, or more."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """[V] what each token adds to a text; empty for rows that have no token."""
        return [self._tokenizer.token_bytes(token_id) for token_id in range(self.vocab_size)]

    @cached_property
    def special_token_ids(self) -> list[int]:
        """Tokens that are no text, ascending."""
        return [token_id for token_id in self._tokenizer.special_token_ids if token_id < self.vocab_size]

    @cached_property
    def shortened_first_ids(self) -> list[int]:
        """Tokens that add less to a text that they begin, ascending."""
        return [token_id for token_id in range(self.vocab_size) if self._tokenizer.is_shortened_first(token_id)]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without any around it."""
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        if max(token_ids, default=0) < self.vocab_size:
            return token_ids
        # The model has fewer rows than the tokenizer has tokens.
        return [self._bytes[byte] for byte in text.encode() if byte in self._bytes]

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """Tokens of single bytes."""
        return {data[0]: token_id for token_id, data in enumerate(self.token_bytes) if len(data) == 1}
