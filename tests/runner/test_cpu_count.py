"""Cores that are left, from trees of files as Linux shows them."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.runner.cpu_count import available_cores, divide_cpus

CPUS = range(8)


def write(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")


def siblings(*cores):
    """Topology files of cores that have these hardware threads."""
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": ",".join(map(str, core))
        for core in cores
        for cpu in core
    }


@pytest.fixture
def machine(tmp_path):
    """Eight cores and no control groups; more files come by calling it."""

    def add(files=None, cpus=CPUS):
        write(tmp_path, files or {})
        return available_cores(tmp_path, cpus)

    return add


def v2(path, quota, period=100_000):
    return {f"sys/fs/cgroup/{path}/cpu.max": f"{quota} {period}"}


def v1(path, quota, period=100_000):
    group = f"sys/fs/cgroup/cpu/{path}"
    return {f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": period}


V2 = {"proc/self/cgroup": "0::/pod/app"}
V1 = {"proc/self/cgroup": "12:cpu,cpuacct:/pod/app\n5:memory:/elsewhere\n4:cpuset:/elsewhere\n0::/"}


def test_without_topology_every_cpu_is_a_core(machine):
    assert machine() == 8


def test_hardware_threads_of_a_core_count_once(machine):
    topology = siblings((0, 4), (1, 5), (2, 6), (3, 7))
    assert machine(topology) == 4
    assert machine(cpus={0, 4}) == 1
    assert machine(cpus={0, 1, 5}) == 2


def test_cores_of_two_kinds(machine):
    """Some with two hardware threads, some with one, and ranges instead of lists."""
    ranges = {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": "0-1" for cpu in (0, 1)}
    assert machine(ranges | siblings((2,), (3,), (4,)), cpus=range(5)) == 4


def test_no_cpu_at_all(machine):
    assert machine(cpus=()) == 1


@pytest.mark.parametrize("membership", [V2, V1], ids=["v2", "v1"])
def test_groups_without_files(machine, membership):
    assert machine(membership) == 8


@pytest.mark.parametrize(("membership", "group"), [(V2, v2), (V1, v1)], ids=["v2", "v1"])
class TestBothVersions:
    @pytest.mark.parametrize(
        ("quota", "expected"), [(300_000, 3), (399_999, 3), (150_000, 1), (50_000, 1), (9_900_000, 8)]
    )
    def test_quota(self, machine, membership, group, quota, expected):
        assert machine(membership | group("pod/app", quota)) == expected

    def test_other_periods(self, machine, membership, group):
        assert machine(membership | group("pod/app", 20_000, 10_000)) == 2

    @pytest.mark.parametrize("tight", ["pod/app", "pod", "."])
    def test_the_tightest_group_counts(self, machine, membership, group, tight):
        files = {}
        for path in ("pod/app", "pod", "."):
            files |= group(path, 200_000 if path == tight else 600_000)
        assert machine(membership | files) == 2

    def test_other_groups_do_not_count(self, machine, membership, group):
        files = group("pod/app", 500_000) | group("pod/other", 100_000) | group("pod/app/child", 100_000)
        assert machine(membership | files) == 5

    @pytest.mark.parametrize("nonsense", ["", "many", "1 2 3"])
    def test_nonsense_in_a_file(self, machine, membership, group, nonsense):
        assert machine(membership | group("pod/app", nonsense) | group("pod", 400_000)) == 4

    def test_no_period(self, machine, membership, group):
        assert machine(membership | group("pod/app", 100_000, 0)) == 8


def test_no_limit_in_v2(machine):
    assert machine(V2 | v2("pod/app", "max") | v2("pod", 300_000)) == 3


def test_no_limit_in_v1(machine):
    assert machine(V1 | v1("pod/app", -1)) == 8


def test_a_group_of_another_controller(machine):
    assert machine({"proc/self/cgroup": "3:cpuset:/pod"} | v1("pod", 100_000)) == 8


def test_without_affinity(tmp_path, monkeypatch):
    """As on systems other than Linux."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores(tmp_path) == 1


def test_only_cpus_that_the_process_may_run_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6})
    write(tmp_path, siblings((1, 5), (2, 6)))
    assert available_cores(tmp_path) == 2


def test_this_machine():
    assert 1 <= available_cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("num_parts", "parts"),
    [
        (1, [[0, 4, 1, 5, 2, 6, 3, 7]]),
        (2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
        (3, [[0, 4], [1, 5], [2, 6, 3, 7]]),
        (4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (6, [[0, 4], [1, 5], [2, 6], [3, 7], [0, 4], [1, 5]]),
    ],
)
def test_processes_get_whole_cores(tmp_path, num_parts, parts):
    write(tmp_path, siblings((0, 4), (1, 5), (2, 6), (3, 7)))
    assert divide_cpus(num_parts, tmp_path, CPUS) == parts


def test_only_usable_cpus_are_divided(tmp_path):
    write(tmp_path, siblings((0, 4), (1, 5), (2, 6), (3, 7)))
    assert divide_cpus(2, tmp_path, {1, 4, 5}) == [[1, 5], [4]]
    assert divide_cpus(2, tmp_path, {3}) == [[3], [3]]


@given(num_cores=st.integers(1, 40), num_parts=st.integers(1, 40))
def test_parts_are_even_and_disjoint(num_cores, num_parts):
    parts = divide_cpus(num_parts, Path("/no/such/folder"), range(num_cores))
    assert len(parts) == num_parts
    assert {cpu for part in parts for cpu in part} == set(range(num_cores)) or num_parts > num_cores
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    if num_parts <= num_cores:
        assert sum(sizes) == num_cores


def test_the_cpus_of_this_process_by_default():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the system does not say which CPUs a process may use")
    (part,) = divide_cpus(1)
    assert set(part) == os.sched_getaffinity(0)
