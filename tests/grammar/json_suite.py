"""The public JSON-Schema-Test-Suite, and what a grammar backend does with its schemas and instances."""

import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from pelton.grammar.backend import CompiledGrammar, GrammarBackend, GrammarVocabulary
from pelton.grammar.registry import resolve
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.random_outputs import Ending, RandomWriter
from tests.grammar.schema_order import in_schema_order
from tests.grammar.validators import DRAFT_7, Judge, resolver_of
from tests.support.downloads import json_schema_suite

DRAFTS = ("draft2020-12", "draft7")
NUM_OUTPUTS = 20
"""Random outputs for each schema."""
FORMS: dict[str, Callable[[Any], str]] = {
    "compact": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    "spaced": lambda value: json.dumps(value, ensure_ascii=False),
    "indented": lambda value: json.dumps(value, ensure_ascii=False, indent=2),
    "escaped": lambda value: json.dumps(value, separators=(",", ":")),
}
"""How one value may be written: `escaped` differs from `compact` beyond ASCII only."""


@dataclass(frozen=True)
class Instance:
    name: str
    value: Any
    is_valid: bool


@dataclass(frozen=True)
class Case:
    """A schema, and values that are its instances or are not."""

    group: str
    """The draft, and the suite's file: the keyword."""
    name: str
    schema: Any
    instances: tuple[Instance, ...]
    read: Callable[[bytes], object] | None = None
    """Reads instances too; raises ValueError for what is none."""


@cache
def suite_cases() -> tuple[Case, ...]:
    """All of both drafts, the optional ones too, with unique names."""
    return tuple(case for draft in DRAFTS for case in _cases_of(draft))


def _cases_of(draft: str) -> Iterator[Case]:
    folder = json_schema_suite() / "tests" / draft
    for path in sorted(folder.rglob("*.json")):
        group = f"{draft}/{path.relative_to(folder).with_suffix('').as_posix()}"
        unique = _Unique()
        for entry in json.loads(path.read_text()):
            name = unique(f"{group}: {entry['description']}")
            unique_instance = _Unique()
            yield Case(
                group,
                name,
                _with_draft(entry["schema"], draft),
                tuple(
                    Instance(unique_instance(f"{name}: {test['description']}"), test["data"], test["valid"])
                    for test in entry["tests"]
                ),
            )


def _with_draft(schema: Any, draft: str) -> Any:
    """The schemas of draft 7 do not say that they are; a request has to."""
    if draft == "draft7" and isinstance(schema, dict):
        return {"$schema": DRAFT_7} | schema
    return schema


class _Unique:
    """Numbers names that come again."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name} ({self._counts[name]})"


@dataclass
class Findings:
    """What one backend did with some cases, over one vocabulary."""

    refused: dict[str, str] = field(default_factory=dict)
    """Case -> message."""
    accepted: list[Case] = field(default_factory=list)
    num_instances: int = 0
    """Valid instances of accepted schemas."""
    num_texts: int = 0
    """The same in all forms."""
    not_passed: dict[str, str] = field(default_factory=dict)
    """Instance, and in which form -> how far it got."""
    wrongly_passed: dict[str, str] = field(default_factory=dict)
    """What is no instance -> the text that passed."""
    num_invalid_texts: int = 0
    endings: Counter[Ending] = field(default_factory=Counter)
    not_complete: list[str] = field(default_factory=list)
    """Outputs that did not end well: case, ending, the last of the text."""
    invalid: list[str] = field(default_factory=list)
    """Complete outputs that are no instances: case, text, why not."""
    disputed: dict[str, list[str]] = field(default_factory=dict)
    """Case -> outputs that one validator only calls no instance."""
    num_repeating: int = 0
    """Outputs with an object that names a property twice."""


class Examiner:
    """One backend, over one vocabulary.

    `closed`: objects have the properties that the schema names only, as by default, and not all that it allows.
    """

    def __init__(self, kind: type[GrammarBackend], vocabulary: GrammarVocabulary, *, closed: bool = False) -> None:
        self._backend = kind(vocabulary)
        self._disable_additional_properties = None if closed else False
        self._vocabulary = vocabulary
        self._writer = RandomWriter(vocabulary)
        self._row = np.zeros((vocabulary.vocab_size + 31) // 32, np.uint32)

    def examine(self, cases: Iterable[Case], *, num_outputs: int = NUM_OUTPUTS) -> Findings:
        findings = Findings()
        with _deep_recursion():
            for case in cases:
                grammar = self._compiled(case, findings)
                if grammar is not None:
                    self._examine_instances(case, grammar, findings)
                    self._examine_outputs(case, grammar, num_outputs, findings)
        return findings

    def _compiled(self, case: Case, findings: Findings) -> CompiledGrammar | None:
        try:
            params = StructuredOutputsParams(
                json=case.schema,
                backend=self._backend.name,
                disable_additional_properties=self._disable_additional_properties,
            )
            grammar = self._backend.compile(resolve(params))
        except ValueError as error:
            findings.refused[case.name] = str(error)
            return None
        findings.accepted.append(case)
        return grammar

    def _examine_instances(self, case: Case, grammar: CompiledGrammar, findings: Findings) -> None:
        resolver = resolver_of(case.schema)
        for instance in case.instances:
            texts = texts_of(in_schema_order(instance.value, case.schema, resolver))
            if not instance.is_valid:
                others = {f"{form}, as it stands": text for form, text in texts_of(instance.value).items()}
                texts |= {form: text for form, text in others.items() if text not in texts.values()}
                findings.num_invalid_texts += len(texts)
                passed = [text for text in texts.values() if self.follow(grammar, text) is None]
                if passed:
                    findings.wrongly_passed[instance.name] = passed[0]
                continue
            findings.num_instances += 1
            findings.num_texts += len(texts)
            reached = {form: self.follow(grammar, text) for form, text in texts.items()}
            failed = [form for form, place in reached.items() if place is not None]
            if failed:
                forms = "" if failed == list(texts) else f" [{', '.join(failed)}]"
                text, place = texts[failed[0]], reached[failed[0]]
                findings.not_passed[instance.name + forms] = f"{place} >< {text[len(place or '') :]}"

    def follow(self, grammar: CompiledGrammar, text: str) -> str | None:
        """Let a text pass the mask, token by token. None if it does and is complete; else how far it got."""
        token_ids = self._vocabulary.encode(text)
        pieces = [self._vocabulary.token_bytes[token_id] for token_id in token_ids]
        assert b"".join(pieces) == text.encode(), f"the vocabulary cannot write {text!r}"
        matcher = grammar.new_matcher()
        for position, token_id in enumerate(token_ids):
            matcher.fill_bitmask(self._row)
            is_allowed = bool(self._row[token_id // 32] >> np.uint32(token_id % 32) & 1)
            assert matcher.accept(token_id) == is_allowed, (
                f"mask and matcher disagree about {pieces[position]!r} in {text}"
            )
            if not is_allowed:
                return b"".join(pieces[:position]).decode(errors="replace")
        return None if matcher.is_accepting else text

    def _examine_outputs(self, case: Case, grammar: CompiledGrammar, num_outputs: int, findings: Findings) -> None:
        judge = Judge(case.schema)
        seen: set[bytes] = set()
        for index in range(num_outputs):
            output = self._writer.write(grammar, np.random.default_rng([zlib.crc32(case.name.encode()), index]))
            findings.endings[output.ending] += 1
            if output.ending is not Ending.COMPLETE:
                findings.not_complete.append(f"{case.name}: {output.ending.value}: ...{output.data[-60:]!r}")
            elif output.data not in seen:
                seen.add(output.data)
                self._judge(case, judge, output.data, findings)

    @staticmethod
    def _judge(case: Case, judge: Judge, data: bytes, findings: Findings) -> None:
        shown = f"{case.name}: {data.decode(errors='replace')}"
        try:
            readings = readings_of(data)
            if case.read:
                case.read(data)
        except ValueError as error:
            findings.invalid.append(f"{shown}: cannot be read: {error}")
            return
        findings.num_repeating += len(readings) > 1
        for value in readings:
            objections = judge.objections(value)
            if len(objections) == 1:
                findings.disputed.setdefault(case.name, []).append(f"{shown}: {objections}")
            elif objections:
                findings.invalid.append(f"{shown}: {objections}")
                return


def texts_of(value: Any) -> dict[str, str]:
    """The value in every form that differs from the ones before."""
    texts: dict[str, str] = {}
    for form, write in FORMS.items():
        text = write(value)
        if text not in texts.values():
            texts[form] = text
    return texts


def readings_of(data: bytes) -> list[Any]:
    """What readers may make of JSON text. Raises ValueError if it is none.

    Where an object names a property twice there are two readings: the first value counts, or the last.
    """
    is_repeating = False

    def first_counts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_repeating
        is_repeating |= len(dict(pairs)) < len(pairs)
        return dict(reversed(pairs))

    text = data.decode()
    first = json.loads(text, object_pairs_hook=first_counts, parse_constant=_no_constant)
    return [first, json.loads(text)] if is_repeating else [first]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """The validator calls itself several times for each level of nesting."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * before)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
