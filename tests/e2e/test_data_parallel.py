"""Several engine cores behind one server: each request on one of them, the load even, their resources divided."""

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pelton.runner.cpu_count import divide_cpus
from pelton.runner.memory import available_memory
from tests.support.http_client import (
    STEP_CLOCK,
    check_error,
    check_stream,
    connect,
    is_idle,
    post,
    read_answer,
    request_bytes,
    vocabulary,
    wait_for,
)
from tests.support.live_streams import LiveStream, answers, body_of, core_ended, core_of, health, kill, owner_of
from tests.support.served import Served, wait_until_gone
from tests.support.tiny_llama import tiny_llama

TWO = ("--data-parallel-size", "2")
SLOW_STEPS = {"FAKE_STEP_SECONDS": "0.02"}


def successes(served: Served) -> list[float]:
    """By rank."""
    reasons = ("length", "stop")
    return [
        sum(served.metric("request_success_total", engine=str(rank), finished_reason=reason) for reason in reasons)
        for rank in range(2)
    ]


def complete(served: Served, prompt: list[int], num_tokens: int, rank: int) -> dict:
    """What this engine core answers, which must be right."""
    answer = post(served, "/v1/completions", body_of(prompt, num_tokens), X_data_parallel_rank=str(rank))
    assert answer.status == 200, answer
    content = answer.json()
    assert content["choices"][0]["token_ids"] == vocabulary().expected_tokens(prompt, num_tokens)
    return content


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Two engine cores with slow steps, and two API processes."""
    flags = (*TWO, "--api-server-count", "2", "--enable-admin-endpoints")
    with Served("smollm2", *STEP_CLOCK, *flags, environment=SLOW_STEPS) as served:
        yield served


def test_both_api_processes_answer_and_tell_the_same_figures(served):
    pids = served.children("api_process")
    num_sent = 0
    pages: dict[int, str] = {}
    with ExitStack() as stack:
        for index in range(300):
            connection = stack.enter_context(connect(served))
            connection.sendall(request_bytes("/v1/completions", body_of([5, index % 200], 2)))
            assert read_answer(connection).status == 200
            num_sent += 1
            pages[owner_of(served, connection)] = connection
            if set(pages) == set(pids):
                break
        assert set(pages) == set(pids)
        for connection in pages.values():
            connection.sendall(request_bytes("/metrics", method="GET"))
            page = read_answer(connection, "GET").body.decode()
            sums = {
                name: sum(float(value) for value in re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
                for name in ("generation_tokens_total", "prompt_tokens_total", "e2e_request_latency_seconds_count")
            }
            assert list(sums.values()) == [2 * num_sent, 2 * num_sent, num_sent]
    assert sum(successes(served)) == num_sent


def test_a_request_goes_where_least_is_to_do(served):
    """Whichever API process has it, and has the others."""
    pinned = [LiveStream(served, [10, index], 150, rank=0) for index in range(30)]
    for stream in pinned:
        stream.read(20)  # which takes longer than news of the load
    free = []
    for index in range(6):
        free.append(LiveStream(served, [11, index], 100))
        free[-1].read(1)
    assert [served.metric("num_requests_running", engine=str(rank)) for rank in range(2)] == [30, 6]
    for stream in [*pinned, *free]:
        stream.check_finished()
    wait_for(lambda: is_idle(served), "rest")


def test_requests_can_be_pinned(served):
    before = successes(served)
    for rank, number in ((0, 2), (1, 5)):
        for index in range(number):
            complete(served, [20, index], 2, rank)
    assert successes(served) == [before[0] + 2, before[1] + 5]


@pytest.mark.parametrize("rank", ["2", "-1", "1.0", "x", "", "9" * 9, "1" * 5000, "0x1", "٣"])
def test_ranks_that_there_are_not(served, rank):
    body = body_of([5], 2)
    answer = post(served, "/v1/completions", body, X_data_parallel_rank=rank.encode().decode("latin-1"))
    error = check_error(answer, 400)
    assert "rank" in error["message"]
    assert health(served) == 200


def test_the_prefix_cache_of_every_core_is_reset(served):
    prompt = list(range(1000, 1064))

    def cached() -> list[int]:
        answers = [complete(served, prompt, 1, rank) for rank in range(2)]
        return [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]

    assert cached() == [0, 0]
    assert cached() == [48, 48]
    assert post(served, "/reset_prefix_cache", None).status == 200
    assert cached() == [0, 0]
    assert cached() == [48, 48]


def status_of(pid: int, name: str) -> str:
    return re.search(rf"^{name}:\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]


def cpus_of(pid: int) -> list[int]:
    cpus: list[int] = []
    for part in status_of(pid, "Cpus_allowed_list").split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def test_cores_share_the_load_and_the_processors():
    """With a model that computes, and one API process, which knows all requests."""
    parts = divide_cpus(2)
    with Served(tiny_llama(), *TWO) as served:
        pids = [core_of(served, rank) for rank in range(2)]
        assert [cpus_of(pid) for pid in pids] == parts
        kernels = re.search(r"^Kernels: 2 engine cores, each: .*?(\d+) threads?", served.log, re.MULTILINE)
        assert kernels is not None, served.log
        assert int(kernels[1]) <= min(map(len, parts))
        texts = [served.complete("Once upon a time", max_tokens=20, seed=1)["choices"][0]["text"] for _ in range(21)]
        assert len(set(texts)) == 1
        before = successes(served)
        assert sum(before) == 21
        assert min(before) > 0
        # Together, and no news of the load is older than what has been sent.
        body = body_of([], 100) | {"prompt": [[5, index] for index in range(20)]}
        assert post(served, "/v1/completions", body).status == 200
        first, second = (now - then for now, then in zip(successes(served), before, strict=True))
        assert first + second == 20
        assert abs(first - second) <= 1


def test_cores_share_the_memory():
    """Three quarters of it are too much for each of two."""
    asked = str(int(available_memory() * 0.75))
    with Served(tiny_llama(), *TWO, "--kv-cache-memory-bytes", asked, ready="") as served:
        assert served.process.wait(60) == 2
        assert f"kv_cache_memory_bytes is {asked}" in served.log
        assert served.log.count("\n") == 1


def free_port(address: str = "127.0.0.1") -> str:
    with socket.create_server((address, 0)) as probe:
        return str(probe.getsockname()[1])


def head(port: str, *flags: str, address: str = "127.0.0.1") -> Served:
    """With rank 0."""
    parallel = (*TWO, "--data-parallel-size-local", "1", "--data-parallel-rpc-port", port)
    return Served("smollm2", *STEP_CLOCK, *parallel, "--data-parallel-address", address, *flags, environment=SLOW_STEPS)


def node(
    port: str, *flags: str, model: str = "smollm2", ready: str = "joined", address: str = "127.0.0.1", within=()
) -> Served:
    """With rank 1, unless the flags say otherwise."""
    places = ("--data-parallel-rpc-port", port, "--data-parallel-address", address)
    parallel = ("--headless", *places, *(flags or (*TWO, "--data-parallel-start-rank", "1")))
    return Served(model, *STEP_CLOCK, *parallel, ready=ready, environment=SLOW_STEPS, own_group=True, within=within)


def check_refused(port: str, words: str, *flags: str, model: str = "smollm2") -> None:
    with node(port, *flags, model=model, ready="") as refused:
        assert refused.process.wait(60) == 2, refused.log
        (line,) = [line for line in refused.log.splitlines() if line.startswith("pelton: ")]
        assert words in line
        assert "Traceback" not in refused.log


def test_another_node():
    port = free_port()
    with node(port, ready="waiting for the first node") as other, head(port, "--shutdown-timeout", "0") as served:
        assert "joined" in other.log
        for rank in range(2):
            complete(served, [30, rank], 3, rank)
        assert successes(served) == [1, 1]
        check_refused(port, "data_parallel_size is 2 on the first node and 3 here", "-dp", "3", "-dpr", "2")
        check_refused(port, "rank 0 of this node overlap", *TWO, "-dpl", "1")
        check_refused(port, "rank 1 of this node overlap with rank 1 of another one", *TWO, "-dpr", "1")
        check_refused(port, "model is 'smollm2' on the first node", *TWO, "-dpr", "1", model=tiny_llama())
        kept, lost = (LiveStream(served, [31, rank], 200, rank=rank) for rank in range(2))
        for stream in (kept, lost):
            stream.read(3)
        processes = other.tree()
        assert core_of(other, 1) is not None
        kill(other.pid)
        other.process.wait()
        assert wait_until_gone(processes) == []
        lost.check_failed(500, core_ended(1, "its node is gone"))
        assert not answers(served, [32], 1)
        assert health(served) == 200
        check_stream(served, [33], 5)
        kept.check_finished()
        with node(port) as again:
            wait_for(lambda: answers(served, [34], 1), "the node's core")
            cut = [LiveStream(served, [35, rank], 4000, rank=rank) for rank in range(2)]
            for stream in cut:
                stream.read(2)
            served.process.send_signal(signal.SIGTERM)
            for stream in cut:
                stream.check_failed(503, "The request was cut off, for the server is shutting down; try again later.")
            assert again.process.wait(60) == 0
            assert served.process.wait(60) == 0
            assert "the first node has ended" in again.log


def test_a_node_ends_alone():
    """By a signal, with its requests, and its core is started again when it dies."""
    port = free_port()
    with node(port, ready="waiting for the first node") as other, head(port) as served:
        lost = LiveStream(served, [36], 4000, rank=1)
        lost.read(2)
        before = core_of(other, 1)
        kill(before)
        lost.check_failed(500, core_ended(1, "signal SIGKILL"))
        wait_for(lambda: answers(served, [37], 1), "the restarted core")
        assert core_of(other, 1) not in (None, before)
        lost = LiveStream(served, [38], 4000, rank=1)
        lost.read(2)
        other.process.send_signal(signal.SIGTERM)
        lost.check_failed(
            500,
            core_ended(1, "its node was stopped"),
        )
        assert other.process.wait(60) == 0
        assert health(served) == 200
        check_stream(served, [39], 5)
    with node(port, ready="waiting for the first node") as other:
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(60) == 0


@pytest.mark.slow
def test_the_first_node_is_killed():
    port = free_port()
    with node(port, ready="waiting for the first node") as other, head(port) as served:
        processes = served.tree()
        kill(served.pid)
        served.process.wait()
        assert wait_until_gone(processes) == []
        assert other.process.wait(60) == 2
        assert "has been silent for 15 seconds" in other.log


@pytest.fixture
def network() -> Iterator[tuple[str, str]]:
    """Name of a network namespace, and the address by which it reaches this one."""
    ip = shutil.which("ip")
    name = "pelton-test"
    commands = [
        f"netns add {name}",
        "link add pelton-a type veth peer name pelton-b",
        f"link set pelton-b netns {name}",
        "addr add 10.213.7.1/24 dev pelton-a",
        "link set pelton-a up",
        f"-n {name} addr add 10.213.7.2/24 dev pelton-b",
        f"-n {name} link set pelton-b up",
        f"-n {name} link set lo up",
    ]
    try:
        for command in commands:
            done = subprocess.run([ip or "ip", *command.split()], capture_output=True, check=False) if ip else None
            if done is None or done.returncode:
                pytest.skip("network namespaces cannot be made here")
        yield name, "10.213.7.1"
    finally:
        if ip:
            subprocess.run([ip, "netns", "delete", name], capture_output=True, check=False)
            subprocess.run([ip, "link", "delete", "pelton-a"], capture_output=True, check=False)


@pytest.mark.slow
def test_a_node_with_a_network_of_its_own(network):
    name, address = network
    port = free_port(address)
    within = ("ip", "netns", "exec", name)
    with (
        node(port, ready="waiting for the first node", address=address, within=within) as other,
        head(port, address=address) as served,
    ):
        for rank in range(2):
            complete(served, [30, rank], 3, rank)
        lost = LiveStream(served, [31], 4000, rank=1)
        lost.read(2)
        subprocess.run(["ip", "link", "set", "pelton-a", "down"], check=True)
        lost.check_failed(
            500,
            core_ended(1, "its node is silent"),
        )
        check_stream(served, [33], 5)
        assert other.process.wait(60) == 2
        subprocess.run(["ip", "link", "set", "pelton-a", "up"], check=True)
        with node(port, address=address, within=within):
            wait_for(lambda: answers(served, [34], 1), "the node's core")
