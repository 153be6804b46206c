"""`run_throughput` on the tiny Llama, by a clock of the test's own."""

import json
from dataclasses import replace

import pytest

from pelton import LLM
from pelton.bench import offline, throughput
from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.throughput_config import ThroughputConfig
from pelton.config import EngineArgs
from pelton.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama

RANDOM = DatasetConfig(num_prompts=4, random_input_len=10, random_output_len=6)


def engine_args(**given):
    return EngineArgs.create(model=tiny_llama(), **given)


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the last call of `LLM.generate` takes; warm-ups take 1,000."""
    readings = []

    def set_up(seconds, num_warmups=1):
        for duration in [1000.0] * min(1, num_warmups) + [seconds]:
            readings.extend([7.0, 7.0 + duration])

    monkeypatch.setattr(offline, "perf_counter", lambda: readings.pop(0))
    yield set_up
    assert readings == []


def run(config=None, dataset=RANDOM, **given):
    return throughput.run_throughput(config or ThroughputConfig(), dataset, engine_args(**given))


def test_figures(clock):
    """Tokens are those of the outputs; the warm-up is not among them."""
    clock(2.0)
    result = run()
    assert result["elapsed_time"] == 2.0
    assert result["num_requests"] == 4
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (40, 24)
    assert result["total_num_tokens"] == 64
    assert result["requests_per_second"] == 2.0
    assert result["tokens_per_second"] == 32.0
    assert result["output_tokens_per_second"] == 12.0
    assert (result["cached_input_tokens"], result["num_cut"], result["preemptions"]) == (0, 0, 0)
    assert result["steps"] == 6, "one for all prompts, and one for each further token"
    assert result["scheduled_tokens"] == 40 + 4 * 5, "the last token of a request is not computed"


def test_several_outputs_per_request(clock):
    clock(2.0, num_warmups=0)
    result = run(ThroughputConfig(n=3, num_warmups=0, disable_detokenize=True))
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (40, 3 * 24)
    assert result["output_tokens_per_second"] == 36.0


@pytest.mark.parametrize("num_warmups", [0, 3])
def test_the_prefix_cache(num_warmups):
    """It counts what requests have in common, and nothing of the warm-up."""
    dataset = DatasetConfig(
        dataset_name="prefix_repetition",
        num_prompts=4,
        prefix_repetition_num_prefixes=1,
        prefix_repetition_prefix_len=32,
        prefix_repetition_suffix_len=8,
        prefix_repetition_output_len=2,
    )
    result = run(ThroughputConfig(num_warmups=num_warmups), dataset)
    assert result["total_input_tokens"] == 4 * 40
    assert result["cached_input_tokens"] == 3 * 32
    assert "(96 of them from the prefix cache)" in throughput.report(result)
    assert run(dataset=dataset, enable_prefix_caching=False)["cached_input_tokens"] == 0


def test_the_kv_cache():
    """47 tokens are computed, in 3 of 8 blocks; two such requests need 6."""
    dataset = DatasetConfig(num_prompts=1, random_input_len=40, random_output_len=8)
    assert run(dataset=dataset, num_gpu_blocks_override=9)["peak_kv_cache_usage"] == 3 / 8
    result = run(dataset=replace(dataset, num_prompts=2), num_gpu_blocks_override=9)
    assert result["peak_kv_cache_usage"] == 6 / 8
    assert "KV cache: at most 75.0 % in use; preemptions: 0" in throughput.report(result)


def test_preemptions():
    dataset = DatasetConfig(num_prompts=4, random_input_len=16, random_output_len=48)
    result = run(dataset=dataset, num_gpu_blocks_override=9)
    assert result["preemptions"] > 0
    assert result["total_output_tokens"] == 4 * 48
    assert f"preemptions: {result['preemptions']}" in throughput.report(result)


def write_lines(folder, *lines):
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_texts_and_conversations(tmp_path):
    messages = [{"role": "user", "content": "Hello"}]
    path = write_lines(tmp_path, {"prompt": "The sun"}, {"messages": messages})
    result = run(dataset=DatasetConfig(dataset_name="custom", dataset_path=path, num_prompts=2, custom_output_len=4))
    tokenizer = smollm2_tokenizer()
    rendered = tokenizer.encode(tokenizer.apply_chat_template(messages), add_special_tokens=False)
    assert result["total_input_tokens"] == len(tokenizer.encode("The sun")) + len(rendered)
    assert result["total_output_tokens"] == 8
    assert result["dataset"]["dataset_path"] == path


def test_outputs_that_the_context_cuts_off(tmp_path):
    """How long a text is, is only known when it has been run."""
    path = write_lines(tmp_path, {"prompt": "The sun", "output_tokens": 400}, {"prompt": "Hello", "output_tokens": 4})
    dataset = DatasetConfig(dataset_name="custom", dataset_path=path, num_prompts=2, custom_output_len=-1)
    result = run(dataset=dataset)
    assert result["num_cut"] == 1
    assert result["total_output_tokens"] == 256 - len(smollm2_tokenizer().encode("The sun")) + 4
    assert "(outputs cut off at the end of the context: 1)" in throughput.report(result)


def test_requests_that_are_too_long(monkeypatch):
    """They are refused before any is run."""
    monkeypatch.setattr(LLM, "generate", None)
    with pytest.raises(ValueError, match="200 prompt and 57 output tokens is 257 tokens, but requests may have 256"):
        run(dataset=DatasetConfig(num_prompts=1, random_input_len=200, random_output_len=57))


def test_a_file_that_is_missing(monkeypatch):
    """It is not worth the loading of a model."""
    monkeypatch.setattr(throughput, "LLM", None)
    with pytest.raises(ValueError, match=r"no/such/file cannot be read"):
        run(dataset=DatasetConfig(dataset_name="custom", dataset_path="no/such/file"))


def test_more_warm_ups_than_requests():
    with pytest.raises(ValueError, match="num_warmups is 5, but num_prompts is 4"):
        run(ThroughputConfig(num_warmups=5))


def test_what_was_measured_is_told():
    result = run(dtype="float32", num_threads=1)
    assert (result["benchmark"], result["model"]) == ("throughput", tiny_llama())
    assert result["machine"]["kernels"] in result["kernels"]
    assert result["engine_args"]["num_threads"] == 1
    assert result["dataset"]["random_input_len"] == 10
    assert result["settings"]["num_warmups"] == 1
    text = throughput.report(result)
    for part in (tiny_llama(), result["kernels"], "4 of dataset random; 1 before as warm-up", "6, 10.0 tokens each"):
        assert part in text
    json.dumps(result, allow_nan=False)


def played(begin, end):
    metrics = RequestMetrics(0.0, begin, end, end, end, 1)
    return RequestOutput("r", None, [1], [CompletionOutput(0, "", [1], None, None, "length")], True, 0, metrics=metrics)


def test_the_share_of_the_time_with_prompts(monkeypatch, clock):
    """Prompts that are processed at the same time count once: seconds 1 to 4 and 5 to 6, of 8."""
    outputs = [played(1.0, 3.0), played(2.0, 4.0), played(2.5, 2.75), played(5.0, 6.0), played(None, None)]
    monkeypatch.setattr(LLM, "generate", lambda *_, **__: outputs)
    clock(8.0, num_warmups=0)
    result = run(ThroughputConfig(num_warmups=0), replace(RANDOM, num_prompts=5))
    assert result["prefill_share"] == 0.5
    assert "50 % of it with prompts being processed, 50 % with decoding only" in throughput.report(result)


def test_requests_that_fail(monkeypatch):
    failed = CompletionOutput(0, "", [], None, None, "error", "it broke")
    monkeypatch.setattr(LLM, "generate", lambda *_, **__: [RequestOutput("r", None, [1], [failed], True, 0)])
    with pytest.raises(offline.FailedRequestsError, match="1 of 1 requests failed: it broke"):
        run()


@pytest.mark.parametrize(("field", "value"), [("n", 0), ("num_warmups", -1)])
def test_values_that_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must be at least {value + 1}, got {value}"):
        ThroughputConfig(**{field: value})
