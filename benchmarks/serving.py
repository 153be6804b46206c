"""What serving over HTTP costs, beside the model: `pelton serve` as a process, and a light client on the same cores.

    .venv/bin/python benchmarks/serving.py [--parts overhead ttft streams idle start] [--model smollm2]

- overhead: with an executor that answers at once (instant), and one whose steps take --step-ms without processor time
  (paced), for each number of API processes and of clients that stream, one request after the other: requests/s with 1
  token each, tokens/s with --output-tokens, and the processor time of all the server's processes per request and per
  token, in microseconds. `events` is how many events brought a token on average, less than 1 where the server merges
  tokens for a client that is behind: the instant executor makes it so, the paced one hardly.
- ttft: milliseconds from the request to the first token of a prompt of --input-tokens, through HTTP and in this process
  (`LLMEngine` alone), in turn; and the median of what HTTP adds.
- streams: tokens/s of --streams requests at once through HTTP, as a share of what `LLM.generate` does with the same
  prompts and lengths, in turn.
- idle: processor time that a server without requests takes per second, in milliseconds.
- start: from the command to the first answer of one token, in milliseconds; the first run is not counted.

All figures are medians of --rounds (overhead, streams) or --runs (ttft, start). Ends with one line of JSON.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import uvloop
from http_streams import Answer, Connection, RefusalError, completion, connect
from peers.workloads import prompts
from server_process import START_SECONDS, ServerProcess

from pelton import LLM, SamplingParams
from pelton.engine.llm_engine import LLMEngine

PARTS = ["overhead", "ttft", "streams", "idle", "start"]
EXECUTORS = {"instant": "InstantExecutor", "paced": "StepClockExecutor"}
NO_CACHE = ["--no-enable-prefix-caching"]
LIMIT_SECONDS = 600.0
"""Of one measurement: an answer that does not come ends the benchmark."""
Row = dict[str, Any]
_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(work, LIMIT_SECONDS))


def median(values: Sequence[float], digits: int = 3) -> float:
    return round(statistics.median(values), digits)


async def stream_at_once(port: int, requests: Sequence[bytes]) -> tuple[float, list[Answer]]:
    """Seconds until all are answered, and the answers."""
    connections = [await connect(port) for _ in requests]
    start = time.perf_counter()
    answers = await asyncio.gather(*map(Connection.stream, connections, requests))
    seconds = time.perf_counter() - start
    for connection in connections:
        connection.close()
    return seconds, answers


async def stream_in_turn(port: int, requests: Sequence[bytes], seconds: float) -> tuple[float, list[Answer]]:
    """One client per request sends it again and again for so many seconds: how long they took, and the answers."""
    answers: list[Answer] = []

    async def client(connection: Connection, request: bytes) -> None:
        while time.perf_counter() < deadline:
            if not connection.is_open:  # servers may close after any number of requests
                connection = await connect(port)
            answers.append(await connection.stream(request))
        connection.close()

    connections = [await connect(port) for _ in requests]
    start = time.perf_counter()
    deadline = start + seconds
    await asyncio.gather(*map(client, connections, requests))
    return time.perf_counter() - start, answers


def overhead_cell(server: ServerProcess, options: argparse.Namespace, num_clients: int, num_tokens: int) -> Row:
    """Requests of one number of tokens from one number of clients, for one round."""
    requests = [completion(options.model, prompt, num_tokens) for prompt in prompts(num_clients, 32, "overhead")]
    run(stream_at_once(server.port, requests))
    served, spent = server.processor_seconds(), time.process_time()
    seconds, answers = run(stream_in_turn(server.port, requests, options.seconds))
    served, spent = server.processor_seconds() - served, time.process_time() - spent
    total = sum(answer.num_tokens for answer in answers)
    assert total == len(answers) * num_tokens, "every stream has the length that was asked for"
    return {
        "requests_per_s": len(answers) / seconds,
        "tokens_per_s": total / seconds,
        "us_per_request": served / len(answers) * 1e6,
        "us_per_token": served / total * 1e6,
        "events_per_token": sum(answer.num_events - 2 for answer in answers) / total,
        "first_event_ms": statistics.median(answer.seconds_to_first for answer in answers) * 1e3,
        "server_cores": served / seconds,
        "client_cores": spent / seconds,
    }


def measure_overhead(options: argparse.Namespace) -> list[Row]:
    os.environ["FAKE_STEP_SECONDS"] = str(options.step_ms / 1e3)
    rows = []
    for executor, num_processes in itertools.product(EXECUTORS, options.api_server_counts):
        backend = f"tests.support.serving_executors:{EXECUTORS[executor]}"
        flags = ["--distributed-executor-backend", backend, "--api-server-count", str(num_processes)]
        with ServerProcess(options.model, *flags) as server:
            server.wait_until_ready()
            for num_clients in options.clients:
                for num_tokens in (1, options.output_tokens) if executor == "instant" else (options.output_tokens,):
                    rounds = [overhead_cell(server, options, num_clients, num_tokens) for _ in range(options.rounds)]
                    cell: Row = {
                        "executor": executor,
                        "api_processes": num_processes,
                        "clients": num_clients,
                        "output_tokens": num_tokens,
                    }
                    rows.append(cell | {name: median([row[name] for row in rounds]) for name in rounds[0]})
                    print(
                        f"overhead, {executor}: {num_processes} API processes, {num_clients:>3} clients, "
                        f"{num_tokens:>4} tokens: "
                        "{requests_per_s:>8.1f} requests/s, {tokens_per_s:>9.1f} tokens/s, {us_per_request:>8.1f} us "
                        "per request, {us_per_token:>7.1f} us per token, {events_per_token:.2f} events, first after "
                        "{first_event_ms:.2f} ms; server {server_cores:.2f} cores, client {client_cores:.2f}".format(
                            **rows[-1]
                        )
                    )
    return rows


def engine_first_token(engine: LLMEngine, prompt: list[int]) -> float:
    """Milliseconds from the request to the first token, in this process."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    start = time.perf_counter()
    engine.add_request({"prompt_token_ids": prompt}, params)
    while not engine.step():
        pass
    return (time.perf_counter() - start) * 1e3


def measure_ttft(options: argparse.Namespace, server: ServerProcess, llm: LLM) -> Row:
    """A prompt is new to both, and each is the first to see it as often as the other."""

    async def measure() -> tuple[list[float], list[float]]:
        through_http, alone = [], []
        connection = await connect(server.port)
        for number, prompt in enumerate(prompts(options.runs + 2, options.input_tokens, "ttft")):
            request = completion(options.model, prompt, 1)
            if number % 2:
                alone.append(engine_first_token(llm.llm_engine, prompt))
            through_http.append((await connection.stream(request)).seconds_to_first * 1e3)
            if not number % 2:
                alone.append(engine_first_token(llm.llm_engine, prompt))
        connection.close()
        return through_http[2:], alone[2:]  # the first ones warm up

    through_http, alone = run(measure())
    row: Row = {
        "input_tokens": options.input_tokens,
        "http_ms": median(through_http),
        "engine_ms": median(alone),
        "added_ms": median([a - b for a, b in zip(through_http, alone, strict=True)]),
    }
    print(
        f"ttft: {options.input_tokens} tokens: {row['http_ms']:.2f} ms through HTTP, {row['engine_ms']:.2f} ms alone, "
        f"{row['added_ms']:.2f} ms added"
    )
    return row


def measure_streams(options: argparse.Namespace, server: ServerProcess, llm: LLM) -> Row:
    params = SamplingParams(temperature=0, max_tokens=options.output_tokens, ignore_eos=True)
    num_tokens = options.streams * options.output_tokens
    through_http, offline = [], []
    for number in range(options.rounds + 1):  # the first one warms up
        texts = prompts(options.streams, options.input_tokens, f"streams {number}")
        requests = [completion(options.model, prompt, options.output_tokens) for prompt in texts]
        start = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in texts], params, use_tqdm=False)
        offline.append(num_tokens / (time.perf_counter() - start))
        assert all(len(output.outputs[0].token_ids) == options.output_tokens for output in outputs)
        seconds, answers = run(stream_at_once(server.port, requests))
        assert all(answer.num_tokens == options.output_tokens for answer in answers)
        through_http.append(num_tokens / seconds)
    row: Row = {
        "streams": options.streams,
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "http_tokens_per_s": median(through_http[1:], 1),
        "offline_tokens_per_s": median(offline[1:], 1),
        "share": median([a / b for a, b in zip(through_http[1:], offline[1:], strict=True)]),
    }
    print(
        f"streams: {options.streams} of {options.input_tokens} and {options.output_tokens} tokens: "
        f"{row['http_tokens_per_s']} tokens/s through HTTP, {row['offline_tokens_per_s']} offline, share {row['share']}"
    )
    return row


def measure_idle(options: argparse.Namespace, server: ServerProcess) -> Row:
    run(stream_at_once(server.port, [completion(options.model, prompts(1, 8, "idle")[0], 4)]))
    time.sleep(min(2.0, options.idle_seconds))  # what follows a request is not idleness
    before, start = server.processor_seconds(), time.perf_counter()
    time.sleep(options.idle_seconds)
    spent = server.processor_seconds() - before
    row: Row = {
        "seconds": round(time.perf_counter() - start, 1),
        "processes": server.num_processes,
        "ms_per_s": round(spent / options.idle_seconds * 1e3, 3),
    }
    print(f"idle: {row['ms_per_s']} ms of processor time per second, {row['processes']} processes")
    return row


async def first_answer(server: ServerProcess, request: bytes) -> None:
    """Ask until there is an answer. Raises RuntimeError if the server ends first."""
    while True:
        try:
            if (port := server.find_port()) is not None:
                await (await connect(port)).stream(request)
                return
        except RefusalError as refusal:
            if refusal.status != 503:
                raise
        except OSError:
            pass  # nobody listens yet
        server.check_runs()
        await asyncio.sleep(0.005)


def measure_start(options: argparse.Namespace) -> Row:
    request = completion(options.model, prompts(1, 8, "start")[0], 1)
    times = []
    for _ in range(options.start_runs + 1):
        start = time.perf_counter()
        with ServerProcess(options.model) as server:
            run(asyncio.wait_for(first_answer(server, request), START_SECONDS))
            times.append((time.perf_counter() - start) * 1e3)
    row: Row = {
        "runs": options.start_runs,
        "first_answer_ms": median(times[1:], 1),
        "best_ms": round(min(times[1:]), 1),
    }
    print(f"start: first answer after {row['first_answer_ms']} ms (best {row['best_ms']})")
    return row


def measure(options: argparse.Namespace) -> Row:
    results: Row = {}
    if "overhead" in options.parts:
        results["overhead"] = measure_overhead(options)
    if {"ttft", "streams", "idle"}.intersection(options.parts):
        with ServerProcess(options.model, *NO_CACHE) as server:
            server.wait_until_ready()
            if "idle" in options.parts:
                results["idle"] = measure_idle(options, server)
            if {"ttft", "streams"}.intersection(options.parts):
                llm = LLM(model=options.model, enable_prefix_caching=False)
                if "ttft" in options.parts:
                    results["ttft"] = measure_ttft(options, server, llm)
                if "streams" in options.parts:
                    results["streams"] = measure_streams(options, server, llm)
                llm.shutdown()
    if "start" in options.parts:
        results["start"] = measure_start(options)
    return results


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--api-server-counts", nargs="+", type=positive, default=[1, 2])
    parser.add_argument("--clients", nargs="+", type=positive, default=[1, 64])
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round of overhead")
    parser.add_argument("--step-ms", type=positive, default=20, help="of the paced executor")
    parser.add_argument("--rounds", type=positive, default=3, help="of overhead and streams")
    parser.add_argument("--runs", type=positive, default=30, help="of ttft")
    parser.add_argument("--start-runs", type=positive, default=5)
    parser.add_argument("--streams", type=positive, default=64)
    parser.add_argument("--input-tokens", type=positive, default=128)
    parser.add_argument("--output-tokens", type=positive, default=128)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    options = parser.parse_args()
    results = measure(options)
    print(json.dumps({"benchmark": "serving", "python": platform.python_version(), "results": results}))


if __name__ == "__main__":
    main()
