"""The examples run as they are, and show what they are meant to show."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served import Served

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES_IN_VLLM = {
    "pelton": {"LLM", "SamplingParams"},
    "pelton.sampling_params": {"BeamSearchParams", "GuidedDecodingParams", "StructuredOutputsParams"},
}
"""Of those that vLLM has under the same path, the ones that Pelton has as well."""


PAGES = (
    "README.md",
    "docs/sampling.md",
    "docs/serving.md",
    "docs/structured-output.md",
    "docs/tool-calling.md",
)
"""With code in Python."""


def run(name: str) -> str:
    result = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_basic():
    out = run("offline_basic.py")
    assert "'Hello, my name is'" in out
    assert "'The president of the United States is'" in out


def test_structured_output():
    out = run("offline_structured_output.py")
    assert re.search(r"Prompt: 'This sucks', sentiment: '(Positive|Negative)'\n", out)
    assert re.search(r"Date: [0-9]{4}-[0-9]{2}-[0-9]{2}\n", out)
    assert "City: '" in out


def test_the_code_in_the_docs_runs():
    """Clients in it find a server, at another port than they say."""
    with Served("smollm2") as server:
        for page in PAGES:
            blocks = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / page).read_text(), re.DOTALL)
            assert blocks
            code = "\n".join(blocks).replace("http://127.0.0.1:8000", server.url)
            result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert result.returncode == 0, f"{page}: {result.stderr}"


def test_chat():
    answers = re.findall(r"(Why is the sky blue|Which sea does it flow into)\? (['\"].+['\"])", run("offline_chat.py"))
    assert len(answers) == 2


def test_beam_search():
    out = run("offline_beam_search.py")
    texts = re.findall(r"^-\d+\.\d+ '(The capital of France is.+)'$", out, re.MULTILINE)
    assert len(set(texts)) == 4


def test_long_shared_prefix():
    cached, prompts = zip(
        *re.findall(r"(\d+) of (\d+) prompt tokens were cached", run("offline_prefix.py")), strict=True
    )
    assert int(cached[0]) == 0
    assert int(cached[1]) >= 48
    assert int(cached[1]) % 16 == 0
    assert int(prompts[1]) > int(cached[1])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("offline_*.py")), ids=lambda path: path.name)
def test_the_listings_would_run_on_vllm(path):
    """With another package name in their import lines: they import nothing from Pelton but what vLLM has too."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name: set() for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.setdefault(node.module, set()).update(alias.name for alias in node.names)
    assert names["pelton"]
    for module, imported in names.items():
        assert module in sys.stdlib_module_names or imported <= NAMES_IN_VLLM[module], module


@pytest.mark.slow
def test_many_requests():
    assert re.search(r"300 requests in .* output tokens/s", run("many_requests.py"))
