"""Pages with plots: what they hold, that they need no network, and in a browser that they are drawn."""

import math

import pytest

from pelton.bench import extras
from pelton.bench.plots import write_roofline_plot, write_serve_plot
from pelton.bench.plots.page import write_page
from pelton.bench.plots.serve import MAX_POINTS, running_requests
from pelton.bench.serving.request_result import RequestResult
from tests.support.browser import Browser, find_browser
from tests.support.plot_page import Page

MACHINE = {"cpu": "Model <7>", "cores": 2, "kernels": "cpu avx2, 2 threads"}


def answered(start, *, ttft, itls, due=None, prompt_len=10, output_len=None):
    return RequestResult(
        due_time=start if due is None else due,
        start_time=start,
        ttft=ttft,
        itls=list(itls),
        e2el=ttft + sum(itls),
        prompt_len=prompt_len,
        output_len=1 + len(itls) if output_len is None else output_len,
    )


def failed(start, error="503: no <room>"):
    return RequestResult(due_time=start, start_time=start, error=error, seconds=0.25)


RESULTS = [
    answered(0.0, ttft=0.5, itls=[0.25, 0.25]),
    answered(2.0, ttft=0.25, itls=[], due=1.0),
    failed(3.0),
]
RESULT = {
    "model_id": "tiny </script><b>llama",
    "backend": "openai",
    "request_rate": "inf",
    "max_concurrency": None,
    "num_prompts": 3,
    "completed": 2,
    "failed": 1,
    "duration": 3.25,
    "output_throughput": 1.230769,
    "p50_ttft_ms": 375.0,
    "p99_ttft_ms": 497.5,
    "p99.9_e2el_ms": 999.25,
    "mean_ttft_ms": 375.0,
    "machine": MACHINE,
}


def serve_page(tmp_path, result=RESULT, results=RESULTS):
    write_serve_plot(tmp_path / "serve.html", result, results)
    return Page(tmp_path / "serve.html")


class TestServe:
    def test_facts(self, tmp_path):
        page = serve_page(tmp_path)
        assert page.fact("Model") == RESULT["model_id"]
        assert page.fact("Failed") == "1"
        assert page.fact("Output tokens per second") == "1.231"
        assert page.fact("Most requests at once") is None
        assert page.fact("Machine of the load generator") == "Model <7>, 2 cores, cpu avx2, 2 threads"

    def test_timeline(self, tmp_path):
        """A bar begins where it begins in time, and is as long as it takes."""
        page = serve_page(tmp_path)

        def bars(name):
            trace = page.trace(0, name)
            return list(zip(trace["y"], trace["base"], trace["x"], strict=True))

        assert bars("held back before sending") == [(2, 1.0, 1.0)]
        assert bars("waiting for the first token") == [(1, 0.0, 0.5), (2, 2.0, 0.25)]
        assert bars("getting tokens") == [(1, 0.5, 0.5), (2, 2.25, 0.0)]
        assert bars("failed") == [(3, 3.0, 0.25)]
        (label,) = page.trace(0, "failed")["hovertext"]
        assert label == "request 3, sent after 3.000 s<br>failed: 503: no &lt;room&gt;"
        label, single = page.trace(0, "getting tokens")["hovertext"]
        assert "ttft 500.0 ms, e2el 1000.0 ms<br>tpot 250.00 ms<br>10 prompt tokens, 3 output tokens" in label
        assert "tpot" not in single

    def test_requests_in_the_order_of_sending(self, tmp_path):
        page = serve_page(tmp_path, results=RESULTS[::-1])
        assert page.figures == serve_page(tmp_path).figures

    def test_tokens_over_time(self, tmp_path):
        """All tokens are there: rates times widths are their number."""
        results = [answered(0.1 * i, ttft=0.05, itls=[0.01] * 49, output_len=100) for i in range(10)]
        trace = serve_page(tmp_path, results=results).trace(0, "output tokens/s")
        edges, rates = trace["x"], trace["y"]
        assert len(edges) == len(rates) == 26
        assert edges[0] == 0.0
        assert edges[-1] == pytest.approx(0.9 + 0.05 + 0.49)
        tokens = sum(rate * (edges[i + 1] - edges[i]) for i, rate in enumerate(rates[:-1]))
        assert tokens == pytest.approx(1000)
        first = 2 * sum(time < edges[1] for one in results[:1] for time in (0.05 + 0.01 * k for k in range(50)))
        assert rates[0] == pytest.approx(first / edges[1])

    def test_running_requests(self, tmp_path):
        results = [answered(0.0, ttft=1.0, itls=[1.0]), answered(1.0, ttft=1.0, itls=[]), failed(1.5)]
        steps = [(0.0, 1), (1.0, 2), (1.5, 3), (1.75, 2), (2.0, 0)]
        assert running_requests(results) == steps
        trace = serve_page(tmp_path, results=results).trace(0, "running requests")
        assert list(zip(trace["x"], trace["y"], strict=True)) == steps

    def test_distributions(self, tmp_path):
        page = serve_page(tmp_path)
        assert (page.trace(1, "ttft")["x"], page.trace(1, "ttft")["y"]) == ([250.0, 500.0], [50.0, 100.0])
        assert page.trace(1, "tpot")["x"] == [250.0], "one output token has no time per further token"
        assert page.trace(1, "itl")["x"] == [250.0, 250.0]
        assert page.trace(1, "e2el")["x"] == [250.0, 1000.0]
        marks = page.trace(1, "ttft percentiles")
        assert (marks["x"], marks["y"]) == ([375.0, 497.5], [50.0, 99.0])
        assert marks["text"] == ["p50 375 ms", "p99 497.5 ms"]
        assert marks["textposition"] == ["middle left", "middle left"]
        assert page.trace(1, "e2el percentiles")["y"] == [99.9]
        assert page.trace(1, "itl percentiles")["x"] == []

    def test_percentiles_at_the_left(self, tmp_path):
        """Their text must not run into the axis."""
        marks = serve_page(tmp_path, result={"p50_ttft_ms": 249.0, "p90_ttft_ms": 251.0}).trace(1, "ttft percentiles")
        assert marks["textposition"] == ["bottom right", "middle left"]

    def test_long_distributions_are_thinned_out(self, tmp_path):
        intervals = [0.001 * (i + 1) for i in range(5 * MAX_POINTS)]
        curve = serve_page(tmp_path, results=[answered(0.0, ttft=0.1, itls=intervals)]).trace(1, "itl")
        assert len(curve["x"]) == MAX_POINTS
        assert (curve["x"][0], curve["x"][-1], curve["y"][-1]) == (1.0, 5.0 * MAX_POINTS, 100.0)
        for value, percent in zip(curve["x"], curve["y"], strict=True):
            assert percent == pytest.approx(100 * value / (5 * MAX_POINTS)), "each point is where it was"

    @pytest.mark.parametrize(
        "results",
        [
            [],
            [failed(0.0)],
            [answered(0.0, ttft=0.0, itls=[])],
            [answered(0.0, ttft=0.5, itls=[])],
            [answered(0.0, ttft=0.5, itls=[0.1])],
            [answered(0.0, ttft=0.0, itls=[], output_len=0)],
            [RequestResult(due_time=4.0, error="never sent")],
        ],
    )
    def test_few_requests(self, tmp_path, results):
        result = dict.fromkeys(RESULT) | {"p50_ttft_ms": math.nan, "p99_ttft_ms": None}
        page = serve_page(tmp_path, result=result, results=results)
        texts = [note["text"] for figure in page.figures for note in figure["layout"].get("annotations", [])]
        assert ("there was no request" in texts) == (not results)
        assert ("no request was completed" in texts) == (not any(one.success for one in results))

    def test_a_request_that_was_never_sent(self, tmp_path):
        page = serve_page(tmp_path, results=[RequestResult(due_time=4.0, error="stopped before")])
        assert page.trace(0, "failed")["base"] == [4.0]
        assert page.trace(0, "held back before sending") is None


def row(batch_size, measured, memory, compute):
    predicted = max(memory, compute)
    return {
        "batch_size": batch_size,
        "measured_ms": measured,
        "best_ms": measured,
        "steps": 5,
        "tokens_per_s": 1e3 * batch_size / measured,
        "memory_ms": memory,
        "compute_ms": compute,
        "predicted_ms": predicted,
        "bound": "memory" if memory > compute else "compute",
        "fraction": predicted / measured,
    }


ROOFLINE = {
    "benchmark": "roofline",
    "machine": MACHINE,
    "ceilings": {"memory_gb_per_s": 20.0, "cache_gb_per_s": None, "gflop_per_s": {"bf16": 400.0, "int8": 800.0}},
    "model": "smollm2",
    "kernels": "cpu avx2",
    "context": 256,
    "rows": [row(1, 10.0, 5.0, 0.5), row(8, 12.0, 6.0, 4.0), row(64, 64.0, 8.0, 32.0)],
    "b_sat": 10.5,
    "knee": 24.0,
}


def roofline_page(tmp_path, report=ROOFLINE):
    write_roofline_plot(tmp_path / "roofline.html", report)
    return Page(tmp_path / "roofline.html")


class TestRoofline:
    def test_facts(self, tmp_path):
        page = roofline_page(tmp_path)
        assert page.fact("Model") == "smollm2"
        assert page.fact("Memory, GB/s") == "20"
        assert page.fact("Products in int8, GFLOP/s") == "800"
        assert page.fact("Last-level cache, GB/s") is None
        assert page.fact("B_sat").startswith("10.5: batch size whose products")

    def test_step_times(self, tmp_path):
        page = roofline_page(tmp_path)
        expected = {
            "measured (median)": [10.0, 12.0, 64.0],
            "reading": [5.0, 6.0, 8.0],
            "computing": [0.5, 4.0, 32.0],
            "predicted (the larger)": [5.0, 6.0, 32.0],
        }
        for name, times in expected.items():
            assert (page.trace(0, name)["x"], page.trace(0, name)["y"]) == ([1, 8, 64], times)
        assert "64 ms, 50 % of the ceiling, which is compute" in page.trace(0, "measured (median)")["hovertext"][2]
        for axis in ("xaxis", "yaxis"):
            assert page.figures[0]["layout"][axis]["type"] == "log"

    def test_marks(self, tmp_path):
        page = roofline_page(tmp_path)
        for number, heights in enumerate([(0.5, 64.0), (100.0, 2000.0)]):
            traces = {trace["name"]: trace for trace in page.figures[number]["data"]}
            b_sat = traces["B_sat 10.5"]
            assert (b_sat["x"], tuple(b_sat["y"])) == ([10.5, 10.5], pytest.approx(heights))
            assert traces["knee 24"]["x"] == [24.0, 24.0]

    def test_throughputs(self, tmp_path):
        page = roofline_page(tmp_path)
        assert page.trace(1, "measured")["y"] == pytest.approx([100.0, 8000 / 12, 1000.0])
        assert page.trace(1, "ceiling")["y"] == pytest.approx([200.0, 8000 / 6, 2000.0])

    def test_a_single_batch_size_has_no_knee(self, tmp_path):
        page = roofline_page(tmp_path, {**ROOFLINE, "rows": ROOFLINE["rows"][:1], "knee": None})
        assert page.fact("knee") is None
        names = [trace["name"] for trace in page.figures[0]["data"]]
        assert "B_sat 10.5" in names
        assert not any("knee" in name for name in names)


PAGES = [serve_page, roofline_page]


@pytest.mark.parametrize("make", PAGES)
def test_pages_load_nothing(tmp_path, make):
    page = make(tmp_path)
    assert page.loads == []
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    assert "default-src 'none'" in text, "whatever a script tries, the browser refuses it"
    assert len(text) > 1_000_000, "plotly.js is in the page"


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_page(tmp_path / "page.html", "title", {}, [{"data": [{"x": [math.nan]}], "layout": {}}])


def test_without_plotly(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", missing)
    with pytest.raises(ValueError, match=r"a plot needs plotly, .* pip install 'pelton\[bench\]'"):
        serve_page(tmp_path)


def test_pages_in_a_browser(tmp_path):
    """Every figure has its title and its marks, and nothing complains."""
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    pages = [make(tmp_path) for make in PAGES]
    with Browser(path) as browser:
        for page, name in zip(pages, ("serve", "roofline"), strict=True):
            tab = browser.open((tmp_path / f"{name}.html").as_uri())
            for number, figure in enumerate(page.figures):
                place = f"document.querySelector('#figure-{number}')"
                tab.wait_for(f"{place}.querySelector('.main-svg .gtitle')")
                assert figure["layout"]["title"]["text"] in tab.text(f"#figure-{number}").replace("\n", " ")
                assert tab.evaluate(f"{place}.querySelectorAll('path.point, .js-line').length") > 0
            assert tab.problems == []
            tab.close()
