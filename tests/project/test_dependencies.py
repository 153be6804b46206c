"""Pelton stays light: what it depends on, imports and reads from the environment is frozen here."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pelton import envs

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "src" / "pelton"

DIRECT_DEPENDENCIES = {
    "fastapi",
    "httptools",
    "huggingface-hub",
    "jinja2",
    "llguidance",
    "ml-dtypes",
    "msgspec",
    "numpy",
    "prometheus-client",
    "pydantic",
    "pyzmq",
    "tokenizers",
    "tqdm",
    "uvicorn",
    "uvloop",
}
ENVIRONMENT_VARIABLES = ("OPENAI_API_KEY", "PELTON_CPU_ISA", "PELTON_NATIVE_LIBRARIES", "PELTON_STRICT_INVARIANTS")
TEST_ONLY = {"gguf", "litellm", "openai", "schemathesis", "sentencepiece", "tiktoken", "torch", "transformers"}

# Measured with Python 3.11 on x86-64 Linux: 35 distributions, 160 MB (docs/dependencies.md).
MAX_DISTRIBUTIONS = 45
MAX_MEGABYTES = 200


def requirements(dist: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """What `dist` with these extras needs in the running interpreter."""
    for line in dist.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def closure(name: str) -> dict[str, Distribution]:
    """Every distribution that comes along with `name`, itself excluded."""
    found: dict[str, Distribution] = {}
    seen = {(canonicalize_name(name), frozenset[str]())}
    pending = list(seen)
    while pending:
        parent, extras = pending.pop()
        for requirement in requirements(distribution(parent), extras):
            child = canonicalize_name(requirement.name)
            found[child] = distribution(child)
            wanted = (child, frozenset(requirement.extras))
            if wanted not in seen:
                seen.add(wanted)
                pending.append(wanted)
    return found


def installed_bytes(dist: Distribution) -> int:
    files = dist.files
    assert files, f"{dist.name} has no RECORD, so its size is unknown"
    paths = [Path(str(file.locate())) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_direct_dependencies_are_frozen() -> None:
    names = {canonicalize_name(requirement.name) for requirement in requirements(distribution("pelton"), frozenset())}
    assert names == DIRECT_DEPENDENCIES


def test_everything_that_comes_along_stays_small() -> None:
    found = closure("pelton")
    assert found.keys() >= DIRECT_DEPENDENCIES
    assert not found.keys() & TEST_ONLY
    assert len(found) <= MAX_DISTRIBUTIONS, sorted(found)
    megabytes = {name: installed_bytes(dist) / 1e6 for name, dist in found.items()}
    assert sum(megabytes.values()) <= MAX_MEGABYTES, megabytes


def test_every_requirement_is_documented() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    page = (REPOSITORY / "docs" / "dependencies.md").read_text()
    declared = chain(project["dependencies"], *project["optional-dependencies"].values())
    missing = [requirement for requirement in declared if f"`{requirement}`" not in page]
    assert not missing, f"docs/dependencies.md lacks {missing}"


def test_importing_pelton_leaves_the_test_frameworks_alone() -> None:
    program = f"import sys, pelton; pelton.LLM; print(sorted({TEST_ONLY} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_environment_variables_are_frozen() -> None:
    assert envs.ENVIRONMENT_VARIABLES == ENVIRONMENT_VARIABLES
    assert len(ENVIRONMENT_VARIABLES) <= 10
    constants = {
        node.value
        for node in ast.walk(ast.parse((SOURCES / "envs.py").read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {text for text in constants if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", text)}
    assert named == set(ENVIRONMENT_VARIABLES)


def test_only_envs_reads_the_environment() -> None:
    readers = {"environ", "environb", "getenv", "getenvb"}
    offenders = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path != SOURCES / "envs.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in readers)
        or (isinstance(node, ast.ImportFrom) and any(alias.name in readers for alias in node.names))
    ]
    assert not offenders, f"only pelton/envs.py may read environment variables: {offenders}"
