import json
import math
import os

import pytest

from pelton.bench.serving.config import BenchServeConfig
from pelton.bench.serving.files import make_place, result_path, save_result

RESULT = {"model_id": "org/some model", "date": "20261201-101112"}


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({}, "openai-infqps-some_model-20261201-101112.json"),
        ({"request_rate": 2.5}, "openai-2.5qps-some_model-20261201-101112.json"),
        ({"max_concurrency": 8, "backend": "vllm"}, "vllm-infqps-concurrency8-some_model-20261201-101112.json"),
        ({"label": "../a b", "result_dir": "x/y"}, "x/y/.._a_b-infqps-some_model-20261201-101112.json"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.5, "max_concurrency": 4},
            "openai-ramp-up-linear-1.0qps-8.5qps-concurrency4-some_model-20261201-101112.json",
        ),
        ({"result_filename": "mine.json", "result_dir": "x"}, "x/mine.json"),
    ],
)
def test_names(flags, path):
    assert str(result_path(BenchServeConfig(save_result=True, **flags), RESULT)) == path


def test_lines_are_added_or_replaced(tmp_path):
    path = tmp_path / "results.jsonl"
    save_result(path, {"a": 1}, append=True)
    save_result(path, {"a": 2, "text": "水"}, append=True)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}, {"a": 2, "text": "水"}]
    save_result(path, {"a": 3}, append=False)
    assert json.loads(path.read_text()) == {"a": 3}


def test_what_is_no_json_is_not_written(tmp_path):
    path = tmp_path / "result.json"
    save_result(path, {"a": 1}, append=False)
    with pytest.raises(ValueError, match="JSON"):
        save_result(path, {"a": math.nan}, append=False)
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_line_is_added_after_one_that_has_no_end(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1}')
    save_result(path, {"a": 2}, append=True)
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'


def place(**flags):
    make_place(BenchServeConfig(save_result=True, **flags))


def test_folders_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises(ValueError, match=r"--result-dir is '.*', which cannot be made: .*; name another folder"):
            place(result_dir=str(tmp_path / folder))


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match=r"--result-filename is '.*', but there is no folder '.*none'; make it first"):
        place(result_dir=str(tmp_path), result_filename="none/r.json")
    with pytest.raises(ValueError, match="--result-filename must name a file"):
        place(result_dir=str(tmp_path), result_filename="")
    place(result_dir=str(tmp_path / "new"), result_filename="r.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"--result-dir is '.*', which may not be written"):
        place(result_dir=str(tmp_path))
