"""The page with the trials of a search."""

import math

import pytest

from pelton.tune.plot import pareto_front, write_tune_plot
from tests.support.browser import Browser, find_browser
from tests.support.plot_page import Page


def trial(number, latency=None, throughput=None, state="complete", **settings):
    metrics = {} if latency is None else {"p99_e2el_ms": latency, "output_throughput": throughput}
    return {"number": number, "settings": settings, "metrics": metrics, "state": state, "seconds": 1.0}


TRIALS = [
    trial(0, 300.0, 100.0, max_num_seqs=256, quantization="auto"),
    trial(1, 400.0, 150.0, max_num_seqs=64, quantization="int8"),
    trial(2, 350.0, 90.0, max_num_seqs=8, quantization="int8"),
    trial(3, 900.0, 200.0, "slo_missed", max_num_seqs=8, quantization="<int4>"),
    trial(4, state="failed", max_num_seqs=8, quantization="int8"),
    trial(5, math.nan, 90.0, "slo_missed", max_num_seqs=8, quantization="int8"),
]


def tune_page(tmp_path, trials=TRIALS, **given):
    given = {"latency": "p99_e2el_ms", "slo": 500.0, "best": 1, "facts": {"Goal": "p99_e2el_ms<500"}} | given
    write_tune_plot(tmp_path / "tune.html", trials, **given)
    return Page(tmp_path / "tune.html")


class TestTune:
    def test_facts(self, tmp_path):
        page = tune_page(tmp_path)
        assert page.fact("Goal") == "p99_e2el_ms<500"
        assert page.fact("Trials") == "6: 3 met the SLO, 2 missed it, 1 failed"

    def test_throughput_over_latency(self, tmp_path):
        page = tune_page(tmp_path)

        def points(name):
            trace = page.trace(0, name)
            return list(zip(trace["x"], trace["y"], strict=True))

        assert points("met the SLO") == [(300.0, 100.0), (400.0, 150.0), (350.0, 90.0)]
        assert points("missed the SLO") == [(900.0, 200.0)]
        assert points("Pareto front") == [(300.0, 100.0), (400.0, 150.0)]
        assert points("best") == [(400.0, 150.0)]
        assert points("default") == [(300.0, 100.0)]
        assert points("SLO: 500") == [(500.0, 0.0), (500.0, 200.0)]
        (label,) = page.trace(0, "missed the SLO")["hovertext"]
        assert "trial 3: slo missed" in label
        assert "max_num_seqs: 8<br>quantization: &lt;int4&gt;" in label

    def test_effects(self, tmp_path):
        """Values in their order, whatever the order of the trials."""
        figure = tune_page(tmp_path).figures[1]
        assert figure["layout"]["xaxis"]["title"]["text"] == "max_num_seqs"
        assert figure["layout"]["xaxis"]["categoryarray"] == ["8", "64", "256"]
        assert figure["layout"]["xaxis2"]["categoryarray"] == ["<int4>", "auto", "int8"]
        met, missed = figure["data"][:2]
        assert (met["x"], met["y"]) == (["256", "64", "8"], [100.0, 150.0, 90.0])
        assert (missed["x"], missed["y"]) == (["8"], [200.0])

    @pytest.mark.parametrize("trials", [[], TRIALS[4:], TRIALS[:1], [TRIALS[3]]])
    def test_few_trials(self, tmp_path, trials):
        page = tune_page(tmp_path, trials, slo=None, best=None)
        notes = [note["text"] for note in page.figures[1]["layout"]["annotations"]]
        assert notes == ["no setting was varied"]

    def test_pareto_front(self):
        """Of equal trials one is enough; what is better in one is not beaten."""
        points = [(2, 5), (1, 3), (2, 5), (3, 5), (3, 9), (4, 8), (1, 2)]
        trials = [trial(number, *point) for number, point in enumerate(points)]
        front = pareto_front(trials, latency="p99_e2el_ms", throughput="output_throughput")
        assert [one["number"] for one in front] == [1, 0, 4]


def test_it_loads_nothing(tmp_path):
    assert tune_page(tmp_path).loads == []


def test_it_in_a_browser(tmp_path):
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    tune_page(tmp_path)
    with Browser(path) as browser:
        tab = browser.open((tmp_path / "tune.html").as_uri())
        for number in range(2):
            place = f"document.querySelector('#figure-{number}')"
            tab.wait_for(f"{place}.querySelector('.main-svg .gtitle')")
            assert tab.evaluate(f"{place}.querySelectorAll('path.point, .js-line').length") > 0
        assert tab.problems == []
