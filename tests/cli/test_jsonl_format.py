"""The format of requests and answers in JSON lines."""

import json
import math

import pytest

from pelton import SamplingParams
from pelton.cli.jsonl_format import _KEYS, answer, parse_line, read_id, read_request, to_line
from pelton.core.outputs import CompletionOutput, Logprob, RequestOutput
from tests.support.tiny_llama import smollm2_tokenizer


def read(content, defaults=None):
    return read_request(content, defaults or SamplingParams(), smollm2_tokenizer(), None)


def test_parameters_change_the_defaults():
    defaults = SamplingParams(temperature=0.5, seed=3, max_tokens=9)
    request = read({"prompt": "Hi", "seed": 4, "top_k": 4, "stop": "x", "logit_bias": {"5": 1}}, defaults)
    changed = {"seed": 4, "top_k": 4, "stop": "x", "logit_bias": {5: 1.0}}
    assert request.params == SamplingParams(temperature=0.5, max_tokens=9, **changed)
    assert (request.prompt, request.priority) == ({"prompt": "Hi"}, 0)
    assert read({"prompt": "Hi"}, defaults).params == defaults


def test_null_is_as_absent():
    """Clients write nulls for what they leave open."""
    defaults = SamplingParams(temperature=0.5, seed=3, max_tokens=9)
    content = dict.fromkeys(_KEYS)
    request = read(content | {"prompt": "Hi"}, defaults)
    assert (request.prompt, request.params, request.priority) == ({"prompt": "Hi"}, defaults, 0)
    assert read_id(content, 7) == 7
    with pytest.raises(ValueError, match=r"a line needs exactly one of .* got none"):
        read(content)
    with pytest.raises(ValueError, match="unknown key 'max_token'"):
        read({"prompt": "Hi", "max_token": None})


def test_prompts():
    assert read({"prompt_token_ids": [1, 2], "cache_salt": "s", "priority": -3}).prompt == {
        "prompt_token_ids": [1, 2],
        "cache_salt": "s",
    }
    assert read({"prompt": "Hi", "priority": -3}).priority == -3
    messages = [{"role": "user", "content": "Hi"}]
    prompt = read({"messages": messages, "cache_salt": "s"}).prompt
    assert prompt["prompt"] == smollm2_tokenizer().apply_chat_template(messages)
    assert prompt["cache_salt"] == "s"
    other = read_request({"messages": messages}, SamplingParams(), smollm2_tokenizer(), "{{ messages[0].content }}!")
    assert other.prompt["prompt"] == "Hi!"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "a line needs exactly one of prompt, prompt_token_ids, messages, got none"),
        ({"prompt": "a", "messages": []}, "got prompt and messages"),
        ({"prompt": "a", "output_kind": 1}, "unknown key 'output_kind'; there are prompt, "),
        ({"prompt": "a", "max_token": 1}, "unknown key 'max_token'"),
        ({"prompt": "a", "temperature": "0"}, "temperature must be a number, got '0'"),
        ({"prompt": "a", "logit_bias": {"05": 1}}, "logit_bias must be .*integer.*, got '05'"),
        ({"prompt": "a", "logit_bias": [1]}, "logit_bias must be a dict"),
        ({"messages": [{"role": "user"}]}, "message 0: content is missing"),
        ({"messages": "Hi"}, "a conversation must be a list of messages, got str"),
    ],
)
def test_requests_that_are_refused(content, words):
    with pytest.raises(ValueError, match=words):
        read(content)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"no", "the line is not valid JSON: Expecting value at character 1"),
        (b'{"a": 1,}', "the line is not valid JSON: Illegal trailing comma|Expecting property name"),
        (b"[1]", "the line is not a request: it is not a JSON object"),
        (b'{"a": 1, "a": 2}', "the line is not a request: the name 'a' occurs twice"),
        (b'{"a": "\xe9"}', "the line is not UTF-8"),
        (b"[" * 100_000, "the line is not a request: it is nested too deeply"),
    ],
)
def test_lines_that_are_no_requests(line, words):
    with pytest.raises(ValueError, match=words):
        parse_line(line)


def test_ids():
    assert [read_id(content, 7) for content in ({}, {"id": "a"}, {"id": 0})] == [7, "a", 0]
    for wrong in (True, 1.5, [1], "\ud800"):
        with pytest.raises(ValueError, match=r"^id must be"):
            read_id({"id": wrong}, 7)


def entry(token_id, logprob, rank):
    return {token_id: Logprob(logprob, rank, f"<{token_id}>")}


LIKELIEST = entry(5, -0.5, 1) | entry(6, -1.0, 2)
RARE = entry(9, -math.inf, 17)


@pytest.mark.parametrize(
    ("num_logprobs", "entries", "top"),
    [
        (0, RARE, []),
        (2, RARE | LIKELIEST, [5, 6]),
        (2, entry(6, -1.0, 2) | entry(5, -0.5, 1), [5, 6]),
        (1, entry(7, -0.5, 1) | entry(5, -0.5, 1), [5]),
        (-1, RARE | LIKELIEST, [5, 6, 9]),
        (50, RARE | LIKELIEST, [5, 6, 9]),
    ],
    ids=["none", "beside", "among", "tied", "all", "more than all"],
)
def test_log_probabilities(num_logprobs, entries, top):
    """The likeliest come in order, and with the chosen one only if it is one of them. Infinity is null."""
    chosen = next(iter(entries))
    completion = CompletionOutput(0, "t", [chosen], -1.0, [entries], "stop", None)
    params = SamplingParams(logprobs=num_logprobs, prompt_logprobs=num_logprobs)
    output = RequestOutput("r", "p", [3, chosen], [completion], True, 1, prompt_logprobs=[None, entries])
    content = json.loads(to_line(answer(output, "id", 1, params)))
    (position,) = content["outputs"][0]["logprobs"]
    assert position["token_id"] == chosen
    assert position["token"] == f"<{chosen}>"
    assert position["logprob"] == (None if chosen == 9 else entries[chosen].logprob)
    assert position["rank"] == entries[chosen].rank
    assert [token["token_id"] for token in position["top"]] == top
    assert content["prompt_logprobs"] == [None, position]


def test_an_answer():
    completion = CompletionOutput(1, "é\ud800", [4, 5], None, None, "stop", 5)
    output = RequestOutput("r", None, [1, 2, 3], [completion], True, 2)
    line = to_line(answer(output, 3, 4, SamplingParams()))
    assert line.count(b"\n") == 1
    assert "é".encode() in line
    assert json.loads(line) == {
        "id": 3,
        "line": 4,
        "prompt": None,
        "outputs": [
            {"index": 1, "text": "é\ud800", "token_ids": [4, 5], "finish_reason": "stop", "stop_reason": 5},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 2},
    }
