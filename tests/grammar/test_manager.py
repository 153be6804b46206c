"""Requests get their constraints: compiled once, beside the steps, within limits."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.config import StructuredOutputsConfig
from pelton.core.request import ConstraintError, Request
from pelton.grammar import StructuredOutputManager
from pelton.grammar.backend import GrammarBackend, UnsupportedGrammarError
from pelton.sampling_params import StructuredOutputsParams
from tests.grammar.played_matcher import VOCAB_SIZE, PlayedGrammar, tokens_of
from tests.support.requests import core_request

SECONDS = 30.0
EOS = 69


class PlayedBackend(GrammarBackend):
    """Compiles choices such as "5,6". Some wait for an event, some fail."""

    name = "played"
    events: dict[str, threading.Event]
    compiled: list[str]

    def __init__(self, vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def is_installed(cls) -> bool:
        return True

    @classmethod
    def check(cls, params) -> None:
        pass

    def compile(self, params):
        text = params.choice[0]
        self.compiled.append(text)
        if text in self.events:
            self.events[text].wait(SECONDS)
        if text == "unsupported":
            raise UnsupportedGrammarError("it cannot be kept")
        if text == "broken":
            raise KeyError("a bug")
        return PlayedGrammar([[int(number) for number in one.split(",")] for one in params.choice])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Manager:
    def __init__(self, monkeypatch, **config) -> None:
        PlayedBackend.events, PlayedBackend.compiled = {}, []
        monkeypatch.setattr("pelton.grammar.manager.load_backend", lambda name: PlayedBackend)
        self.clock = Clock()
        self.num_vocabularies = 0
        self.manager = StructuredOutputManager(
            StructuredOutputsConfig(**config), VOCAB_SIZE, self._load, clock=self.clock
        )

    def _load(self):
        self.num_vocabularies += 1
        return SimpleNamespace(shortened_first_ids=[])

    def start(self, request_id, *choices, **params):
        request = request_of(request_id, *choices, **params)
        return request, self.manager.start(request)

    def poll(self, number):
        """Until so many have ended: their ids and messages."""
        ended = []
        for _ in range(int(SECONDS / 0.05)):
            ended += self.manager.poll()
            if len(ended) >= number:
                return {request.id: message for request, message in ended}
            self.manager.wait(0.05)
        raise AssertionError(f"only {ended}")


def request_of(request_id, *choices, **params):
    constraint = StructuredOutputsParams(choice=list(choices), backend="llguidance")
    message = core_request(request_id, [1], SamplingParams(structured_outputs=constraint, **params), eos=[EOS])
    return Request(message, 100)


def allowed(request):
    return tokens_of(np.frombuffer(request.constraint.mask_bytes(), "<u4"))


@pytest.fixture
def manager(monkeypatch):
    return Manager(monkeypatch)


def test_a_constraint_is_compiled_once(manager):
    first, is_ready = manager.start("a", "5,6", "7,8")
    second, _ = manager.start("b", "5,6", "7,8")
    assert (is_ready, first.constraint) == (False, None)
    assert manager.poll(2) == {"a": "", "b": ""}
    third, is_ready = manager.start("c", "5,6", "7,8")
    assert is_ready
    assert PlayedBackend.compiled == ["5,6"]
    assert manager.num_vocabularies == 1
    first.constraint.advance([5])
    for request in (second, third):  # each follows its own output
        assert allowed(request) == {5, 7}


def test_nothing_is_loaded_before_it_is_needed(manager):
    assert manager.manager.poll() == []
    assert manager.num_vocabularies == 0


def test_others_go_before_one_that_takes_long(manager):
    PlayedBackend.events["5"] = release = threading.Event()
    slow, _ = manager.start("slow", "5")
    quick, _ = manager.start("quick", "6")
    assert manager.poll(1) == {"quick": ""}
    assert slow.constraint is None
    release.set()
    assert manager.poll(1) == {"slow": ""}
    assert allowed(slow) == {5}
    assert quick.constraint is not None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("unsupported", "structured_outputs: it cannot be kept"),
        ("broken", "the constraint could not be compiled: KeyError: 'a bug'"),
    ],
)
def test_what_cannot_be_compiled(manager, choice, message):
    manager.start("a", choice)
    manager.start("fine", "5")
    ended = manager.poll(2)
    assert ended == {"a": message, "fine": ""}
    manager.start("b", choice)  # not kept: another attempt
    assert manager.poll(1) == {"b": message}


def test_an_output_that_cannot_begin(manager):
    request, _ = manager.start("a", "69")
    (message,) = manager.poll(1).values()
    assert "the model has no token" in message
    assert request.constraint is None
    with pytest.raises(ConstraintError, match="the model has no token"):
        manager.start("b", "69")


def test_the_time_limit(monkeypatch):
    manager = Manager(monkeypatch, max_compile_seconds=5.0)
    PlayedBackend.events["5"] = release = threading.Event()
    manager.start("a", "5")
    manager.clock.now = 4.0
    late, _ = manager.start("b", "5")
    assert manager.manager.poll() == []
    manager.clock.now = 5.5
    message = "structured_outputs: it was not compiled within 5 seconds; simplify it, or start"
    ((request, said),) = manager.manager.poll()
    assert (request.id, said[: len(message)]) == ("a", message)
    release.set()
    assert manager.poll(1) == {"b": ""}
    assert late.constraint is not None
    _, is_ready = manager.start("c", "5")
    assert is_ready


def test_stuck_compilations_do_not_hold_up_others(monkeypatch):
    """More than there are threads: whoever waits longer than the limit is told, those after them are compiled."""
    manager = Manager(monkeypatch, max_compile_seconds=5.0)
    release = threading.Event()
    try:
        for number in range(3, 7):
            PlayedBackend.events[str(number)] = release
            manager.start(f"stuck {number}", str(number))
        manager.clock.now = 5.0  # no more than the limit
        assert manager.manager.poll() == []
        manager.clock.now = 6.0
        late, _ = manager.start("late", "34")
        ended = manager.poll(5)
        assert ended.pop("late") == ""
        assert sorted(ended) == ["stuck 3", "stuck 4", "stuck 5", "stuck 6"]
        assert all("not compiled within 5 seconds" in message for message in ended.values())
        assert late.constraint is not None
    finally:
        release.set()


def test_requests_that_wait_no_longer(manager):
    """What has begun is kept for others; what has not is not compiled."""
    releases = [threading.Event() for _ in range(2)]
    for choice, release in zip("56", releases, strict=True):
        PlayedBackend.events[choice] = release
        manager.start(choice, choice)
    manager.start("not begun", "7")
    manager.manager.forget(["5", "6", "not begun", "unknown"])
    for release in releases:
        release.set()
    for _ in range(int(SECONDS / 0.05)):
        assert manager.manager.poll() == []
        if not manager.manager.is_compiling:
            break
        manager.manager.wait(0.05)
    assert not manager.manager.is_compiling
    assert PlayedBackend.compiled == ["5", "6"]
    assert manager.start("again", "5")[1]


def test_schemas_in_another_order_are_others(manager):
    def start(name, *properties):
        schema = {"type": "object", "properties": {key: {"const": 1} for key in properties}}
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema, backend="llguidance"))
        request = Request(core_request(name, [1], params, eos=[EOS]), 100)
        return manager.manager.start(request)

    start("a", "x", "y")
    start("b", "y", "x")
    start("c", "x", "y")
    assert len(manager.manager._compilations) == 2


def test_the_cache_keeps_what_was_used_last(monkeypatch):
    manager = Manager(monkeypatch, cache_size=2)
    for choice in ("3", "4"):
        manager.start(choice, choice)
        manager.poll(1)
    assert manager.start("again", "3")[1]
    manager.start("5", "5")
    manager.poll(1)
    assert manager.start("x", "3")[1]
    assert not manager.start("y", "4")[1]
    manager.poll(1)


def test_stop_tokens_are_those_of_the_request(manager):
    plain, _ = manager.start("a", "5,6", "5", stop_token_ids=[40])
    ignoring, _ = manager.start("b", "5,6", "5", ignore_eos=True)
    manager.poll(2)
    plain.constraint.advance([5])
    assert allowed(plain) == {6, 40, EOS}
    assert ignoring.constraint.advance([5]) == [6]
    assert ignoring.constraint.is_complete


@pytest.mark.parametrize(
    "params",
    [{"logprobs": 0}, {"min_tokens": 1}, {"allowed_token_ids": [5, 6, EOS]}],
    ids=lambda params: next(iter(params)),
)
def test_tokens_are_sampled_where_somebody_would_notice(manager, params):
    request, _ = manager.start("a", "5,6", **params)
    manager.poll(1)
    assert request.constraint.advance([5]) == []


def test_a_worn_grammar_is_compiled_anew(monkeypatch):
    manager = Manager(monkeypatch)
    manager.start("first", "5,6")
    manager.poll(1)
    (compiled,) = manager.manager._cache.values()
    monkeypatch.setattr(type(compiled.grammar), "is_worn", True)
    _, is_ready = manager.start("second", "5,6")
    assert not is_ready
    manager.poll(1)
    assert PlayedBackend.compiled == ["5,6", "5,6"]


def test_memory_of_what_is_kept(monkeypatch):
    """However few there are."""
    monkeypatch.setattr("pelton.grammar.manager.MAX_CACHE_BYTES", 2)
    manager = Manager(monkeypatch)
    for number in range(4):
        manager.start(str(number), f"{number + 1},60")
        manager.poll(1)
    assert [manager.start(f"again {number}", f"{number + 1},60")[1] for number in (2, 3)] == [True, True]
    assert not manager.start("again", "1,60")[1]
