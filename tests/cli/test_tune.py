"""`pelton tune`: what it takes and refuses, and a small search with real servers."""

import json
import shlex
import subprocess
import sys

import pytest

from pelton.bench import extras
from pelton.cli.main import main
from tests.cli.helpers import PELTON
from tests.support.served import Served
from tests.support.tiny_llama import tiny_llama

SLO = ["--slo", "p99_e2el_ms<60000"]
LOAD = ["--input-len", "8", "--output-len", "4", "--num-prompts", "6", "--ignore-eos"]


def test_help_does_without_the_engine_and_the_extras():
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "try: main(['tune', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'aiohttp', 'plotly', 'optuna', 'fastapi', 'msgspec', 'asyncio',\n"
        "    'pelton.llm', 'pelton.engine', 'pelton.server', 'pelton.runner'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: pelton tune MODEL" in done.stdout
    assert done.stdout.count("--num-prompts NUM_PROMPTS") == 1
    assert "Default: 100." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no --slo, so that no request rate would be too high"),
        (["--slo", "p99_e2el_ms"], "--slo: 'p99_e2el_ms' is no bound"),
        (["--slo", "speed<5"], "--slo: 'speed<5' has an unknown metric"),
        ([*SLO, "--minimize", "p50_ttft_ms"], "--minimize is given, but the highest request rate is sought"),
        (["--slo", "output_throughput>5"], "--slo output_throughput>5 is on output_throughput, which is no latency"),
        ([*SLO, "--", "--revision", "main"], "the flags after --: --revision is given, but prompts are made of tokens"),
        ([*SLO, "--maximize", "p50_ttft_ms"], "--maximize must be one of request_throughput"),
        ([*SLO, "--request-rate", "1", "--max-concurrency", "2"], "request_rate and max_concurrency are both given"),
        (["--request-rate", "1"], "say what is to be low, such as --minimize p50_ttft_ms"),
        (["--request-rate", "0", *SLO], "request_rate must be positive and finite, got 0.0"),
        (["--max-concurrency", "0"], "max_concurrency must be at least 1, got 0"),
        ([*SLO, "--trials", "0"], "trials must be at least 1, got 0"),
        ([*SLO, "--max-minutes", "0"], "max_minutes must be above 0, got 0.0"),
        ([*SLO, "--max-minutes", "nan"], "max_minutes must be a finite number, got nan"),
        ([*SLO, "--confirm-rounds", "-1"], "confirm_rounds must be at least 0, got -1"),
        ([*SLO, "--num-prompts", "0"], "num_prompts must be at least 1, got 0"),
        ([*SLO, "--sharegpt-output-len", "3"], "--sharegpt-output-len is given, but it is for dataset sharegpt"),
        ([*SLO, "--search", "max_num_seqs"], "--search max_num_seqs: it must be NAME=VALUE,VALUE"),
        ([*SLO, "--search", "wings=2"], "--search wings=2: 'wings' is no flag of pelton serve"),
        ([*SLO, "--plot", "no/such/folder/plot.html"], "--plot must be a file in a folder that exists"),
        (["--max-concurrency", "2", "--plot", "plot.html"], "--plot shows throughput over a latency"),
        ([*SLO, "--", "--max-num-seqs", "0"], "the flags after --: max_num_seqs must be at least 1, got 0"),
        ([*SLO, "--", "--port", "1"], "the flags after --: --port cannot be given"),
        ([*SLO, "--", "--wings"], "the flags after --: unrecognized arguments: --wings"),
    ],
)
def test_refused(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "no-such-model", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--wings"], ["m", "--wings"], ["m", "n"], []])
def test_refused_by_the_parser(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(["tune", *arguments])
    assert caught.value.code == 2
    assert "(see pelton tune --help)" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["aiohttp", "optuna"])
def test_the_extra_is_named(monkeypatch, capsys, tmp_path, module):
    def import_module(name):
        if name == module:
            raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", import_module)
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "m", *SLO]) == 2
    assert f"pelton tune needs {module}, which is not installed; run: pip install 'pelton[bench]'" in (
        capsys.readouterr().err
    )


def test_a_model_that_does_not_exist(tmp_path, capfd):
    arguments = ["tune", str(tmp_path / "none"), *SLO, *LOAD, "--output-dir", str(tmp_path / "log")]
    assert main([*arguments, "--search", "max_num_seqs=2,3,4,5"]) == 2
    told = capfd.readouterr()
    assert "the server with default settings: pelton serve ended with status 2: " in told.err
    assert "none" in told.err
    assert (tmp_path / "log" / "trials.jsonl").read_text() == "", "nothing was tried"


def test_a_search(tmp_path):
    """With servers and loads as they are; then the command line that it recommends."""
    folder = tmp_path / "log"
    arguments = ["tune", tiny_llama(), *SLO, *LOAD, "--max-concurrency", "4", "--search", "max_num_seqs=2"]
    arguments += ["--output-dir", str(folder), "--plot", str(tmp_path / "plot.html"), "--confirm-rounds", "0"]
    arguments += ["--", "--max-model-len", "64"]
    done = subprocess.run([*PELTON, *arguments], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert [trial["state"] for trial in trials] == ["complete", "complete"], done.stderr
    assert [trial["settings"] for trial in trials] == [{"max_num_seqs": 256}, {"max_num_seqs": 2}]
    for trial in trials:
        result = json.loads((folder / trial["result_file"]).read_text())
        assert (result["completed"], result["total_output_tokens"]) == (6, 24)
        assert trial["metrics"]["output_throughput"] == result["output_throughput"] > 0
    report = json.loads((folder / "report.json").read_text())
    assert f"    {report['command']}\n" in done.stdout
    assert "<html" in (tmp_path / "plot.html").read_text()
    program, command, *flags = shlex.split(report["command"])
    assert (program, command, flags[:3]) == ("pelton", "serve", [tiny_llama(), "--max-model-len", "64"])
    with Served(*flags) as server:
        assert server.complete([5, 6, 7], max_tokens=3)["usage"]["completion_tokens"] == 3


@pytest.mark.slow
def test_the_highest_rate_of_a_real_model(tmp_path):
    arguments = ["tune", "smollm2", "--slo", "p90_e2el_ms<4000", "--input-len", "32", "--output-len", "16"]
    arguments += ["--num-prompts", "16", "--ignore-eos", "--max-minutes", "2", "--confirm-rounds", "1"]
    arguments += ["--output-dir", str(tmp_path / "log"), "--plot", str(tmp_path / "plot.html")]
    done = subprocess.run([*PELTON, *arguments], capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (tmp_path / "log" / "trials.jsonl").read_text().splitlines()]
    assert trials[0]["state"] == "complete"
    assert trials[0]["request_rate"] > 0
    assert "Pareto front of output_throughput against p90_e2el_ms:" in done.stdout
