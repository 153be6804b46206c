"""The user's own logits processors: called for the rows that want them, at nobody else's cost."""

import re

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.runner.custom_processors import CustomProcessors, ProcessorCall, make_functions
from pelton.sampling.logits_processor import LogitsProcessor

TOKENS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)
TOKENS.flags.writeable = False


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no message")


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise SilentError


class Scripted(LogitsProcessor):
    """Does what `extra_args["do"]` says."""

    arguments = frozenset({"do"})
    seen: list[tuple[list[int], list[int]]]

    def __init__(self) -> None:
        self.seen = []

    def new_request(self, params):
        do = (params.extra_args or {}).get("do")
        if do is None:
            return None
        if do == "refuse":
            raise KeyError("no such thing")

        def change(prompt_ids, output_ids, logits):
            self.seen.append((prompt_ids.tolist(), output_ids.tolist()))
            if do == "in place":
                logits[0] = 99.0
            elif do == "return":
                return logits * 2
            elif do == "shape":
                return logits[:1]
            elif do == "nan":
                logits[1] = np.nan
            elif do == "rule out":
                logits[:] = -np.inf
            elif do == "raise":
                raise RuntimeError("broken")
            elif do == "write tokens":
                prompt_ids[0] = 0
            return None

        return change


def run(*do: str | None, processors=None) -> tuple[np.ndarray, CustomProcessors]:
    custom = CustomProcessors()
    custom.prepare(calls(*do, processors=processors))
    logits = np.ones((len(do), 3), np.float32)
    custom.apply(logits, np.arange(len(do), dtype=np.int32))
    return logits, custom


def calls(*do: str | None, processors=None) -> list[ProcessorCall]:
    """Of rows that do these; a row that does nothing is edited, but has no functions."""
    made = []
    for row, what in enumerate(do):
        params = SamplingParams(extra_args=None if what is None else {"do": what})
        functions = make_functions(processors or [Scripted()], params)
        if functions:
            made.append(ProcessorCall(row, functions, TOKENS[row % 2, :2], TOKENS[row % 2, 2:3]))
    return made


def test_rows_are_changed_in_place_or_replaced():
    logits, custom = run("in place", None)
    assert logits.tolist() == [[99, 1, 1], [1, 1, 1]]
    logits, _ = run(None, "return")
    assert logits.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert custom.errors == {}


def test_they_see_prompt_and_output():
    processor = Scripted()
    run("in place", "return", processors=[processor])
    assert processor.seen == [([1, 2], [3]), ([5, 6], [7])]


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("raise", "^the logits processor Scripted failed: RuntimeError: broken$"),
        ("refuse", "^the logits processor Scripted failed: KeyError: 'no such thing'$"),
        ("shape", r"must return logits \[3\] or None, got shape \[1\]"),
        ("write tokens", "read-only"),
        ("nan", "made logits that are NaN or infinity"),
    ],
)
def test_a_failure_is_of_its_row_only(do, words):
    logits, custom = run(do, "return")
    assert logits[1].tolist() == [2, 2, 2]
    assert custom.errors.keys() == {0}
    assert re.search(words, custom.errors[0])
    custom.prepare([])
    custom.apply(logits, np.arange(2, dtype=np.int32))
    assert custom.errors == {}
    assert logits[1].tolist() == [2, 2, 2]


def test_edits_are_told_by_their_index_in_calls_of_any_rows():
    custom = CustomProcessors()
    custom.prepare(calls("raise", "return", None, "in place", "shape"))
    logits = np.ones((7, 3), np.float32)
    logits[[1, 3]] = np.nan  # rows without an edit hold anything
    index = np.array([4, -1, 1, -1, 3, 2, 0], np.int32)
    custom.apply(logits[:3], index[:3])
    custom.apply(logits[3:3], index[3:3])
    custom.apply(logits[3:], index[3:])
    assert logits[[0, 2, 4, 5, 6]].tolist() == [[1, 1, 1], [2, 2, 2], [99, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert np.isnan(logits[[1, 3]]).all()
    assert custom.errors.keys() == {0, 4}
    assert "RuntimeError: broken" in custom.errors[0]


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("new_request", "words"),
    [
        (lambda params: fail(SilentError()), "SilentError"),
        (lambda params: lambda *arrays: fail(SilentError()), "SilentError"),
        (lambda params: lambda *arrays: Unreadable(), "SilentError"),
        (lambda params: lambda *arrays: fail(OSError("a\nb\ud800" * 10**5)), r"OSError: (a b ?)+[.]{3}"),
        (lambda params: 5, "TypeError: new_request must return a function or None, got 5"),
        (lambda params: Unreadable, "TypeError: .*"),
    ],
)
def test_failures_of_any_kind(new_request, words):
    odd = type("Odd", (LogitsProcessor,), {"new_request": lambda self, params: new_request(params)})
    _, custom = run("any", processors=[odd()])
    assert re.fullmatch(f"the logits processor Odd failed: {words}", custom.errors[0])
    assert len(custom.errors[0]) < 400


def test_several_act_in_their_order():
    logits, _ = run("return", processors=[Scripted(), Scripted()])
    assert logits.tolist() == [[4, 4, 4]]


def test_ruling_out_is_allowed_and_broken_logits_are_not_theirs():
    logits, custom = run("rule out", "return")
    assert logits[0].tolist() == [-np.inf] * 3
    assert custom.errors == {}
    custom.prepare(calls("return", "raise"))
    logits[:] = np.nan
    custom.apply(logits, np.arange(2, dtype=np.int32))
    assert custom.errors == {}


class Taking(LogitsProcessor):
    """Changes the parameters that it is given."""

    def new_request(self, params):
        strength = params.extra_args.pop("strength")[0]
        params.stop_token_ids.clear()
        params.temperature = None
        return lambda prompt_ids, output_ids, logits: logits + strength


def test_each_call_has_parameters_of_its_own():
    given = {"temperature": 0.5, "stop_token_ids": [7], "extra_args": {"strength": [3]}}
    params = SamplingParams(**given)
    for _ in range(2):
        functions = make_functions([Taking(), Taking()], params)
        assert [function.process(None, None, 1) for function in functions] == [4, 4]
        assert [function.name for function in functions] == ["Taking", "Taking"]
    assert params == SamplingParams(**given)
