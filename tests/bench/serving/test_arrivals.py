import numpy as np
import pytest

from pelton.bench.serving.arrivals import arrival_times, offered_rate, rates, steady_arrival_times

NUM = 4000
KS_1_PERCENT = 1.628
"""Kolmogorov's distribution: D * sqrt(n) is above this in 1 % of the cases where the distribution is the right one."""


def gaps_of(rate, burstiness, seed=0, num=NUM):
    return np.diff(steady_arrival_times(rate, num, burstiness=burstiness, seed=seed))


def ks_distance(samples, cdf):
    """Largest distance between the samples' distribution function and `cdf`."""
    ordered = np.sort(samples)
    expected = cdf(ordered)
    ranks = np.arange(len(ordered) + 1) / len(ordered)
    return max(np.max(ranks[1:] - expected), np.max(expected - ranks[:-1]))


def exponential_cdf(rate):
    return lambda seconds: 1.0 - np.exp(-rate * seconds)


def erlang_cdf(shape, rate):
    """Gamma's for whole shapes, with mean 1 / rate."""

    def cdf(seconds):
        scaled = shape * rate * seconds
        terms, term = np.zeros_like(scaled), np.ones_like(scaled)
        for index in range(shape):
            terms += term
            term = term * scaled / (index + 1)
        return 1.0 - np.exp(-scaled) * terms

    return cdf


def half_gamma_cdf(rate):
    """Gamma's for shape 1/2: the square of a normal variable, over its mean."""
    from math import erf

    return lambda seconds: np.array([erf(value) for value in np.sqrt(0.5 * rate * seconds)])


@pytest.mark.parametrize(
    ("rate", "burstiness", "cdf"),
    [
        (10.0, 1.0, exponential_cdf(10.0)),
        (0.25, 1.0, exponential_cdf(0.25)),
        (7.0, 3.0, erlang_cdf(3, 7.0)),
        (7.0, 0.5, half_gamma_cdf(7.0)),
    ],
)
def test_gaps_have_the_distribution_they_should(rate, burstiness, cdf):
    gaps = gaps_of(rate, burstiness)
    assert ks_distance(gaps, cdf) * np.sqrt(len(gaps)) < KS_1_PERCENT


def test_the_test_tells_distributions_apart():
    gaps = gaps_of(7.0, 1.3)
    assert ks_distance(gaps, exponential_cdf(7.0)) * np.sqrt(len(gaps)) > 2 * KS_1_PERCENT
    assert ks_distance(gaps, erlang_cdf(2, 7.0)) * np.sqrt(len(gaps)) > 2 * KS_1_PERCENT


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("num", [2, 50, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_the_load_is_the_one_asked_for(burstiness, num, seed):
    """However few requests there are."""
    times = steady_arrival_times(20.0, num, burstiness=burstiness, seed=seed)
    assert times[-1] == pytest.approx((num - 1) / 20.0)
    assert offered_rate(times) == pytest.approx(20.0)


def test_the_rate_only_scales_the_times():
    slow, quick = (steady_arrival_times(rate, 40, burstiness=1.0, seed=2) for rate in (1.0, 8.0))
    np.testing.assert_allclose(slow, 8.0 * np.array(quick))


def test_all_at_once_is_no_rate():
    assert offered_rate([0.0, 0.0]) is None


def test_gaps_that_are_all_0():
    with pytest.raises(ValueError, match="burstiness is 1e-300, so that all requests would be due at once; raise it"):
        steady_arrival_times(5.0, 10, burstiness=1e-300, seed=0)


def test_gaps_are_independent():
    gaps = gaps_of(3.0, 1.0)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / np.sqrt(len(gaps))


def test_high_burstiness_comes_close_to_equal_gaps():
    assert gaps_of(10.0, 1e6).std() < 0.001 * 0.1


def test_an_infinite_rate_has_all_requests_due_at_once():
    assert steady_arrival_times(float("inf"), 3, burstiness=1.0, seed=0) == [0.0, 0.0, 0.0]


def test_the_first_request_is_due_at_once_and_times_ascend():
    times = steady_arrival_times(5.0, 100, burstiness=0.3, seed=1)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert len(times) == 100
    assert steady_arrival_times(5.0, 1, burstiness=1.0, seed=1) == [0.0]


def test_the_seed_decides():
    first = steady_arrival_times(5.0, 50, burstiness=1.0, seed=3)
    assert steady_arrival_times(5.0, 50, burstiness=1.0, seed=3) == first
    assert steady_arrival_times(5.0, 50, burstiness=1.0, seed=4) != first


def test_a_linear_ramp_rises_by_equal_amounts():
    np.testing.assert_allclose(rates(5, strategy="linear", start=1.0, end=9.0), [1, 3, 5, 7, 9])
    np.testing.assert_allclose(rates(3, strategy="linear", start=4.0, end=2.0), [4, 3, 2])


def test_an_exponential_ramp_rises_by_equal_factors():
    np.testing.assert_allclose(rates(5, strategy="exponential", start=1.0, end=16.0), [1, 2, 4, 8, 16])


def test_a_ramp_of_one_request():
    assert rates(1, strategy="linear", start=1.0, end=9.0).tolist() == [9.0]


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_gaps_follow_the_ramp(strategy):
    """Each gap by its own rate is a gap of rate 1."""
    per_request = rates(NUM, strategy=strategy, start=2.0, end=50.0)
    times = arrival_times(per_request, burstiness=1.0, seed=5)
    scaled = np.diff(times) * per_request[1:]
    assert ks_distance(scaled, exponential_cdf(1.0)) * np.sqrt(len(scaled)) < KS_1_PERCENT
    tenth = NUM // 10
    assert scaled[:tenth].mean() == pytest.approx(1.0, abs=0.25)
    assert scaled[-tenth:].mean() == pytest.approx(1.0, abs=0.25)
