"""`LLM` with its engine core in a process of its own: the same answers, and no process too many, whatever happens."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from pelton import LLM, SamplingParams
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import BeamSearchParams
from tests.e2e.test_ctrl_c import PARAMS, PROMPTS, interrupted_generate
from tests.support.engines import bits_of, num_finished
from tests.support.logits_processors import Force
from tests.support.served import REPOSITORY, wait_until_gone
from tests.support.tiny_llama import tiny_llama

OPTIONS = {
    "max_num_seqs": 4,
    "block_size": 4,
    "max_model_len": 200,
    "max_num_batched_tokens": 16,
    "num_gpu_blocks_override": 220,
}
SKY = [{"role": "user", "content": "Why is the sky blue?"}]
SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=180, ignore_eos=True)
SECONDS = 120.0
"""How long a process of a test may take."""


@pytest.fixture(scope="module")
def inside() -> Iterator[LLM]:
    """The same in this process."""
    llm = LLM(tiny_llama(), **OPTIONS)
    yield llm
    llm.shutdown()


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(tiny_llama(), core_in_process=True, **OPTIONS)
    yield llm
    shut_down(llm)


def core_pid(llm: LLM) -> int:
    return llm.llm_engine._client._supervisor._processes.running[0].pid


def runtime_folder(llm: LLM) -> Path:
    return Path(llm.llm_engine._client._supervisor.endpoints.runtime_dir)


def children() -> dict[int, str]:
    """Engine cores that this process has started."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                command = stat.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
                if "pelton.engine.core_proc" in command:
                    found[int(stat.parent.name)] = command
    return found


def shut_down(llm: LLM) -> None:
    """Afterwards nothing is left."""
    pid, folder = core_pid(llm), runtime_folder(llm)
    command = children()[pid]
    assert folder.exists()
    llm.shutdown()
    assert wait_until_gone({pid: command}, 0) == [], "shutdown waits for the process"
    assert not folder.exists()


def same(outputs, expected) -> bool:
    return [bits_of(output) for output in outputs] == [bits_of(output) for output in expected]


def test_it_is_another_process(llm, inside):
    assert children().keys() == {core_pid(llm)}
    assert llm.llm_engine.max_model_len == inside.llm_engine.max_model_len
    assert llm.get_default_sampling_params() == inside.get_default_sampling_params()


def test_generate(llm, inside):
    expected = inside.generate(PROMPTS, PARAMS, use_tqdm=False)
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert same(outputs, expected)
    assert [output.prompt for output in outputs] == [output.prompt for output in expected]
    assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), expected), "on a hot cache"
    assert llm.generate([], use_tqdm=False) == []


def test_chat(llm, inside):
    assert same(llm.chat(SKY, SHORT, use_tqdm=False), inside.chat(SKY, SHORT, use_tqdm=False))


def test_beam_search(llm, inside):
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    found = llm.beam_search(["Hello", [5, 6, 7]], params)
    assert found == inside.beam_search(["Hello", [5, 6, 7]], params)
    assert found[0].sequences[0].cum_logprob < 0


def test_stop_strings(llm, inside):
    """The front end finds them, and the core must hear of it."""
    (whole,) = inside.generate(["Hello"], LONG, use_tqdm=False)
    params = SamplingParams(temperature=0, max_tokens=180, ignore_eos=True, stop=[whole.outputs[0].text[20:26]])
    (output,) = llm.generate(["Hello"], params, use_tqdm=False)
    assert same([output], inside.generate(["Hello"], params, use_tqdm=False))
    assert output.outputs[0].finish_reason == "stop"
    assert len(output.outputs[0].token_ids) < 60
    llm.generate(["Hello"], SHORT, use_tqdm=False)
    assert llm.llm_engine.stats.num_running == 0, "the core goes on with what nobody wants"


def test_a_request_that_is_refused_takes_the_others_with_it(llm, inside):
    messages = []
    for one in (llm, inside):
        with pytest.raises(ValueError, match=r"^prompt 1: ") as caught:
            one.generate(["Hello", [1] * 300], SHORT, use_tqdm=False)
        messages.append(str(caught.value))
        assert one.llm_engine.num_unfinished_requests == 0
    assert messages[0] == messages[1]
    assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), inside.generate(PROMPTS, PARAMS, use_tqdm=False))


def test_metrics_and_the_prefix_cache():
    """The figures of equal histories are equal, but for times and steps."""
    figures = []
    for in_process in (False, True):
        llm = LLM(tiny_llama(), core_in_process=in_process, **OPTIONS)
        prompt = [7] * 41
        llm.generate([prompt], SHORT, use_tqdm=False)
        (cached,) = llm.generate([prompt], SHORT, use_tqdm=False)
        assert llm.reset_prefix_cache() is True
        (after,) = llm.generate([prompt], SHORT, use_tqdm=False)
        assert (cached.num_cached_tokens, after.num_cached_tokens) == (40, 0)
        metrics = {
            (metric.name, *metric.labels.values()): metric.value
            for metric in llm.get_metrics()
            if hasattr(metric, "value")
        }
        assert any("num_requests_running" in name for name, *_ in metrics)
        assert num_finished(llm)["length"] == 3
        figures.append(metrics)
        llm.shutdown()
    assert figures[0] == figures[1]


def test_after_shutdown():
    llm = LLM(tiny_llama(), core_in_process=True, **OPTIONS)
    llm.generate(["Hello"], SHORT, use_tqdm=False)
    shut_down(llm)
    llm.shutdown()
    with pytest.raises(ValueError, match="shut down"):
        llm.generate(["Hello"], SHORT, use_tqdm=False)
    with pytest.raises(ValueError, match="shut down"):
        llm.reset_prefix_cache()


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "/nowhere/at/all"},
        {"model": "no-such-alias"},
        {"max_model_len": 100_000},
        {"num_gpu_blocks_override": 2},  # which the core notices
        {"kv_cache_memory_bytes": 1, "num_gpu_blocks_override": None},
        {"logits_processors": ["tests.support.nowhere:Nothing"]},
        {"block_size": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_cannot_start_is_one_value_error(wrong):
    arguments = {"model": tiny_llama(), **OPTIONS, **wrong}
    before = children().keys()
    messages = []
    for in_process in (False, True):
        with pytest.raises(ValueError, match=r"^.+$") as caught:
            LLM(core_in_process=in_process, **arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert children().keys() == before


def test_the_keyword_is_checked():
    with pytest.raises(ValueError, match="core_in_process must be True or False, got 'yes'"):
        LLM(tiny_llama(), core_in_process="yes")


class Killer:
    """A progress bar that ends the core's process as soon as the first request has finished."""

    def __init__(self, llm: LLM) -> None:
        self.pid = core_pid(llm)
        self.num_updates = 0

    def __call__(self, **_) -> "Killer":
        return self

    def __enter__(self) -> "Killer":
        self.format_dict = {"elapsed": 1.0}
        return self

    def __exit__(self, *_) -> None:
        pass

    def set_postfix_str(self, *_, **__) -> None:
        pass

    def update(self) -> None:
        self.num_updates += 1
        if self.num_updates == 1:
            os.kill(self.pid, signal.SIGKILL)


def test_a_core_that_is_killed_fails_its_requests_and_is_started_again(inside, caplog):
    expected = inside.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm = LLM(tiny_llama(), core_in_process=True, **OPTIONS)
    for num_killed in range(1, 3):
        killer = Killer(llm)
        short, *long = llm.generate(["Hello"] * 4, [SHORT, LONG, LONG, LONG], use_tqdm=killer)
        assert killer.num_updates == 4
        assert short.outputs[0].finish_reason == "length"
        for output in long:
            (completion,) = output.outputs
            assert completion.finish_reason == "error"
            assert "ended unexpectedly (signal SIGKILL); please send the request again" in completion.stop_reason
            assert len(completion.token_ids) < 180
        assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), expected)
        assert core_pid(llm) != killer.pid
        assert num_finished(llm)["error"] == 3 * num_killed
    assert "engine core 0 has ended (signal SIGKILL)" in caplog.text
    shut_down(llm)


def test_a_core_that_was_killed_while_nobody_waited(inside):
    """It has been started again when the next call comes, which need not know."""
    llm = LLM(tiny_llama(), core_in_process=True, **OPTIONS)
    client = llm.llm_engine._client
    for call in (lambda: True, llm.reset_prefix_cache):
        os.kill(core_pid(llm), signal.SIGKILL)
        assert client._connections.input.poll(60_000), "no new core"
        assert call()
        assert same(llm.generate(["Hello"], SHORT, use_tqdm=False), inside.generate(["Hello"], SHORT, use_tqdm=False))
    shut_down(llm)


def test_a_core_that_is_killed_right_before_a_call(inside):
    """The call may come before anybody has noticed: then it fails, but one after it does not."""
    llm = LLM(tiny_llama(), core_in_process=True, **OPTIONS)
    os.kill(core_pid(llm), signal.SIGKILL)
    for _ in range(3):
        (output,) = llm.generate(["Hello"], SHORT, use_tqdm=False)
        if output.outputs[0].finish_reason == "length":
            break
        assert output.outputs[0].finish_reason == "error"
    assert same([output], inside.generate(["Hello"], SHORT, use_tqdm=False))
    shut_down(llm)


def test_a_core_that_dies_too_often_stays_away():
    llm = LLM(tiny_llama(), core_in_process=True, **OPTIONS)
    outcomes = []
    with pytest.raises(RuntimeError, match=r"engine core 0 ended unexpectedly .*; make a new LLM$"):  # noqa: PT012
        for _ in range(20):
            llm.generate(["Hello"] * 2, [SHORT, LONG], use_tqdm=Killer(llm))
            outcomes.append("killed")
            llm.generate(["Hello"], SHORT, use_tqdm=False)
    assert outcomes == ["killed"] * 4, "it is started again three times"
    assert llm.llm_engine.num_unfinished_requests == 0
    folder = runtime_folder(llm)
    llm.shutdown()
    assert not folder.exists()


# An interrupt may also fall into somebody's __del__, which Python reports and ignores.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(600, method="thread")  # the other method uses the same timer
@pytest.mark.parametrize("trials", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("twice", [False, True])
def test_interrupts_at_any_moment(llm, inside, twice, trials):
    rng = random.Random(trials)
    expected = inside.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), expected)
    start = time.perf_counter()
    assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), expected)
    duration = time.perf_counter() - start
    pid = core_pid(llm)
    num_interrupts = 0
    for _ in range(trials):
        again_after = rng.uniform(1e-5, 3e-4) if twice else 0.0
        num_interrupts += interrupted_generate(llm, rng.uniform(1e-5, duration), again_after)
        assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), expected), "what comes right after"
        assert not llm.llm_engine.num_unfinished_requests
    assert not llm.llm_engine._client.has_work
    assert core_pid(llm) == pid, "the core has not noticed"
    assert num_interrupts > trials / 10


@pytest.mark.parametrize("num_frames", [0, 1, 2, 3])
def test_an_interrupt_between_the_frames_of_a_message(llm, inside, monkeypatch, num_frames):
    """What is half sent must not swallow what comes next."""
    expected = inside.generate(PROMPTS, PARAMS, use_tqdm=False)
    sending = llm.llm_engine._client._connections.input
    send = zmq.Socket.send_multipart
    num_interrupts = 0

    def send_some(socket, frames, *arguments):
        nonlocal num_interrupts
        if socket is not sending or num_interrupts == 2:
            return send(socket, frames, *arguments)
        num_interrupts += 1  # the request, and then its abort
        for index in range(num_frames):
            socket.send(frames[index], zmq.SNDMORE if index < 2 else 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(zmq.Socket, "send_multipart", send_some)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Hello"], SHORT, use_tqdm=False)
    assert num_interrupts == 2
    assert same(llm.generate(PROMPTS, PARAMS, use_tqdm=False), expected)


def script(text: str) -> subprocess.Popen[str]:
    """A program that imports `LLM`, in a process group of its own."""
    lines = f"import os, sys\nfrom pelton import LLM, SamplingParams\nmodel, options = {tiny_llama()!r}, {OPTIONS!r}\n"
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", lines + text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=tempfile.gettempdir(),
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


MAKE = """
llm = LLM(model, core_in_process=True, **options)
supervisor = llm.llm_engine._client._supervisor
print(supervisor._processes.running[0].pid, supervisor.endpoints.runtime_dir, flush=True)
"""
GENERATE = """
def generate(max_tokens):
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return llm.generate(["Hello"] * 8, params, use_tqdm=False)
"""


def rest_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it still says until it ends: `communicate` would lose what came along with a line that was read."""
    out, error = process.stdout.read(), process.stderr.read()
    process.wait(SECONDS)
    return out, error


def the_core(process: subprocess.Popen[str]) -> tuple[dict[int, str], Path]:
    """Process and folder of what `MAKE` has made."""
    line = process.stdout.readline()
    assert line, process.communicate()
    pid, folder = line.split()
    return {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()}, Path(folder)


def test_the_core_ends_with_a_parent_that_is_killed():
    process = script(MAKE + GENERATE + "while True: generate(100)\n")
    try:
        core, folder = the_core(process)
        assert folder.exists()
    finally:
        end(process)
    assert wait_until_gone(core) == []
    assert wait_until(lambda: not folder.exists())


def test_the_core_ends_with_a_parent_that_forgot_to_shut_down():
    process = script(MAKE + GENERATE + "print(len(generate(5)))\n")
    try:
        core, folder = the_core(process)
        out, error = rest_of(process)
    finally:
        end(process)
    assert (process.returncode, out, error) == (0, "8\n", "")
    assert wait_until_gone(core) == []
    assert wait_until(lambda: not folder.exists())


def test_ctrl_c_of_a_terminal_reaches_the_core_too_and_changes_nothing():
    process = script(
        MAKE
        + GENERATE
        + "expected = [output.outputs[0].token_ids for output in generate(9)]\n"
        + "for _ in range(2):\n"
        + "    try:\n"
        + "        print('begin', flush=True)\n"
        + "        while True: generate(100)\n"
        + "    except KeyboardInterrupt:\n"
        + "        assert [output.outputs[0].token_ids for output in generate(9)] == expected\n"
        + "print(supervisor._processes.running[0].pid)\n"
        + "llm.shutdown()\n"
    )
    try:
        core, _ = the_core(process)
        for _ in range(2):
            assert process.stdout.readline() == "begin\n"
            time.sleep(0.05)  # into the call; wherever the signal falls, the end is the same
            os.killpg(process.pid, signal.SIGINT)
        out, error = rest_of(process)
    finally:
        end(process)
    assert (process.returncode, error) == (0, "")
    assert out == f"{next(iter(core))}\n", "the same process as before"
    assert wait_until_gone(core) == []


def wait_until(condition) -> bool:
    deadline = time.monotonic() + 30.0
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_logits_processors_by_class_and_by_name(monkeypatch):
    """The other process imports them, from the folders of PYTHONPATH."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    forced = SamplingParams(temperature=0, max_tokens=4, extra_args={"force": [1234] * 4}, ignore_eos=True)
    for given in (Force, "tests.support.logits_processors:Force"):
        llm = LLM(tiny_llama(), core_in_process=True, logits_processors=[given], **OPTIONS)
        (output,) = llm.generate(["Hello"], forced, use_tqdm=False)
        assert output.outputs[0].token_ids == [1234] * 4
        llm.shutdown()


def test_a_class_that_the_core_cannot_find_is_refused():
    class Local(LogitsProcessor):
        def new_request(self, params):
            return None

    before = children().keys()
    with pytest.raises(ValueError, match=r"logits_processors .*Local.* known to this process only"):
        LLM(tiny_llama(), core_in_process=True, logits_processors=[Local], **OPTIONS)
    assert children().keys() == before


def test_a_class_of_the_program_itself_is_refused():
    process = script(
        "from pelton.sampling.logits_processor import LogitsProcessor\n"
        "class Mine(LogitsProcessor):\n"
        "    def new_request(self, params): return None\n"
        "try:\n"
        "    LLM(model, core_in_process=True, logits_processors=[Mine], **options)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    out, error = process.communicate(timeout=SECONDS)
    assert error == ""
    assert "logits_processors" in out
    assert "known to this process only" in out
