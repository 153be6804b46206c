import pytest

from pelton.bench.bounds import Bound, LatencyMetric, parse_bound, percentile_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p99_e2el_ms<500", Bound("p99_e2el_ms", "<", 500.0)),
        (" p99.9_ttft_ms <= 1.5e3 ", Bound("p99.9_ttft_ms", "<=", 1500.0)),
        ("mean_tpot_ms>=20", Bound("mean_tpot_ms", ">=", 20.0)),
        ("output_throughput>100", Bound("output_throughput", ">", 100.0)),
        ("failed>0", Bound("failed", ">", 0.0)),
        ("p50_ttft_ms<1234567.875", Bound("p50_ttft_ms", "<", 1234567.875)),
    ],
)
def test_bounds_are_read(text, expected):
    assert parse_bound(text) == expected
    assert parse_bound(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no bound"),
        ("p99_e2el_ms", "is no bound"),
        ("p99_e2el_ms=5", "is no bound"),
        ("p99_e2el_ms<", "is no bound"),
        ("p99_e2el_ms<5<6", "is no bound"),
        ("p99_e2el_ms<e", "no number"),
        ("p99_e2el_ms<1e999", "finite"),
        ("p99_e2e_ms<5", "unknown metric"),
        ("p101_e2el_ms<5", "unknown metric"),
        ("max_ttft_ms<5", "unknown metric"),
        ("p99_e2el<5", "unknown metric"),
        ("throughput>5", "unknown metric"),
    ],
)
def test_other_texts_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_bound(text)


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("failed<5", 4, True),
        ("failed<5", 5, False),
        ("failed<=5", 5, True),
        ("failed>5", 5, False),
        ("failed>=5", 5, True),
        ("failed<5", None, False),
        ("failed>=5", None, False),
    ],
)
def test_a_bound_holds_or_does_not(text, value, holds):
    assert parse_bound(text).holds({"failed": value}) is holds


@pytest.mark.parametrize("text", ["failed<5", "failed<=5", "failed>5", "failed>=5"])
@pytest.mark.parametrize("value", [4, 5, 6])
def test_its_negation_holds_where_it_does_not(text, value):
    bound = parse_bound(text)
    assert bound.negated().allows(value) is not bound.allows(value)
    assert bound.negated().negated() == bound


def test_a_result_without_the_metric_is_refused():
    with pytest.raises(ValueError, match="no p97_ttft_ms; have it measured"):
        parse_bound("p97_ttft_ms<5").holds({"p99_ttft_ms": 1.0})


def test_which_latency_a_bound_is_on():
    assert parse_bound("median_itl_ms<5").latency == LatencyMetric("percentile", 50.0, "itl")
    assert parse_bound("p99.9_e2el_ms<5").latency == LatencyMetric("percentile", 99.9, "e2el")
    assert parse_bound("std_tpot_ms<5").latency == LatencyMetric("std", 0.0, "tpot")
    assert parse_bound("completed>5").latency is None


def test_keys_of_percentiles():
    assert [percentile_key(number) for number in (50.0, 99.0, 99.9, 100.0, 0.0)] == [
        "p50",
        "p99",
        "p99.9",
        "p100",
        "p0",
    ]
