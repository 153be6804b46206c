"""Under a JSON schema that is accepted only its instances can be written, and nearly all of them.

The measure is the public JSON-Schema-Test-Suite, drafts 2020-12 and 7, and two validators that Pelton has nothing to do
with.
"""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from pelton.grammar.backend import CompiledGrammar, GrammarBackend, GrammarMatcher, GrammarVocabulary
from pelton.grammar.registry import load_backend
from pelton.ops.arrays import UInt32
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.installed_backends import INSTALLED
from tests.grammar.json_suite import DRAFTS, NUM_OUTPUTS, Case, Examiner, Findings, readings_of, suite_cases
from tests.grammar.json_suite_report import EXPECTED, UNEXPLAINED, acceptance_rows
from tests.grammar.random_outputs import Ending, TokenizerVocabulary
from tests.grammar.small_vocabularies import PIECES
from tests.support.fake_async_llm import smollm2_tokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text()

each_backend = pytest.mark.parametrize("backend", INSTALLED)


SUBSET = random.Random(7).sample(suite_cases(), len(suite_cases()) // 3)


@cache
def examined(backend: str) -> Findings:
    return Examiner(load_backend(backend), PIECES).examine(SUBSET, num_outputs=2)


@cache
def examined_whole(backend: str) -> Findings:
    vocabulary = TokenizerVocabulary(smollm2_tokenizer())
    return Examiner(load_backend(backend), vocabulary).examine(suite_cases(), num_outputs=NUM_OUTPUTS)


def check_outputs(findings: Findings, num_outputs: int) -> None:
    assert findings.endings.total() == num_outputs * len(findings.accepted)
    assert not findings.invalid
    allowed = {name for names in EXPECTED["disputed"].values() for name in names}
    assert not findings.disputed.keys() - allowed, [
        findings.disputed[name] for name in findings.disputed.keys() - allowed
    ]
    # Some patterns want a word that nobody finds by chance.
    assert findings.endings[Ending.TOO_LONG] <= 0.02 * findings.endings.total(), findings.not_complete
    assert set(findings.endings) <= {Ending.COMPLETE, Ending.TOO_LONG}, findings.not_complete


def check_instances(backend: str, cases: Sequence[Case], findings: Findings) -> None:
    expected = EXPECTED["not_passed"][backend]
    assert UNEXPLAINED not in expected
    prefixes = tuple(f"{case.name}: " for case in cases)
    names = {name for names in expected.values() for name in names if name.startswith(prefixes)}
    assert not {name: place for name, place in findings.not_passed.items() if name not in names}
    assert not names - findings.not_passed.keys(), "these pass now: take them off the list"
    allowed = {name for names in EXPECTED["wrongly_passed"].values() for name in names}
    assert not {name: text for name, text in findings.wrongly_passed.items() if name not in allowed}


def check_acceptance(cases: Sequence[Case], findings: Findings) -> None:
    """At least half of the schemas of each draft."""
    for draft in DRAFTS:
        num_accepted = sum(case.group.startswith(f"{draft}/") for case in findings.accepted)
        assert num_accepted >= sum(case.group.startswith(f"{draft}/") for case in cases) / 2


@each_backend
def test_half_of_the_schemas_are_accepted(backend: str) -> None:
    check_acceptance(SUBSET, examined(backend))


@each_backend
def test_refusals_name_the_reason(backend: str) -> None:
    refused = examined(backend).refused
    assert refused
    for name, message in refused.items():
        assert "json" in message, (name, message)
        assert len(message) > 20, (name, message)
        assert message.isprintable(), (name, message)


@each_backend
def test_outputs_are_instances(backend: str) -> None:
    check_outputs(examined(backend), 2)


@each_backend
def test_outputs_are_instances_where_objects_are_closed(backend: str) -> None:
    findings = Examiner(load_backend(backend), PIECES, closed=True).examine(SUBSET, num_outputs=2)
    check_outputs(findings, 2)
    # None is refused or becomes empty for being closed.
    assert findings.accepted == examined(backend).accepted
    assert len(examined(backend).not_passed) < len(findings.not_passed) < len(examined(backend).not_passed) + 20


@each_backend
def test_instances_pass_and_nothing_else(backend: str) -> None:
    check_instances(backend, SUBSET, examined(backend))


@pytest.mark.slow
@each_backend
def test_all_with_a_real_vocabulary(backend: str) -> None:
    findings = examined_whole(backend)
    check_acceptance(suite_cases(), findings)
    check_outputs(findings, NUM_OUTPUTS)
    check_instances(backend, suite_cases(), findings)


@pytest.mark.slow
@each_backend
def test_many_outputs_with_a_small_vocabulary(backend: str) -> None:
    findings = Examiner(load_backend(backend), PIECES).examine(suite_cases(), num_outputs=3 * NUM_OUTPUTS)
    check_outputs(findings, 3 * NUM_OUTPUTS)
    check_instances(backend, suite_cases(), findings)


@pytest.mark.slow
@each_backend
def test_the_page_has_the_rates(backend: str) -> None:
    columns = [column for column, title in enumerate(_cells(_row("file"))) if title == backend]
    for found in map(_cells, acceptance_rows({backend: examined_whole(backend).accepted})):
        written = _cells(_row(found[0]))
        assert [written[column] for column in columns] == [found[2], found[4]], found[0]


@each_backend
def test_the_page_has_the_causes(backend: str) -> None:
    (column,) = (column for column, title in enumerate(_cells(_row("cause"))) if title == backend)
    for cause, names in EXPECTED["not_passed"][backend].items():
        assert _cells(_row(cause))[column] == str(len(names)), cause


def _row(title: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {title} |"))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


class Anything(GrammarBackend, CompiledGrammar, GrammarMatcher):
    """Promises what llguidance does, and allows everything."""

    name = "llguidance"
    is_accepting = True
    num_bytes = 0

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._num_words = (vocabulary.vocab_size + 31) // 32
        self._last_bits = vocabulary.vocab_size % 32

    @classmethod
    def is_installed(cls) -> bool:
        return True

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        pass

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        return self

    def new_matcher(self) -> GrammarMatcher:
        return self

    def fill_bitmask(self, row: UInt32) -> None:
        row[:] = 0xFFFFFFFF
        row[-1] = (1 << self._last_bits) - 1

    def accept(self, token_id: int) -> bool:
        return True

    def rollback(self, num_tokens: int) -> None:
        pass


def test_the_harness_sees_what_is_wrong() -> None:
    cases = [case for case in suite_cases() if case.group == "draft7/type"]
    findings = Examiner(Anything, PIECES).examine(cases, num_outputs=20)
    num_invalid = sum(not instance.is_valid for case in findings.accepted for instance in case.instances)
    assert len(findings.wrongly_passed) == num_invalid > 0
    assert not findings.not_passed
    assert len(findings.invalid) > 100


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ('{"a": 1, "b": {"a": 2}}', [{"a": 1, "b": {"a": 2}}]),
        ('[{"a": 1, "a": 2}]', [[{"a": 1}], [{"a": 2}]]),
    ],
)
def test_readings(text: str, readings: list[object]) -> None:
    assert readings_of(text.encode()) == readings


@pytest.mark.parametrize("data", [b"NaN", b"[1,]", b'"\xc3"', b"", b"01", b'"\n"'])
def test_no_json(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        readings_of(data)
