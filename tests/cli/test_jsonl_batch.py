"""`pelton generate --jsonl`: order, bounds, failures, pipes."""

import errno
import io
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from pelton import LLM, SamplingParams
from pelton.cli import jsonl_batch
from pelton.cli.jsonl_batch import JSONLBatch
from pelton.cli.main import main
from pelton.cli.nonblocking_lines import NonblockingLines
from pelton.core.outputs import CompletionOutput, RequestOutput
from pelton.sampling.logits_processor import LogitsProcessor
from tests.cli.helpers import PELTON, on_tiny_llama, without_chat_template
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama

GENERATE = ["--ignore-eos", "--max-tokens", "6"]


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def generate(tmp_path, lines, *flags):
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return main(on_tiny_llama("generate", *GENERATE, "--jsonl", str(path), *flags))


@pytest.fixture(scope="module")
def llm():
    return LLM(model=tiny_llama())


def test_answers_are_those_of_the_engine(llm, tmp_path, capsys):
    requests = [
        {"prompt": "Hello", "max_tokens": 20, "id": "long"},
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 1},
        "  \n",
        {"prompt": "The sun", "n": 2, "temperature": 1, "seed": 3, "logprobs": 2, "prompt_logprobs": 0},
        {"messages": [{"role": "user", "content": "Hi"}], "id": 0},
    ]
    assert generate(tmp_path, requests) == 0
    captured = capsys.readouterr()
    long, ids, sun, chat = lines_of(captured.out)
    assert [answer["id"] for answer in (long, ids, sun, chat)] == ["long", 2, 4, 0]
    assert [answer["line"] for answer in (long, ids, sun, chat)] == [1, 2, 4, 5], "blank lines count"

    prompt = smollm2_tokenizer().apply_chat_template(requests[4]["messages"])
    greedy = {"temperature": 0, "ignore_eos": True}
    several = SamplingParams(n=2, seed=3, logprobs=2, prompt_logprobs=0, ignore_eos=True, max_tokens=6)
    params = [
        SamplingParams(max_tokens=20, **greedy),
        SamplingParams(max_tokens=1, **greedy),
        several,
        SamplingParams(max_tokens=6, **greedy),
    ]
    expected = llm.generate(["Hello", [5, 6, 7], "The sun", prompt], params, use_tqdm=False)
    for answer, output in zip((long, ids, sun, chat), expected, strict=True):
        assert answer["prompt"] == output.prompt
        assert answer["usage"]["prompt_tokens"] == len(output.prompt_token_ids)
        assert answer["usage"]["completion_tokens"] == sum(len(c.token_ids) for c in output.outputs)
        assert [(c["index"], c["text"], c["token_ids"], c["finish_reason"]) for c in answer["outputs"]] == [
            (c.index, c.text, c.token_ids, c.finish_reason) for c in output.outputs
        ]
    assert "logprobs" not in long["outputs"][0]
    assert "prompt_logprobs" not in long
    assert all(len(choice["logprobs"]) == 6 for choice in sun["outputs"])
    assert [len(position["top"]) for position in sun["outputs"][0]["logprobs"]] == [2] * 6
    assert sun["prompt_logprobs"][0] is None
    assert len(sun["prompt_logprobs"]) == sun["usage"]["prompt_tokens"]
    assert "39 output tokens in " in captured.err


def test_bad_lines_cost_the_others_nothing(tmp_path, capsys):
    requests = [
        {"prompt": "Hello"},
        "not JSON\n",
        {"prompt": "Hello", "id": "x", "temperature": -1},
        "\n",
        {"prompt": "Hello", "id": [1]},
        {"prompt": "word " * 300},
        {"prompt": "Hello", "priority": 1},
        {"prompt": "Hello", "id": "last"},
    ]
    assert generate(tmp_path, requests) == 1
    captured = capsys.readouterr()
    first, *refused, last = lines_of(captured.out)
    assert first["outputs"] == last["outputs"]
    assert (first["id"], last["id"]) == (1, "last")
    assert [(line["id"], line["line"]) for line in refused] == [(2, 2), ("x", 3), (5, 5), (6, 6), (7, 7)]
    words = [
        "not valid JSON",
        "temperature must be at least 0",
        "id must be",
        "maximum context length",
        "priority is 1",
    ]
    for line, part in zip(refused, words, strict=True):
        assert line.keys() == {"id", "line", "error"}
        assert part in line["error"]["message"]
    assert captured.err.splitlines()[-1] == "pelton: 5 of 7 requests failed; their lines say why"


class Picky(LogitsProcessor):
    arguments = frozenset({"picky"})

    @classmethod
    def validate_params(cls, params):
        if params.extra_args is not None and params.extra_args["picky"] > 1:
            raise ValueError("picky must be at most 1")

    def new_request(self, params):
        return None


def test_a_logits_processor_that_cannot_check_a_request(tmp_path, capsys):
    requests = [{"prompt": "Hello", "extra_args": {"picky": value}} for value in (0, "much", 2)]
    assert generate(tmp_path, [*requests, {"prompt": "Hello"}], "--logits-processors", f"{__name__}:Picky") == 1
    first, unexpected, refused, last = lines_of(capsys.readouterr().out)
    assert first["outputs"] == last["outputs"]
    assert "the logits processor Picky cannot check the parameters: TypeError: '>'" in unexpected["error"]["message"]
    assert refused["error"]["message"] == "picky must be at most 1"


def test_an_empty_file(tmp_path, capsys):
    assert generate(tmp_path, []) == 0
    assert capsys.readouterr().out == ""


def test_a_byte_order_mark(tmp_path, capsys):
    assert generate(tmp_path, ['\ufeff{"prompt": "Hello"}\n']) == 0
    assert lines_of(capsys.readouterr().out)[0]["prompt"] == "Hello"


def test_messages_for_a_model_without_a_chat_template(tmp_path, capsys):
    requests = [{"messages": [{"role": "user", "content": "Hi"}]}]
    assert generate(tmp_path, requests, "--model", without_chat_template(tmp_path)) == 1
    (answer,) = lines_of(capsys.readouterr().out)
    assert answer["error"]["message"] == "the model has no chat template; give one with --chat-template FILE"


class CountingEngine:
    """Finishes one request a step: the last, or one that luck chooses. It never takes a step without one."""

    tokenizer = None

    def __init__(self, choose=lambda ids: ids[-1]):
        self.requests = {}
        self.most_sequences = 0
        self.num_steps = 0
        self.failing = set()
        self._choose = choose

    def add_request(self, prompt, params, *, priority):
        request_id = f"request-{prompt['prompt']}"
        self.requests[request_id] = params
        self.most_sequences = max(self.most_sequences, sum(p.n for p in self.requests.values()))
        return request_id

    def step(self):
        self.num_steps += 1
        request_id = self._choose(list(self.requests))
        params = self.requests.pop(request_id)
        reason, why = ("error", "it broke") if request_id in self.failing else ("stop", None)
        choices = [CompletionOutput(i, request_id, [1], None, None, reason, why) for i in range(params.n)]
        return [RequestOutput(request_id, "p", [1], choices, True, 0)]


class Target(io.BytesIO):
    """Counts answers that were flushed."""

    num_flushed = 0

    def flush(self):
        self.num_flushed = self.getvalue().count(b"\n")


def run_batch(tmp_path, engine, requests, max_in_engine=4):
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    target = Target()
    with path.open("rb") as file:
        reader = NonblockingLines(file.fileno(), str(path))
        batch = JSONLBatch(engine, reader, target, SamplingParams(), chat_template=None, max_in_engine=max_in_engine)
        batch.run()
    answers = lines_of(target.getvalue().decode())
    assert target.num_flushed == len(answers) == batch.num_lines
    return batch, answers


def test_order_and_bounds(tmp_path):
    engine = CountingEngine(random.Random(4).choice)
    requests = [{"prompt": str(i), "id": f"id-{i}"} for i in range(200)]
    _, answers = run_batch(tmp_path, engine, requests)
    assert [answer["id"] for answer in answers] == [f"id-{i}" for i in range(200)]
    assert [answer["outputs"][0]["text"] for answer in answers] == [f"request-{i}" for i in range(200)]
    assert engine.most_sequences == 4
    assert engine.num_steps == 200


def test_choices_count_as_sequences(tmp_path):
    engine = CountingEngine()
    run_batch(tmp_path, engine, [{"prompt": str(i), "n": 3} for i in range(20)])
    assert engine.most_sequences == 6, "one more is let in as long as there are fewer than four"


def test_answers_that_wait_are_bounded(tmp_path, monkeypatch):
    """The first request is the last to finish of those that are there."""
    monkeypatch.setattr(jsonl_batch, "UNWRITTEN_PER_RUNNING", 3)
    waiting = []
    engine = CountingEngine()
    take = JSONLBatch._take

    def counted(batch, text):
        take(batch, text)
        waiting.append(len(batch._unwritten))

    monkeypatch.setattr(JSONLBatch, "_take", counted)
    _, answers = run_batch(tmp_path, engine, [{"prompt": str(i)} for i in range(50)])
    assert [answer["id"] for answer in answers] == list(range(1, 51))
    assert max(waiting) == 3 * 4


def test_a_request_that_fails_while_it_runs(tmp_path):
    engine = CountingEngine()
    engine.failing = {"request-1"}
    batch, answers = run_batch(tmp_path, engine, [{"prompt": str(i)} for i in range(3)])
    assert batch.num_failed == 1
    assert ["error" in answer for answer in answers] == [False, True, False]
    assert answers[1]["line"] == 2
    assert answers[1]["error"] == {"message": "it broke"}
    assert answers[1]["outputs"][0]["finish_reason"] == "error"
    assert [answer["line"] for answer in answers] == [1, 2, 3]


@pytest.fixture
def conversation():
    """A process that reads requests from a pipe."""
    command = [*PELTON, *on_tiny_llama("generate", *GENERATE, "--jsonl", "-")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def ask(process, request):
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_an_answer_does_not_wait_for_the_next_line(conversation):
    assert ask(conversation, {"prompt": "Hello"})["id"] == 1
    assert "error" in ask(conversation, {"prompt": ""})
    assert ask(conversation, {"prompt": "Hello"})["id"] == 3
    out, errors = conversation.communicate(b'{"prompt": "Hello", "id": "no line end"}', timeout=60)
    assert json.loads(out)["id"] == "no line end"
    assert conversation.returncode == 1
    assert b"Traceback" not in errors


def test_an_interrupt(conversation):
    assert ask(conversation, {"prompt": "Hello"})["id"] == 1
    conversation.send_signal(signal.SIGINT)
    out, errors = conversation.communicate(timeout=60)
    assert (conversation.returncode, out) == (130, b"")
    assert b"Traceback" not in errors
    assert b"output tokens" not in errors, "it does not look as if all were done"


def test_a_reader_that_has_gone(conversation):
    assert ask(conversation, {"prompt": "Hello"})["id"] == 1
    conversation.stdout.close()
    conversation.stdin.write(b'{"prompt": "Hello"}\n')
    conversation.stdin.close()
    errors = conversation.stderr.read()
    assert conversation.wait(60) == 1
    assert b"Traceback" not in errors
    assert b"BrokenPipe" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
@pytest.mark.parametrize("flags", [["--output", "/dev/full"], []])
def test_a_full_disk(tmp_path, flags):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "Hello"}\n')
    command = [*PELTON, *on_tiny_llama("generate", *GENERATE, "--jsonl", str(path), *flags)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"pelton: the output: {os.strerror(errno.ENOSPC)}"


def test_a_line_that_is_too_long_has_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(NonblockingLines.__init__, "__defaults__", (100,))
    _, (long, short) = run_batch(tmp_path, CountingEngine(), [{"prompt": "a" * 1000}, {"prompt": "b"}])
    assert long["error"]["message"] == "the line has more than 100 bytes; split it"
    assert "error" not in short
