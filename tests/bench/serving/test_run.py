"""The whole of a benchmark of a server: of one that answers as the test says, and of Pelton's own."""

import json
import socket
import threading
import time
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import pytest

from pelton.bench.bounds import parse_bound
from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.datasets import make_requests
from pelton.bench.requests import BenchRequest
from pelton.bench.serving.config import BenchServeConfig
from pelton.bench.serving.request_errors import error_kind
from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.result import warnings_of
from pelton.bench.serving.run import run_serve
from pelton.bench.serving.server_info import ServerUnavailableError
from tests.support.event_server import DONE, EventServer, Refuse, tokens
from tests.support.served import Served
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama

BACKENDS = pytest.mark.parametrize("backend", ["openai", "openai-chat"])
TEXTS = DatasetConfig(dataset_name="builtin", num_prompts=12, builtin_output_len=4)
"""Needs no tokenizer."""
RANDOM = DatasetConfig(num_prompts=16, random_input_len=20, random_output_len=12, random_range_ratio=0.5)
VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests",
} | {
    f"{statistic}_{latency}_ms"
    for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99")
    for latency in ("ttft", "tpot", "itl", "e2el")
}  # fmt: skip


def bench(server, dataset=TEXTS, **flags):
    return run_serve(BenchServeConfig(base_url=server.url, disable_tqdm=True, **flags), dataset)


@BACKENDS
def test_a_run_by_the_watch(backend):
    first, gap = 0.1, 0.02
    with EventServer(tokens(first=first, gap=gap)) as server:
        start = perf_counter()
        result, requests = bench(server, backend=backend, max_concurrency=6)
        seconds = perf_counter() - start
    assert result.keys() >= VLLM_KEYS
    assert (result["completed"], result["failed"], result["cancelled"]) == (12, 0, 0)
    assert result["total_output_tokens"] == 12 * 4
    assert result["total_input_tokens"] == 12 * 7, "as the server's usage has it"
    assert result["counted_by"] == "usage"
    assert result["tokens_per_event"] == 1.0
    assert server.most_at_once == result["max_concurrent_requests"] == 6
    # Two rounds of six requests each.
    assert 2 * (first + 3 * gap) <= result["duration"] <= seconds
    assert result["output_throughput"] == 48 / result["duration"]
    assert result["request_throughput"] == 12 / result["duration"]
    assert result["total_token_throughput"] == (48 + 84) / result["duration"]
    assert all(one.ttft >= first for one in requests)
    assert result["median_ttft_ms"] >= 1e3 * first
    assert result["p99_e2el_ms"] >= 1e3 * (first + 3 * gap)
    assert 0.5 * gap * 1e3 < result["median_itl_ms"]
    assert result["max_wait_ms"] >= 1e3 * first
    assert result["failures"] == []
    assert result["server"]["header"] == "stand-in/1"
    assert result["machine"]["cpus"] >= 1
    json.dumps(result, allow_nan=False)


@BACKENDS
def test_what_the_server_is_asked(backend):
    with EventServer(tokens(), models=[{"id": "a"}, {"id": "b"}]) as server:
        bench(server, backend=backend, top_p=0.9, top_k=5, ignore_eos=True, extra_body={"priority": 3, "top_k": 6})
    expected = make_requests(TEXTS, None)
    assert len(server.received) == len(expected)
    asked = {request.body["messages"][0]["content"] if request.is_chat else request.body["prompt"]: request.body
             for request in server.received}  # fmt: skip
    assert asked.keys() == {request.prompt for request in expected}
    for received in server.received:
        body = received.body
        assert received.path == ("/v1/chat/completions" if backend == "openai-chat" else "/v1/completions")
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("a", 4, 0.0)
        assert (body["top_p"], body["top_k"], body["priority"], body["ignore_eos"]) == (0.9, 6, 3, True)
        assert body["stream_options"] == {"include_usage": True}
        assert "min_p" not in body


def test_the_model_and_where_it_is_asked_for():
    with EventServer(tokens(), models=[]) as server:
        with pytest.raises(ValueError, match="lists none; add --model"):
            bench(server)
        result, _ = bench(server, model="mine", endpoint="/other/path")
        assert result["model_id"] == "mine"
        assert {request.path for request in server.received} == {"/other/path"}
        result, _ = bench(server, model="smollm2", served_model_name="mine")
    assert (result["model_id"], result["tokenizer_id"]) == ("mine", "smollm2")
    assert server.received[-1].body["model"] == "mine"


def test_keys_and_headers(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with EventServer(tokens()) as server:
        bench(server, replace(TEXTS, num_prompts=1), header=[("X-Team", "7")])
        bench(server, replace(TEXTS, num_prompts=1), header=[("Authorization", "Basic abc")])
        bench(server, replace(TEXTS, num_prompts=1), header=[("authorization", "Basic def")])
    authorizations = [
        [value for name, value in request.header_lines if name.lower() == "authorization"]
        for request in server.received
    ]
    assert authorizations == [["Bearer secret"], ["Basic abc"], ["Basic def"]]
    assert server.received[0].headers["x-team"] == "7"


def test_prompts_of_tokens_need_a_tokenizer():
    tokens_of_4 = DatasetConfig(num_prompts=3, random_input_len=4, random_output_len=2)
    with EventServer(tokens(), models=[{"id": "stand-in", "root": "no/such\nmodel"}]) as server:
        with pytest.raises(ValueError, match=r"needs the model's tokenizer.*--tokenizer"):
            bench(server, tokens_of_4)
        with pytest.raises(ValueError, match="--tokenizer: "):
            bench(server, tokens_of_4, tokenizer="neither")
        result, _ = bench(server, tokens_of_4, tokenizer="smollm2")
        assert result["tokenizer_id"] == "smollm2"
        assert all(len(request.body["prompt"]) == 4 for request in server.received)
        server.received.clear()
        server.models = [{"id": "stand-in", "root": "smollm2"}]
        bench(server, tokens_of_4, backend="openai-chat")
    asked = [request.body["messages"][0]["content"] for request in server.received]
    expected = [
        smollm2_tokenizer().decode(request.prompt) for request in make_requests(tokens_of_4, smollm2_tokenizer())
    ]
    assert sorted(asked) == sorted(expected)


def without_usage(request):
    yield request.event("one two", finish=None)
    yield request.event(" three", finish="stop")
    yield DONE


def test_a_server_without_usage():
    with EventServer(without_usage) as server:
        by_events, _ = bench(server)
        by_tokenizer, requests = bench(server, tokenizer="smollm2")
    assert by_events["counted_by"] == "events"
    assert by_events["total_output_tokens"] == 12 * 2
    assert by_tokenizer["counted_by"] == "tokenizer"
    encode = smollm2_tokenizer().encode
    assert by_tokenizer["total_output_tokens"] == 12 * len(encode("one two three"))
    assert [one.prompt_len for one in requests] == [len(encode(one.prompt)) for one in make_requests(TEXTS, None)]
    assert any("counted by events" in warning for warning in by_events["warnings"])
    assert by_events["total_input_tokens"] is by_events["total_token_throughput"] is None
    assert any("number of input tokens is not known" in warning for warning in by_events["warnings"])
    assert by_tokenizer["total_input_tokens"] == sum(one.prompt_len for one in requests)


def test_failures_are_told_and_never_counted_as_answers():
    def script(request):
        number = len(server.received)
        if number % 4 == 0:
            yield Refuse(503, b'{"error": {"message": "busy"}}')
        elif number % 4 == 1:
            yield request.event("a")
            yield DONE
        else:
            yield from tokens()(request)

    with EventServer(script) as server:
        result, requests = bench(server, goodput=[("e2el", 1e6)])
    assert (result["completed"], result["failed"]) == (6, 6)
    assert result["total_output_tokens"] == 24
    assert {(failure["kind"], failure["count"]) for failure in result["failures"]} == {("HTTP 503", 3), ("no end", 3)}
    assert result["request_goodput"] == result["request_throughput"] == 6 / result["duration"]
    assert sum(one.success for one in requests) == 6


def test_a_server_that_is_gone():
    with EventServer(lambda _: [Refuse(500)]) as server:
        result, requests = bench(server)
    assert (result["completed"], result["failed"]) == (0, 12)
    assert result["median_ttft_ms"] is None
    assert result["output_throughput"] == 0.0
    assert {error_kind(one.error) for one in requests} == {"HTTP 500"}


def test_warm_up_requests_are_others_and_are_not_measured():
    with EventServer(tokens()) as server:
        result, _ = bench(server, RANDOM, num_warmups=3, max_concurrency=1, tokenizer="smollm2")
    assert result["completed"] == result["num_prompts"] == 16
    prompts = [tuple(request.body["prompt"]) for request in server.received]
    assert prompts[3:] == [request.prompt for request in make_requests(RANDOM, smollm2_tokenizer())]
    assert not set(prompts[:3]) & set(prompts[3:])


def test_fewer_warm_ups_than_prefixes():
    dataset = DatasetConfig(
        "prefix_repetition", num_prompts=12, prefix_repetition_prefix_len=8, prefix_repetition_suffix_len=4
    )
    with EventServer(tokens(num=2)) as server:
        result, _ = bench(server, dataset, num_warmups=1, tokenizer="smollm2")
    assert result["completed"] == 12
    assert len(server.received) == 13


def test_a_warm_up_that_fails_is_the_end():
    with EventServer(lambda _: [Refuse(400, b"no")]) as server:
        with pytest.raises(ServerUnavailableError, match="warm-up failed: HTTP 400: no"):
            bench(server, num_warmups=2)
        assert len(server.received) == 2


def test_it_waits_until_the_server_is_ready():
    with EventServer(tokens()) as server:
        server.models_status = 503

        def get_ready():
            time.sleep(0.5)
            server.models_status = 200

        thread = threading.Thread(target=get_ready)
        thread.start()
        start = perf_counter()
        result, _ = bench(server)
        thread.join()
    assert perf_counter() - start >= 0.5
    assert result["completed"] == 12


def test_a_server_that_does_not_get_ready():
    with EventServer(tokens()) as server:
        server.models_status = 503
        start = perf_counter()
        with pytest.raises(ServerUnavailableError, match=r"not ready after 0\.3 s: .*503"):
            bench(server, ready_check_timeout_sec=0.3)
        assert perf_counter() - start >= 0.3
        server.models_status = 401
        with pytest.raises(ServerUnavailableError, match="OPENAI_API_KEY"):
            bench(server)
    with pytest.raises(ServerUnavailableError, match=r"is not ready: .*; see --base-url"):
        bench(server, ready_check_timeout_sec=0.0)


def test_a_server_that_takes_connections_and_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = BenchServeConfig(port=listener.getsockname()[1], ready_check_timeout_sec=0.0)
        with pytest.raises(ServerUnavailableError, match="is not ready: no answer in time"):
            run_serve(config, TEXTS)


def test_the_reason_for_waiting_is_told(caplog):
    with EventServer(tokens()) as server, caplog.at_level("INFO", "pelton"):
        server.models_status = 503
        with pytest.raises(ServerUnavailableError):
            bench(server, ready_check_timeout_sec=0.3)
    (line,) = [record.message for record in caplog.records if "Waiting" in record.message]
    assert "--ready-check-timeout-sec" in line
    assert "503" in line


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "http://a..b"])
def test_addresses_that_waiting_does_not_mend_are_told_at_once(url):
    config = BenchServeConfig(base_url=url, ready_check_timeout_sec=600.0)
    with pytest.raises(ServerUnavailableError, match=r"cannot be used: .*; see --base-url"):
        run_serve(config, TEXTS)


def test_a_server_without_tls_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        config = BenchServeConfig(base_url=f"https://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ServerUnavailableError, match=r"cannot be used: .*SSL.*; see --base-url"):
            run_serve(config, TEXTS)
        thread.join()


def test_a_server_without_a_list_of_models():
    with EventServer(tokens()) as server:
        server.models_status = 404
        result, _ = bench(server, model="any")
    assert result["completed"] == 12


def test_it_stops_as_soon_as_the_bound_is_sure_to_be_broken():
    bound = parse_bound("p75_e2el_ms>300")
    with EventServer(tokens(first=60.0)) as server:
        result, _ = bench(server, request_rate=50.0, stop_when=[bound])
    assert result["stopped"].startswith("p75_e2el_ms>300 is sure")
    assert result["duration"] >= 0.3
    assert result["duration"] < 60.0
    assert (result["completed"], result["failed"], result["cancelled"]) == (0, 0, 12)


def test_it_does_not_stop_where_the_bound_is_met():
    with EventServer(tokens(first=0.05)) as server:
        result, _ = bench(server, stop_when=[parse_bound("p50_e2el_ms>60000"), parse_bound("failed>0")])
    assert result["stopped"] is None
    assert result["completed"] == 12


def test_failures_are_no_proof_of_a_bound_on_latencies():
    """One request in three is refused; the others are slow, and prove it."""

    def script(request):
        return [Refuse(503)] if len(server.received) % 3 == 0 else tokens(first=60.0)(request)

    with EventServer(script) as server:
        result, _ = bench(server, stop_when=[parse_bound("p50_e2el_ms>400"), parse_bound("failed>4")])
        assert result["stopped"].startswith("p50_e2el_ms>400 is sure")
        assert result["stopped"].endswith("unless requests under way fail")
        assert (result["failed"], result["cancelled"]) == (4, 8)
        server.received.clear()
        result, _ = bench(server, stop_when=[parse_bound("p50_e2el_ms>60000"), parse_bound("failed>3")])
        assert result["stopped"].startswith("failed>3 is sure")


def test_the_time_of_the_run_is_bounded():
    with EventServer(tokens(first=60.0)) as server:
        result, _ = bench(server, request_rate=5.0, max_seconds=0.5)
    assert 0.49 < result["duration"] < 60.0, "uvloop's timers count whole milliseconds"
    assert (result["completed"], result["failed"], result["cancelled"]) == (0, 12, 0)
    assert result["failures"][0]["kind"] == "max_seconds"
    assert result["stopped"] == "max_seconds: the run was ended after 0.5 s"


def test_requests_come_at_their_rate():
    with EventServer(tokens()) as server:
        result, requests = bench(server, request_rate=40.0, burstiness=1e6)
    due = [one.due_time for one in requests]
    assert due == pytest.approx([index / 40.0 for index in range(12)], rel=0.01)
    assert all(one.start_time >= one.due_time for one in requests)
    assert result["duration"] >= due[-1]


def test_the_load_that_was_offered():
    """However the moments fall, it is the one asked for; all at once is none."""
    with EventServer(tokens()) as server:
        result, requests = bench(server, request_rate=80.0)
        at_once, _ = bench(server)
    assert result["offered_request_rate"] == pytest.approx(80.0)
    assert requests[-1].due_time == pytest.approx(11 / 80.0)
    assert at_once["offered_request_rate"] is None


def test_ramp_up():
    flags = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 10.0, "ramp_up_end_rps": 100.0, "burstiness": 1e6}
    with EventServer(tokens()) as server:
        result, requests = bench(server, **flags)
    gaps = [after.due_time - before.due_time for before, after in pairwise(requests)]
    assert gaps[-1] == pytest.approx(1 / 100, rel=0.01)
    assert gaps == sorted(gaps, reverse=True)
    assert result["ramp_up_end_rps"] == 100.0


def test_what_one_must_know_of_the_figures():
    request = BenchRequest("a", 5)
    whole = RequestResult(0.0, output_len=5, text="a")
    fine = {"client_cpu_share": 0.1, "p99_send_delay_ms": 1.0, "counted_by": "usage", "total_input_tokens": 3}
    config = BenchServeConfig(request_rate=5.0, ignore_eos=True)

    def warnings(config=config, result=whole, **figures):
        return warnings_of(config, TEXTS, {**fine, **figures}, [request], [result])

    assert warnings() == []
    assert "busy for 85%" in warnings(client_cpu_share=0.85)[0]
    assert "60 ms late" in warnings(p99_send_delay_ms=60.0)[0]
    assert warnings(replace(config, request_rate=float("inf")), p99_send_delay_ms=60.0) == []
    assert "though ignore_eos" in warnings(result=RequestResult(0.0, output_len=4, text="a"))[0]
    assert warnings(result=RequestResult(0.0, error="HTTP 400")) == []
    assert "without any text" in warnings(result=RequestResult(0.0, output_len=5))[0]


@pytest.fixture(scope="module")
def pelton():
    with Served(tiny_llama(), "--served-model-name", "tiny") as served:
        yield served


def test_completions_of_the_real_server(pelton):
    result, requests = bench(pelton, RANDOM, tokenizer=tiny_llama(), ignore_eos=True, max_concurrency=5)
    asked = make_requests(RANDOM, smollm2_tokenizer())
    assert result["failed"] == 0
    assert result["model_id"] == "tiny"
    assert result["total_input_tokens"] == sum(len(request.prompt) for request in asked)
    assert [one.output_len for one in requests] == [request.output_len for request in asked]
    assert result["max_concurrent_requests"] == 5
    assert result["server"]["version"]
    for request, one in zip(asked, requests, strict=True):
        answer = pelton.complete(list(request.prompt), max_tokens=request.output_len, ignore_eos=True)
        assert one.text == answer["choices"][0]["text"]
        assert 0.0 < one.ttft <= one.e2el
        assert len(one.itls) < one.output_len


def test_chats_with_the_real_server(pelton, tmp_path):
    path = tmp_path / "lines.jsonl"
    questions = [f"What is {number} times seven?" for number in range(8)]
    path.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in questions))
    dataset = DatasetConfig(dataset_name="custom", dataset_path=str(path), num_prompts=8, custom_output_len=6)
    result, requests = bench(pelton, dataset, backend="openai-chat", request_rate=20.0)
    assert result["completed"] == 8
    for request, one in zip(make_requests(dataset, None), requests, strict=True):
        messages = [{"role": "user", "content": request.prompt}]
        body = {"messages": messages, "max_tokens": 6, "temperature": 0}
        status, answer = pelton.post("/v1/chat/completions", body)
        assert status == 200
        assert one.text == answer["choices"][0]["message"]["content"]
        assert one.prompt_len == answer["usage"]["prompt_tokens"]
        assert one.output_len == answer["usage"]["completion_tokens"]


def test_the_real_server_refuses_what_is_too_long(pelton):
    dataset = DatasetConfig(num_prompts=2, random_input_len=300, random_output_len=4)
    result, _ = bench(pelton, dataset, tokenizer=tiny_llama())
    assert result["failed"] == 2
    assert result["failures"][0]["kind"] == "HTTP 400"
    assert "maximum context length" in result["failures"][0]["first"]


def test_prefixes_come_from_the_cache_of_the_real_server(pelton):
    dataset = DatasetConfig(
        dataset_name="prefix_repetition",
        num_prompts=6,
        prefix_repetition_num_prefixes=1,
        prefix_repetition_prefix_len=64,
        prefix_repetition_suffix_len=8,
        prefix_repetition_output_len=2,
    )
    result, requests = bench(pelton, dataset, tokenizer=tiny_llama(), max_concurrency=1)
    assert [one.cached_len for one in requests] == [0, *[64] * 5]
    assert result["cached_tokens"] == 5 * 64
    assert result["warnings"] == []


@BACKENDS
def test_prompts_that_the_server_has_seen_before_are_told(pelton, backend):
    dataset = replace(RANDOM, num_prompts=6, random_input_len=80, random_range_ratio=0.0, seed=77)
    first, again, other = (
        bench(pelton, replace(dataset, seed=seed), backend=backend, tokenizer=tiny_llama())[0] for seed in (77, 77, 78)
    )
    assert first["warnings"] == other["warnings"] == []
    (warning,) = again["warnings"]
    assert "most of 6 prompts came from the server's prefix cache" in warning
    assert "--seed" in warning


def test_repeated_prompts_of_a_file_are_meant_to_be(pelton, tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [f"Tell me all that you know of the number {number}, " * 8 for number in range(3)]
    path.write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines))
    dataset = DatasetConfig("custom", str(path), num_prompts=6, custom_output_len=2)
    result, requests = bench(pelton, dataset, max_concurrency=1)
    assert sum(one.cached_len > one.prompt_len / 2 for one in requests) >= 3
    assert result["warnings"] == []
