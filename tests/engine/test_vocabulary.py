"""A tokenizer's vocabulary as grammars see it."""

import numpy as np
import pytest

from pelton.engine.vocabulary import TokenizerVocabulary
from pelton.grammar.constraint import CompiledConstraint, GrammarConstraint
from pelton.grammar.llguidance_backend import LLGuidanceBackend
from pelton.structured_outputs_params import StructuredOutputsParams
from pelton.tokenizer import Tokenizer
from tests.tokenizer.backends import BACKENDS


@pytest.mark.parametrize("name", BACKENDS)
def test_an_output_begins_with_what_the_grammar_takes_its_token_for(name):
    """Decoders of some vocabularies drop the space of the first word: such a token must not stand for that space."""
    backend = BACKENDS[name]()
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None)
    vocabulary = TokenizerVocabulary(tokenizer, backend.get_vocab_size())
    shortened = set(vocabulary.shortened_first_ids)
    for token_id in range(vocabulary.vocab_size):
        alone = tokenizer.decode([token_id], skip_special_tokens=False)
        assert (alone != tokenizer.token_text(token_id)) == (token_id in shortened)
    assert bool(shortened) == (name != "byte level")
    if name in ("word piece", "no decoder"):
        return  # no models that write have these

    num_words = -(-vocabulary.vocab_size // 32)
    grammar = LLGuidanceBackend(vocabulary).compile(StructuredOutputsParams(regex="(?: |[a-z])+"))
    compiled = CompiledConstraint.of(grammar, num_words, vocabulary.shortened_first_ids)
    constraint = GrammarConstraint(compiled, [])
    first = tokens_of(constraint)
    assert first
    assert not first & shortened
    assert first == tokens_of_words(compiled.first_mask) - shortened
    if shortened:
        constraint.advance([min(first)])
        assert tokens_of(constraint) & shortened, "anywhere else they are what they are"


def tokens_of(constraint: GrammarConstraint) -> set[int]:
    return tokens_of_words(np.frombuffer(constraint.mask_bytes(), "<u4"))


def tokens_of_words(mask) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
