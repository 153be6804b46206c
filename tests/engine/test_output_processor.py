"""From the core's tokens to texts and log probabilities, with the real tokenizer and a core played by hand."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.sampling_params import RequestOutputKind
from tests.support.played import EOS, TOKENIZER, Played, position
from tests.support.prompts import TEXTS

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("stop", [None, ["e"], ["the", "が", "🔥", "ый"]])
def test_the_three_kinds_agree(name, stop):
    ids = TOKENIZER.encode(TEXTS[name])
    cumulative = Played(output_kind=CUMULATIVE, stop=stop).play(ids)
    delta = Played(output_kind=DELTA, stop=stop).play(ids)
    final = Played(output_kind=FINAL_ONLY, stop=stop).play(ids)
    assert len(final.outputs) == 1
    assert len(cumulative.outputs) == len(delta.outputs)
    if stop is None:
        assert final.last.text == TOKENIZER.decode(ids)
        assert final.last.token_ids == ids
    assert cumulative.last.text == final.last.text == "".join(delta.texts)
    joined = [token_id for output in delta.outputs for token_id in output.outputs[0].token_ids]
    assert cumulative.last.token_ids == final.last.token_ids == joined
    for earlier, later in zip(cumulative.texts, cumulative.texts[1:], strict=False):
        assert later.startswith(earlier)
    for played in (cumulative, delta, final):
        assert [output.finished for output in played.outputs] == [False] * (len(played.outputs) - 1) + [True]
        assert played.last.finish_reason == final.last.finish_reason
        assert played.last.stop_reason == final.last.stop_reason
        assert len(played.processor) == 0


def test_the_fields_of_an_output():
    played = Played()
    played.step(7042, num_cached_tokens=1)
    output = played.outputs[0]
    assert output.request_id == "r"
    assert output.prompt == "The capital"
    assert output.prompt_token_ids == [504, 3575]
    assert output.num_cached_tokens == 1
    assert not output.finished
    assert output.outputs[0].index == 0
    assert output.outputs[0].finish_reason is None
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert not output.outputs[0].finished()
    assert output.prompt_logprobs is None
    assert output.metrics is None
    played.step(30, finish_reason="length")
    assert played.last.finished()


def test_a_character_in_three_tokens_appears_whole():
    rocket = TOKENIZER.encode("🚀")
    assert len(rocket) == 3
    played = Played(output_kind=DELTA).play([*rocket, *TOKENIZER.encode(" go")])
    assert played.texts == ["", "", "🚀", " go"]


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_an_unfinished_character_is_shown_only_at_the_end(num_tokens):
    rocket = TOKENIZER.encode("🚀")[:num_tokens]
    played = Played(output_kind=DELTA).play(rocket)
    assert played.texts[:-1] == [""] * (num_tokens - 1)
    assert set(played.texts[-1]) == {REPLACEMENT}
    assert "".join(played.texts) == TOKENIZER.decode(rocket)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="aé€🚀👩\u200d日 \n", min_size=1, max_size=20), sizes=st.lists(st.integers(1, 3)))
def test_no_replacement_character_while_bytes_may_still_come(text, sizes):
    """However many tokens a step brings."""
    ids = TOKENIZER.encode(text)
    delta, cumulative = Played(output_kind=DELTA), Played(output_kind=CUMULATIVE)
    sizes = iter(sizes)
    while ids:
        step = ids[: next(sizes, 1)]
        ids = ids[len(step) :]
        for played in (delta, cumulative):
            played.step(*step, finish_reason=None if ids else "length")
    assert REPLACEMENT not in "".join(delta.texts) + "".join(cumulative.texts)
    assert "".join(delta.texts) == cumulative.last.text == text


@pytest.mark.parametrize("stop_token_id", [EOS, 28])
@pytest.mark.parametrize("kind", RequestOutputKind)
def test_the_stop_token_is_no_text(stop_token_id, kind):
    """EOS, or a comma in stop_token_ids: kept in the tokens, dropped from the text."""
    ids = [7042, stop_token_id]
    stop_reason = None if stop_token_id == EOS else stop_token_id
    played = Played(output_kind=kind).play(ids, "stop", stop_reason)
    token_ids = [i for output in played.outputs for i in output.outputs[0].token_ids]
    assert token_ids[-1] == stop_token_id
    assert (played.texts if kind is DELTA else played.texts[-1:])[-1] == ("" if kind is DELTA else " Paris")
    assert played.last.finish_reason == "stop"
    assert played.last.stop_reason == stop_reason
    assert played.aborts == [], "the core knows already"


def test_an_ignored_eos_in_the_middle_is_no_text():
    played = Played().play([7042, EOS, 30])
    assert played.last.text == " Paris."
    assert played.last.token_ids == [7042, EOS, 30]


def test_every_stop_string_cuts_the_text_at_its_first_place():
    """Each substring of an output as stop string: the streamed text, the whole text and the cut are equal."""
    text = "Die Turbine 🚀 wandelt, wandelt."
    ids = TOKENIZER.encode(text)
    for start in range(len(text)):
        for end in range(start + 1, min(start + 9, len(text)) + 1):
            stop = text[start:end]
            streamed = Played(output_kind=DELTA, stop=stop).play(ids)
            whole = Played(output_kind=FINAL_ONLY, stop=stop).play(ids)
            assert "".join(streamed.texts) == whole.last.text == text[: text.index(stop)], stop
            assert whole.last.finish_reason == "stop"
            assert whole.last.stop_reason == stop
            assert ids[: len(whole.last.token_ids)] == whole.last.token_ids
            assert stop in TOKENIZER.decode(whole.last.token_ids)


def test_a_stop_string_ends_the_request_in_the_core():
    played = Played(stop="s.")
    played.step(7042)
    assert played.aborts == []
    played.step(30)
    assert played.aborts == ["r"]
    assert played.outputs[-1].finished
    assert len(played.processor) == 0
    played.step(30)
    assert len(played.outputs) == 2
    assert played.aborts == ["r", "r"], "should it still run, the core is told again"
    played.step(30, finish_reason="length")
    assert played.aborts == ["r", "r"]


def test_a_stop_string_in_the_last_token_needs_no_abort():
    played = Played(stop="s.").play([7042, 30], "length")
    assert played.aborts == []
    assert (played.last.finish_reason, played.last.stop_reason) == ("stop", "s.")
    assert played.last.text == " Pari"


def test_text_held_for_a_stop_string_comes_at_the_end():
    played = Played(output_kind=DELTA, stop="Paris!").play([7042, 30])
    assert played.texts == [" ", "Paris."]
    held = Played(output_kind=DELTA, stop="Paris!").play([7042], "length")
    assert held.texts == [" Paris"]
    at_eos = Played(output_kind=DELTA, stop="Paris!").play([7042, EOS], "stop")
    assert at_eos.texts == [" ", "Paris"]


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_logprobs(kind):
    played = Played(output_kind=kind, logprobs=2)
    played.step(7042, logprobs=[position((7042, -0.5), 1, (7042, -0.5), (260, -2.0))])
    played.step(30, logprobs=[position((30, -9.0), 700, (28, -0.25), (378, -1.5))])
    rocket = TOKENIZER.encode("🚀")[0]
    played.step(rocket, finish_reason="length", logprobs=[position((rocket, -1.0), 2, (28, -0.5), (rocket, -1.0))])
    entries = [entry for output in played.outputs for entry in output.outputs[0].logprobs]
    if kind is CUMULATIVE:
        assert [len(output.outputs[0].logprobs) for output in played.outputs] == [1, 2, 3]
        entries = played.last.logprobs
    first, second, third = entries
    assert list(first) == [7042, 260]
    assert (first[7042].logprob, first[7042].rank, first[7042].decoded_token) == (-0.5, 1, " Paris")
    assert (first[260].logprob, first[260].rank, first[260].decoded_token) == (-2.0, 2, " the")
    assert list(second) == [30, 28, 378], "the sampled token is there though it is not among the best"
    assert [entry.rank for entry in second.values()] == [700, 1, 2]
    assert list(third) == [rocket, 28]
    assert third[rocket].rank == 2
    assert third[rocket].decoded_token == REPLACEMENT
    assert played.last.cumulative_logprob == pytest.approx(-10.5)


def test_logprobs_of_the_sampled_token_only():
    played = Played(logprobs=0)
    played.step(30, finish_reason="length", logprobs=[position((30, -3.0), 4)])
    assert [list(entry) for entry in played.last.logprobs] == [[30]]
    assert played.last.logprobs[0][30].rank == 4
    assert played.last.cumulative_logprob == -3.0


def test_the_rank_of_a_sampled_token_among_equals():
    """As likely as the best and listed second, it still ranks first: no token is likelier."""
    played = Played(logprobs=2)
    played.step(30, finish_reason="length", logprobs=[position((30, -0.5), 1, (28, -0.5), (30, -0.5))])
    assert [(i, entry.rank) for i, entry in played.last.logprobs[0].items()] == [(30, 1), (28, 1)]


def test_logprobs_nobody_asked_for_are_left_out():
    played = Played()
    played.step(30, finish_reason="length", logprobs=[position((30, -3.0), 4)])
    assert played.last.logprobs is None
    assert played.last.cumulative_logprob is None


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_earlier_outputs_do_not_change(kind):
    played = Played(output_kind=kind, logprobs=1, stop="never")
    copies = []
    for step in range(5):
        last = step == 4
        played.step(30 + step, finish_reason="length" if last else None, logprobs=[position((30 + step, -1.0), 1)])
        if played.outputs:
            copies.append(copy.deepcopy(played.outputs[-1]))
    assert played.outputs == (copies if kind is not FINAL_ONLY else copies[-1:])
    lists = [id(output.outputs[0].token_ids) for output in played.outputs]
    assert len(set(lists)) == len(lists)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_an_aborted_request_gets_a_final_output(kind):
    played = Played(output_kind=kind, stop="Paris!")
    played.step(7042)
    played.step(TOKENIZER.encode("🚀")[0])
    outputs = [state.make_output() for state in played.processor.abort_requests(["r", "r", "unknown"])]
    assert len(outputs) == 1
    assert outputs[0].finished
    completion = outputs[0].outputs[0]
    assert completion.finish_reason == "abort"
    assert completion.stop_reason is None
    everything = "".join(played.texts) + completion.text if kind is DELTA else completion.text
    assert everything == " Paris" + REPLACEMENT
    assert len(completion.token_ids) == (0 if kind is DELTA else 2)
    assert len(played.processor) == 0
    played.step(30)
    assert len(played.outputs) == (0 if kind is FINAL_ONLY else 2)


def test_a_request_that_fails_keeps_its_text():
    played = Played(output_kind=CUMULATIVE)
    played.step(7042)
    played.step(finish_reason="error", stop_reason="RuntimeError: the model broke")
    assert played.last.text == " Paris"
    assert played.last.token_ids == [7042]
    assert (played.last.finish_reason, played.last.stop_reason) == ("error", "RuntimeError: the model broke")


def test_a_request_for_no_token():
    """With max_tokens=0 the core ends a request when its prompt is computed."""
    played = Played(max_tokens=0, logprobs=0)
    played.step(finish_reason="length", num_cached_tokens=1)
    assert [output.finished for output in played.outputs] == [True]
    assert (played.last.text, played.last.token_ids, played.last.logprobs) == ("", [], [])
    assert (played.last.finish_reason, played.last.cumulative_logprob) == ("length", 0.0)
    assert played.outputs[0].num_cached_tokens == 1
    assert played.outputs[0].metrics.first_token_ts is None
    assert len(played.processor) == 0


def test_a_step_that_brings_a_request_nothing_is_no_output():
    played = Played(output_kind=DELTA)
    played.step()
    assert played.outputs == []
    assert len(played.processor) == 1


def test_requests_do_not_mix():
    played = Played(output_kind=DELTA)
    played.add("s", output_kind=DELTA)
    rocket, fire = TOKENIZER.encode("🚀"), TOKENIZER.encode("é🔥")
    for a, b in zip(rocket, fire[:3], strict=True):
        played.step(a)
        played.step(b, request_id="s")
    played.step(*fire[3:], request_id="s", finish_reason="length")
    texts = {"r": "", "s": ""}
    for output in played.outputs:
        texts[output.request_id] += output.outputs[0].text
    assert texts == {"r": "🚀", "s": "é🔥"}
    assert len(played.processor) == 1


def test_an_id_is_refused_while_it_is_in_use():
    played = Played()
    with pytest.raises(ValueError, match=r"^request_id 'r' is in use by a request that has not finished$"):
        played.add("r")
    played.step(30, finish_reason="length")
    played.add("r")
    assert "r" in played.processor


def test_a_discarded_request_leaves_no_trace():
    played = Played(n=2)
    played.processor.discard_request("unknown")
    assert len(played.processor) == 1
    played.processor.discard_request("r")
    assert len(played.processor) == 0
    assert not any(request_id in played.processor for request_id in ("r", "r/0", "r/1"))
    figures = played.processor.metrics[0].snapshot("", None)
    assert all(metric.value == 0 for metric in figures if hasattr(metric, "value"))


def test_metrics_of_a_request(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("pelton.engine.output_processor.monotonic", lambda: now[0])
    played = Played()
    played.add("s", arrival_time=4.0, output_kind=FINAL_ONLY)
    for now[0], token_id in ((10.0, 30), (11.5, 31), (12.0, 32)):
        last = now[0] == 12.0
        played.step(token_id, request_id="s", scheduled_time=7.0, finish_reason="length" if last else None)
    metrics = played.outputs[0].metrics
    assert (metrics.arrival_time, metrics.scheduled_ts) == (4.0, 7.0)
    assert (metrics.first_token_ts, metrics.last_token_ts, metrics.first_token_latency) == (10.0, 12.0, 6.0)
    assert metrics.num_generation_tokens == 3


def test_metrics_of_a_request_that_never_ran():
    played = Played()
    metrics = played.processor.abort_requests(["r"])[0].make_output().metrics
    assert (metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts) == (None, None, None)
    assert (metrics.first_token_latency, metrics.num_generation_tokens) == (None, 0)
