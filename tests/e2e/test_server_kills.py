"""The server outlives its processes, and the death of one fails only what was on it."""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pelton.engine.core_processes import MAX_RESTARTS
from tests.support.http_client import check_error, check_stream, get, is_idle, post, wait_for
from tests.support.live_streams import (
    NOT_NOW,
    LiveStream,
    answers,
    body_of,
    core_ended,
    core_of,
    error_of,
    health,
    kill,
    owner_of,
)
from tests.support.moody_executors import BACKEND
from tests.support.served import Served, wait_until_gone

ENDING = "The request was cut off, for the server is shutting down; try again later."


def start(folder: Path, *flags: str, ready: str = "Listening at ") -> Served:
    environment = {"FAKE_EXECUTOR_FOLDER": str(folder), "FAKE_STEP_SECONDS": "0.02"}
    return Served("smollm2", *BACKEND, *flags, environment=environment, ready=ready, own_group=True)


def runtime_folder(served: Served) -> Path:
    command = next(command for command in served.tree().values() if "--runtime-dir" in command).split()
    folder = Path(command[command.index("--runtime-dir") + 1])
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder.name.startswith("pelton-")
    assert folder.is_dir()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("moods")


@pytest.fixture(scope="module")
def served(folder) -> Iterator[Served]:
    """Two engine cores and two API processes."""
    with start(folder, "--data-parallel-size", "2", "--api-server-count", "2") as served:
        yield served


def test_an_engine_core_of_two_is_killed(served):
    lost = [LiveStream(served, [5, index], 400, rank=1) for index in range(3)]
    kept = [LiveStream(served, [6, index], 150, rank=0) for index in range(3)]
    for stream in [*lost, *kept]:
        stream.read(3)
    with ThreadPoolExecutor(1) as thread:
        body = body_of([7, 7], 400)
        whole = thread.submit(post, served, "/v1/completions", body, X_data_parallel_rank="1")
        wait_for(lambda: served.metric("num_requests_running", engine="1") == 4, "the request")
        kill(core_of(served, 1))
        message = core_ended(1)
        answer = whole.result()
    assert (answer.status, answer.json()) == (500, error_of(500, message))
    assert health(served) == 200
    for stream in lost:
        stream.check_failed(500, message)
    check_stream(served, [9, 9], 5)
    for stream in kept:
        stream.check_finished()
    wait_for(lambda: answers(served, [8, 8], 1), "the restarted core")
    assert health(served) == 200
    wait_for(lambda: is_idle(served), "rest")
    assert served.metric("request_success_total", finished_reason="error", engine="1") == 4
    assert served.metric("request_success_total", finished_reason="error", engine="0") == 0


def test_the_coordinator_is_killed(served):
    def has_news() -> bool:
        """Whether requests of one API process are seen by the other, which takes a coordinator."""
        streams = [LiveStream(served, [20, index], 40) for index in range(4)]
        for stream in streams:
            stream.read(1)
        running = [served.metric("num_requests_running", engine=str(rank)) for rank in range(2)]
        for stream in streams:
            stream.check_finished()
        return running == [2, 2]

    streams = [LiveStream(served, [10, index], 100) for index in range(6)]
    for stream in streams:
        stream.read(2)
    (before,) = served.children("coordinator")
    kill(before)
    late = [LiveStream(served, [11, index], 20) for index in range(6)]
    for stream in [*streams, *late]:
        stream.check_finished()
    assert health(served) == 200
    wait_for(lambda: served.children("coordinator") not in ([], [before]), "another coordinator")
    wait_for(has_news, "an even load")


def streams_of_both(served: Served, num_tokens: int) -> tuple[dict[int, list[LiveStream]], list[int]]:
    """Streams by the API process that has them, at least two of each of both processes."""
    pids = served.children("api_process")
    assert len(pids) == 2
    found: dict[int, list[LiveStream]] = {pid: [] for pid in pids}
    for index in range(300):
        stream = LiveStream(served, [30, index % 200], num_tokens)
        stream.read(1)
        owner = owner_of(served, stream.connection)
        assert owner is not None
        if len(found[owner]) < 3:
            found[owner].append(stream)
        else:
            stream.reset()
        if all(len(streams) >= 2 for streams in found.values()):
            return found, pids
    raise AssertionError(f"one process got all of 300 connections: {found}")


def test_an_api_process_of_two_is_killed(served):
    found, (dead, alive) = streams_of_both(served, 300)
    kill(dead)
    for stream in found[dead]:
        stream.check_broken()
    check_stream(served, [31, 31], 5)
    for stream in found[alive]:
        stream.read(4)
    # The core drops what nobody waits for long before it would have been done.
    expected = len(found[alive])
    wait_for(lambda: served.metric("num_requests_running") == expected, "the end of requests that nobody waits for")
    for stream in found[alive]:
        stream.check_finished()
    wait_for(lambda: is_idle(served), "rest")
    assert health(served) == 200
    wait_for(lambda: len(served.children("api_process")) == 2, "another API process")
    again, pids = streams_of_both(served, 30)
    assert alive in pids
    for stream in [*again[pids[0]], *again[pids[1]]]:
        stream.check_finished()


def test_figures_return_to_zero_when_the_survivor_has_nothing_left(served):
    """The other API process heard of the core's requests while it had some of its own."""
    found, (dead, alive) = streams_of_both(served, 400)
    for stream in found[alive]:
        stream.reset()
    wait_for(lambda: served.metric("num_requests_running") == len(found[dead]), "the end of the aborted ones")
    kill(dead)
    wait_for(lambda: is_idle(served), "rest")
    for stream in found[dead]:
        stream.check_broken()
    wait_for(lambda: len(served.children("api_process")) == 2, "another API process")


def test_steps_fail_and_hang(folder):
    """A step that fails fails its own requests; one that hangs shows in /health."""
    with start(folder, "--stall-timeout", "2") as served:
        stream = LiveStream(served, [40, 1], 400)
        stream.read(2)
        (folder / "fail").touch()
        message = "The request failed: RuntimeError: the model broke"
        stream.check_failed(500, message)
        answer = post(served, "/v1/completions", body_of([40, 2], 4))
        assert (answer.status, answer.json()) == (500, error_of(500, message))
        assert health(served) == 200
        (folder / "fail").unlink()
        check_stream(served, [40, 3], 5)
        stream = LiveStream(served, [41, 1], 100)
        stream.read(2)
        (folder / "hang").touch()
        wait_for(lambda: health(served) == 503, "the stall")
        (folder / "hang").unlink()
        wait_for(lambda: health(served) == 200, "the next step")
        stream.check_finished()
        assert is_idle(served)


@pytest.mark.parametrize("num_api", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_only_core_is_killed_until_it_stays_dead(folder, num_api):
    with start(folder, "--api-server-count", str(num_api)) as served:
        for attempt in range(MAX_RESTARTS + 1):
            stream = LiveStream(served, [50, attempt], 400)
            stream.read(2)
            (folder / "load").touch()
            kill(core_of(served, 0))
            stream.check_failed(500, core_ended(0))
            assert health(served) == 503
            assert not answers(served, [51, 51], 0)
            (folder / "load").unlink()
            if attempt < MAX_RESTARTS:
                wait_for(lambda: health(served) == 200, "the restarted core")
                check_stream(served, [52, attempt], 5)
        wait_for(lambda: "for good" in served.log, "the end of patience")
        assert core_of(served, 0) is None
        assert health(served) == 503
        answer = post(served, "/v1/completions", body_of([53], 4, stream=True))
        assert check_error(answer, 503) == error_of(503, NOT_NOW)["error"]
        assert served.metric("request_success_total", finished_reason="error") == MAX_RESTARTS + 1
        assert get(served, "/v1/models").status == 200
    assert served.process.returncode == 0


@pytest.mark.slow
def test_an_api_process_starts_again_beside_a_core_that_stays_dead(folder):
    flags = ("--data-parallel-size", "2", "--api-server-count", "2")
    with start(folder, *flags) as served:
        for _ in range(MAX_RESTARTS):
            before = core_of(served, 1)
            kill(before)
            wait_for(lambda before=before: core_of(served, 1) not in (None, before), "another core")
            wait_for(lambda: answers(served, [54], 1), "the restarted core")
        kill(core_of(served, 1))
        wait_for(lambda: "for good" in served.log, "the end of patience")
        (first, second) = served.children("api_process")
        kill(first)
        wait_for(lambda: len(served.children("api_process")) == 2, "another API process")
        kill(second)
        check_stream(served, [55], 5)
        assert health(served) == 200


@pytest.mark.parametrize(
    "flags",
    [
        ("--data-parallel-size", "2", "--api-server-count", "2"),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("--api-server-count", "2"), marks=pytest.mark.slow),
    ],
)
def test_the_parent_is_killed(folder, flags):
    with start(folder, *flags) as served:
        temporary = runtime_folder(served)
        stream = LiveStream(served, [60], 400)
        stream.read(2)
        processes = served.tree()
        kill(served.pid)
        served.process.wait()
        assert wait_until_gone(processes) == []
        stream.check_broken()
        assert not temporary.exists()


def end(served: Served, number: int, group: bool) -> None:
    if group:
        os.killpg(served.pid, number)
    else:
        os.kill(served.pid, number)


WAYS_TO_END = [
    pytest.param(1, signal.SIGTERM, False),
    pytest.param(2, signal.SIGINT, True),
    pytest.param(1, signal.SIGINT, True, marks=pytest.mark.slow),
    pytest.param(2, signal.SIGTERM, False, marks=pytest.mark.slow),
]


def streaming(served: Served, number: int, num_tokens: int) -> list[LiveStream]:
    streams = [LiveStream(served, [70, index], num_tokens) for index in range(number)]
    for stream in streams:
        stream.read(2)
    return streams


def is_refused(served: Served) -> bool:
    try:
        stream = LiveStream(served, [71], 1)
    except ConnectionRefusedError:
        return True
    stream.reset()
    return False


@pytest.mark.parametrize(("num_api", "number", "group"), WAYS_TO_END)
def test_requests_finish_before_the_end(folder, num_api, number, group):
    with start(folder, "--api-server-count", str(num_api)) as served:
        temporary = runtime_folder(served)
        streams = streaming(served, 4, 30)
        (folder / "hang").touch()
        end(served, number, group)
        wait_for(lambda: is_refused(served), "the end of new connections")
        assert served.process.poll() is None
        (folder / "hang").unlink()
        for stream in streams:
            stream.check_finished()
        assert served.process.wait(60) == 0
        assert not temporary.exists()


@pytest.mark.parametrize(("num_api", "number", "group"), WAYS_TO_END)
def test_requests_are_cut_at_the_end(folder, num_api, number, group):
    with start(folder, "--api-server-count", str(num_api), "--shutdown-timeout", "0") as served:
        streams = streaming(served, 4, 4000)
        with ThreadPoolExecutor(1) as thread:
            whole = thread.submit(post, served, "/v1/completions", body_of([72], 4000))
            wait_for(lambda: served.metric("num_requests_running") == 5, "the request")
            end(served, number, group)
            answer = whole.result()
        assert (answer.status, answer.json()) == (503, error_of(503, ENDING))
        for stream in streams:
            stream.check_failed(503, ENDING)
        assert served.process.wait(60) == 0


@pytest.mark.parametrize(("num_api", "number", "group"), WAYS_TO_END)
def test_the_second_signal_ends_at_once(folder, num_api, number, group):
    with start(folder, "--api-server-count", str(num_api), "--shutdown-timeout", "1000") as served:
        temporary = runtime_folder(served)
        streams = streaming(served, 4, 4000)
        (folder / "hang").touch()
        end(served, number, group)
        wait_for(lambda: is_refused(served), "the end of new connections")
        end(served, number, group)
        try:
            # Much less than it would wait for the step that hangs.
            assert served.process.wait(60) == 128 + number
        finally:
            (folder / "hang").unlink()
        for stream in streams:
            stream.close()
        assert not temporary.exists()


@pytest.mark.parametrize(("num_api", "number", "group"), WAYS_TO_END)
def test_a_signal_while_the_model_is_loaded(folder, num_api, number, group, tmp_path):
    (folder / "load").touch()
    (folder / "loads").unlink(missing_ok=True)
    socket_path = tmp_path / "socket"
    try:
        with start(folder, "--api-server-count", str(num_api), "--uds", str(socket_path), ready="") as served:
            wait_for((folder / "loads").exists, "the core")
            temporary = runtime_folder(served)
            processes = served.tree()
            end(served, number, group)
            assert served.process.wait(60) == 0
            assert wait_until_gone(processes) == []
            assert not temporary.exists()
            assert not socket_path.exists()
            assert "Traceback" not in served.log
    finally:
        (folder / "load").unlink()


def test_a_signal_at_any_moment_leaves_nothing_behind(folder):
    """From the first import to the first answer."""
    ended = threading.Event()
    for index in range(6):
        with start(folder, "--api-server-count", str(1 + index % 2), ready="") as served:
            ended.wait(0.3 * index)
            processes = served.tree()
            folders = {word for command in processes.values() for word in command.split() if "/pelton-" in word}
            os.kill(served.pid, signal.SIGTERM)
            assert served.process.wait(60) in (0, -signal.SIGTERM)
            assert wait_until_gone(processes) == []
            assert not any(Path(name).exists() for name in folders)


@pytest.mark.parametrize("num_api", [1, 2])
@pytest.mark.parametrize(
    ("model", "flags", "words"),
    [
        ("/no/such/model.gguf", (), "/no/such/model.gguf"),
        ("smollm2", ("--kv-cache-memory-bytes", "1000"), "raise kv_cache_memory_bytes"),
        pytest.param("smollm2", ("--distributed-executor-backend", "os:nothing"), "nothing", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(num_api, model, flags, words):
    flags = (*flags, "--api-server-count", str(num_api), "--data-parallel-size", "2")
    with Served(model, *flags, ready="") as served:
        processes = served.tree()
        folders = {word for command in processes.values() for word in command.split() if "/pelton-" in word}
        assert served.process.wait(60) == 2
        assert wait_until_gone(processes) == []
        assert not any(Path(name).exists() for name in folders)
        (line,) = served.log.splitlines()
        assert line.startswith("pelton: ")
        assert words in line
