import json
import math

import pytest

from pelton.bench.serve_config import BenchServeConfig
from pelton.bench.serve_files import result_path, save_result

RESULT = {"model_id": "org/some model", "date": "20261201-101112"}


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({}, "openai-infqps-some_model-20261201-101112.json"),
        ({"request_rate": 2.5}, "openai-2.5qps-some_model-20261201-101112.json"),
        ({"max_concurrency": 8, "backend": "vllm"}, "vllm-infqps-concurrency8-some_model-20261201-101112.json"),
        ({"label": "../a b", "result_dir": "x/y"}, "x/y/.._a_b-infqps-some_model-20261201-101112.json"),
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
