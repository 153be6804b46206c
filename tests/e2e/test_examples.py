"""The examples run as they are, and show what they are meant to show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    result = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_basic():
    out = run("offline_basic.py")
    assert "'Hello, my name is'" in out
    assert "'The president of the United States is'" in out


def test_long_shared_prefix():
    cached, prompts = zip(
        *re.findall(r"(\d+) of (\d+) prompt tokens were cached", run("offline_prefix.py")), strict=True
    )
    assert int(cached[0]) == 0
    assert int(cached[1]) >= 48
    assert int(cached[1]) % 16 == 0
    assert int(prompts[1]) > int(cached[1])


def test_the_listings_import_what_they_name():
    """Written for vLLM, these lines need only another package name."""
    code = "from pelton import LLM, SamplingParams; import pelton.sampling_params, pelton.config"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_many_requests():
    assert re.search(r"300 requests in .* output tokens/s", run("many_requests.py"))
