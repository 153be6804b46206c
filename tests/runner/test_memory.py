"""Memory that is left, from trees of files as Linux shows them."""

import os

import pytest

from pelton.runner.memory import available_memory

MEGABYTE = 1024**2
MACHINE = 8000 * MEGABYTE


def write(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")


@pytest.fixture
def machine(tmp_path):
    """8,000 MB available and no control groups; more files come by calling it."""
    meminfo = f"MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:   {MACHINE // 1024} kB\nSwapTotal: 5 kB"
    write(tmp_path, {"proc/meminfo": meminfo})

    def add(files):
        write(tmp_path, files)
        return available_memory(tmp_path)

    return add


def v2(path, limit, used=0, inactive=0):
    group = f"sys/fs/cgroup/{path}".rstrip("/")
    stat = f"anon 5\nfile 7\ninactive_file {inactive}\nactive_file 3"
    return {f"{group}/memory.max": limit, f"{group}/memory.current": used, f"{group}/memory.stat": stat}


def v1(path, limit, used=0, inactive=0):
    group = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    stat = f"cache 5\ninactive_file 999999999\ntotal_inactive_file {inactive}"
    return {
        f"{group}/memory.limit_in_bytes": limit,
        f"{group}/memory.usage_in_bytes": used,
        f"{group}/memory.stat": stat,
    }


V2 = {"proc/self/cgroup": "0::/pod/app"}
V1 = {"proc/self/cgroup": "12:cpu,cpuacct:/elsewhere\n5:memory:/pod/app\n0::/"}


def test_no_control_groups(machine):
    assert machine({}) == MACHINE


@pytest.mark.parametrize("membership", [V2, V1], ids=["v2", "v1"])
def test_groups_without_files(machine, membership):
    assert machine(membership) == MACHINE


@pytest.mark.parametrize(("membership", "group"), [(V2, v2), (V1, v1)], ids=["v2", "v1"])
class TestBothVersions:
    def test_limit_less_usage(self, machine, membership, group):
        assert machine(membership | group("pod/app", 1000 * MEGABYTE, 300 * MEGABYTE)) == 700 * MEGABYTE

    def test_page_cache_can_go(self, machine, membership, group):
        files = group("pod/app", 1000 * MEGABYTE, 900 * MEGABYTE, inactive=500 * MEGABYTE)
        assert machine(membership | files) == 600 * MEGABYTE

    @pytest.mark.parametrize("tight", ["pod/app", "pod", ""])
    def test_the_tightest_group_counts(self, machine, membership, group, tight):
        files = {}
        for path in ("pod/app", "pod", ""):
            files |= group(path, (500 if path == tight else 4000) * MEGABYTE, 100 * MEGABYTE)
        assert machine(membership | files) == 400 * MEGABYTE

    def test_a_limit_above_what_the_machine_has(self, machine, membership, group):
        assert machine(membership | group("pod/app", 99_000 * MEGABYTE)) == MACHINE

    def test_a_group_over_its_limit(self, machine, membership, group):
        assert machine(membership | group("pod/app", 100 * MEGABYTE, 200 * MEGABYTE)) == 0

    def test_other_groups_do_not_count(self, machine, membership, group):
        files = group("pod/app", 1000 * MEGABYTE) | group("pod/other", 1) | group("pod/app/child", 1)
        assert machine(membership | files) == 1000 * MEGABYTE

    def test_nonsense_in_a_file(self, machine, membership, group):
        files = group("pod/app", "unlimited?") | group("pod", 700 * MEGABYTE)
        assert machine(membership | files) == 700 * MEGABYTE


def test_no_limit_in_v2(machine):
    assert machine(V2 | v2("pod/app", "max", 5) | v2("pod", 300 * MEGABYTE)) == 300 * MEGABYTE


def test_no_limit_in_v1(machine):
    """A huge number stands for none."""
    assert machine(V1 | v1("pod/app", 9223372036854771712, 5)) == MACHINE


def test_inside_a_container(machine):
    """The group's own path is not visible; its files lie at the mount's root."""
    files = {"proc/self/cgroup": "0::/"} | v2("", 600 * MEGABYTE, 200 * MEGABYTE)
    assert machine(files) == 400 * MEGABYTE


def test_v1_inside_a_container(machine):
    files = {"proc/self/cgroup": "3:hugetlb,memory:/docker/0123"} | v1("", 600 * MEGABYTE, 200 * MEGABYTE)
    assert machine(files) == 400 * MEGABYTE


def test_without_proc(tmp_path):
    assert available_memory(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def test_this_machine():
    assert 0 < available_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
