"""`run_latency` on the tiny Llama, by a clock of the test's own."""

import pytest

from pelton import LLM
from pelton.bench import latency, offline
from pelton.bench.latency_config import LatencyConfig
from pelton.config import EngineArgs
from pelton.core.outputs import CompletionOutput, RequestOutput
from tests.support.tiny_llama import tiny_llama


def engine_args(**given):
    return EngineArgs.create(model=tiny_llama(), enable_prefix_caching=False, **given)


@pytest.fixture
def clock(monkeypatch):
    """A list of seconds that calls of `LLM.generate` take, by the stop-watch; it must be used up."""
    durations = []
    readings = []

    def read():
        if not readings:
            readings.extend([100.0, 100.0 + durations.pop(0)])
        return readings.pop(0)

    monkeypatch.setattr(offline, "perf_counter", read)
    yield durations
    assert (durations, readings) == ([], [])


@pytest.fixture
def calls(monkeypatch):
    """The arguments of every call of `LLM.generate`."""
    seen = []
    generate = LLM.generate

    def watched(self, prompts, params, **kwargs):
        seen.append((prompts, params))
        return generate(self, prompts, params, **kwargs)

    monkeypatch.setattr(LLM, "generate", watched)
    return seen


def test_figures(clock, calls):
    """Warm-ups are not in them."""
    clock += [50.0, 60.0, 4.0, 1.0, 2.0, 3.0, 5.0]
    config = LatencyConfig(input_len=7, output_len=5, batch_size=3, num_iters_warmup=2, num_iters=5)
    result = latency.run_latency(config, engine_args())
    assert result["latencies"] == [4.0, 1.0, 2.0, 3.0, 5.0]
    assert result["avg_latency"] == 3.0
    expected = {"10": 1.4, "25": 2.0, "50": 3.0, "75": 4.0, "90": 4.6, "99": 4.96}
    assert result["percentiles"] == pytest.approx(expected)
    assert result["output_tokens_per_second"] == 5 * 3 * 5 / 15.0
    assert result["total_tokens_per_second"] == 5 * 3 * (7 + 5) / 15.0
    assert result["ms_per_output_token"] == 600.0
    assert result["preemptions"] == 0
    assert len(calls) == 7
    prompts = [tuple(prompt) for batch, _ in calls for prompt in batch]
    assert {len(prompt) for prompt in prompts} == {7}
    assert len(set(prompts)) == 7 * 3, "every batch has other prompts"
    for batch, params in calls:
        assert len(batch) == len(params) == 3
        assert {(p.max_tokens, p.ignore_eos, p.temperature, p.n, p.detokenize) for p in params} == {
            (5, True, 0, 1, True)
        }


def test_several_outputs_per_request(clock, calls):
    clock += [2.0]
    config = LatencyConfig(
        input_len=4, output_len=3, batch_size=2, n=2, num_iters_warmup=0, num_iters=1, disable_detokenize=True
    )
    result = latency.run_latency(config, engine_args())
    assert result["output_tokens_per_second"] == 2 * 2 * 3 / 2.0
    assert result["total_tokens_per_second"] == (2 * 4 + 2 * 2 * 3) / 2.0
    assert set(result["percentiles"].values()) == {2.0}
    assert {(p.n, p.temperature, p.detokenize) for p in calls[0][1]} == {(2, 1.0, False)}


def test_what_was_measured_is_told():
    config = LatencyConfig(input_len=4, output_len=3, batch_size=2, num_iters_warmup=0, num_iters=1, seed=5)
    result = latency.run_latency(config, engine_args(dtype="float32", num_threads=1))
    assert result["benchmark"] == "latency"
    assert result["model"] == tiny_llama()
    assert "weights in fp32" in result["kernels"]
    assert result["machine"]["kernels"] in result["kernels"], "they tell the level and the threads"
    assert result["engine_args"]["dtype"] == "float32"
    assert result["engine_args"]["num_threads"] == 1
    assert (result["settings"]["seed"], result["settings"]["input_len"]) == (5, 4)
    text = latency.report(result)
    for part in (tiny_llama(), result["kernels"], "2 requests, 4 prompt and 3 output tokens each", "caching off"):
        assert part in text
    assert f"Avg latency: {result['avg_latency']:.4f} seconds" in text
    assert f"99% percentile latency: {result['percentiles']['99']:.4f} seconds" in text


def test_prompts_depend_on_the_seed(calls):
    config = {"input_len": 4, "output_len": 1, "batch_size": 2, "num_iters_warmup": 0, "num_iters": 1}
    for seed in (0, 0, 1):
        latency.run_latency(LatencyConfig(**config, seed=seed), engine_args())
    first, again, other = (batch for batch, _ in calls)
    assert first == again != other


def test_a_cache_that_is_too_small_is_told():
    """Four requests of 64 tokens, and room for two of them."""
    config = LatencyConfig(input_len=16, output_len=48, batch_size=4, num_iters_warmup=0, num_iters=1)
    result = latency.run_latency(config, engine_args(num_gpu_blocks_override=9))
    assert result["preemptions"] > 0
    assert f"Preemptions: {result['preemptions']}" in latency.report(result)


def test_a_batch_that_does_not_run_at_once(monkeypatch):
    """It is not worth the loading of a model."""
    monkeypatch.setattr(latency, "LLM", None)
    config = LatencyConfig(batch_size=5, n=2)
    with pytest.raises(ValueError, match="batch_size times n is 10, but max_num_seqs is 8"):
        latency.run_latency(config, engine_args(max_num_seqs=8))


def test_a_batch_that_is_too_long():
    with pytest.raises(ValueError, match=r"input_len \+ output_len is 257 tokens, but requests may have 256"):
        latency.run_latency(LatencyConfig(input_len=129, output_len=128), engine_args())


def test_requests_that_fail(monkeypatch):
    """Times of less work than was asked for are no figures."""

    def generate(self, prompts, params, **kwargs):
        choices = [CompletionOutput(0, "", [1], None, None, reason, "it broke") for reason in ("length", "error")]
        return [RequestOutput(str(i), None, [1], [choice], True, 0) for i, choice in enumerate(choices)]

    monkeypatch.setattr(LLM, "generate", generate)
    with pytest.raises(offline.FailedRequestsError, match="1 of 2 requests failed: it broke"):
        latency.run_latency(LatencyConfig(batch_size=2), engine_args())


def test_failures_are_counted_by_requests(monkeypatch):
    """Not by their outputs, all of which have failed here, of one request."""

    def generate(self, prompts, params, **kwargs):
        fine, broken = (
            [CompletionOutput(i, "", [1], None, None, reason, "it broke") for i in range(3)]
            for reason in ("length", "error")
        )
        return [RequestOutput(str(i), None, [1], choices, True, 0) for i, choices in enumerate((fine, broken))]

    monkeypatch.setattr(LLM, "generate", generate)
    with pytest.raises(offline.FailedRequestsError, match=r"^1 of 2 requests failed: it broke"):
        latency.run_latency(LatencyConfig(batch_size=2, n=3), engine_args())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_len", 0),
        ("output_len", 0),
        ("batch_size", 0),
        ("n", 0),
        ("num_iters_warmup", -1),
        ("num_iters", 0),
        ("seed", -1),
    ],
)
def test_values_that_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must be at least {value + 1}, got {value}"):
        LatencyConfig(**{field: value})
