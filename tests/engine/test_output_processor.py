"""From the core's tokens to texts and log probabilities, with the real tokenizer and a core played by hand."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton import SamplingParams
from pelton.core.messages import EngineCoreOutput, EngineCoreRequest, TokenLogprobs
from pelton.engine.input_processor import ProcessedRequest
from pelton.engine.output_processor import OutputProcessor
from pelton.loader import open_checkpoint
from pelton.sampling_params import RequestOutputKind
from pelton.tokenizer import load_tokenizer
from tests.support.prompts import TEXTS

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TOKENIZER = load_tokenizer(open_checkpoint("smollm2"))
EOS = TOKENIZER.special_token_id("eos_token")


class Played:
    """An output processor with one request, and everything that it has emitted."""

    def __init__(self, **params):
        self.processor = OutputProcessor(TOKENIZER)
        self.outputs = []
        self.aborts = []
        self.add("r", **params)

    def add(self, request_id, **params):
        params = SamplingParams(**params)
        message = EngineCoreRequest(request_id, [504, 3575], params, arrival_time=0.0, eos_token_ids=[EOS])
        self.processor.add_request(ProcessedRequest(message, "The capital"))

    def step(self, *token_ids, request_id="r", **fields):
        processed = self.processor.process([EngineCoreOutput(request_id, list(token_ids), **fields)])
        self.outputs += processed.request_outputs
        self.aborts += processed.aborts

    def play(self, token_ids, finish_reason="length", stop_reason=None):
        """One token per step; the last one ends the request. Stops early if a stop string does."""
        for index, token_id in enumerate(token_ids):
            last = index == len(token_ids) - 1
            self.step(
                token_id,
                finish_reason=finish_reason if last else None,
                stop_reason=stop_reason if last else None,
            )
            if self.aborts:
                break
        return self

    @property
    def texts(self):
        return [output.outputs[0].text for output in self.outputs]

    @property
    def last(self):
        return self.outputs[-1].outputs[0]


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
    played.step(30)  # a step that was in flight
    assert len(played.outputs) == 2


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


def position(sampled, rank, *top):
    """Log probabilities as a worker reports them: [(token, logprob)...], the sampled one first."""
    ids, values = zip(sampled, *top, strict=True)
    return TokenLogprobs(list(ids), list(values), rank)


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
    outputs = played.processor.abort_requests(["r", "r", "unknown"])
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
