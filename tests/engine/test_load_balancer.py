"""Requests spread over the ranks by load, and what is not known yet is not forgotten."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.engine.load_balancer import LoadBalancer


def send(balancer, eligible):
    rank = balancer.choose(eligible)
    balancer.sent(rank)
    return rank


def test_equal_ranks_take_turns():
    balancer = LoadBalancer(3)
    assert [send(balancer, range(3)) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_turns_go_on_while_nothing_stays_in_flight():
    balancer = LoadBalancer(3)
    order = []
    for _ in range(6):
        rank = send(balancer, range(3))
        balancer.finished(rank)
        order.append(rank)
    assert order == [0, 1, 2, 0, 1, 2]


def test_waiting_weighs_four_times():
    balancer = LoadBalancer(2)
    balancer.published([(1, 0), (0, 3)])
    assert balancer.choose([0, 1]) == 1
    balancer.published([(1, 0), (0, 5)])
    assert balancer.choose([0, 1]) == 0


def test_a_heavy_core_is_avoided_until_the_others_are_as_heavy():
    balancer = LoadBalancer(3)
    balancer.published([(2, 8), (0, 0), (0, 0)])  # 16 of load on rank 0: four requests each on the others
    ranks = [send(balancer, range(3)) for _ in range(9)]
    assert Counter(ranks[:8]) == {1: 4, 2: 4}
    assert ranks[8] == 0


def test_ties_go_to_the_rank_with_fewest_of_its_own():
    balancer = LoadBalancer(2)
    assert send(balancer, [1]) == 1
    balancer.published([(0, 1), (0, 1)])
    assert [balancer.choose([0, 1]) for _ in range(3)] == [0, 0, 0]


def test_ranks_that_are_down_get_nothing():
    balancer = LoadBalancer(3)
    assert {send(balancer, [0, 2]) for _ in range(8)} == {0, 2}
    with pytest.raises(ValueError, match="no rank is eligible"):
        balancer.choose([])


def test_a_publication_that_overtook_requests_does_not_swamp_a_core():
    balancer = LoadBalancer(2)
    balancer.published([(0, 0), (0, 8)])
    ranks = []
    for _ in range(100):
        ranks.append(send(balancer, [0, 1]))
        balancer.published([(0, 0), (0, 8)])  # always as before: none of the new ones has arrived
    assert abs(ranks.count(0) - ranks.count(1)) <= 8


def test_what_finishes_before_it_is_published_counts_no_more():
    balancer = LoadBalancer(2)
    balancer.published([(0, 0), (0, 1)])
    for _ in range(5):
        assert send(balancer, [0, 1]) == 0
        balancer.finished(0)


def test_without_a_coordinator_own_requests_count():
    balancer = LoadBalancer(2)
    for _ in range(3):
        balancer.sent(1)
    balancer.published([(9, 9), (0, 3)])
    assert balancer.choose([0, 1]) == 1
    balancer.coordinator_lost()
    assert [send(balancer, [0, 1]) for _ in range(3)] == [0, 0, 0]
    balancer.published([(9, 9), (0, 3)])
    assert balancer.choose([0, 1]) == 1


def test_misuse():
    balancer = LoadBalancer(2)
    with pytest.raises(ValueError, match="the loads of 3 ranks were published, not of 2"):
        balancer.published([(0, 0)] * 3)
    with pytest.raises(ValueError, match="rank 1 has no request in flight"):
        balancer.finished(1)


@given(
    num_ranks=st.integers(1, 5),
    num_front_ends=st.integers(1, 3),
    is_known=st.booleans(),
    moves=st.lists(st.sampled_from(["send", "publish"]), max_size=60),
)
def test_equal_work_spreads_evenly(num_ranks, num_front_ends, is_known, moves):
    """Each front end spreads its own to within one, and one alone does so however old the publications are."""
    balancers = [LoadBalancer(num_ranks) for _ in range(num_front_ends)]
    waiting = [0] * num_ranks
    sent = [Counter(dict.fromkeys(range(num_ranks), 0)) for _ in balancers]
    for number, move in enumerate(moves):
        if move == "send":
            rank = send(balancers[number % num_front_ends], range(num_ranks))
            waiting[rank] += 1
            sent[number % num_front_ends][rank] += 1
        elif is_known:
            for balancer in balancers:
                balancer.published([(count, 0) for count in waiting])
    if num_front_ends == 1 or not is_known:
        for counts in sent:
            assert max(counts.values()) - min(counts.values()) <= 1


@given(seed=st.integers(0, 2**32), delay=st.integers(0, 20), num_ranks=st.integers(2, 6))
def test_old_publications(seed, delay, num_ranks):
    """Requests begin and end at random, publications are `delay` moves old: how far one gets ahead is bounded."""
    chance = random.Random(seed)
    balancer = LoadBalancer(num_ranks)
    running = [0] * num_ranks
    history = [[(0, 0)] * num_ranks] * (delay + 1)
    for _ in range(200):
        busy = [rank for rank in range(num_ranks) for _ in range(running[rank])]
        if busy and chance.random() < 0.3:
            rank = chance.choice(busy)
            running[rank] -= 1
            balancer.finished(rank)
        else:
            others = list(running)
            rank = send(balancer, range(num_ranks))
            running[rank] += 1
            # `delay` requests may be missing in the publication, which weigh as waiting; and as many have ended since.
            assert others[rank] - min(others) <= 4 * max(delay, 1) + delay
        history.append([(0, count) for count in running])
        balancer.published(history[-1 - delay])


@given(
    loads=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    data=st.data(),
)
def test_the_choice_is_a_rank_of_least_load(loads, data):
    balancer = LoadBalancer(len(loads))
    balancer.published(loads)
    eligible = data.draw(st.sets(st.integers(0, len(loads) - 1), min_size=1))
    chosen = balancer.choose(eligible)
    assert chosen in eligible
    weight = [4 * waiting + running for waiting, running in loads]
    assert weight[chosen] == min(weight[rank] for rank in eligible)
