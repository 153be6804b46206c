"""`pelton run-batch`: real engine cores, files, pipes, interrupts."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pelton import LLM, SamplingParams
from pelton.cli.main import main
from tests.cli.helpers import PELTON
from tests.support.served import REPOSITORY, Served, wait_until_gone
from tests.support.tiny_llama import tiny_llama

INSTANT = ["--distributed-executor-backend", "tests.support.serving_executors:InstantExecutor"]
USER = [{"role": "user", "content": "Hi"}]


def line(custom_id, url="/v1/completions", **body):
    fields = {"prompt": "Hello"} if url == "/v1/completions" else {"messages": USER}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": fields | body}) + "\n"


def lines_of(text):
    return {answer["custom_id"]: answer for answer in map(json.loads, text.splitlines())}


def command(*flags):
    return [*PELTON, "run-batch", "--model", tiny_llama(), *map(str, flags)]


def environment(**variables):
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}


def run_batch(*flags, **variables):
    return subprocess.run(
        command(*flags), env=environment(**variables), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def requests(tmp_path):
    """Writes lines into a file, and returns its path."""

    def write(*lines):
        path = tmp_path / "requests.jsonl"
        path.write_text("".join(lines))
        return path

    return write


def test_help_does_without_the_engine_and_the_server():
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "try: main(['run-batch', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'huggingface_hub', 'jinja2', 'tqdm', 'msgspec', 'zmq', 'fastapi',\n"
        "    'pydantic', 'starlette', 'uvicorn', 'asyncio', 'pelton.llm', 'pelton.engine', 'pelton.server'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "their order is not that of the requests" in " ".join(done.stdout.split())


def test_answers_are_those_of_the_server_and_of_the_llm_bit_by_bit(requests, tmp_path):
    """With two engine cores, and log probabilities as they are computed."""
    model = tiny_llama()
    bodies = {
        f"request-{index}": {
            "prompt": f"Story {index}:",
            "max_tokens": 5 + index,
            "temperature": 0.8,
            "seed": index,
            "logprobs": 3,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for index in range(6)
    }
    talk = {"max_completion_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2, "ignore_eos": True}
    path = requests(
        *(line(custom_id, **body) for custom_id, body in bodies.items()),
        "\n",
        line("chat", "/v1/chat/completions", **talk),
    )
    output = tmp_path / "answers.jsonl"
    output.write_text("what was there before, and is longer than a line" * 1000)
    done = run_batch("-i", path, "-o", output, "-dp", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "7 requests, 0 failed; " in done.stderr.splitlines()[-1]
    assert "2 engine cores, each: " in done.stderr
    answers = lines_of(output.read_text())
    assert answers.keys() == bodies.keys() | {"chat"}
    found = {custom_id: answer["response"]["body"] for custom_id, answer in answers.items()}

    def essence(body):
        return {key: value for key, value in body.items() if key not in ("id", "created")}

    with Served(model) as server:
        for custom_id, body in bodies.items():
            status, answer = server.post("/v1/completions", body)
            assert (status, essence(answer)) == (200, essence(found[custom_id]))
        status, answer = server.post("/v1/chat/completions", {"messages": USER} | talk)
        assert (status, essence(answer)) == (200, essence(found["chat"]))

    llm = LLM(model=model)
    params = [
        SamplingParams(max_tokens=5 + index, temperature=0.8, seed=index, logprobs=3, ignore_eos=True)
        for index in range(6)
    ]
    outputs = llm.generate([body["prompt"] for body in bodies.values()], params, use_tqdm=False)
    for custom_id, output in zip(bodies, outputs, strict=True):
        (choice,), (expected,) = found[custom_id]["choices"], output.outputs
        assert (choice["text"], choice["token_ids"]) == (expected.text, expected.token_ids)
        sampled = [expected.logprobs[i][token_id].logprob for i, token_id in enumerate(expected.token_ids)]
        assert choice["logprobs"]["token_logprobs"] == sampled


def test_requests_that_fail(requests, tmp_path):
    path = requests(line("fine", max_tokens=2), "not JSON\n", line("hot", temperature=-1))
    done = run_batch("-i", path, "-o", "-", *INSTANT, "--served-model-name", "name")
    assert done.returncode == 1
    answers = lines_of(done.stdout)
    assert answers["fine"]["response"]["body"]["model"] == "name"
    assert "line 2: " in answers[None]["error"]["message"]
    assert "line 3: temperature" in answers["hot"]["error"]["message"]
    assert done.stderr.splitlines()[-1] == "pelton: 2 of 3 requests failed; their answers say why"


def test_an_engine_core_that_ends(requests, tmp_path):
    """What it was computing is repeated by the next one."""
    (tmp_path / "crash").touch()
    path = requests(*(line(str(index), max_tokens=3) for index in range(8)))
    backend = ["--distributed-executor-backend", "tests.support.serving_executors:CrashingExecutor"]
    flags = ["-i", path, "-o", "-", *backend, "--max-num-seqs", 1]
    done = run_batch(*flags, FAKE_EXECUTOR_FOLDER=str(tmp_path))
    answers = lines_of(done.stdout)
    assert answers.keys() == {str(index) for index in range(8)}
    assert "engine core 0 has ended" in done.stderr
    assert [custom_id for custom_id, answer in answers.items() if answer["error"] is not None] == []
    assert {answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers.values()} == {3}
    assert done.returncode == 0


@pytest.mark.slow
def test_an_engine_that_ends_for_good(requests):
    """Nobody waits for ever, and what has no answer is not said to have failed."""
    path = requests(*(line(str(index), max_tokens=3) for index in range(30)))
    backend = ["--distributed-executor-backend", "tests.support.serving_executors:CrashingExecutor"]
    done = run_batch("-i", path, "-o", "-", *backend, "--max-num-seqs", 1, FAKE_CRASH_STEP="1")
    assert done.returncode == 1
    last = "pelton: every engine core has ended for good; start again; some requests have no answers"
    assert done.stderr.splitlines()[-1] == last
    answers = lines_of(done.stdout)
    assert 0 < len(answers) < 30
    assert all("ended unexpectedly" in answer["error"]["message"] for answer in answers.values())


class Talk:
    """A batch that reads a pipe and writes one."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            command("-i", "-", "-o", "-", *INSTANT, *flags),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.process:
            self.process.kill()

    def ask(self, text):
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def children(self):
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(pid): Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in listed.split()}


def test_an_answer_does_not_wait_for_the_next_line():
    with Talk() as talk:
        assert talk.ask(line("a"))["custom_id"] == "a"
        assert talk.ask("\n \nnot JSON\n")["response"]["status_code"] == 400
        assert talk.ask(line("b"))["custom_id"] == "b"
        out, errors = talk.process.communicate(line("no line end").strip().encode(), timeout=60)
        assert json.loads(out)["custom_id"] == "no line end"
        assert talk.process.returncode == 1
        assert b"Traceback" not in errors


def test_an_interrupt_leaves_what_is_finished_and_no_process():
    with Talk() as talk:
        assert talk.ask(line("a"))["custom_id"] == "a"
        children = talk.children()
        assert children
        talk.process.send_signal(signal.SIGINT)
        out, errors = talk.process.communicate(timeout=60)
        assert (talk.process.returncode, out) == (130, b"")
        assert b"Traceback" not in errors
        assert b"output tokens" not in errors, "it does not look as if all were done"
        assert not wait_until_gone(children)


def test_a_reader_that_has_gone():
    with Talk() as talk:
        assert talk.ask(line("a"))["custom_id"] == "a"
        talk.process.stdout.close()
        talk.process.stdin.write(line("b").encode())
        talk.process.stdin.close()
        errors = talk.process.stderr.read()
        assert talk.process.wait(60) == 1
        assert b"Traceback" not in errors
        assert b"BrokenPipe" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk(requests):
    done = run_batch("-i", requests(line("a")), "-o", "/dev/full", *INSTANT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"pelton: the output: {os.strerror(errno.ENOSPC)}"


def test_an_empty_file(requests, tmp_path):
    output = tmp_path / "answers.jsonl"
    output.write_text("before")
    done = run_batch("-i", requests(), "-o", output, *INSTANT)
    assert (done.returncode, output.read_text()) == (0, "")
    assert "0 requests, 0 failed" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-i", "/no/such/file", "-o", "-"], "/no/such/file cannot be read"),
        (["-i", "/", "-o", "-"], "it is a folder; --input-file takes one file"),
        (["-i", "FILE", "-o", "FILE"], "which --input-file reads; name another file"),
        (["-i", "FILE", "-o", "/no/such/folder/file"], "cannot be written"),
        (["-i", "FILE", "-o", "OUT", "-dp", "0"], "data_parallel_size must be at least 1, got 0"),
        (["-i", "FILE", "-o", "OUT", "--chat-template", "{% if"], "chat template"),
        (["-i", "FILE", "-o", "OUT", "--model", "/no/such/model.gguf"], "/no/such/model.gguf"),
    ],
)
def test_mistakes_leave_files_as_they_are(requests, tmp_path, capsys, flags, words):
    path, output = requests(line("a")), tmp_path / "answers.jsonl"
    names = {"FILE": str(path), "OUT": str(output)}
    assert main(["run-batch", *(names.get(flag, flag) for flag in flags)]) == 2
    assert words in capsys.readouterr().err
    assert path.read_text() == line("a")
    assert not output.exists()


@pytest.mark.parametrize("flags", [["-i", "x"], ["-o", "x"], ["-i", "x", "-o", "x", "extra"]])
def test_mistakes_of_the_command_line(capsys, flags):
    with pytest.raises(SystemExit) as end:
        main(["run-batch", *flags])
    assert end.value.code == 2
    assert "see pelton run-batch --help" in capsys.readouterr().err
