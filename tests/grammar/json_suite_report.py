"""What the JSON-Schema-Test-Suite finds, in figures: python -m tests.grammar.json_suite_report [--outputs N] [--update]

Examines all of it with every backend that is installed and a real model's vocabulary; prints the tables that
docs/structured-output.md has, and what breaks a promise. `tests/grammar/data/json_suite.json` has the causes by which
instances that do not pass are grouped; --update takes off it what passes now, and adds what does not without a cause.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pelton.grammar.registry import load_backend
from tests.grammar.installed_backends import INSTALLED
from tests.grammar.json_suite import DRAFTS, NUM_OUTPUTS, Case, Examiner, Findings, suite_cases
from tests.grammar.random_outputs import Ending, TokenizerVocabulary
from tests.support.fake_async_llm import smollm2_tokenizer

_DATA = Path(__file__).parent / "data" / "json_suite.json"
EXPECTED: dict[str, Any] = json.loads(_DATA.read_text())
"""`not_passed`: backend -> cause -> instances. `disputed`: cause -> schemas whose outputs the validators differ about.
`wrongly_passed`: cause -> instances that the suite alone calls invalid."""
UNEXPLAINED = "unexplained"


def acceptance_rows(accepted: Mapping[str, Iterable[Case]]) -> Iterator[str]:
    """A line for each file of the suite and for each sort of file: schemas, and how many each backend accepts.

    `accepted`: backend -> cases.
    """
    total = Counter(case.group for case in suite_cases())
    counts = {backend: Counter(case.group for case in cases) for backend, cases in accepted.items()}
    files = list(dict.fromkeys(group.partition("/")[2] for group in total))
    sorts = {
        "**required**": [name for name in files if "/" not in name],
        "**optional**": [name for name in files if name.count("/") == 1],
        "**formats**": [name for name in files if name.count("/") == 2],
    }
    for title, names in [*sorts.items(), *((f"`{name}`", [name]) for name in files)]:
        cells = []
        for draft in DRAFTS:
            groups = [f"{draft}/{name}" for name in names]
            schemas = sum(total[group] for group in groups)
            cells += [schemas, *(sum(count[group] for group in groups) for count in counts.values())] if schemas else []
            cells += [] if schemas else [""] * (1 + len(counts))
        yield f"| {title} | {' | '.join(map(str, cells))} |"


def cause_rows(not_passed: Mapping[str, Mapping[str, list[str]]]) -> Iterator[str]:
    """A line for each cause: how many valid instances do not pass because of it, with each backend."""
    for cause in dict.fromkeys(cause for causes in not_passed.values() for cause in causes):
        yield f"| {cause} | {' | '.join(str(len(causes.get(cause, ()))) for causes in not_passed.values())} |"


def updated_causes(findings: Findings, expected: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The same causes for what has not passed, and `UNEXPLAINED` for what is new."""
    known = {name for names in expected.values() for name in names}
    grouped = {cause: [name for name in names if name in findings.not_passed] for cause, names in expected.items()}
    grouped[UNEXPLAINED] = [name for name in findings.not_passed if name not in known]
    return {cause: names for cause, names in grouped.items() if names}


def figures(findings: Findings) -> str:
    """One sentence."""
    complete = findings.endings[Ending.COMPLETE]
    return (
        f"{complete} outputs of {len(findings.accepted)} schemas, {len(findings.invalid)} of them invalid and "
        f"{sum(map(len, findings.disputed.values()))} disputed; {findings.endings.total() - complete} did not end; "
        f"{findings.num_instances} valid instances, {len(findings.not_passed)} not passed in some form; "
        f"{len(findings.wrongly_passed)} invalid instances passed"
    )


def _print_broken(findings: Findings) -> None:
    for name, text in findings.wrongly_passed.items():
        print(f"wrongly passed: {name}: {text}")
    for line in (*findings.invalid, *findings.not_complete):
        print(f"output: {line}")
    for line in (line for lines in findings.disputed.values() for line in lines):
        print(f"disputed: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The JSON-Schema-Test-Suite against the grammar backends.")
    parser.add_argument("--outputs", type=int, default=NUM_OUTPUTS, help="random outputs for each schema")
    parser.add_argument("--update", action="store_true", help="write the instances that do not pass to json_suite.json")
    arguments = parser.parse_args()
    vocabulary = TokenizerVocabulary(smollm2_tokenizer())
    found = {
        name: Examiner(load_backend(name), vocabulary).examine(suite_cases(), num_outputs=arguments.outputs)
        for name in INSTALLED
    }
    not_passed = {
        name: updated_causes(findings, EXPECTED["not_passed"].get(name, {})) for name, findings in found.items()
    }
    if arguments.update:
        EXPECTED["not_passed"] |= not_passed
        _DATA.write_text(json.dumps(EXPECTED, indent=2, ensure_ascii=False) + "\n")
    for name, findings in found.items():
        print(f"{name}: {figures(findings)}")
        _print_broken(findings)
    print("\ncause, and instances with", *found)
    print(*cause_rows(not_passed), sep="\n")
    print("\nfile, and for each draft schemas and those accepted by", *found)
    print(*acceptance_rows({name: findings.accepted for name, findings in found.items()}), sep="\n")


if __name__ == "__main__":
    main()
