"""`pelton bench`: dispatch, help, and mistakes."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pelton.cli import bench
from pelton.cli.bench import BENCHMARKS
from pelton.cli.main import main


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in BENCHMARKS)])
def test_help_needs_neither_the_engine_nor_the_extra(arguments):
    """Nor arrays."""
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "try:\n"
        f"    main(['bench', *{arguments!r}])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        "heavy = {'numpy', 'aiohttp', 'plotly', 'optuna', 'tqdm', 'pelton.llm', 'pelton.engine'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: pelton bench{''.join(f' {name}' for name in arguments[:-1])} [" in done.stdout


def test_help_names_every_benchmark(capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", "--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, (_, does) in BENCHMARKS.items():
        assert f"{name}: {does}" in text


def test_the_benchmark_gets_its_arguments_and_gives_the_status(monkeypatch):
    def parse(arguments):
        assert arguments == ["--model", "m", "--seed", "1", "--", "-x"]
        return "parsed"

    module = SimpleNamespace(make_parser=lambda: SimpleNamespace(parse_args=parse), run={"parsed": 7}.__getitem__)
    monkeypatch.setattr(bench, "import_module", {BENCHMARKS["latency"][0]: module}.__getitem__)
    assert main(["bench", "latency", "--model", "m", "--seed", "1", "--", "-x"]) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "arguments are required: BENCHMARK"),
        (["speed"], "invalid choice: 'speed' (choose from"),
        (["--frobnicate"], "arguments are required: BENCHMARK"),
        (["latency", "more"], "unrecognized arguments: more (see pelton bench latency --help)"),
        (["latency", "--batch", "8"], "unrecognized arguments: --batch"),
        (["throughput", "--num-prompts", "many"], "invalid int value: 'many' (see pelton bench throughput --help)"),
    ],
)
def test_mistakes_on_the_command_line(capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        main(["bench", *arguments])
    assert end.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("pelton: ")
    assert words in line
