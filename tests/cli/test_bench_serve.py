"""`pelton bench serve` as users and other programs start it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from pelton.bench.serving.result_keys import is_result_key
from pelton.cli.main import main
from tests.bench.serving.test_run import VLLM_KEYS
from tests.cli.helpers import PELTON
from tests.support.event_server import EventServer, Refuse, tokens
from tests.support.served import REPOSITORY

BUILTIN = ["--dataset-name", "builtin", "--output-len", "3"]


def bench(server, *flags, num_prompts=6):
    return main(
        ["bench", "serve", "--port", str(server.port), *BUILTIN, "--num-prompts", str(num_prompts), *map(str, flags)]
    )


@pytest.fixture
def server():
    with EventServer(tokens(first=0.02, gap=0.01)) as server:
        yield server


def test_help_does_without_everything_heavy():
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "try: main(['bench', 'serve', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'aiohttp', 'plotly', 'optuna', 'tokenizers', 'tqdm', 'pelton.engine', 'pelton.llm'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for flag in ("--request-rate", "--stop-when", "--random-input-len", "--save-result", "--input-len"):
        assert flag in done.stdout


def test_figures_go_to_standard_output_and_the_address_to_standard_error(server, capsys):
    assert bench(server) == 0
    out, error = capsys.readouterr()
    assert "6 completed, 0 failed" in out
    assert "ttft (time to first token)" in out
    assert error == f"Server: {server.url}/v1/completions\n"


def test_the_saved_result(server, tmp_path, capsys):
    folder = tmp_path / "new" / "results"
    flags = ["--save-result", "--result-dir", folder, "--request-rate", 50, "--max-concurrency", 3]
    assert bench(server, *flags, "--metadata", "team=7", "--label", "mine/first", "--goodput", "e2el:60000") == 0
    (path,) = folder.iterdir()
    result = json.loads(path.read_text())
    assert result.keys() >= VLLM_KEYS | {"request_goodput"}
    assert path.name == f"mine_first-50.0qps-concurrency3-stand-in-{result['date']}.json"
    assert (result["request_rate"], result["max_concurrency"], result["label"]) == (50.0, 3, "mine/first")
    assert (result["team"], result["completed"]) == ("7", 6)
    assert "ttfts" not in result
    assert f"Result: {path}" in capsys.readouterr().err


def test_all_that_is_known_of_each_request(server, tmp_path):
    assert (
        bench(server, "--save-result", "--save-detailed", "--result-dir", tmp_path, "--result-filename", "r.json") == 0
    )
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["request_rate"] == "inf"
    assert result["input_lens"] == [7] * 6
    assert result["output_lens"] == [3] * 6
    assert result["generated_texts"] == [" 0 1 2"] * 6
    assert result["errors"] == [""] * 6
    assert all(len(gaps) == 2 for gaps in result["itls"])
    for ttft, gaps, e2el in zip(result["ttfts"], result["itls"], result["e2els"], strict=True):
        assert 0.02 <= ttft < ttft + sum(gaps) == pytest.approx(e2el)
    assert len(result["start_times"]) == 6


def test_results_one_after_the_other(server, tmp_path):
    for _ in range(2):
        assert bench(server, "--append-result", "--result-dir", tmp_path, "--result-filename", "all.jsonl") == 0
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [json.loads(line)["completed"] for line in lines] == [6, 6]
    assert bench(server, "--save-result", "--result-dir", tmp_path, "--result-filename", "all.jsonl") == 0
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 1


def test_metadata_does_not_replace_figures(server, tmp_path, capsys):
    assert bench(server, "--save-result", "--result-dir", tmp_path, "--metadata", "completed=7") == 2
    assert "metadata has 'completed', which is" in capsys.readouterr().err
    assert server.received == []


def test_every_entry_of_a_result_is_refused_as_metadata(server, tmp_path):
    flags = ["--save-result", "--save-detailed", "--result-dir", tmp_path, "--result-filename", "r.json"]
    ramp = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", 100, "--ramp-up-end-rps", 200]
    assert bench(server, *flags, *ramp, "--goodput", "ttft:5", "--metadata", "mine=1", "--header", "X-Key=secret") == 0
    content = (tmp_path / "r.json").read_text()
    result = json.loads(content)
    assert {name for name in result if not is_result_key(name)} == {"mine"}
    assert result["settings"]["goodput"] == [["ttft", 5.0]]
    assert result["settings"]["temperature"] == 0.0
    assert result["settings"]["request_rate"] == "inf"
    assert "secret" not in content


def test_places_that_cannot_be_written_are_refused_before_the_run(server, tmp_path, capsys):
    (tmp_path / "file").touch()
    for flags, words in (
        (["--result-dir", tmp_path / "file"], "--result-dir is"),
        (["--result-dir", tmp_path, "--result-filename", "none/r.json"], "--result-filename is"),
        (["--result-dir", tmp_path, "--result-filename", "."], "--result-filename must name a file"),
    ):
        assert bench(server, "--save-result", *flags) == 2
        assert words in capsys.readouterr().err
    assert server.received == []


@pytest.mark.parametrize("broken", ["save_result", "write_serve_plot"])
def test_what_cannot_be_written_keeps_nobody_from_the_rest(server, tmp_path, capsys, monkeypatch, broken):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device", "somewhere")

    place = {"save_result": "pelton.cli.bench_serve", "write_serve_plot": "pelton.bench.plots"}[broken]
    monkeypatch.setattr(f"{place}.{broken}", full)
    flags = ["--save-result", "--result-dir", tmp_path, "--result-filename", "r.json", "--plot", tmp_path / "p.html"]
    assert bench(server, *flags) == 1
    out, error = capsys.readouterr()
    assert "pelton: somewhere cannot be written: No space left on device" in error
    assert "6 completed, 0 failed" in out
    (written,) = tmp_path.iterdir()
    assert written.name == ("p.html" if broken == "save_result" else "r.json")


def test_files_are_written_whoever_reads_the_figures(server, tmp_path):
    """Such as `| less`, which may end before."""
    flags = ["--save-result", "--result-dir", tmp_path, "--result-filename", "r.json", "--plot", tmp_path / "p.html"]
    run = process(server, *flags)
    run.stdout.close()
    error = run.stderr.read()
    assert run.wait(timeout=120) == 1, error
    run.stderr.close()
    assert "Traceback" not in error
    assert json.loads((tmp_path / "r.json").read_text())["completed"] == 40
    assert (tmp_path / "p.html").exists()


def test_the_plot_works_without_a_network(server, tmp_path):
    path = tmp_path / "run.html"
    assert bench(server, "--plot", path) == 0
    page = path.read_text()
    assert "<html" in page
    assert 'src="http' not in page


def test_failed_requests_make_the_status_1(capsys):
    with EventServer(lambda _: [Refuse(503, b'{"error": {"message": "busy"}}')]) as server:
        assert bench(server) == 1
    assert "Failed: 6 times HTTP 503: busy" in capsys.readouterr().out


def test_a_run_that_was_stopped_as_asked_has_not_failed(tmp_path, capsys):
    with EventServer(tokens(first=60.0)) as server:
        flags = ["--stop-when", "p99_e2el_ms>200", "--save-result", "--result-dir", tmp_path, "--result-filename", "r"]
        assert bench(server, *flags) == 0
    result = json.loads((tmp_path / "r").read_text())
    assert result["stopped"].startswith("p99_e2el_ms>200")
    assert (result["failed"], result["cancelled"]) == (0, 6)
    assert "Stopped early: p99_e2el_ms>200" in capsys.readouterr().out


def test_a_server_that_is_not_there(server, capsys):
    server.models_status = 503
    assert bench(server, "--ready-check-timeout-sec", 0) == 1
    assert "is not ready" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--burstiness", "-1"], "burstiness must be above 0, got -1"),
        (["--random-input-len", "5"], "--random-input-len is given, but it is for dataset random"),
        (["--save-detailed"], "add --save-result"),
        (["--plot", "no/such/folder/x.html"], "there is no folder"),
        (["--stop-when", "p99_e2el_ms<5"], "must say > or >="),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(server, capsys, flags, complaint):
    assert bench(server, *flags) == 2
    assert complaint in capsys.readouterr().err
    assert server.received == []


def test_without_the_extra_it_says_what_to_install(server, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert bench(server) == 2
    assert "pip install 'pelton[bench]'" in capsys.readouterr().err


def process(server, *flags):
    command = [*PELTON, "bench", "serve", "--base-url", server.url, *BUILTIN, "--num-prompts", "40", *map(str, flags)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ctrl_c_ends_the_run_and_shows_what_there_is(tmp_path):
    """The first requests are answered, and then the server takes its time."""

    def script(request):
        return tokens(first=0.0 if len(server.received) <= 10 else 600.0)(request)

    with EventServer(script) as server:
        flags = ["--max-concurrency", "8", "--save-result", "--result-dir", tmp_path, "--result-filename", "r.json"]
        run = process(server, *flags)
        try:
            deadline = time.monotonic() + 120
            while len(server.received) < 18:
                assert run.poll() is None, run.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            run.send_signal(signal.SIGINT)
            out, error = run.communicate(timeout=120)
        finally:
            run.kill()
            run.wait()
    assert run.returncode == 130, error
    assert "10 completed, 0 failed, 30 cancelled" in out
    assert "Stopped early: interrupted" in out
    assert "Traceback" not in error
    assert json.loads((tmp_path / "r.json").read_text())["stopped"] == "interrupted"


@pytest.mark.parametrize("is_warm_up", [True, False])
def test_ctrl_c_in_the_warm_up_and_twice(tmp_path, is_warm_up):
    """In the warm-up the first ends all; in the run, a second one while the first is being seen to."""
    with EventServer(tokens(first=600.0)) as server:
        flags = ["--save-result", "--result-dir", tmp_path]
        run = process(server, *flags, *(["--num-warmups", 3] if is_warm_up else []))
        try:
            deadline = time.monotonic() + 120
            while len(server.received) < 3:
                assert run.poll() is None, run.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            run.send_signal(signal.SIGINT)
            if not is_warm_up:
                run.send_signal(signal.SIGINT)
            out, error = run.communicate(timeout=120)
        finally:
            run.kill()
            run.wait()
    assert run.returncode == 130, error
    assert "Traceback" not in error
    if is_warm_up:
        assert out == ""
        assert list(tmp_path.iterdir()) == []


def test_as_a_process_without_warnings(server):
    run = process(server, "--backend", "openai-chat", "--num-warmups", 2)
    out, error = run.communicate(timeout=120)
    assert run.returncode == 0, error
    assert "40 completed, 0 failed" in out
    assert error.splitlines() == [f"Server: {server.url}/v1/chat/completions", "Warming up with 2 requests"]
