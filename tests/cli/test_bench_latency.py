"""`pelton bench latency`."""

import json
import os

import pytest

from pelton.bench import offline
from pelton.cli.main import main
from pelton.engine.llm_engine import LLMEngine
from tests.support.tiny_llama import tiny_llama

SHORT = ["--input-len", "5", "--output-len", "3", "--batch-size", "2", "--num-iters-warmup", "1", "--num-iters", "2"]


def latency(*arguments):
    return main(["bench", "latency", "--model", tiny_llama(), *arguments])


def test_the_command_line_that_is_known(capsys):
    command = f"bench latency --model {tiny_llama()} --input-tokens 32 --output-tokens 128 --batch-size 8"
    assert main([*command.split(), "--num-iters-warmup", "0", "--num-iters", "1"]) == 0
    out = capsys.readouterr().out
    assert "Batch: 8 requests, 32 prompt and 128 output tokens each; prefix caching off" in out
    assert "Avg latency: " in out


def test_defaults(monkeypatch):
    """Those of the command line that is known, and vLLM's numbers of iterations."""
    seen = []

    def run(config, args):
        seen.append((config, args))
        raise ValueError("enough")

    monkeypatch.setattr("pelton.bench.latency.run_latency", run)
    assert latency() == 2
    ((config, args),) = seen
    assert (config.input_len, config.output_len, config.batch_size, config.n) == (32, 128, 8, 1)
    assert (config.num_iters_warmup, config.num_iters) == (3, 10)
    assert not args.cache.enable_prefix_caching


def test_figures_and_their_file(capsys, tmp_path):
    path = tmp_path / "latency.json"
    path.write_text("what was there before, and was longer than what comes now" * 1000)
    assert latency(*SHORT, "--output-json", str(path)) == 0
    result = json.loads(path.read_text())
    assert len(result["latencies"]) == 2
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 2)
    assert 0 < min(result["latencies"]) <= result["percentiles"]["50"] <= max(result["latencies"])
    out = capsys.readouterr().out
    assert f"Avg latency: {result['avg_latency']:.4f} seconds\n" in out
    assert f"{result['output_tokens_per_second']:.2f} output, " in out


def test_prefix_caching_and_other_flags_of_the_engine(capsys):
    assert latency(*SHORT, "--enable-prefix-caching", "--dtype", "float32", "--num-threads", "1") == 0
    out = capsys.readouterr().out
    assert "prefix caching on" in out
    assert "weights in fp32" in out


def test_requests_that_fail(monkeypatch, capsys, tmp_path):
    def fail(*arguments, **kwargs):
        raise offline.FailedRequestsError("1 of 2 requests failed: it broke")

    monkeypatch.setattr("pelton.bench.latency.timed_generate", fail)
    assert latency(*SHORT, "--output-json", str(tmp_path / "latency.json")) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "pelton: 1 of 2 requests failed: it broke"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--num-iters", "0"], "num_iters must be at least 1, got 0"),
        (["--batch-size", "257"], "batch_size times n is 257, but max_num_seqs is 256"),
        (["--block-size", "0"], "block_size must be at least 1, got 0"),
        (["--output-json", "no/such/folder/file"], "there is no folder 'no/such/folder'; make it first"),
        (["--output-json", "."], "--output-json must name a file, got '.'"),
        (["--output-json", ""], "--output-json must name a file, got ''"),
        (["--num-threads", "5000"], "num_threads must be at most 1024, got 5000"),
    ],
)
def test_mistakes(monkeypatch, capsys, arguments, words):
    """They are not worth the loading of a model."""
    monkeypatch.setattr(LLMEngine, "from_engine_args", None)
    assert latency(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(LLMEngine, "from_engine_args", None)
    path = tmp_path / "file"
    path.touch(mode=0o400)
    assert latency("--output-json", str(path)) == 2
    assert "may not be written" in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys):
    assert main(["bench", "latency", "--model", "no/such/model.gguf"]) == 2
    assert "no/such/model.gguf" in capsys.readouterr().err.splitlines()[-1]
