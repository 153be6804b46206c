"""Constraints in the whole engine, over exact logits: what they promise, what they cost others, how they end."""

import json
import re
import threading

import pytest

from pelton import SamplingParams
from pelton.grammar.registry import load_backend
from pelton.sampling_params import GuidedDecodingParams, StructuredOutputsParams
from tests.support.sampling_engine import EOS, SamplingEngine

PROMPT = [541, 732, 679, 11]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LONG = 150


def constrained(constraint=None, /, *, seed=1, max_tokens=LONG, **params):
    structured = StructuredOutputsParams(**constraint) if constraint else None
    return SamplingParams(seed=seed, max_tokens=max_tokens, structured_outputs=structured, **params)


def run(engine, params, prompt=PROMPT):
    """The one choice of a request's output."""
    return engine.run({"request": (prompt, params)})["request"].outputs[0]


@pytest.fixture
def engine(monkeypatch):
    return SamplingEngine(monkeypatch)


@pytest.mark.parametrize("seed", range(8))
def test_every_kind_keeps_its_promise(engine, seed):
    requests = {
        "choice": {"choice": ["Positive", "Negative"]},
        "regex": {"regex": r"\d{3}-[a-f]{2,5}"},
        "json": {"json": SCHEMA},
        "grammar": {"grammar": 'start: "(" start ")" | "x"'},
        "gbnf": {"grammar": 'root ::= "a" | "b" root'},
    }
    outputs = engine.run({name: (PROMPT, constrained(one, seed=seed)) for name, one in requests.items()})
    texts = {name: output.outputs[0].text for name, output in outputs.items()}
    for name, output in outputs.items():
        if name not in ("grammar", "gbnf"):  # those may go on for ever
            assert output.outputs[0].finish_reason == "stop", (name, texts[name])
    assert texts["choice"] in ("Positive", "Negative")
    assert re.fullmatch(r"\d{3}-[a-f]{2,5}", texts["regex"])
    assert 0 <= json.loads(texts["json"])["age"] <= 99
    assert re.fullmatch(r"\(*x?\)*", texts["grammar"])
    assert re.fullmatch(r"b*a?", texts["gbnf"])


def test_the_older_name(engine):
    params = SamplingParams(temperature=0.0, guided_decoding=GuidedDecodingParams(choice=["Positive", "Negative"]))
    assert run(engine, params).text in ("Positive", "Negative")


def test_choices_differ(engine):
    params = constrained({"regex": "[a-z]{4}"}, n=3)
    outputs = engine.run({"request": (PROMPT, params)})["request"].outputs
    assert all(re.fullmatch("[a-z]{4}", output.text) for output in outputs)
    assert len({output.text for output in outputs}) > 1


@pytest.mark.parametrize("token", [EOS, 216], ids=["end of sequence", "space"])
def test_biases_do_not_break_it(engine, token):
    """The matcher knows where the output may end, and whitespace is bounded."""
    output = run(engine, constrained({"json": SCHEMA}, logit_bias={token: 100.0}))
    assert output.finish_reason == "stop"
    assert 0 <= json.loads(output.text)["age"] <= 99


def test_stop_tokens_end_it_where_it_is_complete(engine):
    """Also those that a bias makes likely everywhere."""
    params = constrained({"regex": "[0-9]{5}"}, stop_token_ids=[732], logit_bias={732: 100.0})
    output = run(engine, params)
    assert (output.finish_reason, output.stop_reason, output.token_ids[-1]) == ("stop", 732, 732)
    assert re.fullmatch("[0-9]{5}", output.text)


def test_it_ends_without_any_stop_token(engine):
    output = run(engine, constrained({"choice": ["yes", "no"]}, ignore_eos=True))
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert output.text in ("yes", "no")
    assert EOS not in output.token_ids


def test_max_tokens_is_told(engine):
    output = run(engine, constrained({"regex": "a{100}"}, max_tokens=3))
    assert output.finish_reason == "length"
    assert set(output.text) == {"a"}


def test_no_token_is_left(engine):
    params = constrained({"choice": ["yes"]}, allowed_token_ids=[541])
    output = run(engine, params)
    assert output.finish_reason == "error"
    assert "no token is left to sample: structured_outputs, allowed_token_ids" in output.stop_reason


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"regex": "("}, "structured_outputs: regex"),
        ({"grammar": "start: nothing"}, "structured_outputs: grammar"),
        ({"json": {"type": "strin"}}, "structured_outputs: json"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_it_is_queued(engine, constraint, message):
    with pytest.raises(ValueError, match=message):
        engine.engine.add_request(PROMPT, constrained(constraint))
    assert engine.engine.num_unfinished_requests == 0
    assert not engine.core.has_work


@pytest.mark.parametrize("num_steps_in_flight", [1, 2, 3])
def test_forced_tokens_are_what_would_have_been_sampled(monkeypatch, num_steps_in_flight):
    """Whoever asks for log probabilities gets every token sampled."""
    kinds = [
        {"choice": ["abcdefgh" * 4, "abcdefgi" * 4, "zzzz"]},
        {"regex": "x{10}(yes|no)z{7}"},
        {"json": SCHEMA, "disable_any_whitespace": True},
    ]
    plain, scored = {}, {}
    for number in range(24):
        constraint = kinds[number % len(kinds)]
        plain[str(number)] = [*PROMPT, number], constrained(constraint, seed=number, temperature=1.5)
        scored[str(number)] = [*PROMPT, number], constrained(constraint, seed=number, temperature=1.5, logprobs=0)
    jumping = SamplingEngine(monkeypatch, num_steps_in_flight=num_steps_in_flight)
    outputs, expected = jumping.run(plain), SamplingEngine(monkeypatch).run(scored)
    for name, output in outputs.items():
        assert output.outputs[0].token_ids == expected[name].outputs[0].token_ids
        assert output.outputs[0].text == expected[name].outputs[0].text
        assert output.outputs[0].finish_reason == expected[name].outputs[0].finish_reason
    forced = sum(len(f.token_ids) for step in jumping.worker.trace for f in step.forced_tokens.values())
    assert forced > 20


def test_preempted_outputs_go_on(monkeypatch):
    """In a pool that is too small, and in chunks smaller than what is forced."""
    regex = "(abc){3}[a-z]{60,120}x{20}"
    requests = {str(number): ([*PROMPT, number], constrained({"regex": regex}, seed=number)) for number in range(8)}
    small = SamplingEngine(monkeypatch, num_gpu_blocks_override=60, max_num_batched_tokens=12)
    outputs, expected = small.run(requests), SamplingEngine(monkeypatch).run(requests)
    assert small.core.scheduler.num_preemptions > 0
    for name, output in outputs.items():
        assert output.outputs[0].token_ids == expected[name].outputs[0].token_ids
        assert re.fullmatch(regex, output.outputs[0].text)


class Gate:
    """Holds up the compilation of constraints on \"slow\"."""

    def __init__(self, monkeypatch) -> None:
        self.opened, self.begun = threading.Event(), threading.Event()
        backend = load_backend("llguidance")
        original = backend.compile

        def compile_when_opened(self_, params):
            if params.choice == ["slow"]:
                self.begun.set()
                assert self.opened.wait(60)
            return original(self_, params)

        monkeypatch.setattr(backend, "compile", compile_when_opened)


@pytest.fixture
def gate(monkeypatch):
    made = Gate(monkeypatch)
    yield made
    made.opened.set()


def until_finished(engine, *request_ids):
    """The choice of each."""
    ended = {}
    for _ in range(20_000):
        ended |= {output.request_id: output.outputs[0] for output in engine.engine.step() if output.finished}
        if ended.keys() >= set(request_ids):
            return [ended[request_id] for request_id in request_ids]
    raise AssertionError(f"of {request_ids} only {list(ended)} end")


def test_others_are_not_held_up(engine, gate):
    engine.engine.add_request(PROMPT, constrained({"choice": ["slow"]}), request_id="slow")
    engine.engine.add_request(PROMPT, constrained(max_tokens=20), request_id="free")
    engine.engine.add_request(PROMPT, constrained({"choice": ["quick"]}), request_id="quick")
    free, quick = until_finished(engine, "free", "quick")
    assert free.finish_reason in ("stop", "length")
    assert quick.text == "quick"
    stats = engine.core.stats
    assert (stats.num_running, stats.num_waiting) == (0, 1)
    assert engine.core.has_work
    gate.opened.set()
    assert [output.text for output in until_finished(engine, "slow")] == ["slow"]
    assert not engine.core.has_work


def test_a_blocked_request_keeps_its_place(monkeypatch, gate):
    """Once it may run, it comes before those that arrived later."""
    engine = SamplingEngine(monkeypatch, max_num_seqs=1)
    engine.engine.add_request(PROMPT, constrained(max_tokens=10, ignore_eos=True), request_id="first")
    engine.engine.add_request(PROMPT, constrained({"choice": ["slow"]}), request_id="slow")
    engine.engine.add_request(PROMPT, constrained(max_tokens=10), request_id="third")
    engine.engine.step()
    assert gate.begun.wait(60)
    gate.opened.set()
    ended = []
    while engine.engine.num_unfinished_requests:
        engine.grammars.wait(0.05)  # before the first one has ended
        ended += [output.request_id for output in engine.engine.step() if output.finished]
    assert ended == ["first", "slow", "third"]


def test_aborting_a_blocked_request(engine, gate):
    engine.engine.add_request(PROMPT, constrained({"choice": ["slow"]}), request_id="slow")
    engine.engine.step()
    (output,) = engine.engine.abort_requests(["slow"])
    assert output.outputs[0].finish_reason == "abort"
    assert not engine.core.has_work
    engine.engine.add_request(PROMPT, constrained({"choice": ["other"]}), request_id="slow")  # its id is free
    gate.opened.set()
    assert [output.text for output in until_finished(engine, "slow")] == ["other"]


def test_a_compilation_that_takes_too_long(monkeypatch, gate):
    engine = SamplingEngine(monkeypatch, structured_outputs_config={"max_compile_seconds": 0.05})
    engine.engine.add_request(PROMPT, constrained({"choice": ["slow"]}), request_id="slow")
    (output,) = until_finished(engine, "slow")
    assert output.finish_reason == "error"
    assert "not compiled within 0.05 seconds" in output.stop_reason
    assert not engine.core.has_work
    assert run(engine, constrained(max_tokens=3)).finish_reason in ("stop", "length")


def test_a_matcher_that_fails_ends_its_own_request_only(engine, monkeypatch):
    backend = load_backend("llguidance")
    original = backend.compile

    def failing(self, params):
        grammar = original(self, params)
        if params.regex == "[a-z]{9}":
            make = grammar.new_matcher

            def new_matcher():
                matcher = make()
                matcher.accept = lambda token_id: False
                return matcher

            grammar.new_matcher = new_matcher
        return grammar

    monkeypatch.setattr(backend, "compile", failing)
    outputs = engine.run(
        {
            "broken": (PROMPT, constrained({"regex": "[a-z]{9}"})),
            "fine": (PROMPT, constrained({"regex": "[a-z]{8}"})),
            "free": (PROMPT, constrained(max_tokens=5, ignore_eos=True)),
        }
    )
    assert outputs["broken"].outputs[0].finish_reason == "error"
    assert "does not allow its token" in outputs["broken"].outputs[0].stop_reason
    assert re.fullmatch("[a-z]{8}", outputs["fine"].outputs[0].text)
    assert outputs["free"].outputs[0].finish_reason == "length"
    assert engine.core.kv.pool.num_free == engine.core.kv.pool.num_usable


def test_the_engines_own_settings(monkeypatch):
    engine = SamplingEngine(
        monkeypatch,
        structured_outputs_config={"disable_any_whitespace": True, "disable_additional_properties": True},
    )
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    output = run(engine, constrained({"json": schema}, logit_bias={216: 100.0}))
    assert output.text in ('{"a":1}', '{"a":2}')


def test_prefix_cache_and_constraints(engine):
    """A finished output's blocks serve the next request, forced tokens included."""
    params = constrained({"regex": "(abcdefgh){6}[a-z]"}, max_tokens=60)
    first = engine.run({"a": (PROMPT, params)})["a"]
    again = engine.run({"b": (PROMPT + first.outputs[0].token_ids[:-1], constrained(max_tokens=2))})["b"]
    assert again.num_cached_tokens > len(PROMPT)
