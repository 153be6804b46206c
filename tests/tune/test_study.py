"""Whole searches, with servers and loads that go by a formula."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pelton.tune.study import run_tune
from pelton.tune.trial_log import COMPLETE, FAILED, SLO_MISSED
from tests.support.served import wait_until_gone
from tests.tune import stand_in
from tests.tune.helpers import REPOSITORY, STAND_IN, make_config, tune

SECONDS = 60.0
SMALL = ("max_num_seqs=8,32,64",)


@pytest.fixture(autouse=True)
def _modules_are_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def lines(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_a_small_space_is_tried_as_a_whole_and_nothing_twice(tmp_path):
    outcome, told = tune(tmp_path, search=SMALL, confirm_rounds=1, slo=("p99_e2el_ms<200",))
    tried = [trial["settings"]["max_num_seqs"] for trial in lines(tmp_path)]
    assert tried[0] == 256
    assert sorted(tried) == [8, 32, 64, 256]
    text = outcome.report.text()
    assert "all settings were tried" in text
    assert "    pelton serve surface --max-num-seqs 32\n" in text
    states = {trial.settings["max_num_seqs"]: trial.state for trial in outcome.trials}
    assert states == {256: SLO_MISSED, 64: SLO_MISSED, 32: COMPLETE, 8: COMPLETE}
    plain = outcome.report.as_plain()
    (again,) = plain["again"]
    assert (plain["is_slo_met_again"], plain["is_confirmed"]) == (True, True)
    assert (len(again["best"]), len(again["default"])) == (1, 1)
    expected = stand_in.capacity(stand_in.DEFAULTS | {"max_num_seqs": 32}) / stand_in.capacity(stand_in.DEFAULTS)
    assert plain["gain"] == pytest.approx(expected)
    assert len(told) == 1 + 4 + 2
    assert "it kept the SLO in 1 of 1 rounds; the default did in 0 of 1 rounds; " in text
    assert (tmp_path / again["best"][0]["result_file"]).exists()
    assert any("max_num_seqs 64: SLO missed, stopped early, for p99_e2el_ms>=200 is sure; " in line for line in told)
    assert "max_num_seqs 32: output_throughput" in "\n".join(told)


def test_what_a_trial_leaves(tmp_path):
    tune(tmp_path, search=SMALL, trials=2, confirm_rounds=0, serve_flags=("--max-model-len", "1k"))
    first, second = lines(tmp_path)
    assert first["command"][:5] == [*("tests.tune.stand_in", "serve", "surface"), "--max-model-len", "1k"]
    assert "--max-num-seqs" not in first["command"]
    assert second["command"][5:7] == ["--max-num-seqs", str(second["settings"]["max_num_seqs"])]
    assert first["server_pid"] != second["server_pid"]
    assert json.loads((tmp_path / first["result_file"]).read_text())["p99_e2el_ms"] == first["metrics"]["p99_e2el_ms"]
    assert (first["number"], second["number"], first["state"]) == (0, 1, SLO_MISSED)
    assert 0 < first["start_seconds"] < first["seconds"]
    assert first["loads"][0]["stopped"] == ""  # what others are compared to is measured to its end
    assert not any(Path(f"/proc/{trial['server_pid']}").exists() for trial in (first, second))


def test_the_default_may_be_the_best(tmp_path):
    outcome, told = tune(tmp_path, search=("max_num_seqs=512",), slo=("p99_e2el_ms<5000",))
    text = outcome.report.text()
    assert "The default settings are the best of those that were tried:\n    pelton serve surface\n" in text
    assert outcome.report.as_plain()["recommended_trial"] == 0
    assert not any("again" in line for line in told)


def test_the_default_is_kept_if_others_are_hardly_better(tmp_path):
    flags = ("--max-num-seqs", "32", "--quantization", "int8")
    outcome, _ = tune(tmp_path, search=("max_num_batched_tokens=1900,1950",), serve_flags=flags)
    text = outcome.report.text()
    assert outcome.report.best.number > 0
    assert f"Keep the default settings: the best, trial {outcome.report.best.number}, has 1.0" in text
    assert "    pelton serve surface --max-num-seqs 32 --quantization int8\n" in text
    assert outcome.report.as_plain()["recommended_trial"] == 0
    assert outcome.report.as_plain()["again"] == []


def test_the_best_misses_the_slo_again(tmp_path):
    """The default is kept if it is good; else nothing is recommended."""
    options = {"model": "surface-later", "search": ("max_num_seqs=32",), "confirm_rounds": 1}
    good, _ = tune(tmp_path / "good", slo=("p99_e2el_ms<2000",), **options)
    assert "Keep the default settings: trial 1 missed the SLO when it was measured again\n" in good.report.text()
    assert good.report.recommended.number == 0
    bad, _ = tune(tmp_path / "bad", **options)
    text = bad.report.text()
    assert "No settings are to be recommended: trial 1 missed the SLO when it was measured again\nIn the search" in text
    assert (bad.report.best.number, bad.report.recommended) == (1, None)
    assert bad.report.as_plain()["command"] is None


def test_the_default_failed_and_the_best_does_not_keep_the_slo(tmp_path):
    outcome, told = tune(tmp_path, model="surface-later-dies", search=("max_num_seqs=32",))
    assert [trial.state for trial in outcome.trials] == [FAILED, COMPLETE]
    assert outcome.report.recommended is None
    assert sum(line.startswith("Measured again") for line in told) == 1


def test_the_log_has_what_was_measured_again(tmp_path):
    first, told = tune(tmp_path, search=("max_num_seqs=32",), confirm_rounds=1)
    assert sum(line.startswith("Measured again") for line in told) == 2
    second, told = tune(tmp_path, search=("max_num_seqs=32",), confirm_rounds=1)
    assert len(told) == 1
    assert second.report.text().splitlines()[1:] == first.report.text().splitlines()[1:]


def interrupted(folder, moments, **options):
    """By Ctrl-C when the last of these has been told."""
    told = []

    def tell(line):
        told.append(line)
        if all(any(moment in line for line in told) for moment in moments):
            raise KeyboardInterrupt

    return run_tune(make_config(folder, **options), commands=STAND_IN, tell=tell, num_cores=2)


def test_ctrl_c_while_the_best_is_measured_again(tmp_path):
    """What was measured counts, and is not measured again when it goes on."""
    options = {"search": ("max_num_seqs=32",), "confirm_rounds": 2}
    outcome = interrupted(tmp_path, ["Measured again, round 2"], **options)
    assert outcome.is_interrupted
    assert outcome.report.recommended.number == 1
    assert "Best so far, but not measured again as often as it should be, trial 1: it kept" in outcome.report.text()
    assert outcome.report.as_plain()["is_confirmed"] is False
    whole, told = tune(tmp_path, **options)
    assert sum(line.startswith("Measured again") for line in told) == 2
    assert whole.report.as_plain()["is_confirmed"] is True


def test_ctrl_c_does_not_bring_back_what_was_refuted(tmp_path):
    options = {"model": "surface-later", "slo": ("p99_e2el_ms<2000",), "search": ("max_num_seqs=32,64",)}
    outcome = interrupted(tmp_path, ("round 1: trial 1", "round 1: trial 2"), **options)
    assert outcome.is_interrupted
    best = outcome.report.best.number
    assert f"Keep the default settings: trial {best} missed the SLO when it was" in outcome.report.text()
    assert outcome.report.recommended.number == 0
    assert len(outcome.report.as_plain()["again"]) == 1


def test_measuring_again_ends_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("pelton.tune.study._Study._seconds_of_confirmation", lambda self: 0.0)
    first, _ = tune(tmp_path, search=("max_num_seqs=32",), confirm_rounds=0)
    seconds = first.trials[0].seconds * 3
    outcome, _ = tune(tmp_path, search=("max_num_seqs=32",), confirm_rounds=1000, max_minutes=seconds / 60)
    assert not outcome.report.as_plain()["is_confirmed"]
    assert "not measured again" in outcome.report.text()


def test_no_settings_meet_the_slo(tmp_path):
    outcome, told = tune(tmp_path, search=SMALL, slo=("p99_e2el_ms<20",))
    assert outcome.report.best is None
    nearest = next(trial for trial in outcome.trials if trial.settings["max_num_seqs"] == 8)
    assert f"No settings have met the SLO. The nearest, trial {nearest.number}: " in outcome.report.text()
    assert nearest.metrics["p99_e2el_ms"] == 32.0
    assert all("none has met the SLO" in line for line in told[1:])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("surface-no-start", "tests.tune.stand_in serve ended with status 1: there is no such model"),
        ("surface-dies", "tests.tune.stand_in serve ended with status 3: out of memory"),
        ("surface-fails", "3 requests failed: status 500: oh"),
    ],
)
def test_what_fails_is_a_trial_and_others_go_on(tmp_path, model, message):
    outcome, told = tune(tmp_path, model=model, search=SMALL, confirm_rounds=0)
    (failed,) = [trial for trial in outcome.trials if trial.state == FAILED]
    assert (failed.settings["max_num_seqs"], failed.message) == (8, message)
    assert len(outcome.trials) == 4
    assert outcome.report.best.settings == {"max_num_seqs": 32}
    assert any(f"failed: {message}; best" in line for line in told)


@pytest.mark.parametrize(
    ("model", "message"), [("surface-never", "there is no such model"), ("surface-no-result", "something is wrong")]
)
def test_nothing_works(tmp_path, model, message):
    outcome, _ = tune(tmp_path, model=model)
    assert len(outcome.trials) == 3
    text = outcome.report.text()
    assert "nothing has worked in 3 trials; do something about what they say, and give the same command" in text
    assert "Every trial failed; trial 0: " in text
    assert message in text


def test_what_failed_is_tried_once_more(tmp_path):
    """The cause may be gone; a further run does not count the failures of the one before."""
    tune(tmp_path, model="surface-never", search=SMALL, trials=3, confirm_rounds=0)
    study = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(study | {"model": "surface"}))
    outcome, told = tune(tmp_path, search=SMALL, trials=3, confirm_rounds=0)
    assert [(trial.number, trial.attempt) for trial in outcome.trials] == [(0, 2), (1, 2), (2, 2)]
    assert FAILED not in [trial.state for trial in outcome.trials]
    assert told[1].startswith("Trial 0, once more, default settings: ")
    assert len(lines(tmp_path)) == 6
    _, told = tune(tmp_path, search=SMALL, trials=3, confirm_rounds=0)
    assert len(told) == 1


def test_rates_at_which_requests_fail_are_too_high(tmp_path):
    options = {"max_concurrency": None, "search": ("max_num_seqs=32",), "confirm_rounds": 0}
    outcome, _ = tune(tmp_path, model="surface-queue", **options)
    assert [trial.state for trial in outcome.trials] == [COMPLETE, COMPLETE]
    best = outcome.report.best
    failed = [
        load for trial in outcome.trials for load in trial.loads if load.failure == "3 requests failed: status 500: oh"
    ]
    assert best.settings == {"max_num_seqs": 32}
    assert failed[0] is outcome.trials[0].loads[0]
    assert min(load.request_rate for load in best.loads if load.failure) > best.request_rate


def test_a_server_that_does_not_want_to_end(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("pelton.tune.server.STOP_SECONDS", 0.5)
    outcome, _ = tune(tmp_path, model="surface-stubborn", search=SMALL, trials=1)
    assert outcome.trials[0].state == SLO_MISSED
    assert not os.path.exists(f"/proc/{outcome.trials[0].server_pid}")
    assert "tests.tune.stand_in serve did not end in time" in capfd.readouterr().err


def test_the_time_is_over(tmp_path):
    outcome, _ = tune(tmp_path, model="surface-slow", max_minutes=0.03)
    assert outcome.trials == []
    assert "the time is over; the last trial was not finished, and is left out" in outcome.report.text()


def test_no_trial_begins_that_would_take_too_long(tmp_path):
    first, _ = tune(tmp_path, search=SMALL, trials=1)
    outcome, _ = tune(tmp_path, search=SMALL, max_minutes=first.trials[0].seconds / 2 / 60)
    assert len(outcome.trials) == 1
    assert "the time is over" in outcome.report.text()


def test_going_on(tmp_path):
    """In two parts it is the same search as in one."""
    whole, _ = tune(tmp_path / "whole", trials=3, confirm_rounds=0)
    tune(tmp_path / "parts", trials=2, confirm_rounds=0)
    parts, told = tune(tmp_path / "parts", trials=3, confirm_rounds=0)
    assert [trial.settings for trial in parts.trials] == [trial.settings for trial in whole.trials]
    assert "which has 2 trials already" in told[0]
    again, told = tune(tmp_path / "parts", trials=3, confirm_rounds=0)
    assert len(told) == 1
    assert again.report.text() == parts.report.text()


def test_another_study_is_refused(tmp_path, monkeypatch):
    tune(tmp_path, search=SMALL, trials=1)
    before = (tmp_path / "trials.jsonl").read_bytes()
    with pytest.raises(
        ValueError,
        match=r"has another study: slo is \['p99_e2el_ms<500'\] there and \['p99_e2el_ms<400'\] "
        r"here; choose another --output-dir$",
    ):
        tune(tmp_path, search=SMALL, slo=("p99_e2el_ms<400",))
    with pytest.raises(ValueError, match=r"serve_flags is .* there and .* here"):
        tune(tmp_path, search=SMALL, serve_flags=("--max-model-len", "512"))
    monkeypatch.setenv("PELTON_CPU_ISA", "numpy")
    with pytest.raises(ValueError, match=r"machine.kernels is .* there and 'numpy' here"):
        tune(tmp_path, search=SMALL)
    monkeypatch.delenv("PELTON_CPU_ISA")
    with pytest.raises(ValueError, match=r"search.max_num_seqs is \[8, 32, 64, 256\] there and None here"):
        tune(tmp_path, search=("quantization=auto,int8",))
    assert (tmp_path / "trials.jsonl").read_bytes() == before


def test_the_highest_rate_is_sought(tmp_path):
    outcome, _ = tune(
        tmp_path, max_concurrency=None, search=("max_num_seqs=32,64",), slo=("p99_e2el_ms<400",), confirm_rounds=1
    )
    best = outcome.report.best
    assert best.settings == {"max_num_seqs": 32}
    most = stand_in.capacity(stand_in.DEFAULTS | best.settings) / stand_in.TOKENS_PER_REQUEST
    highest = most * (1 - 100 / 400)
    assert highest / 1.12 <= best.request_rate < highest
    assert best.metrics["output_throughput"] == pytest.approx(best.request_rate * stand_in.TOKENS_PER_REQUEST)
    assert all(len(trial.loads) <= 6 for trial in outcome.trials)
    assert outcome.trials[0].loads[0].request_rate is None
    assert all(load.request_rate is not None for trial in outcome.trials[1:] for load in trial.loads)
    (again,) = outcome.report.as_plain()["again"]
    assert [load["request_rate"] for load in again["default"] + again["best"]] == [best.request_rate] * 2
    assert [load["is_slo_met"] for load in again["default"] + again["best"]] == [False, True]
    text = f"it kept the SLO at {best.request_rate:.3g} requests/s in 1 of 1 rounds; the default did in 0 of 1 rounds:"
    assert text in outcome.report.text()


def test_latency_at_a_given_rate(tmp_path):
    outcome, _ = tune(tmp_path, max_concurrency=None, request_rate=10.0, search=("max_num_seqs=32",), confirm_rounds=1)
    assert outcome.report.as_plain()["objective"] == "p99_e2el_ms"
    assert outcome.report.best.settings == {"max_num_seqs": 32}
    assert re.search(r"p99_e2el_ms [0-9.]+ times as good \(median of", outcome.report.text())


SCRIPT = """
import sys
from pathlib import Path
from tests.tune.helpers import tune
outcome, told = tune(Path(sys.argv[1]), model=sys.argv[2], trials=3, confirm_rounds=0)
print("interrupted" if outcome.is_interrupted else "done", len(outcome.trials), flush=True)
"""


class Tuner:
    """A search in a process of its own, whose load takes a minute."""

    def __init__(self, folder, model="surface-slow"):
        self.folder = folder
        command = [sys.executable, "-W", "error", "-c", SCRIPT, str(folder), model]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, process_group=0)

    def wait_for_load(self):
        deadline = time.monotonic() + SECONDS
        while len(self.children()) < 2 or not (self.folder / "trial-000/load-1.log").exists():
            assert time.monotonic() < deadline, self.children()
            assert self.process.poll() is None
            time.sleep(0.02)
        return self.children()

    def children(self):
        """Process id -> command line."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == self.process.pid and "pelton.tune.child" in command:
                found[int(pid)] = command
        return found


def test_killed_in_the_middle_of_a_trial(tmp_path):
    tuner = Tuner(tmp_path)
    children = tuner.wait_for_load()
    tuner.process.kill()
    tuner.process.wait()
    tuner.process.stdout.close()
    assert wait_until_gone(children, SECONDS) == []
    assert (tmp_path / "trials.jsonl").read_bytes() == b""
    with (tmp_path / "trials.jsonl").open("ab") as file:
        file.write(b'{"number": 0, "sett')  # as if it had been writing
    study = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(study | {"model": "surface"}))
    outcome, _ = tune(tmp_path, trials=3, confirm_rounds=0)
    assert [trial["number"] for trial in lines(tmp_path)] == [0, 1, 2]
    assert len(outcome.trials) == 3


@pytest.mark.parametrize("is_group", [True, False])
def test_ctrl_c(tmp_path, is_group):
    tuner = Tuner(tmp_path)
    children = tuner.wait_for_load()
    os.killpg(tuner.process.pid, signal.SIGINT) if is_group else tuner.process.send_signal(signal.SIGINT)
    output, _ = tuner.process.communicate(timeout=SECONDS)
    assert (output, tuner.process.returncode) == ("interrupted 0\n", 0)
    assert wait_until_gone(children, SECONDS) == []
    assert (tmp_path / "study.json").exists()


def test_two_at_once_are_refused(tmp_path):
    tuner = Tuner(tmp_path)
    try:
        tuner.wait_for_load()
        with pytest.raises(ValueError, match=r"another pelton tune is at work in .*; wait for its end"):
            tune(tmp_path, model="surface-slow", trials=3, confirm_rounds=0)
    finally:
        tuner.process.send_signal(signal.SIGINT)
        tuner.process.communicate(timeout=SECONDS)
