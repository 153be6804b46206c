"""The front of the engine, around a core that is played by a script."""

import json
import random
import sys
from contextlib import suppress

import pytest

from pelton import SamplingParams
from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineStats
from pelton.engine import choice_state, llm_engine, output_processor, request_state, served_model
from pelton.engine.core_client import EngineCoreClient
from pelton.engine.input_processor import InputProcessor
from pelton.engine.llm_engine import LLMEngine
from pelton.engine.output_processor import OutputProcessor
from pelton.sampling_params import RequestOutputKind
from tests.support.engines import num_finished
from tests.support.played import EOS, TOKENIZER
from tests.support.tiny_llama import write_tiny_llama

PARIS = 7042


class ScriptedClient(EngineCoreClient):
    """Gives every request one token a step, up to its max_tokens."""

    def __init__(self):
        self.requests = {}
        self.num_tokens = {}
        self.refused = set()
        """Ids that are not taken."""
        self.losing = False
        """Whether requests end with the next step, and nobody hears of it."""

    def add_request(self, request):
        if request.request_id in self.refused or request.request_id in self.requests:
            raise ValueError(f"the core refuses {request.request_id}")
        self.requests[request.request_id] = request
        self.num_tokens[request.request_id] = 0

    def abort_requests(self, request_ids):
        for request_id in request_ids:
            self.requests.pop(request_id, None)

    def get_outputs(self):
        outputs = []
        for request_id, request in list(self.requests.items()):
            self.num_tokens[request_id] += 1
            output = EngineCoreOutput(request_id, [PARIS])
            if self.num_tokens[request_id] == request.sampling_params.max_tokens:
                output.finish_reason = "length"
                del self.requests[request_id]
            outputs.append(output)
        if self.losing:
            self.requests, outputs = {}, []
        stats = EngineStats(
            num_running=len(self.requests),
            num_waiting=1,
            num_scheduled_tokens=len(self.requests),
            kv_cache_usage=0.5,
            num_preemptions=0,
            num_prefix_queries=7,
            num_prefix_hits=0,
            num_integrity_failures=0,
        )
        return EngineCoreOutputs(outputs, stats)

    @property
    def has_work(self):
        return bool(self.requests)

    def reset_prefix_cache(self):
        self.was_reset = True

    def shutdown(self):
        self.was_shut_down = True


def make_engine(**options):
    client = ScriptedClient()
    inputs = InputProcessor(EngineArgs.create(), TOKENIZER, [EOS], 49152, 100)
    return LLMEngine(client, inputs, OutputProcessor(TOKENIZER), TOKENIZER, **options), client


def params(**fields):
    return SamplingParams(**({"max_tokens": 3, "output_kind": RequestOutputKind.FINAL_ONLY} | fields))


def run(engine, max_steps=20):
    outputs = {}
    for _ in range(max_steps):
        if not engine.num_unfinished_requests:
            return outputs
        outputs |= {output.request_id: output for output in engine.step()}
    raise AssertionError(f"still waiting after {max_steps} steps")


def test_choices_come_back_as_one_request():
    engine, client = make_engine()
    request_id = engine.add_request("The capital of France is", params(n=3))
    engine.add_request([1, 2], params(), request_id="mine")
    assert engine.num_unfinished_requests == 2
    assert list(client.requests) == [f"{request_id}/0", f"{request_id}/1", f"{request_id}/2", "mine"]
    assert len({message.sampling_params.seed for message in list(client.requests.values())[:3]}) == 1
    outputs = run(engine)
    assert [completion.text for completion in outputs[request_id].outputs] == [" Paris" * 3] * 3
    assert outputs[request_id].prompt == "The capital of France is"
    assert len(outputs["mine"].outputs) == 1


@pytest.mark.parametrize("refused", ["a/0", "a/1", "a/2"])
def test_all_choices_are_queued_or_none(refused):
    engine, client = make_engine()
    engine.add_request([1, 2], params(), request_id="b")
    client.refused = {refused}
    with pytest.raises(ValueError, match=f"^the core refuses {refused}$"):
        engine.add_request([1, 2], params(n=3), request_id="a")
    assert list(client.requests) == ["b"]
    assert engine.num_unfinished_requests == 1
    client.refused = set()
    engine.add_request([1, 2], params(n=3), request_id="a")
    assert run(engine).keys() == {"a", "b"}
    assert num_finished(engine)["abort"] == 0, "what was never queued has not been aborted"


def test_colliding_ids_are_refused_before_the_core_hears_of_them():
    engine, client = make_engine()
    engine.add_request([1, 2], params(n=2), request_id="a")
    with pytest.raises(ValueError, match=r"^request_id 'a/1' is in use by a request that has not finished$"):
        engine.add_request([1, 2], params(), request_id="a/1")
    assert list(client.requests) == ["a/0", "a/1"]
    assert list(run(engine)) == ["a"]
    engine.add_request([1, 2], params(), request_id="a/1")


def test_an_abort_ends_all_choices_in_the_core():
    engine, client = make_engine()
    engine.add_request([1, 2], params(n=2), request_id="a")
    engine.add_request([1, 2], params(), request_id="b")
    assert engine.abort_requests(["a/1"]) == [], "a choice has no id of its own for users"
    assert list(client.requests) == ["a/0", "a/1", "b"]
    engine.step()
    (output,) = engine.abort_requests(["a", "unknown", "a"])
    assert [(c.text, c.finish_reason) for c in output.outputs] == [(" Paris", "abort")] * 2
    assert list(client.requests) == ["b"]
    assert engine.num_unfinished_requests == 1


def test_what_is_withdrawn_was_never_there():
    engine, client = make_engine()
    engine.add_request([1, 2], params(n=2), request_id="a")
    engine.add_request([1, 2], params(), request_id="b")
    engine.add_request([1, 2], params(), request_id="c")
    engine.withdraw_requests(["a", "c", "unknown", "b/0"])
    assert list(client.requests) == ["b"]
    assert run(engine).keys() == {"b"}
    assert num_finished(engine) == {"stop": 0, "length": 1, "abort": 0, "error": 0}
    engine.add_request([1, 2], params(n=2), request_id="a")
    assert run(engine).keys() == {"a"}


@pytest.mark.parametrize("wrong", ["a", 7, [7]])
@pytest.mark.parametrize("method", ["abort_requests", "withdraw_requests"])
def test_ids_to_end_are_checked(method, wrong):
    with pytest.raises(ValueError, match=r"^request_ids must "):
        getattr(make_engine()[0], method)(wrong)


def test_a_choice_that_a_stop_string_ends_is_ended_in_the_core():
    engine, client = make_engine()
    engine.add_request([1, 2], params(n=2, stop="Paris"), request_id="a")
    outputs = run(engine)
    assert [c.stop_reason for c in outputs["a"].outputs] == ["Paris"] * 2
    assert not client.has_work


def test_what_the_core_lost_ends_with_an_error():
    engine, client = make_engine()
    engine.add_request([1, 2], params(n=2), request_id="a")
    engine.step()
    client.losing = True
    (output,) = engine.step()
    assert output.finished
    assert [(c.finish_reason, c.stop_reason) for c in output.outputs] == [
        ("error", "the output was lost in an interrupt")
    ] * 2


def test_what_runs_for_nobody_is_ended():
    engine, client = make_engine()
    engine.add_request([1, 2], params(n=2), request_id="a")
    engine._output_processor.abort_requests(["a"])  # and there the interrupt came
    assert engine.step() == []
    assert not client.has_work


def test_default_sampling_params_are_the_callers_own():
    engine, _ = make_engine()
    assert engine.default_sampling_params() == SamplingParams()
    engine, _ = make_engine(generation_defaults={"temperature": 0.5, "top_k": 7})
    engine.default_sampling_params().temperature = 0.0
    assert engine.default_sampling_params() == SamplingParams(temperature=0.5, top_k=7)


def gauges(engine):
    named = {metric.name.removeprefix("vllm:"): metric for metric in engine.get_metrics()}
    return [named[name].value for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]


def test_metrics():
    engine, _ = make_engine(model_name="a-model")
    assert gauges(engine) == [0, 0, 0.0]
    engine.add_request([1, 2], params(n=2), request_id="a")
    engine.step()
    assert gauges(engine) == [2, 1, 0.5]
    assert all(metric.labels["model_name"] == "a-model" for metric in engine.get_metrics())
    engine.abort_requests(["a"])
    assert gauges(engine) == [0, 0, 0.0], "nothing runs any more, though there was no step since"
    named = {metric.name: metric for metric in engine.get_metrics()}
    assert named["vllm:prefix_cache_queries"].value == 7, "counters stay"
    assert named["vllm:generation_tokens"].value == 2


def test_reset_and_shutdown():
    engine, client = make_engine()
    assert engine.reset_prefix_cache() is True
    assert client.was_reset
    engine.shutdown()
    assert client.was_shut_down


# -------------------------------------------------------------------------------------------- from engine args


class StubCheckpoint:
    """A model with a bad generation_config.json, and nothing else that could be loaded."""

    def generation_defaults(self):
        raise ValueError("top_k is wrong")

    @property
    def config(self):
        raise RuntimeError("all was well so far")


def test_defaults_that_no_request_could_have(monkeypatch):
    monkeypatch.setattr(served_model, "open_checkpoint", lambda *_, **__: StubCheckpoint())
    with pytest.raises(ValueError, match=r"^top_k is wrong; generation_config='none' goes without$"):
        LLMEngine.from_engine_args(EngineArgs.create())
    with pytest.raises(RuntimeError, match="all was well"):
        LLMEngine.from_engine_args(EngineArgs.create(generation_config="none"))


def test_logits_processors_are_looked_up_before_a_model_is_opened(monkeypatch):
    monkeypatch.setattr(served_model, "open_checkpoint", None)
    with pytest.raises(ValueError, match=r"^logits processor 'nowhere' must be named as package"):
        LLMEngine.from_engine_args(EngineArgs.create(logits_processors=["nowhere"]))


@pytest.mark.parametrize("generation_config", ["auto", "none"])
def test_defaults_of_a_model(tmp_path, generation_config):
    folder = write_tiny_llama(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "top_k": 9, "max_new_tokens": 5}))
    args = {"max_model_len": 32, "block_size": 4, "num_gpu_blocks_override": 20, "max_num_seqs": 2}
    engine = LLMEngine.from_engine_args(
        EngineArgs.create(model=str(folder), generation_config=generation_config, **args)
    )
    recommended = {"temperature": 0.25, "top_k": 9, "max_tokens": 5}
    expected = SamplingParams(**recommended) if generation_config == "auto" else SamplingParams()
    assert engine.default_sampling_params() == expected
    assert engine.generation_defaults == (recommended if generation_config == "auto" else {})
    assert engine.model_name == str(folder)
    engine.add_request([5, 6, 7], params(n=3, seed=1, prompt_logprobs=0, ignore_eos=True), request_id="a")
    (output,) = run(engine).values()
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    assert [len(completion.token_ids) for completion in output.outputs] == [3, 3, 3]
    assert [entry and list(entry) for entry in output.prompt_logprobs] == [None, [6], [7]]
    metrics = output.metrics
    times = [metrics.arrival_time, metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts]
    assert times == sorted(times)
    assert gauges(engine) == [0, 0, 0.0]
    engine.shutdown()


# ------------------------------------------------------------------------------------------------- interrupts


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line that the front end runs, and perhaps once more, so many lines after
    the first has been noticed."""

    FILES = frozenset(module.__file__ for module in (choice_state, llm_engine, output_processor, request_state))

    def __init__(self, *countdowns):
        self.countdowns = list(countdowns)
        self.num_raised = 0

    def watch(self):
        """Ends with every exception that it raises."""
        sys.settrace(self._call if self.countdowns else None)

    def _call(self, frame, event, argument):
        return self._line if frame.f_code.co_filename in self.FILES else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.countdowns[0] -= 1
            if self.countdowns[0] < 0:
                del self.countdowns[0]
                self.num_raised += 1
                raise KeyboardInterrupt
        return self._line


def generate(engine, watch=lambda: None):
    """As `LLM.generate` does it."""
    try:
        watch()
        engine.add_request([1, 2], params(n=2, stop="s Paris P"), request_id="a")
        engine.add_request([1, 2], params(max_tokens=2), request_id="b")
        return run(engine)
    except BaseException:
        watch()
        engine.abort_requests(["a", "b"])
        raise
    finally:
        sys.settrace(None)


def interrupted(*countdowns):
    """An engine whose `generate` was interrupted, and how often."""
    engine, client = make_engine()
    interrupt = Interrupt(*countdowns)
    with suppress(KeyboardInterrupt):
        generate(engine, interrupt.watch)
    return engine, client, interrupt.num_raised


def assert_goes_on(engine, client):
    run(engine)
    assert not engine.num_unfinished_requests
    for _ in range(5):  # what runs for nobody
        engine.step()
    assert not client.has_work
    assert not engine._output_processor._choices
    outputs = generate(engine)
    assert [c.text for c in outputs["a"].outputs] == [" Pari"] * 2
    assert outputs["b"].outputs[0].finish_reason == "length"
    assert not client.has_work


def test_an_interrupt_at_any_line():
    """Nobody waits for what will not come, and the core works for nobody, whichever line is the last before it."""
    countdown = 0
    while True:
        engine, client, num_raised = interrupted(countdown)
        if not num_raised:
            break
        assert not engine.num_unfinished_requests, "generate has aborted its requests"
        assert_goes_on(engine, client)
        countdown += 1
    assert countdown > 100


def test_a_second_interrupt_while_the_first_is_handled():
    rng = random.Random(1)
    num_twice = 0
    for _ in range(300):
        engine, client, num_raised = interrupted(rng.randrange(150), rng.randrange(50))
        num_twice += num_raised == 2
        assert_goes_on(engine, client)
    assert num_twice > 100


def test_a_choice_whose_end_was_interrupted_does_not_go_on(monkeypatch):
    engine, client = make_engine()
    engine.add_request([1, 2], params(stop="aris", max_tokens=9), request_id="a")

    def interrupted_record(stats, finish_reason, now):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._output_processor.metrics[0], "record_finish", interrupted_record)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    completion = run(engine)["a"].outputs[0]
    assert (completion.text, completion.token_ids, completion.stop_reason) == (" P", [PARIS], "aris")
    assert not client.has_work


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_an_interrupt_while_the_core_takes_choices(monkeypatch, choice, is_taken, twice):
    engine, client = make_engine()
    add, abort = client.add_request, client.abort_requests

    def interrupted_add(request):
        if is_taken or request.choice != choice:
            add(request)
        if request.choice == choice:
            raise KeyboardInterrupt

    def interrupted_abort(request_ids):
        if twice:
            raise KeyboardInterrupt
        abort(request_ids)

    monkeypatch.setattr(client, "add_request", interrupted_add)
    monkeypatch.setattr(client, "abort_requests", interrupted_abort)
    with pytest.raises(KeyboardInterrupt):
        engine.add_request([1, 2], params(n=3), request_id="a")
    monkeypatch.undo()
    assert not engine.num_unfinished_requests
    assert_goes_on(engine, client)
