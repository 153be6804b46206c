"""Checks of constraints in other processes: what they answer, and what becomes of those that take too much."""

import os
import signal
import threading
import time

import pytest

from pelton.engine import constraint_checker
from pelton.engine.constraint_checker import ConstraintChecker
from pelton.engine.errors import EngineDeadError
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.structured_outputs_params import StructuredOutputsParams

ENDLESS = StructuredOutputsParams(
    json={"type": "string", "allOf": [{"type": "string", "pattern": f"a.*{number}.*b"} for number in range(32)]}
)
"""Whether these have a text in common nobody finds out in time."""
FINE = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.fixture
def checker():
    made = ConstraintChecker(0.5)
    yield made
    made.shutdown()


def test_answers(checker):
    resolved = checker.resolve(FINE)
    closed = {"disable_additional_properties": True}
    assert resolved == StructuredOutputsParams(json=FINE.json, backend="llguidance", **closed)
    assert FINE.backend == "auto"
    with pytest.raises(UnsupportedGrammarError, match=r"^json: the keyword uniqueItems at /uniqueItems cannot be kept"):
        checker.resolve(StructuredOutputsParams(json={"uniqueItems": True}))
    long = StructuredOutputsParams(choice=[f"{number:05}" * 10 for number in range(5000)], backend="llguidance")
    assert checker.resolve(long).choice == long.choice


@pytest.mark.parametrize(
    "params",
    [
        ENDLESS,
        StructuredOutputsParams(json={"type": "array", "items": ENDLESS.json}),
        StructuredOutputsParams(regex=r"[\p{L}\p{M}]" * 4000),
    ],
)
def test_what_takes_too_long(checker, params):
    message = f"^{params.kind}: to check it takes more than 0.5 seconds of processor time; simplify it$"
    with pytest.raises(UnsupportedGrammarError, match=message):
        checker.resolve(params)
    assert checker.resolve(FINE).backend == "llguidance", "another process has taken its place"


def test_what_takes_too_much_memory():
    checker = ConstraintChecker(1000.0, max_memory=64 << 20)
    try:
        with pytest.raises(UnsupportedGrammarError, match=r"^json: to check it takes too much memory; simplify it$"):
            checker.resolve(ENDLESS)
        assert checker.resolve(FINE).backend == "llguidance"
    finally:
        checker.shutdown()


def test_others_are_checked_meanwhile():
    checker = ConstraintChecker(1000.0, max_memory=1 << 40)
    refused = []

    def endless():
        try:
            checker.resolve(ENDLESS)
        except EngineDeadError as error:
            refused.append(str(error))

    thread = threading.Thread(target=endless)
    thread.start()
    try:
        for _ in range(3):
            assert checker.resolve(FINE).backend == "llguidance"
        assert thread.is_alive()
    finally:
        checker.shutdown()
        thread.join(30)
    assert not thread.is_alive(), "whoever waits is told when all ends"
    assert len(refused) == 1
    with pytest.raises(EngineDeadError, match="shutting down"):
        checker.resolve(FINE)


def test_a_process_that_was_ended_by_others(checker):
    checker.resolve(FINE)
    (child,) = checker._idle
    os.kill(child._process.pid, signal.SIGKILL)
    while not child._process.has_ended:
        time.sleep(0.01)
    assert checker.resolve(FINE).backend == "llguidance"


def test_processes_that_cannot_start(checker, monkeypatch):
    """Nothing is wrong with the constraint."""
    original = constraint_checker.ChildProcess
    monkeypatch.setattr(
        constraint_checker,
        "ChildProcess",
        lambda module, arguments, **options: original("pelton.no_such_module", arguments, **options),
    )
    with pytest.raises(EngineDeadError, match="has ended"):
        checker.resolve(FINE)
    monkeypatch.undo()
    assert checker.resolve(FINE).backend == "llguidance"
