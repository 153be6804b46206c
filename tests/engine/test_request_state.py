"""A user's request: its choices in one output, and the log probabilities of its prompt."""

import itertools

import pytest

from pelton.core.messages import EngineCoreOutput
from pelton.engine.request_state import messages_of_choices
from pelton.sampling_params import RequestOutputKind
from tests.support.played import TOKENIZER, Played, position

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
PARIS, DOT, COMMA = 7042, 30, 28


def texts(output):
    return {completion.index: completion.text for completion in output.outputs}


def tokens(choice, *token_ids, **fields):
    return EngineCoreOutput(f"r/{choice}", list(token_ids), **fields)


def test_the_messages_of_choices():
    played = Played(n=3, seed=5, prompt_logprobs=2)
    assert [message.request_id for message in played.messages] == ["r/0", "r/1", "r/2"]
    assert [message.choice for message in played.messages] == [0, 1, 2]
    assert {message.sampling_params.seed for message in played.messages} == {5}
    assert [message.sampling_params.prompt_logprobs for message in played.messages] == [2, None, None]
    first = played.messages[0]
    assert all(message.prompt_token_ids is first.prompt_token_ids for message in played.messages)
    assert first.sampling_params.n == 3
    alone = Played().messages
    assert [(message.request_id, message.choice) for message in alone] == [("r", 0)]
    assert messages_of_choices(alone[0])[0] is alone[0]


def test_final_outputs_come_when_all_choices_have_ended():
    played = Played(n=3, output_kind=FINAL_ONLY)
    played.step_all(tokens(2, PARIS, finish_reason="length"), tokens(0, DOT), tokens(1, COMMA))
    played.step_all(tokens(0, DOT, finish_reason="stop", stop_reason=DOT))
    assert played.outputs == []
    assert len(played.processor) == 1
    played.step_all(tokens(1, COMMA, finish_reason="length"))
    (output,) = played.outputs
    assert (output.request_id, output.finished) == ("r", True)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert texts(output) == {0: ".", 1: ",,", 2: " Paris"}
    assert [completion.finish_reason for completion in output.outputs] == ["stop", "length", "length"]
    assert [completion.stop_reason for completion in output.outputs] == [DOT, None, None]
    assert output.metrics.num_generation_tokens == 5
    assert len(played.processor) == 0


def test_deltas_hold_the_choices_with_something_new():
    played = Played(n=3, output_kind=DELTA)
    played.step_all(tokens(1, COMMA), tokens(0, DOT))
    played.step_all(tokens(2, PARIS), tokens(0, DOT, finish_reason="length"))
    played.step_all(tokens(1, COMMA))
    played.step_all(tokens(1, COMMA, finish_reason="length"))
    played.step_all(tokens(2, DOT, finish_reason="length"))
    assert [texts(output) for output in played.outputs] == [
        {0: ".", 1: ","},
        {0: ".", 2: " Paris"},
        {1: ","},
        {1: ","},
        {2: "."},
    ]
    assert [output.finished for output in played.outputs] == [False] * 4 + [True]
    assert [c.finished() for output in played.outputs for c in output.outputs] == [
        *[False, False],
        *[True, False],
        *[False, True, True],
    ]


def test_cumulative_outputs_hold_all_choices():
    played = Played(n=2, output_kind=CUMULATIVE, logprobs=0)
    entry = {"logprobs": [position((PARIS, -0.5), 1)]}
    played.step_all(tokens(1, PARIS, **entry))
    played.step_all(tokens(1, PARIS, finish_reason="length", **entry), tokens(0, PARIS, **entry))
    played.step_all(tokens(0, PARIS, finish_reason="length", **entry))
    assert [texts(output) for output in played.outputs] == [
        {0: "", 1: " Paris"},
        {0: " Paris", 1: " Paris Paris"},
        {0: " Paris Paris", 1: " Paris Paris"},
    ]
    counts = [[len(c.token_ids) for c in output.outputs] for output in played.outputs]
    assert counts == [[len(c.logprobs) for c in output.outputs] for output in played.outputs]
    assert counts == [[0, 1], [1, 2], [2, 2]], "lists of earlier outputs have not grown"
    assert [output.finished for output in played.outputs] == [False, False, True]


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_choice_that_fails_does_not_end_the_others(kind):
    played = Played(n=2, output_kind=kind)
    played.step_all(tokens(0, DOT), tokens(1, COMMA))
    played.step_all(tokens(0, finish_reason="error", stop_reason="broken"), tokens(1, COMMA))
    assert not any(output.finished for output in played.outputs)
    played.step_all(tokens(1, COMMA, finish_reason="length"))
    assert played.outputs[-1].finished
    by_index = {c.index: c for output in played.outputs for c in output.outputs}
    assert (by_index[0].finish_reason, by_index[0].stop_reason) == ("error", "broken")
    assert (by_index[1].finish_reason, by_index[1].stop_reason) == ("length", None)


def test_a_stop_string_ends_its_choice_only():
    played = Played(n=2, stop="s.", output_kind=FINAL_ONLY)
    played.step_all(tokens(0, PARIS), tokens(1, PARIS))
    played.step_all(tokens(0, DOT), tokens(1, COMMA))
    assert played.aborts == ["r/0"]
    assert played.outputs == []
    played.step_all(tokens(1, DOT, finish_reason="length"))
    assert texts(played.outputs[0]) == {0: " Pari", 1: " Paris,."}


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_an_abort_ends_the_choices_that_run(kind):
    played = Played(n=3, output_kind=kind)
    played.step_all(tokens(0, DOT), tokens(1, PARIS), tokens(2, COMMA))
    played.step_all(tokens(1, DOT, finish_reason="length"))
    assert played.processor.core_ids(["r"]) == ["r/0", "r/1", "r/2"]
    (state,) = played.processor.abort_requests(["r"])
    output = state.make_output()
    assert output.finished
    reasons = {c.index: c.finish_reason for c in output.outputs}
    assert reasons == ({0: "abort", 2: "abort"} if kind is DELTA else {0: "abort", 1: "length", 2: "abort"})
    assert len(played.processor) == 0
    assert not any(f"r/{index}" in played.processor for index in range(3))
    played.step_all(tokens(0, DOT))
    assert played.outputs[-1:] != [output]


def test_all_choices_fail_together():
    played = Played(n=2)
    (state,) = played.processor.fail_all("lost")
    output = state.make_output()
    assert output.finished
    assert [(c.finish_reason, c.stop_reason) for c in output.outputs] == [("error", "lost")] * 2
    assert len(played.processor) == 0


def test_a_choice_is_not_the_users_to_abort():
    played = Played(n=2)
    assert played.processor.core_ids(["r/1", "unknown"]) == ["unknown"]
    assert played.processor.abort_requests(["r/1", "unknown"]) == []
    assert "r/1" in played.processor


@pytest.mark.parametrize(
    ("first", "second", "in_use"),
    [
        (("a", 2), ("a/1", 1), "a/1"),
        (("a/1", 1), ("a", 2), "a/1"),
        (("a", 2), ("a", 1), "a"),
        (("a", 1), ("a", 2), "a"),
        (("a", 2), ("a/1", 2), "a/1"),
        (("a/1", 2), ("a", 2), "a/1"),
    ],
)
def test_colliding_ids_are_refused(first, second, in_use):
    played = Played()
    played.add(first[0], n=first[1])
    with pytest.raises(ValueError, match=rf"^request_id '{in_use}' is in use by a request that has not finished$"):
        played.add(second[0], n=second[1])
    assert len(played.processor) == 2
    assert played.processor.core_ids([first[0]]) == (
        [first[0]] if first[1] == 1 else [f"{first[0]}/0", f"{first[0]}/1"]
    )
    played.processor.abort_requests([first[0]])
    played.add(second[0], n=second[1])


def test_cached_tokens_are_those_of_the_first_choice():
    played = Played(n=2, output_kind=CUMULATIVE)
    played.step_all(tokens(1, DOT, num_cached_tokens=1))
    played.step_all(tokens(0, DOT, num_cached_tokens=0))
    assert [output.num_cached_tokens for output in played.outputs] == [0, 0]
    played.step_all(tokens(0, DOT, num_cached_tokens=1), tokens(1, DOT))
    assert played.outputs[-1].num_cached_tokens == 1


def test_metrics_of_choices(monkeypatch):
    now = [1.0]
    monkeypatch.setattr("pelton.engine.output_processor.monotonic", lambda: now[0])
    played = Played(n=2, output_kind=CUMULATIVE)
    played.step_all(tokens(1, DOT, scheduled_time=0.5))
    now[0] = 2.0
    played.step_all(tokens(1, DOT, scheduled_time=0.5, finish_reason="length"), tokens(0, DOT, scheduled_time=0.75))
    assert played.outputs[-1].metrics is None
    now[0] = 4.0
    played.step_all(tokens(0, DOT, scheduled_time=0.75, finish_reason="length"))
    metrics = played.outputs[-1].metrics
    assert (metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts) == (0.5, 1.0, 4.0)
    assert metrics.num_generation_tokens == 4


PROMPT = TOKENIZER.encode("The capital of France is")
SCORED = [position((token_id, -float(index)), index, (COMMA, -0.5)) for index, token_id in enumerate(PROMPT) if index]


def expected_prompt_logprobs():
    entries = [{token_id: (-float(index), index), COMMA: (-0.5, 1)} for index, token_id in enumerate(PROMPT)]
    return [None, *entries[1:]]


def plain(prompt_logprobs):
    return [e and {i: (entry.logprob, entry.rank) for i, entry in e.items()} for e in prompt_logprobs]


def scored(kind=FINAL_ONLY, **params):
    """A request whose prompt's log probabilities are still to come."""
    played = Played(output_kind=kind, **params)
    played.processor.discard_request("r")
    played.add("r", prompt=PROMPT, prompt_logprobs=1, output_kind=kind, **params)
    return played


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize("cuts", [(), (1,), (2, 3), (1, 2, 3, 4)])
def test_prompt_logprobs_arrive_in_pieces(kind, cuts):
    """Pieces without tokens are no outputs of their own; the last piece comes with the first token."""
    played = scored(kind)
    pieces = [SCORED[a:b] for a, b in itertools.pairwise([0, *cuts, len(SCORED)])]
    for piece in pieces[:-1]:
        played.step(prompt_logprobs=piece)
    assert played.outputs == []
    played.step(PARIS, prompt_logprobs=pieces[-1])
    played.step(DOT, finish_reason="length")
    shown = [output.prompt_logprobs for output in played.outputs]
    assert plain(shown[0]) == expected_prompt_logprobs()
    assert shown[0][1][PROMPT[1]].decoded_token == " capital"
    assert [logprobs is not None for logprobs in shown] == ([True, False] if kind is DELTA else [True] * len(shown))


def test_prompt_logprobs_are_whole_or_not_there():
    """Another choice may be ahead of the one that brings them."""
    for kind in (CUMULATIVE, DELTA):
        played = scored(kind, n=2)
        played.step_all(tokens(0, prompt_logprobs=SCORED[:2]), tokens(1, DOT))
        played.step_all(tokens(0, PARIS, prompt_logprobs=SCORED[2:]), tokens(1, DOT))
        assert played.outputs[0].prompt_logprobs is None
        assert plain(played.outputs[1].prompt_logprobs) == expected_prompt_logprobs()


def test_prompt_logprobs_of_a_request_that_ends_in_its_prompt():
    played = scored()
    played.step(prompt_logprobs=SCORED[:2])
    (state,) = played.processor.abort_requests(["r"])
    output = state.make_output()
    assert plain(output.prompt_logprobs) == expected_prompt_logprobs()[:3]


def test_prompt_logprobs_of_a_single_token():
    played = Played()
    played.add("s", prompt=[504], prompt_logprobs=0, output_kind=FINAL_ONLY)
    played.step(PARIS, request_id="s", finish_reason="length")
    assert played.outputs[0].prompt_logprobs == [None]


def test_prompt_logprobs_nobody_asked_for_are_left_out():
    played = Played()
    played.step(PARIS, prompt_logprobs=SCORED)
    assert played.outputs[0].prompt_logprobs is None
