"""Faults that users of such servers have reported, provoked on purpose over HTTP: texts, values, limits, idleness."""

import json
import math
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import (
    Answer,
    Choice,
    check_error,
    check_error_entry,
    check_leaks,
    choices,
    is_idle,
    post,
    stream,
    wait_for,
)
from tests.support.prompts import TEXTS
from tests.support.served import Served
from tests.support.tiny_llama import VOCAB_SIZE, smollm2_tokenizer, tiny_llama

GEMMA = Path(__file__).parents[2] / ".venv" / "test-data" / "gemma-3-270m-q4_k_m.gguf"
PROCESSORS = ("Force", "NotANumber")
CONTEXT = 64
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
GREEDY: dict[str, Any] = {"prompt": TEXTS["president"], "temperature": 0, "max_tokens": 40}
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    """SmolLM2, with steps so small that prompts come in pieces, other ones in other company."""
    with Served("smollm2", "--max-num-batched-tokens", "48", "--max-num-seqs", "32", "--max-model-len", "2048") as real:
        yield real


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    """A context of 64 tokens, on one CPU."""
    flags = [flag for name in PROCESSORS for flag in ("--logits-processors", f"tests.support.logits_processors:{name}")]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # the server inherits it
    try:
        server = Served(tiny_llama(), "--served-model-name", "tiny", "--max-model-len", str(CONTEXT), *flags)
    finally:
        os.sched_setaffinity(0, allowed)
    with server:
        yield server


@pytest.fixture(scope="module")
def gemma() -> Iterator[Served]:
    with Served(str(GEMMA), "--max-model-len", "512", "--trust-request-chat-template") as gemma:
        yield gemma


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def one(served: Served, body: dict[str, Any], *, streamed: bool) -> Choice:
    (choice,) = choices(served, body, streamed=streamed)
    return choice


# ---------------------------------------------------------------------------------------------- 1: stop strings


def stops_of(full: str) -> list[str]:
    return sorted({full[i:j] for i in range(len(full)) for j in range(i + 1, min(i + 25, len(full)) + 1)})


def check_stops(real: Served, full: str, stops: list[str], *, streamed: bool) -> None:
    def check(stop: str, include: bool) -> None:
        body = {**GREEDY, "stop": stop, "include_stop_str_in_output": include}
        choice = one(real, body, streamed=streamed)
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
        assert choice.text == full[: full.index(stop) + (len(stop) if include else 0)], (stop, include)

    with ThreadPoolExecutor(16) as threads:
        for future in [threads.submit(check, stop, index % 4 == 0) for index, stop in enumerate(stops)]:
            future.result()


@STREAMED
def test_substrings_of_an_output_as_stop_strings(real, streamed):
    """The text is cut at the first match, however it lies over the tokens (fault 1)."""
    full = one(real, GREEDY, streamed=False).text
    check_stops(real, full, random.Random(1).sample(stops_of(full), 30), streamed=streamed)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@STREAMED
def test_every_substring_of_an_output_as_stop_string(real, streamed):
    full = one(real, GREEDY, streamed=False).text
    check_stops(real, full, stops_of(full), streamed=streamed)


def test_only_what_may_become_a_stop_string_is_held_back(real):
    """Whatever has been sampled is shown, but for a beginning of the stop string at its end (fault 1)."""
    full = one(real, GREEDY, streamed=False).text
    stop = full[10:25] + "never"
    shown, sampled, num_held = "", "", 0
    detokenizer = smollm2_tokenizer().detokenizer()
    for event in stream(real, "/v1/completions", {**GREEDY, "stop": stop, "return_token_ids": True}):
        (choice,) = event["choices"]
        shown += choice["text"]
        sampled += detokenizer.add(choice["token_ids"])
        held = sampled[len(shown) :]
        assert sampled.startswith(shown)
        assert stop.startswith(held)
        num_held += bool(held)
    assert (shown, bool(num_held)) == (full, True)


# ------------------------------------------------------------------------------------------ 2: split characters


def byte_tokens(text: str) -> list[int]:
    """A token for every byte."""
    tokenizer = smollm2_tokenizer()
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(VOCAB_SIZE))}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@STREAMED
@pytest.mark.parametrize("text", ["🚀", "👩‍🚀 é", "naïve café", "日本"])
def test_characters_that_come_byte_by_byte(tiny, text, streamed):
    """No replacement character for what later bytes complete; the pieces make up the text (fault 2)."""
    ids = byte_tokens(text)
    body = {"prompt": "Prompt", "max_tokens": len(ids), "vllm_xargs": {"force": ids}, "return_token_ids": True}
    choice = one(tiny, {**body, "logprobs": 0}, streamed=streamed)
    assert (choice.text, choice.token_ids) == (text, ids)
    assert len(choice.logprobs) == len(ids)


def test_conversations_get_whole_characters(tiny):
    ids = byte_tokens("🚀 é")
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": len(ids),
        "vllm_xargs": {"force": ids},
        "logprobs": True,
        "top_logprobs": 1,
    }
    pieces = [event["choices"][0] for event in stream(tiny, "/v1/chat/completions", body)]
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == "🚀 é"
    assert not any(REPLACEMENT in piece["delta"].get("content", "") for piece in pieces)
    entries = [entry for piece in pieces if piece["logprobs"] for entry in piece["logprobs"]["content"]]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "🚀 é"


@STREAMED
@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_prompts_that_end_inside_a_character(tiny, num_bytes, streamed):
    """Neither their bytes nor their text are in the output (fault 2)."""
    ids = byte_tokens("🚀x")
    prompt = byte_tokens("Prompt ") + ids[:num_bytes]
    body = {"prompt": prompt, "max_tokens": 5 - num_bytes, "vllm_xargs": {"force": ids[num_bytes:]}}
    choice = one(tiny, body, streamed=streamed)
    status, decoded = tiny.post("/detokenize", {"tokens": ids[num_bytes:]})
    assert status == 200
    assert choice.text == decoded["prompt"]
    assert choice.text.endswith("x")
    assert "P" not in choice.text


@STREAMED
def test_bytes_one_request_after_the_other(real, streamed):
    """A character of which each request may only generate the next byte (fault 2)."""
    ids = byte_tokens("🚀")
    for index, token_id in enumerate(ids):
        body = {"prompt": [*byte_tokens("Hi "), *ids[:index]], "max_tokens": 1, "allowed_token_ids": [token_id]}
        choice = one(real, {**body, "return_token_ids": True}, streamed=streamed)
        assert choice.token_ids == [token_id]
        assert choice.text == REPLACEMENT  # nothing completes it


# ---------------------------------------------------------------------------------------------- 3: prompt logprobs


def test_prompt_logprobs_cold_and_warm_and_in_any_company(real):
    """The same values, and `echo` has the same as `prompt_logprobs` (fault 3)."""
    text = " ".join([TEXTS["story"]] * 2)
    scored = {"prompt": text, "max_tokens": 3, "temperature": 0, "prompt_logprobs": 2, "cache_salt": "a"}
    echoed = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 2, "cache_salt": "b"}

    def values(answer: Answer) -> Any:
        (choice,) = answer.json()["choices"]
        return choice["text"], choice.get("prompt_logprobs"), choice["logprobs"]

    def ask(body: dict[str, Any]) -> Any:
        answer = post(real, "/v1/completions", body)
        assert answer.status == 200, answer
        return values(answer)

    first = ask(scored)
    first_echo = ask(echoed)
    assert first_echo[0] == text
    assert len(first_echo[2]["tokens"]) == len(first[1])
    assert first[1][0] is None
    own = [next(iter(entries.values()))["logprob"] for entries in first[1][1:]]
    assert first_echo[2]["token_logprobs"] == [None, *own]
    assert all(math.isfinite(value) for value in own)
    others = [{**scored, "cache_salt": f"other {i}"} for i in range(3)] + [{**echoed, "cache_salt": "echo"}]
    results = at_once(*[lambda body=body: ask(body) for body in (scored, echoed, *others)])
    assert all(result == (first if result[1] else first_echo) for result in results)
    usage = post(real, "/v1/completions", {**scored, "prompt_logprobs": None}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


@STREAMED
def test_echo_without_a_new_token(real, streamed):
    choice = one(real, {"prompt": "Hello there", "max_tokens": 0, "echo": True, "logprobs": 1}, streamed=streamed)
    assert (choice.text, choice.finish_reason) == ("Hello there", "length")
    assert [token for token, _, _ in choice.logprobs] == ["Hello", " there"]
    assert choice.logprobs[0][1:] == (None, None)


# ---------------------------------------------------------------------------------------------- 4: logprob values


@STREAMED
@pytest.mark.parametrize("number", [0, 1, 5, 20])
def test_log_probabilities(real, number, streamed):
    """Finite, and always of the sampled token as well (fault 4)."""
    variants: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 5, "seed": 1},
        {"temperature": 2, "seed": 2, "top_k": 2, "min_p": 0.5},
        {"allowed_token_ids": [5, 6], "seed": 3},
        {"logit_bias": {"198": -100, "260": 100}, "temperature": 0},
        {"bad_words": [" the", "a"], "seed": 4, "min_tokens": 6},
    ]

    def check(variant: dict[str, Any]) -> None:
        body = {"prompt": TEXTS["capital"], "max_tokens": 6, "logprobs": number, "return_token_ids": True, **variant}
        choice = one(real, body, streamed=streamed)
        assert len(choice.logprobs) == len(choice.token_ids)
        for token, logprob, top in choice.logprobs:
            assert math.isfinite(logprob)
            assert logprob <= 0
            assert top[token] == logprob or top[token] > logprob  # the best of all tokens with this text
            assert 1 <= len(top) <= number + 1
            assert all(math.isfinite(value) and value <= 0 for value in top.values())
            assert sum(map(math.exp, top.values())) < 1.0001

    at_once(*[lambda variant=variant: check(variant) for variant in variants])


# ------------------------------------------------------------------------------------------ 5: seeds and choices


@STREAMED
def test_seeds(real, streamed):
    """A seed makes an answer repeatable, its choices differ, and without one answers differ (fault 5)."""
    body: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 1, "max_tokens": 12}

    def texts(**more: Any) -> list[str]:
        return [choice.text for choice in choices(real, {**body, **more}, streamed=streamed)]

    seeded = texts(n=4, seed=7)
    assert len(set(seeded)) == 4
    assert texts(n=4, seed=7) == seeded
    assert texts(seed=7) == seeded[:1]
    assert texts(seed=8) != seeded[:1]
    assert len({*texts(n=3), *texts(n=3), *texts(seed=-1), *texts(seed=-1)}) == 8


# --------------------------------------------------------------------------------- 6: independence of the batch


def test_thirty_two_prompts_alone_and_together(real):
    """Tokens and log probabilities are the same (fault 6)."""
    rng = random.Random(6)
    texts = [*TEXTS.values(), *(f"{TEXTS['story'][: 40 * n]} Number {n} is" for n in range(1, 9))][:32]
    bodies: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        body = {"prompt": text, "max_tokens": 4 + index % 9, "logprobs": 2, "return_token_ids": True}
        sampling = {"temperature": 0} if index % 2 else {"temperature": 1.1, "seed": index, "top_p": 0.9}
        bodies.append({**body, **sampling, "cache_salt": "alone" if index % 3 else f"salt {index}"})
    assert len(bodies) == 32
    alone = [one(real, body, streamed=index % 4 == 0) for index, body in enumerate(bodies)]
    for _ in range(2):
        order = rng.sample(range(32), 32)
        together = at_once(*[lambda i=i: one(real, bodies[i], streamed=i % 3 == 0) for i in order])
        for index, choice in zip(order, together, strict=True):
            assert choice == alone[index]


# -------------------------------------------------------------------------------- 18, 26: broken rows, late errors


def test_a_row_of_nan_fails_its_own_request(tiny):
    """Before the first token and after it, streamed or not; others go on as if nothing had been (faults 18 and 26)."""
    good = {"prompt": "Hello", "seed": 3, "max_tokens": 40, "ignore_eos": True, "logprobs": 2}
    expected = one(tiny, good, streamed=False)
    num_errors = tiny.metric("request_success_total", finished_reason="error")
    bad = [{**good, "vllm_xargs": {"nan_after": number}} for number in (0, 1, 5)]
    calls: list[Callable[[], Any]] = [lambda body=body: post(tiny, "/v1/completions", body) for body in bad]
    calls += [lambda body=body: post(tiny, "/v1/completions", {**body, "stream": True}) for body in bad]
    calls += [lambda flag=flag: one(tiny, good, streamed=flag) for flag in (False, True)]
    *answers, whole, streamed = at_once(*calls)
    assert whole == streamed == expected
    for answer in answers[:3]:
        assert "NaN" in check_error(answer, 500)["message"]
    for number, answer in zip((0, 1, 5), answers[3:], strict=True):
        check_leaks(answer.body)
        check_late_error(answer, number)
    assert tiny.metric("request_success_total", finished_reason="error") == num_errors + 6
    wait_for(lambda: is_idle(tiny), "rest")


def check_late_error(answer: Answer, num_tokens: int) -> None:
    """A stream that ends with an error, after the chunks of so many tokens."""
    assert answer.status == 200
    *events, last, rest = answer.body.split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    *chunks, error = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert set(error) == {"error"}
    check_error_entry(error["error"], 500)
    assert not any("error" in chunk for chunk in chunks)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert sum(len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks) <= num_tokens


@STREAMED
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [5, VOCAB_SIZE]},
        {"prompt": [-1]},
        {"prompt": [2**63]},
        {"stop_token_ids": [VOCAB_SIZE]},
        {"allowed_token_ids": [VOCAB_SIZE]},
        {"logit_bias": {str(VOCAB_SIZE): 1}},
        {"logit_bias": {"-1": 1}},
    ],
    ids=str,
)
def test_ids_outside_the_vocabulary(tiny, fields, streamed):
    """Refused before anything is sent, with the id in the message (fault 18)."""
    answer = post(tiny, "/v1/completions", {"prompt": "Hi", "stream": streamed, **fields})
    value = re.findall(r"-?\d+", json.dumps(list(fields.values())))
    assert any(number in check_error(answer, 400)["message"] for number in value)


def test_ids_that_no_token_has(tiny):
    for token_id in (-1, 2**31, 2**63, 10**30):
        check_error(post(tiny, "/detokenize", {"tokens": [token_id]}), 400)


# ---------------------------------------------------------------------------------------------- 19: the context


@STREAMED
@pytest.mark.parametrize("max_tokens", [None, 0, 1, 64, 65, 10**9, -1])
@pytest.mark.parametrize("length", [62, 63, 64, 65, 66])
def test_prompts_near_the_length_of_the_context(tiny, length, max_tokens, streamed):
    """Prompts are never cut: what is too long is refused with both numbers, and the output stops short (fault 19)."""
    body = {"prompt": [5 + n for n in range(length)], "max_tokens": max_tokens, "ignore_eos": True, "echo": True}
    answer = post(tiny, "/v1/completions", {**body, "stream": streamed})
    if max_tokens == -1:
        assert check_error(answer, 400)["param"] == "max_tokens"
        return
    if length >= CONTEXT:
        message = check_error(answer, 400)["message"]
        assert message.startswith(f"This model's maximum context length is {CONTEXT} tokens")
        assert str(length) in message
        return
    choice = one(tiny, {**body, "return_token_ids": True}, streamed=streamed)
    assert len(choice.token_ids) == min(16 if max_tokens is None else max_tokens, CONTEXT - length)
    assert choice.finish_reason == "length"
    assert choice.text.startswith(smollm2_tokenizer().decode(body["prompt"]))


def test_conversations_fill_the_context(tiny):
    """The default is what is left of it (fault 19)."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    answer = post(tiny, "/v1/chat/completions", body).json()
    assert answer["usage"]["total_tokens"] == CONTEXT
    long = {"messages": [{"role": "user", "content": "Hi " * CONTEXT}]}
    assert check_error(post(tiny, "/v1/chat/completions", long), 400)["message"].startswith("This model's maximum")


# ---------------------------------------------------------------------------------------- 21: templates and BOS


def test_a_model_without_a_chat_template(gemma):
    """A conversation is refused with a remedy, streamed or not; completions work (fault 21)."""
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    for path, more in (("/v1/chat/completions", {}), ("/v1/chat/completions", {"stream": True}), ("/tokenize", {})):
        message = check_error(post(gemma, path, body | more), 400)["message"]
        assert "--chat-template" in message
        assert "/v1/completions" in message
    assert one(gemma, {"prompt": "The capital of France is", "max_tokens": 4}, streamed=True).text


def test_one_token_at_the_beginning(gemma):
    """The text of BOS in a prompt does not make two of them, and a prompt without it has one (fault 21)."""
    counts = {}
    for prompt in ("Hello", "<bos>Hello"):
        body = {"prompt": prompt, "max_tokens": 1, "return_token_ids": True}
        (choice,) = post(gemma, "/v1/completions", body).json()["choices"]
        counts[prompt] = choice["prompt_token_ids"].count(2)
    assert counts == {"Hello": 1, "<bos>Hello": 1}


def test_templates_that_write_the_beginning_themselves(gemma):
    """Nothing is put before it a second time (fault 21)."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "return_token_ids": True}
    for template, count in (("{{ bos_token }}{{ messages[0].content }}", 1), ("{{ messages[0].content }}", 0)):
        answer = post(gemma, "/v1/chat/completions", {**body, "chat_template": template}).json()
        assert answer["prompt_token_ids"].count(2) == count


# --------------------------------------------------------------------------------------------- 25: threads, idleness


def test_threads_stay_within_the_affinity(tiny):
    """Of every process (fault 25)."""
    assert "1 thread" in tiny.log
    assert one(tiny, {"prompt": "Hi"}, streamed=False).text
    masks = set()
    for pid in tiny.tree():
        for task in Path(f"/proc/{pid}/task").iterdir():
            masks.add(re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())[1])
    assert masks == {str(min(os.sched_getaffinity(0)))}


def cpu_seconds(pids: list[int]) -> float:
    """That the processes have used so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def test_an_idle_server_uses_no_cpu(real, tiny):
    """Below 5 % of a core for two servers: a loop that polls without sleeping takes 100 %, one that wakes up a
    thousand times a second 10 %, and clock ticks are as coarse as 1 % of a second (fault 25)."""
    for served in (real, tiny):
        wait_for(lambda served=served: is_idle(served), "rest")
    pids = [pid for served in (real, tiny) for pid in served.tree()]
    assert len(pids) >= 4
    before = cpu_seconds(pids)
    threading.Event().wait(5)
    assert cpu_seconds(pids) - before < 0.25


# ------------------------------------------------------------------------------------------- 26: ends and metrics


def test_ends_of_streams(real):
    """Each choice ends once, usage comes after all of them, and nothing after [DONE] (fault 26)."""
    body = {"prompt": ["Hello", "One two"], "n": 2, "max_tokens": 8, "stream_options": {"include_usage": True}}
    *chunks, usage = stream(real, "/v1/completions", body)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks)
    ends = [chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2, 3]


def test_every_end_is_counted(tiny):
    """By its reason, and tokens with it (fault 26)."""
    names = ("stop", "length", "abort", "error")

    def counts() -> list[float]:
        tokens = [tiny.metric("prompt_tokens_total"), tiny.metric("generation_tokens_total")]
        return [tiny.metric("request_success_total", finished_reason=name) for name in names] + tokens

    before = counts()
    (forced,) = byte_tokens("x")
    one(tiny, {"prompt": [5, 6], "max_tokens": 5, "stop": "x", "vllm_xargs": {"force": [forced]}}, streamed=True)
    one(tiny, {"prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True}, streamed=False)
    check_error(post(tiny, "/v1/completions", {"prompt": [5], "vllm_xargs": {"nan_after": 0}}), 500)
    check_error(post(tiny, "/v1/completions", {"prompt": [-5]}), 400)
    after = counts()
    grown = [second - first for first, second in zip(before, after, strict=True)]
    assert grown[:4] == [1, 1, 0, 1]
    assert grown[4] == 5
    assert grown[5] in (6, 7)  # the core may have been one token ahead of the stop string
    assert all(first <= second for first, second in pairwise([0, *grown[4:]]))
