"""`pelton bench throughput`."""

import json

import pytest

from pelton.bench import offline
from pelton.cli.main import main
from pelton.engine.llm_engine import LLMEngine
from tests.support.tiny_llama import tiny_llama


def throughput(*arguments):
    return main(["bench", "throughput", "--model", tiny_llama(), *arguments])


def test_figures_and_their_file(capsys, tmp_path):
    path = tmp_path / "throughput.json"
    lengths = ["--num-prompts", "5", "--input-len", "10", "--output-len", "4"]
    assert throughput(*lengths, "--output-json", str(path)) == 0
    result = json.loads(path.read_text())
    assert (result["num_requests"], result["total_num_tokens"]) == (5, 70)
    assert result["requests_per_second"] == pytest.approx(5 / result["elapsed_time"])
    assert result["tokens_per_second"] == pytest.approx(70 / result["elapsed_time"])
    captured = capsys.readouterr()
    assert (
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.2f} total "
        f"tokens/s, {result['output_tokens_per_second']:.2f} output tokens/s\n"
    ) in captured.out
    assert "Processed prompts" not in captured.err, "no progress bar where it would be no terminal's"


def test_all_flags_arrive(monkeypatch, tmp_path):
    seen = []

    def run(config, dataset, args, *, use_tqdm):
        seen.append((config, dataset, args))
        raise ValueError("enough")

    monkeypatch.setattr("pelton.bench.throughput.run_throughput", run)
    flags = ["--n", "2", "--num-warmups", "0", "--disable-detokenize", "--dataset-name", "builtin", "--seed", "9"]
    assert throughput(*flags, "--output-len", "7", "--max-num-seqs", "3") == 2
    assert throughput() == 2
    (config, dataset, args), (defaults, default_dataset, default_args) = seen
    assert (config.n, config.num_warmups, config.disable_detokenize) == (2, 0, True)
    assert (dataset.dataset_name, dataset.seed, dataset.builtin_output_len) == ("builtin", 9, 7)
    assert args.scheduler.max_num_seqs == 3
    assert (defaults.n, defaults.num_warmups, defaults.disable_detokenize) == (1, 1, False)
    assert (default_dataset.dataset_name, default_dataset.num_prompts) == ("random", 1000)
    assert default_args.cache.enable_prefix_caching, "as the engine has it"


def test_requests_that_fail(monkeypatch, capsys):
    def fail(*arguments, **kwargs):
        raise offline.FailedRequestsError("1 of 2 requests failed: it broke")

    monkeypatch.setattr("pelton.bench.throughput.timed_generate", fail)
    assert throughput("--num-prompts", "2", "--input-len", "4") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "pelton: 1 of 2 requests failed: it broke"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--n", "0"], "n must be at least 1, got 0"),
        (["--num-prompts", "0"], "num_prompts must be at least 1, got 0"),
        (["--num-prompts", "2", "--num-warmups", "3"], "num_warmups is 3, but num_prompts is 2; lower the first"),
        (["--sharegpt-output-len", "3"], "it is for dataset sharegpt, and the dataset is random"),
        (["--dataset-name", "custom"], "there is no file; name one with --dataset-path FILE"),
        (["--dataset-name", "custom", "--dataset-path", "no/such/file"], "no/such/file cannot be read"),
        (["--output-json", "no/such/folder/file"], "there is no folder 'no/such/folder'; make it first"),
    ],
)
def test_mistakes(monkeypatch, capsys, arguments, words):
    """They are not worth the loading of a model."""
    monkeypatch.setattr(LLMEngine, "from_engine_args", None)
    assert throughput(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]
