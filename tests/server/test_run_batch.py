"""`BatchRunner`: lines in, lines out, over a fake engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from pelton.engine.errors import EngineDeadError
from pelton.server.run_batch import MAX_CUSTOM_ID, MAX_REPEATS, BatchFigures, BatchRunner
from tests.server.handlers import USER, chat, complete, run, served
from tests.support.fake_async_llm import FakeAsyncLLM, Script

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line(custom_id: Any, url: str = COMPLETIONS, method: Any = "POST", **body: Any) -> bytes:
    fields = {"prompt": "Hello"} if url == COMPLETIONS else {"messages": USER}
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": fields | body}).encode()


async def feed(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for text in lines:
        yield text


class Batch:
    """A runner, and what it has written."""

    def __init__(self, llm: FakeAsyncLLM, **options: Any) -> None:
        self.answers: list[dict[str, Any]] = []
        self.num_bytes = 0
        self.runner = BatchRunner(
            llm,
            served(llm),
            self._write,
            on_answered=self._count,
            **{"max_in_engine": 8, "max_line_bytes": 1 << 20} | options,
        )

    def _write(self, text: bytes) -> None:
        assert text.count(b"\n") == 1
        assert text.endswith(b"\n")
        self.answers.append(json.loads(text))

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    @property
    def by_id(self) -> dict[str, dict[str, Any]]:
        return {answer["custom_id"]: answer for answer in self.answers}


def answered(llm: FakeAsyncLLM, lines: Iterable[bytes], **options: Any) -> Batch:
    async def answer() -> Batch:
        batch = Batch(llm, **options)
        await batch.runner.run(feed(lines))
        return batch

    return run(answer())


def essence(body: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is another one each time."""
    return {key: value for key, value in body.items() if key not in ("id", "created")}


def test_answers_are_those_of_the_handlers() -> None:
    fields = {"n": 2, "temperature": 1, "seed": 5, "max_tokens": 3}
    llm = FakeAsyncLLM()
    lines = [line("text", logprobs=1, prompt=["a", "b"], **fields), line("chat", CHAT, logprobs=True, **fields)]
    batch = answered(llm, lines)
    expected = {
        "text": run(complete(llm, prompt=["a", "b"], logprobs=1, **fields)),
        "chat": run(chat(llm, logprobs=True, **fields)),
    }
    assert batch.by_id.keys() == expected.keys()
    for custom_id, answer in batch.by_id.items():
        response = answer["response"]
        assert answer.keys() == {"id", "custom_id", "response", "error"}
        assert answer["id"].startswith("batch_req_")
        assert answer["error"] is None
        assert response.keys() == {"status_code", "request_id", "body"}
        assert response["status_code"] == 200
        assert response["body"]["id"].endswith("-" + response["request_id"])
        assert essence(response["body"]) == essence(expected[custom_id])
    figures = batch.runner.figures
    assert (figures.num_requests, figures.num_failed) == (2, 0)
    usages = [answer["response"]["body"]["usage"] for answer in batch.answers]
    assert figures.num_output_tokens == sum(usage["completion_tokens"] for usage in usages) == 3 * (4 + 2)
    assert figures.num_prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert batch.num_bytes == sum(len(text) + 1 for text in lines)


@pytest.mark.parametrize(
    ("text", "custom_id", "status", "words"),
    [
        (b"not JSON", None, 400, "it is not a valid JSON object"),
        (b"[1]", None, 400, "it is not a valid JSON object"),
        (b"\xff", None, 400, "it is not UTF-8"),
        (b'{"custom_id": "x"', None, 400, "it is not a valid JSON object"),
        (b'{"custom_id": "x", "method": "POST"}', "x", 400, "url is missing"),
        (line(5), None, 400, "custom_id must be a string, got 5"),
        (line(""), "", 400, "custom_id must have at least 1 character"),
        (line("y" * (MAX_CUSTOM_ID + 1)), "y" * MAX_CUSTOM_ID, 400, "custom_id must have at most"),
        (line("x", method="GET"), "x", 400, "method must be 'POST', got 'GET'"),
        (line("x", "/v1/embeddings"), "x", 404, "url must be one of /v1/chat/completions, /v1/completions, got"),
        (line("x", stream=True), "x", 400, "stream is true, but a batch has whole answers only"),
        (line("x", CHAT, stream=True), "x", 400, "stream is true"),
        (line("x", temperature=-1), "x", 400, "temperature must be"),
        (line("x", suffix="y"), "x", 400, "suffix is not supported"),
        (line("x", prompt="word " * 3000), "x", 400, "This model's maximum context length is"),
        (line("x", CHAT, model="gpt"), "x", 404, "The model 'gpt' does not exist"),
        (b'{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": [1]}', "x", 400, "body must be"),
    ],
)
def test_a_line_that_is_refused_costs_no_other(text: bytes, custom_id: str | None, status: int, words: str) -> None:
    batch = answered(FakeAsyncLLM(), [line("before"), b"", text, line("after")])
    assert sorted(answer["custom_id"] or "" for answer in batch.answers) == sorted(["before", custom_id or "", "after"])
    (refused,) = [answer for answer in batch.answers if answer["error"] is not None]
    response = refused["response"]
    assert refused["custom_id"] == custom_id
    assert response["status_code"] == refused["error"]["code"] == status
    assert response["body"] == {"error": refused["error"]}
    assert refused["error"]["message"].startswith("line 3: ")
    assert words in refused["error"]["message"]
    assert (batch.runner.figures.num_requests, batch.runner.figures.num_failed) == (3, 1)


def test_a_custom_id_may_come_once() -> None:
    batch = answered(FakeAsyncLLM(), [line("x"), line("x"), line("x", "/no"), line("y")])
    refused = [answer for answer in batch.answers if answer["custom_id"] is None]
    assert [answer["error"]["message"][:40] for answer in refused] == [
        "line 2: custom_id 'x' is that of an earl",
        "line 3: custom_id 'x' is that of an earl",
    ]
    assert batch.by_id["x"]["error"] is batch.by_id["y"]["error"] is None, "the first one's answer is its own"


@pytest.mark.parametrize("lines", [[], [b"", b"  \t", b"\r"]])
def test_nothing_to_answer(lines: list[bytes]) -> None:
    batch = answered(FakeAsyncLLM(), lines)
    assert batch.answers == []
    assert batch.runner.figures.num_requests == 0


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    batch = answered(FakeAsyncLLM(), [b"\xef\xbb\xbf" + line("a") + b"\r", line("b") + b"\r"])
    assert [answer["error"] for answer in batch.answers] == [None, None]


def test_the_id_that_a_request_brings() -> None:
    (answer,) = answered(FakeAsyncLLM(), [line("x", request_id="mine")]).answers
    assert answer["response"]["body"]["id"] == "cmpl-mine"


def test_answers_come_as_they_are_ready() -> None:
    async def answer() -> None:
        llm = FakeAsyncLLM()
        hold = asyncio.Event()
        llm.play(Script("slow", hold=hold))
        batch = Batch(llm)

        async def lines() -> AsyncIterator[bytes]:
            yield line("slow")
            yield line("quick")
            while len(batch.answers) < 1:
                await asyncio.sleep(0)
            hold.set()

        await batch.runner.run(lines())
        assert list(batch.by_id) == ["quick", "slow"]

    run(answer())


@pytest.mark.parametrize(
    ("body", "num_prompts", "num_choices"), [({}, 1, 1), ({"n": 2, "temperature": 1, "prompt": ["a", "b"]}, 2, 4)]
)
def test_a_bounded_number_is_in_the_engine(body: dict[str, Any], num_prompts: int, num_choices: int) -> None:
    async def answer() -> None:
        hold = asyncio.Event()
        llm = FakeAsyncLLM(answer=Script("text", hold=hold))
        num_read = 0

        async def lines() -> AsyncIterator[bytes]:
            nonlocal num_read
            for index in range(50):
                num_read += 1
                yield line(str(index), **body)

        batch = Batch(llm, max_in_engine=8)
        task = asyncio.create_task(batch.runner.run(lines()))
        for _ in range(500):
            await asyncio.sleep(0)
        assert llm.num_unfinished_requests == 8 // num_choices * num_prompts
        assert num_read == 8 // num_choices + 1, "one more is read, and waits for room"
        hold.set()
        await task
        assert len(batch.answers) == 50
        assert llm.num_unfinished_requests == 0

    run(answer())


def test_a_request_that_fails_while_it_runs() -> None:
    llm = FakeAsyncLLM()
    llm.play(Script("text", fail_at=1))
    batch = answered(llm, [line("broken"), line("fine")])
    error = batch.by_id["broken"]["error"]
    assert (error["code"], error["message"]) == (500, "line 1: The request failed: the logits are not finite")
    assert batch.by_id["fine"]["error"] is None


def test_an_error_that_nobody_expects(caplog: pytest.LogCaptureFixture) -> None:
    llm = FakeAsyncLLM()
    llm.refusals.append(RuntimeError("secret"))
    batch = answered(llm, [line("broken"), line("fine")])
    assert batch.by_id["broken"]["error"]["code"] == 500
    assert "secret" not in json.dumps(batch.answers)
    assert "secret" in caplog.text
    assert batch.by_id["fine"]["error"] is None


def test_requests_wait_for_a_core_that_is_started_again() -> None:
    llm = FakeAsyncLLM()
    llm.refusals += [EngineDeadError("gone")]
    batch = answered(llm, [line("waits"), line("fine")])
    assert llm.num_waits_for_core == 1
    assert batch.by_id["waits"]["error"] is batch.by_id["fine"]["error"] is None


LOST = "engine core 0 ended unexpectedly (signal SIGKILL); please send the request again"


def test_a_request_whose_core_fails_is_repeated() -> None:
    llm = FakeAsyncLLM()
    llm.play(Script("text", fail_at=1, failure=LOST), Script("fine"), Script("text", fail_at=0, failure=LOST))
    batch = answered(llm, [line("lost"), line("fine")])
    assert batch.by_id["lost"]["error"] is batch.by_id["fine"]["error"] is None
    assert len(llm.calls) == 2 + 2
    assert (batch.runner.figures.num_requests, batch.runner.figures.num_failed) == (2, 0)


def test_a_request_that_may_be_why_cores_fail_is_not_repeated_for_ever() -> None:
    llm = FakeAsyncLLM(answer=Script("text", fail_at=1, failure=LOST))
    batch = answered(llm, [line("poison")])
    assert batch.by_id["poison"]["error"]["message"] == f"line 1: The request failed: {LOST}"
    assert len(llm.calls) == 1 + MAX_REPEATS


def test_lines_that_are_too_long() -> None:
    lines = [line("a", user="x" * 200), line("b")]
    batch = answered(FakeAsyncLLM(), lines, max_line_bytes=len(lines[1]))
    error = batch.by_id[None]["error"]
    assert error["code"] == 413
    assert error["message"].startswith(f"line 1: it has more than {len(lines[1])} bytes")
    assert batch.by_id["b"]["error"] is None


def test_an_engine_that_is_gone_for_good() -> None:
    llm = FakeAsyncLLM()
    llm.healthy = False
    llm.refusals += [None, EngineDeadError("gone")]
    with pytest.raises(EngineDeadError, match="for good"):
        answered(llm, [line(str(index)) for index in range(30)], max_in_engine=2)
    assert llm.num_unfinished_requests == 0
    assert len(llm.calls) < 30


def test_an_output_that_cannot_be_written() -> None:
    async def answer() -> None:
        llm = FakeAsyncLLM()
        llm.play(Script("text"), Script("text", hold=asyncio.Event()))

        def write(text: bytes) -> None:
            raise OSError(28, "No space left on device")

        runner = BatchRunner(llm, served(llm), write, max_in_engine=8, max_line_bytes=1 << 20)
        with pytest.raises(OSError, match="No space"):
            await runner.run(feed([line("a"), line("b")]))
        assert llm.num_unfinished_requests == 0

    run(answer())


def test_a_batch_that_is_cancelled() -> None:
    async def answer() -> None:
        llm = FakeAsyncLLM()
        llm.play(Script("text"), Script("text", hold=asyncio.Event()))
        batch = Batch(llm)
        task = asyncio.create_task(batch.runner.run(feed([line("done"), line("held")])))
        while not batch.answers:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(batch.by_id) == ["done"]
        assert llm.num_unfinished_requests == 0

    run(answer())


def test_templates_of_requests() -> None:
    body = {"chat_template": "{{ messages[0].content }}"}
    (refused,) = answered(FakeAsyncLLM(), [line("x", CHAT, **body)]).answers
    assert "--trust-request-chat-template" in refused["error"]["message"]
    (taken,) = answered(FakeAsyncLLM(), [line("x", CHAT, **body)], trust_request_chat_template=True).answers
    assert taken["response"]["body"]["usage"]["prompt_tokens"] == 1


def test_the_report() -> None:
    figures = BatchFigures(num_requests=3, num_failed=1, num_prompt_tokens=7, num_output_tokens=50)
    assert figures.report().startswith("3 requests, 1 failed; 7 prompt tokens, 50 output tokens in 0.0")
