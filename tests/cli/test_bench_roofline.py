"""`pelton bench roofline`."""

import json
import sys

import pytest

from pelton.bench import ceilings
from pelton.cli.main import main
from tests.support.native import needs_native
from tests.support.tiny_llama import CONTEXT_LENGTH, tiny_llama


def roofline(*arguments):
    return main(["bench", "roofline", "--model", tiny_llama(), "--num-threads", "1", *map(str, arguments)])


@pytest.fixture
def small_caches(monkeypatch):
    """To take little time."""
    monkeypatch.setattr(ceilings, "_MEMORY_BYTES", 2**23)
    monkeypatch.setattr(ceilings, "last_level_cache_bytes", lambda: 2**21)


@needs_native
def test_files_and_table(small_caches, capsys, tmp_path):
    report, plot = tmp_path / "report.json", tmp_path / "plot.html"
    arguments = ["--batch-sizes", 1, 2, "--context", 8, "--seconds", 0.01]
    assert roofline(*arguments, "--quantization", "int8", "--output-json", report, "--plot", plot) == 0
    out = capsys.readouterr().out
    assert "A step reads weights: int8 " in out
    assert "keys and values of a request behind 8 tokens" in out
    content = json.loads(report.read_text())
    assert [row["batch_size"] for row in content["rows"]] == [1, 2]
    assert content["weights"]["formats"].keys() == {"int8"}
    assert plot.read_text().startswith("<!doctype html>")


@needs_native
def test_a_context_that_is_too_long(small_caches, capsys):
    assert roofline("--context", CONTEXT_LENGTH) == 2
    assert "lower the context" in capsys.readouterr().err


def test_without_native_kernels(monkeypatch, capsys):
    monkeypatch.setenv("PELTON_CPU_ISA", "numpy")
    assert roofline() == 2
    assert "leave out PELTON_CPU_ISA=numpy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-sizes", 0], "batch_sizes must be at least 1, got 0"),
        (["--output-json", "/no/such/folder/x.json"], "--output-json is '/no/such/folder/x.json', but there is no"),
        (["--plot", "/no/such/folder/x.html"], "--plot is '/no/such/folder/x.html', but there is no"),
    ],
)
def test_mistakes_are_told_before_the_model_is_loaded(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("pelton.bench.roofline.run_roofline", lambda *args, **kwargs: pytest.fail("it was run"))
    assert roofline(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_plot_needs_plotly(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert roofline("--plot", tmp_path / "plot.html") == 2
    assert "--plot needs plotly, which is not installed; run: pip install 'pelton[bench]'" in capsys.readouterr().err


def test_flags_without_an_effect_on_a_step_are_refused(capsys):
    with pytest.raises(SystemExit):
        roofline("--max-num-seqs", 4)
    assert "--max-num-seqs" in capsys.readouterr().err
