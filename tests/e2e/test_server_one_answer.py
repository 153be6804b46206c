"""One answer, bit by bit, whichever way it takes: offline, from a core in another process, or over HTTP.

Requests of all kinds go through `LLM` first. Then they go through servers, alone or in a crowd, streamed or not, with
one engine core and API server or with two of each. Token ids, texts, reasons and log probabilities must be equal, the
latter as floats: JSON keeps them exactly.
"""

import http.client
import json
import random
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest

from pelton import LLM, SamplingParams
from pelton.core.outputs import CompletionOutput, RequestOutput
from tests.support.engines import bits_of
from tests.support.native import needs_native
from tests.support.prompts import STORY, TEXTS, prompts
from tests.support.served import Served

pytestmark = needs_native

ENGINE = {"max_model_len": 700, "max_num_seqs": 12, "max_num_batched_tokens": 256, "block_size": 16}
FLAGS = [part for name, value in ENGINE.items() for part in ("--" + name.replace("_", "-"), str(value))]
SECONDS = 120

PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 5},
    {"temperature": 0.8, "logprobs": 5},
    {"temperature": 1.2, "top_p": 0.9, "n": 3, "logprobs": 5},
    {"temperature": 0, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.3, "logprobs": 2},
    {"temperature": 0, "logprobs": 1, "prompt_logprobs": 3},
    {"temperature": 0.7, "top_k": 20, "stop": [" the", "\n\n"], "max_tokens": 30, "logprobs": 0},
    {"temperature": 1.0, "min_p": 0.05, "n": 2, "prompt_logprobs": 0, "logit_bias": {"284": 2.5}},
    {"temperature": 2.0, "bad_words": ["the", "and"], "min_tokens": 5, "stop": "e", "include_stop_str_in_output": True},
    {"temperature": 0.9, "allowed_token_ids": list(range(100, 9000)), "logprobs": 5, "ignore_eos": True},
]
CHATS = [
    [{"role": "user", "content": "Explain in two sentences why ice floats."}],
    [{"role": "system", "content": "You answer like a pirate."}, {"role": "user", "content": "What is 2+2?"}],
    [
        {"role": "user", "content": "日本の首都は?"},
        {"role": "assistant", "content": "東京"},
        {"role": "user", "content": "🚀?"},
    ],
]


@dataclass(frozen=True)
class Question:
    """A request, as a server takes it; for `LLM`, without what only servers know."""

    path: str
    body: dict[str, Any]

    @property
    def params(self) -> SamplingParams:
        fields = {
            name: value for name, value in self.body.items() if name not in ("prompt", "messages", "top_logprobs")
        }
        if "top_logprobs" in self.body:
            fields["logprobs"] = self.body["top_logprobs"]
        if "logit_bias" in fields:
            fields["logit_bias"] = {int(token_id): bias for token_id, bias in fields["logit_bias"].items()}
        return SamplingParams(**fields)


def questions(tokenizer) -> list[Question]:
    rng = random.Random(8)
    tokens = sorted(prompts(tokenizer, longest=640).values(), key=len)
    long = tokens[-1]
    made = []
    for index in range(27):
        if index % 3 == 0:
            prompt: str | list[int] = list(TEXTS.values())[index % len(TEXTS)]
        elif index % 9 == 1:  # beginnings that others have too
            prompt = long[: rng.choice([16, 40, 65])] + [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 20))]
        else:
            prompt = tokens[index % len(tokens)]
        options = {"max_tokens": rng.choice([5, 8, 13]), "seed": index} | PARAMETERS[index % len(PARAMETERS)]
        made.append(Question("/v1/completions", {"prompt": prompt, **options}))
    for index, messages in enumerate(CHATS):
        options = {"max_tokens": 12, "seed": index, "temperature": 0.5 * index, "logprobs": True, "top_logprobs": 4}
        made.append(Question("/v1/chat/completions", {"messages": messages, "n": 1 + index // 2, **options}))
    return made


@dataclass
class Choice:
    """What a client gets of one choice. Log probabilities by `token_id:N`, as servers write tokens on request."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: list[dict[str, float]] | None


@dataclass
class Answer:
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[str, tuple[float, int]] | None] | None
    choices: list[Choice]


def offline_answer(output: RequestOutput) -> Answer:
    scored = output.prompt_logprobs
    if scored is not None:
        scored = [
            None if entries is None else {str(i): (entry.logprob, entry.rank) for i, entry in entries.items()}
            for entries in scored
        ]
    return Answer(output.prompt_token_ids, scored, [offline_choice(choice) for choice in output.outputs])


def offline_choice(choice: CompletionOutput) -> Choice:
    logprobs = None
    if choice.logprobs is not None:
        logprobs = [{f"token_id:{i}": entry.logprob for i, entry in entries.items()} for entries in choice.logprobs]
    return Choice(choice.token_ids, choice.text, choice.finish_reason, choice.stop_reason, logprobs)


def read_logprobs(given: dict[str, Any] | None) -> list[Any] | None:
    """Of completions and of chats."""
    if given is None:
        return None
    if "content" in given:
        positions = []
        for entry in given["content"]:
            top = {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
            assert top[entry["token"]] == entry["logprob"]
            positions.append(top)
        return positions
    entries = zip(given["tokens"], given["token_logprobs"], given["top_logprobs"], strict=True)
    # Nothing predicts the first token of an echoed prompt.
    assert all((None if top is None else top[token]) == logprob for token, logprob, top in entries)
    return given["top_logprobs"]


def whole_answer(body: dict[str, Any]) -> Answer:
    first = body["choices"][0]
    scored = first.get("prompt_logprobs", body.get("prompt_logprobs"))
    if scored is not None:
        scored = [
            None if entries is None else {i: (entry["logprob"], entry["rank"]) for i, entry in entries.items()}
            for entries in scored
        ]
    choices = [
        Choice(
            choice["token_ids"],
            choice["text"] if "text" in choice else choice["message"]["content"],
            choice["finish_reason"],
            choice["stop_reason"],
            read_logprobs(choice["logprobs"]),
        )
        for choice in body["choices"]
    ]
    return Answer(first.get("prompt_token_ids", body.get("prompt_token_ids")), scored, choices)


def streamed_answer(chunks: list[dict[str, Any]], num_choices: int) -> Answer:
    answer = Answer([], None, [Choice([], "", None, None, None) for _ in range(num_choices)])
    for chunk in chunks:
        answer.prompt_token_ids = chunk.get("prompt_token_ids", answer.prompt_token_ids)
        for part in chunk["choices"]:
            choice = answer.choices[part["index"]]
            assert choice.finish_reason is None, "something after the end"
            answer.prompt_token_ids = part.get("prompt_token_ids", answer.prompt_token_ids)
            choice.token_ids += part.get("token_ids", [])
            choice.text += part["text"] if "text" in part else part["delta"].get("content", "")
            choice.finish_reason, choice.stop_reason = part["finish_reason"], part.get("stop_reason")
            if part["logprobs"] is not None:
                choice.logprobs = (choice.logprobs or []) + read_logprobs(part["logprobs"])
    return answer


def connect(server: Served, path: str, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, Any]:
    address = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=SECONDS)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def ask(server: Served, question: Question, *, stream: bool) -> Answer:
    """A stream has no place for the prompt's log probabilities; it is asked for the rest."""
    body = question.body | {"return_token_ids": True, "return_tokens_as_token_ids": True, "stream": stream}
    if stream:
        body.pop("prompt_logprobs", None)
    connection, response = connect(server, question.path, body)
    try:
        content = response.read()
    finally:
        connection.close()
    assert response.status == 200, content
    if not stream:
        return whole_answer(json.loads(content))
    events = content.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    return streamed_answer([json.loads(event.removeprefix(b"data: ")) for event in events[:-2]], body.get("n", 1))


@dataclass
class Reference:
    questions: list[Question]
    outputs: list[RequestOutput]

    def check(self, index: int, answer: Answer, *, stream: bool) -> None:
        question = self.questions[index]
        expected = offline_answer(self.outputs[index])
        if stream:
            expected.prompt_logprobs = None
        assert answer == expected, f"request {index}, stream {stream}: {question}"


def run(llm: LLM, asked: list[Question]) -> list[RequestOutput]:
    texts = [question for question in asked if "prompt" in question.body]
    chats = [question for question in asked if "messages" in question.body]
    given = [question.body["prompt"] for question in texts]
    outputs = llm.generate(given, [question.params for question in texts], use_tqdm=False)
    conversations = [question.body["messages"] for question in chats]
    return outputs + llm.chat(conversations, [question.params for question in chats], use_tqdm=False)


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Offline, in this process."""
    llm = LLM("smollm2", **ENGINE)
    asked = questions(llm.get_tokenizer())
    outputs = run(llm, asked)
    llm.shutdown()
    return Reference(asked, outputs)


def test_the_answers_are_worth_comparing(reference):
    choices = [choice for output in reference.outputs for choice in output.outputs]
    assert {choice.finish_reason for choice in choices} == {"stop", "length"}
    assert any(isinstance(choice.stop_reason, str) for choice in choices)
    assert sum(len(choice.token_ids) for choice in choices) > 5 * len(choices)
    logprobs = {entry.logprob for c in choices for entries in c.logprobs or () for entry in entries.values()}
    assert len(logprobs) > 500
    assert len({choice.text for choice in choices}) > 0.8 * len(choices)


def test_a_core_in_another_process(reference):
    llm = LLM("smollm2", core_in_process=True, **ENGINE)
    outputs = run(llm, reference.questions)
    assert [bits_of(output) for output in outputs] == [bits_of(output) for output in reference.outputs]
    llm.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Served("smollm2", *FLAGS) as served:
        yield served


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_alone(reference, server, stream):
    """One request at a time."""
    for index, question in enumerate(reference.questions):
        reference.check(index, ask(server, question, stream=stream), stream=stream)


class Noise:
    """Other clients: whole answers, streams, and streams that nobody reads to the end."""

    def __init__(self, server: Served, num_clients: int) -> None:
        self._server = server
        self._stop = Event()
        self.num_answers = 0
        self.num_aborted = 0
        self.errors: list[BaseException] = []
        self._threads = [Thread(target=self._run, args=(random.Random(seed),)) for seed in range(num_clients)]

    def __enter__(self) -> "Noise":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            try:
                self._disturb(rng)
            except BaseException as error:  # for the test's thread to show
                self.errors.append(error)
                return

    def _disturb(self, rng: random.Random) -> None:
        words = STORY.split()
        first = rng.randrange(len(words))
        prompt = [1 + rng.randrange(40_000)] * rng.randint(1, 300) if rng.random() < 0.3 else " ".join(words[first:])
        is_aborted = rng.random() < 0.4
        body = {
            "prompt": prompt or "a",
            "max_tokens": 300 if is_aborted else rng.randint(1, 20),
            "n": rng.randint(1, 3),
            "temperature": rng.choice([0.5, 1.0, 2.0]),
            "ignore_eos": is_aborted,
            "stream": is_aborted or rng.random() < 0.5,
            "logprobs": rng.choice([None, 0, 3]),
            "repetition_penalty": rng.choice([1.0, 1.1]),
            "cache_salt": rng.choice([None, "salt"]),
        }
        connection, response = connect(self._server, "/v1/completions", body)
        assert response.status == 200, response.read()
        if is_aborted:
            response.readline()
            response.close()
            self.num_aborted += 1
        else:
            content = response.read()
            assert not body["stream"] or content.endswith(b"data: [DONE]\n\n")
            self.num_answers += 1
        connection.close()


def check_in_a_crowd(reference: Reference, server: Served, num_rounds: int) -> None:
    """All requests, each streamed and not, at once and in another order, among those of other clients."""
    rng = random.Random(11)
    for _ in range(num_rounds):
        order = [(index, stream) for index in range(len(reference.questions)) for stream in (False, True)]
        rng.shuffle(order)
        with Noise(server, 4) as noise, ThreadPoolExecutor(10) as clients:
            futures = [
                (index, stream, clients.submit(ask, server, reference.questions[index], stream=stream))
                for index, stream in order
            ]
            answers = [(index, stream, future.result()) for index, stream, future in futures]
        assert not noise.errors
        assert noise.num_answers
        assert noise.num_aborted
        for index, stream, answer in answers:
            reference.check(index, answer, stream=stream)
    assert server.metric("request_success_total", finished_reason="abort") > 0
    assert server.metric("request_success_total", finished_reason="error") == 0


ROUNDS = [1, pytest.param(20, marks=pytest.mark.slow)]


@pytest.mark.parametrize("num_rounds", ROUNDS)
def test_a_server_in_a_crowd(reference, server, num_rounds):
    check_in_a_crowd(reference, server, num_rounds)
    assert server.metric("iteration_tokens_total_sum") > 1.5 * server.metric("iteration_tokens_total_count"), (
        "no batches"
    )


@contextmanager
def doubled() -> Iterator[Served]:
    with Served("smollm2", *FLAGS, "--data-parallel-size", "2", "--api-server-count", "2") as served:
        yield served


@pytest.mark.parametrize("num_rounds", ROUNDS)
def test_two_cores_and_two_api_servers(reference, num_rounds):
    with doubled() as server:
        check_in_a_crowd(reference, server, num_rounds)
        for engine in ("0", "1"):
            assert server.metric("generation_tokens_total", engine=engine) > 50


@pytest.mark.parametrize("stream", [False, True])
def test_echo(reference, server, stream):
    """The prompt stands before the output, its text and its log probabilities, too."""
    for index in (0, 1, 2, 4):
        question, output = reference.questions[index], offline_answer(reference.outputs[index])
        scored = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": question.body["logprobs"]}
        alone = ask(server, Question(question.path, {"prompt": question.body["prompt"], **scored}), stream=False)
        expected = [
            entries and {f"token_id:{token_id}": logprob for token_id, (logprob, _) in entries.items()}
            for entries in alone.prompt_logprobs
        ]
        options = {name: value for name, value in question.body.items() if name != "prompt_logprobs"}
        answer = ask(server, Question(question.path, options | {"echo": True}), stream=stream)
        assert answer.prompt_token_ids == output.prompt_token_ids
        for choice, without in zip(answer.choices, output.choices, strict=True):
            assert choice.text.endswith(without.text)
            if isinstance(question.body["prompt"], str):
                assert choice.text == question.body["prompt"] + without.text
            assert choice.token_ids == without.token_ids
            assert choice.logprobs == expected + without.logprobs
