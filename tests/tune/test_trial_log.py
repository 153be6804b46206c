"""The log: what is written is read again, and what cannot be read is told."""

import json
import re
from dataclasses import replace

import pytest

from pelton.tune.trial_log import COMPLETE, FAILED, Load, Repetition, Trial, TrialLog

STUDY = {"model": "m", "dataset": {"num_prompts": 5}, "slo": ["p99_e2el_ms<5"]}
LOAD = Load(2.5, True, 1.5, "trial-000/load-1.json", {"p99_e2el_ms": 4.0}, "")
TRIALS = [
    Trial(
        0, {"max_num_seqs": 8, "num_threads": None}, ["serve", "é"], COMPLETE, 7, LOAD.result_file, 2.5, loads=[LOAD]
    ),
    Trial(1, {"max_num_seqs": 16, "num_threads": 1}, [], FAILED, message="no\nmemory"),
]


def write(folder, trials=TRIALS):
    with TrialLog(folder, STUDY) as log:
        for trial in trials:
            log.append(trial)


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "new" / "folder")
    with TrialLog(tmp_path / "new" / "folder", STUDY) as log:
        assert log.trials == TRIALS
        assert log.trials[0].load == LOAD
        assert log.trials[1].load is None


def test_a_further_attempt_takes_the_place_of_the_failure(tmp_path):
    again = replace(TRIALS[1], state=COMPLETE, message="", attempt=2)
    write(tmp_path, [*TRIALS, again])
    with TrialLog(tmp_path, STUDY) as log:
        assert log.trials == [TRIALS[0], again]
        log.append(replace(TRIALS[1], number=2))
    assert len((tmp_path / "trials.jsonl").read_bytes().splitlines()) == 4
    with TrialLog(tmp_path, STUDY) as log:
        assert [trial.number for trial in log.trials] == [0, 1, 2]


def test_what_was_measured_again_is_read(tmp_path):
    found = [Repetition(0, 2.5, 1, LOAD), Repetition(1, None, 2, replace(LOAD, failure="3 requests failed"))]
    with TrialLog(tmp_path, STUDY) as log:
        for one in found:
            log.append_repetition(one)
    with TrialLog(tmp_path, STUDY) as log:
        assert log.repetitions == found
    with (tmp_path / "again.jsonl").open("ab") as file:
        file.write(b'{"trial": 1}\n')
    with pytest.raises(ValueError, match=r"again\.jsonl: line 3 is no load that was measured again; move the folder"):
        TrialLog(tmp_path, STUDY)


def test_a_line_that_is_not_whole_is_left_out(tmp_path):
    write(tmp_path)
    path = tmp_path / "trials.jsonl"
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        with TrialLog(tmp_path, STUDY) as log:
            assert log.trials == TRIALS[:1]
            log.append(TRIALS[1])
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2 is no trial; move the folder away"),
        (b"[]", "line 2 is no trial"),
        (b'{"number": 1}', "line 2 is no trial"),
        (b"\xff", "line 2 is no trial"),
        (
            b'{"number": 1, "settings": {}, "command": [], "state": "failed", "loads": [], "wings": 2}',
            "line 2 is no trial",
        ),
        (b'{"number": 0, "settings": {}, "command": [], "state": "failed", "loads": []}', "line 2 has trial 0"),
        (b'{"number": 7, "settings": {}, "command": [], "state": "failed", "loads": []}', "line 2 has trial 7"),
        (b'{"number": 1, "settings": {}, "command": [], "state": "fine", "loads": []}', "line 2 has trial 1, 'fine'"),
    ],
)
def test_a_line_that_is_no_trial(tmp_path, line, message):
    write(tmp_path, TRIALS[:1])
    with (tmp_path / "trials.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'trials.jsonl'}: {message}")):
        TrialLog(tmp_path, STUDY)


def test_another_study(tmp_path):
    write(tmp_path)
    other = STUDY | {"dataset": {"num_prompts": 6}, "seed": 1}
    message = "has another study: dataset.num_prompts is 5 there and 6 here; seed is None there and 1 here; choose"
    with pytest.raises(ValueError, match=message):
        TrialLog(tmp_path, other)
    assert json.loads((tmp_path / "study.json").read_text()) == STUDY


def test_another_study_before_anything_was_tried(tmp_path):
    TrialLog(tmp_path, STUDY).__exit__()
    other = STUDY | {"seed": 1}
    TrialLog(tmp_path, other).__exit__()
    assert json.loads((tmp_path / "study.json").read_text()) == other


def test_trials_without_a_study(tmp_path):
    write(tmp_path)
    (tmp_path / "study.json").unlink()
    with pytest.raises(ValueError, match=r"has trials, but no study\.json"):
        TrialLog(tmp_path, STUDY)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_study_that_cannot_be_read(tmp_path, content):
    write(tmp_path)
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(ValueError, match=r"study\.json is no JSON object"):
        TrialLog(tmp_path, STUDY)


def test_one_process_at_a_time(tmp_path):
    with TrialLog(tmp_path, STUDY), pytest.raises(ValueError, match="another pelton tune is at work"):
        TrialLog(tmp_path, STUDY)
    TrialLog(tmp_path, STUDY).__exit__()
