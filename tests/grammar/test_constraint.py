"""Grammar, stop tokens and reasoning of one request together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.core.messages import ReasoningTokens
from pelton.core.request import ConstraintError
from pelton.grammar.constraint import CompiledConstraint, GrammarConstraint
from tests.grammar.played_matcher import NUM_WORDS, PlayedGrammar, PlayedMatcher, tokens_of

STOP, OTHER_STOP = 69, 1
START, END = 60, 61
ALL = set(range(32 * NUM_WORDS))


def constraint(sequences, stops=(STOP,), *, reasoning=None, can_force=True, fails_at=None):
    compiled = CompiledConstraint.of(PlayedGrammar(sequences, fails_at), NUM_WORDS)
    return GrammarConstraint(compiled, stops, reasoning=reasoning, can_force=can_force)


def allowed(made):
    return tokens_of(np.frombuffer(made.mask_bytes(), "<u4"))


def test_stop_tokens_may_follow_where_the_grammar_is_complete():
    made = constraint([[5, 6], [5], [7, 8]], stops=[STOP, OTHER_STOP])
    assert allowed(made) == {5, 7}
    assert made.advance([5]) == []
    assert allowed(made) == {6, STOP, OTHER_STOP}
    assert made.advance([6]) == []
    assert allowed(made) == {STOP, OTHER_STOP}
    assert not made.is_complete


def test_a_stop_token_is_never_text():
    """The engine stops at it, so an output that holds it as text would not keep to the grammar."""
    made = constraint([[5, OTHER_STOP], [5, 6]], stops=[STOP, OTHER_STOP], can_force=False)
    made.advance([5])
    assert allowed(made) == {6}


def test_no_other_token_is_left():
    made = constraint([[5, OTHER_STOP], [4]], stops=[OTHER_STOP])
    with pytest.raises(ConstraintError, match="stop tokens that the constraint needs as text may be the reason"):
        made.advance([5])
    with pytest.raises(ConstraintError, match="the model has no token"):
        constraint([[OTHER_STOP]], stops=[OTHER_STOP])


def test_forced_tokens():
    made = constraint([[5, 6, 7, 40, 9], [5, 6, 7, 40, 8], [4]])
    assert made.advance([5]) == [6, 7, 40]
    assert allowed(made) == {8, 9}
    assert made.advance([8]) == [STOP]


def test_the_first_token_is_sampled_though_it_is_forced():
    """There is nothing to save: the prompt's end is computed anyway."""
    made = constraint([[33, 34]])
    assert allowed(made) == {33}
    assert made.advance([33]) == [34, STOP]


def test_two_stop_tokens_are_a_choice():
    made = constraint([[33, 34]], stops=[STOP, OTHER_STOP])
    assert made.advance([33]) == [34]
    assert allowed(made) == {STOP, OTHER_STOP}


def test_nothing_is_forced():
    made = constraint([[5, 6, 7]], can_force=False)
    assert made.advance([5]) == []
    assert allowed(made) == {6}


def test_complete_without_a_stop_token():
    made = constraint([[5, 6]], stops=[])
    assert not made.is_complete
    assert made.advance([5]) == [6]
    assert made.is_complete
    assert allowed(made) == set()


def test_nothing_to_say_and_no_way_to_end():
    with pytest.raises(ConstraintError, match="only an output without tokens"):
        constraint([[]], stops=[])
    assert allowed(constraint([[]])) == {STOP}


def test_whatever_a_library_raises_concerns_one_request(monkeypatch):
    made = constraint([[5, 6]])
    monkeypatch.setattr(PlayedMatcher, "fill_bitmask", lambda self, row: [][1])
    with pytest.raises(ConstraintError, match="cannot be followed: IndexError"):
        made.advance([5])


def test_long_runs_are_forced_piece_by_piece():
    sequence = list(range(2, 66))
    made = constraint([sequence])
    forced = made.advance(sequence[:1])
    assert len(forced) == 16
    assert forced == sequence[1:17]
    assert made.advance([sequence[17]]) == sequence[18:34]


def test_a_token_that_is_not_allowed():
    made = constraint([[5, 6]])
    with pytest.raises(ConstraintError, match="does not allow its token 9"):
        made.advance([9])


def test_a_matcher_at_its_limits():
    made = constraint([[5, 6]], fails_at=1)
    with pytest.raises(ConstraintError, match="too complex: too many states"):
        made.advance([5])


def test_a_matcher_that_cannot_even_take_a_token(monkeypatch):
    made = constraint([[5, 6]])

    def fail(self, token_id):
        raise RuntimeError("too many items")

    monkeypatch.setattr(PlayedMatcher, "accept", fail)
    with pytest.raises(ConstraintError, match="too complex: too many items"):
        made.advance([5])


def test_reasoning_that_the_prompt_has_begun():
    made = constraint([[5]], reasoning=ReasoningTokens(START, END, is_open=True))
    assert allowed(made) == ALL - {STOP}
    assert made.advance([9, START, 5]) == []
    assert allowed(made) == ALL - {STOP}
    assert not made.is_complete
    assert made.advance([END]) == [5, STOP]


@pytest.mark.parametrize("reasons", [True, False])
def test_reasoning_that_may_begin(reasons):
    made = constraint([[5, 6], [7, 8]], reasoning=ReasoningTokens(START, END, is_open=False))
    assert allowed(made) == {5, 7, START}
    if reasons:
        assert made.advance([START]) == []
        assert allowed(made) == ALL - {STOP}
        assert made.advance([40, END]) == []
    assert allowed(made) == ({5, 7} if reasons else {5, 7, START})
    assert made.advance([7]) == [8, STOP]


def test_reasoning_begins_at_the_beginning_only():
    made = constraint([[5, 6], [5, 7]], reasoning=ReasoningTokens(START, END, is_open=False))
    made.advance([5])
    assert allowed(made) == {6, 7}


@given(data=st.data())
def test_rollback(data):
    """It is as if the tokens had never been taken."""
    sequences = data.draw(st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=6), min_size=1, max_size=6))
    path = list(data.draw(st.sampled_from(sequences)))
    length = data.draw(st.integers(0, len(path)))
    made, fresh = (constraint(sequences, can_force=False) for _ in range(2))
    made.advance(path)
    made.rollback(len(path) - length)
    fresh.advance(path[:length])
    assert allowed(made) == allowed(fresh)
    made.advance(path[length:])
    assert allowed(made) == allowed(constraint_after(sequences, path))


def constraint_after(sequences, path):
    made = constraint(sequences, can_force=False)
    made.advance(path)
    return made


def test_masks_are_not_shared():
    compiled = CompiledConstraint.of(PlayedGrammar([[5, 6], [7]]), NUM_WORDS)
    one, other = GrammarConstraint(compiled, [STOP]), GrammarConstraint(compiled, [STOP])
    one.advance([7])
    assert allowed(other) == {5, 7} == tokens_of(compiled.first_mask)


def test_whoever_waits_holds_no_matcher():
    """There may be thousands that wait, and a matcher may have megabytes."""
    grammar = PlayedGrammar([[5, 6, 4], [7]])
    compiled = CompiledConstraint.of(grammar, NUM_WORDS)
    waiting = [
        GrammarConstraint(compiled, [STOP], reasoning=ReasoningTokens(START, END, is_open=True)) for _ in range(10)
    ]
    for made in waiting:
        made.advance([33, END])
        assert allowed(made) == {5, 7}
    assert grammar.num_matchers == 1
    assert waiting[0].advance([5]) == [6, 4, STOP]
    assert grammar.num_matchers == 2
