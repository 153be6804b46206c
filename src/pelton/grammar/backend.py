"""What a grammar backend must offer: compiled constraints, and matchers that follow one output each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from pelton.ops.arrays import UInt32
from pelton.structured_outputs_params import StructuredOutputsParams


class UnsupportedGrammarError(ValueError):
    """A constraint that a backend cannot keep, or that is none. The message names keyword and place."""


class GrammarMatcher(ABC):
    """Follows the tokens of one output. It knows nothing of stop tokens: these are no part of a grammar."""

    group: int = 0
    """Matchers of different groups share nothing, and can be used by several threads at once."""

    @abstractmethod
    def fill_bitmask(self, row: UInt32) -> None:
        """Write the tokens that may follow, [ceil(V / 32)]: bit v % 32 of word v // 32 is token v's.

        Special tokens and tokens without text are not among them, unless the grammar names them. No token may follow
        where the output is complete and cannot go on. Raises RuntimeError if the backend exceeds its limits.
        """

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Go on by a token. Returns whether it could follow; if not, nothing has changed.

        Raises RuntimeError if the backend exceeds its limits.
        """

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted."""

    @property
    @abstractmethod
    def is_accepting(self) -> bool:
        """Whether the output so far is complete; it may be possible to go on."""


class CompiledGrammar(ABC):
    """A constraint, ready for any number of outputs."""

    @abstractmethod
    def new_matcher(self) -> GrammarMatcher:
        """One at its beginning. Quick: it is called between two steps."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """About how much memory it holds, without its matchers."""

    @property
    def is_worn(self) -> bool:
        """Whether matchers of another compilation can do more."""
        return False


class GrammarVocabulary(Protocol):
    """What backends know of a model's tokens."""

    @property
    def vocab_size(self) -> int:
        """Rows of the model's logits, V. The tokenizer may have fewer tokens, or more."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """[V] what each token adds to a text; empty for rows that have no token."""

    @property
    def special_token_ids(self) -> Sequence[int]:
        """Tokens that are no text, ascending."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without any around it."""


class OutputVocabulary(GrammarVocabulary, Protocol):
    """What there is to know of it beside that, where outputs are made."""

    @property
    def shortened_first_ids(self) -> Sequence[int]:
        """Tokens that add less to a text that they begin, ascending."""


class GrammarBackend(ABC):
    """Compiles constraints for one vocabulary. `compile` may be called by several threads at once."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def is_installed(cls) -> bool:
        """Whether its library can be imported; without importing it."""

    @classmethod
    @abstractmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Raise UnsupportedGrammarError for a constraint that the backend cannot keep in full, or cannot read.

        Needs no vocabulary and takes bounded time.
        """

    @abstractmethod
    def __init__(self, vocabulary: GrammarVocabulary) -> None: ...

    @abstractmethod
    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Raises UnsupportedGrammarError for what `check` refuses, or where a limit is exceeded."""
