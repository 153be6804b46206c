"""What the benchmarks of an engine in this process share, and the files that benchmarks leave."""

import json
import math

import pytest

from pelton import LLM
from pelton.bench.offline import engine_counts, machine_for
from pelton.bench.result_files import check_can_be_written, write_json
from pelton.config import EngineArgs
from pelton.sampling_params import SamplingParams
from tests.support.tiny_llama import tiny_llama


def test_kernels_are_told_wherever_the_core_runs():
    args = EngineArgs.create(model=tiny_llama(), num_threads=1)
    descriptions = []
    for core_in_process in (False, True):
        llm = LLM(**args.to_plain(), core_in_process=core_in_process)
        descriptions.append(llm.llm_engine.description)
        llm.shutdown()
    assert descriptions[0] == descriptions[1]
    assert descriptions[0].startswith(f"{machine_for(args)['kernels']}; weights in ")


def test_counts_of_the_engine():
    llm = LLM(model=tiny_llama())
    assert engine_counts(llm) == {"preemptions": 0, "steps": 0, "scheduled_tokens": 0}
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert engine_counts(llm) == {"preemptions": 0, "steps": 4, "scheduled_tokens": 3 + 3}
    llm.shutdown()


def test_a_result_in_a_file(tmp_path):
    path = tmp_path / "result.json"
    check_can_be_written("--output-json", str(path))
    assert not path.exists()
    write_json(str(path), {"avg_latency": 0.25})
    check_can_be_written("--output-json", str(path))
    assert json.loads(path.read_text()) == {"avg_latency": 0.25}
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(str(path), {"avg_latency": math.nan})
    assert json.loads(path.read_text()) == {"avg_latency": 0.25}, "what was there is not lost"
