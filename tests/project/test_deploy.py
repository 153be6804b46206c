"""The files of `deploy` fit the command line that there is."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pelton.cli.serve import make_parser
from pelton.config.serving import ServeConfig, serving_from_flags

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
UNIT = (DEPLOY / "pelton.service").read_text()
UNIT_SETTINGS = {
    name: value for name, value in re.findall(r"^([A-Za-z]+)=((?:.*\\\n)*.*)$", UNIT, re.MULTILINE) if value
}


def instructions(name: str) -> list[str]:
    """What the Dockerfile has after this word, lines that go on joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [line[len(name) + 1 :] for line in text.splitlines() if line.startswith(name + " ")]


def serve_config(command: list[str]) -> ServeConfig:
    assert Path(command[0]).name == "pelton"
    assert command[1] == "serve"
    options = make_parser().parse_args(command[2:])
    return serving_from_flags(options)[0]


def example_flags() -> Iterator[str]:
    """Flags in the comments of both files, after the image's name or the command."""
    for text in re.findall(r"(?:pelton serve|pelton \\\n#\s+)(.*)", DOCKERFILE + UNIT):
        yield from re.findall(r"(?<!\S)--?[a-z][a-z-]*", text)


def test_the_container_starts_the_server() -> None:
    (entry,) = instructions("ENTRYPOINT")
    config = serve_config([*json.loads(entry), "MODEL"])
    assert config.host == "0.0.0.0", "127.0.0.1 reaches nobody outside"
    assert instructions("EXPOSE") == [str(config.port)]
    assert instructions("USER") == ["pelton"]


def test_flags_in_comments_exist() -> None:
    known = {flag for action in make_parser()._actions for flag in action.option_strings}
    found = set(example_flags())
    assert "--api-key-file" in found
    assert found <= known


def test_the_health_check_asks_the_server() -> None:
    (check,) = instructions("HEALTHCHECK")
    _, _, command = check.partition("CMD ")
    program = json.loads(command)
    assert program[:2] == ["python", "-c"]
    assert f"http://127.0.0.1:{ServeConfig().port}/health" in program[2]
    # No server: it has to fail, and not for its own mistakes.
    done = subprocess.run(
        [sys.executable, "-c", program[2].replace(f":{ServeConfig().port}/", ":1/")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "URLError" in done.stderr


def test_what_the_image_is_made_of_is_sent_to_the_builder() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    assert all((REPOSITORY / name).exists() for name in sent)
    for needed in ("pyproject.toml", "hatch_build.py", "scripts/build_native.py", "native", "src/pelton", "LICENSE"):
        assert any(fnmatch(needed, name) or needed.startswith(name + "/") for name in sent), needed


def test_the_unit_starts_the_server() -> None:
    command = shlex.split(UNIT_SETTINGS["ExecStart"].replace("\\\n", " "))
    config = serve_config(command)
    assert config.api_key_file == "${CREDENTIALS_DIRECTORY}/api-keys"
    assert UNIT_SETTINGS["LoadCredential"].startswith("api-keys:")
    assert config.host == "127.0.0.1"
    assert int(UNIT_SETTINGS["TimeoutStopSec"]) > config.shutdown_timeout + 15, "requests, then clients that read"
    assert UNIT_SETTINGS["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not there to judge its file")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "pelton.service"
    unit.write_text(UNIT.replace("/opt/pelton/bin/pelton", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    about_us = [line for line in (done.stdout + done.stderr).splitlines() if "pelton" in line]
    assert not about_us
