"""The user's own logits processors: called for the rows that want them, at nobody else's cost."""

import re

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.runner.custom_processors import CustomProcessors
from pelton.sampling.logits_processor import LogitsProcessor
from tests.support.requests import core_request

TOKENS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)


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
    custom = CustomProcessors(processors or [Scripted()])
    for row, what in enumerate(do):
        extra_args = None if what is None else {"do": what}
        custom.set_row(row, core_request(str(row), [1, 2], SamplingParams(extra_args=extra_args)))
    num = len(do)
    custom.prepare(np.arange(num), np.full(num, 2, np.int32), np.full(num, 3), TOKENS)
    logits = np.ones((num, 3), np.float32)
    custom.apply(logits)
    return logits, custom


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
        ("raise", "RuntimeError: broken"),
        ("refuse", "Scripted failed: KeyError: 'no such thing'"),
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
    custom.clear_row(0)
    custom.prepare(np.array([0]), np.array([2], np.int32), np.array([3]), TOKENS)
    assert custom.errors == {}


def test_several_act_in_their_order():
    logits, _ = run("return", processors=[Scripted(), Scripted()])
    assert logits.tolist() == [[4, 4, 4]]


def test_ruling_out_is_allowed_and_broken_logits_are_not_theirs():
    logits, custom = run("rule out", "return")
    assert logits[0].tolist() == [-np.inf] * 3
    assert custom.errors == {}
    custom.prepare(np.arange(2), np.array([2, 2], np.int32), np.array([3, 3]), TOKENS)
    logits[:] = np.nan
    custom.apply(logits)
    assert custom.errors == {}
