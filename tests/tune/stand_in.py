"""Stands in for `pelton serve` and `pelton bench serve`: figures by a formula of the server's flags.

`python -m tests.tune.stand_in serve MODEL FLAGS` and `python -m tests.tune.stand_in load FLAGS`. MODEL is `surface`, or
`surface-` and a mishap, which is for --max-num-seqs 8 only where it says so:

- no-start (8): the server does not start; never: no server does
- dies (8): the server ends under load; fails (8): requests fail; no-result: the load ends without one
- queue: requests fail above half of what the server can do
- later (all but the default): what is drawn anew takes longer; later-dies: the server of the default ends, too
- slow: a load takes a minute; stubborn: the server ignores SIGTERM
"""

import json
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path

DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "quantization": "auto"}
TOKENS_PER_REQUEST = 10
BEST = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "quantization": "int8"}


def capacity(settings):
    """Output tokens per second."""
    seqs = math.log2(settings["max_num_seqs"] / BEST["max_num_seqs"])
    batch = math.log2(settings["max_num_batched_tokens"] / BEST["max_num_batched_tokens"])
    quantized = {"auto": 1.0, "int4": 1.1, "int8": 1.3}[settings["quantization"]]
    return 1000 * quantized * math.exp(-((seqs / 3) ** 2) - (batch / 3) ** 2)


def metrics(settings, request_rate):
    """Of a load without limit (None), or with so many requests per second."""
    most = capacity(settings) / TOKENS_PER_REQUEST
    rate = most if request_rate is None else min(request_rate, most)
    p99 = settings["max_num_seqs"] * 4.0 if request_rate is None else 100 / max(0.01, 1 - request_rate / most)
    return {
        "completed": 100,
        "failed": 0,
        "cancelled": 0,
        "request_throughput": rate,
        "output_throughput": rate * TOKENS_PER_REQUEST,
        "p99_e2el_ms": p99,
        "median_e2el_ms": p99 / 2,
        "p50_ttft_ms": p99 / 10,
    }


def flag(arguments, name, default=None):
    name = "--" + name.replace("_", "-")
    return arguments[arguments.index(name) + 1] if name in arguments else default


def serve(arguments):
    mishap = arguments[0].partition("-")[2]
    settings = {name: type(value)(flag(arguments, name, value)) for name, value in DEFAULTS.items()}
    if mishap == "never" or (mishap == "no-start" and settings["max_num_seqs"] == 8):
        sys.exit("pelton: there is no such model")
    if mishap == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    listener = socket.create_server(("127.0.0.1", int(flag(arguments, "port"))))
    print(f"Listening at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    body = json.dumps({"settings": settings, "mishap": mishap})
    while True:
        connection, _ = listener.accept()
        with connection:
            path = connection.recv(65536).split()[1]
            dies = {"dies": 8, "later-dies": DEFAULTS["max_num_seqs"]}.get(mishap)
            if path == b"/settings" and settings["max_num_seqs"] == dies:
                print("pelton: out of memory", flush=True)
                os._exit(3)
            connection.sendall(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


def load(arguments):
    with socket.create_connection(("127.0.0.1", int(flag(arguments, "port")))) as connection:
        connection.sendall(b"GET /settings HTTP/1.0\r\n\r\n")
        answer = connection.makefile("rb").read()
    server = json.loads(answer.partition(b"\r\n\r\n")[2])
    if server["mishap"] == "no-result":
        sys.exit("pelton: something is wrong")
    is_late = server["mishap"] == "slow"
    if is_late:
        time.sleep(min(60.0, float(flag(arguments, "max_seconds"))))
    rate = flag(arguments, "request_rate")
    rate = None if rate is None else float(rate)
    result = metrics(server["settings"], rate)
    is_drawn_anew = flag(arguments, "seed") is not None
    if server["mishap"].startswith("later") and is_drawn_anew and server["settings"] != DEFAULTS:
        result["p99_e2el_ms"] *= 1000
    most = capacity(server["settings"]) / TOKENS_PER_REQUEST
    metric, _, limit = flag(arguments, "stop_when", "p99_e2el_ms>=inf").partition(">=")
    result["stopped"] = f"{metric}>={limit} is sure" if result[metric] >= float(limit) else None
    fails = is_late or (server["mishap"] == "fails" and server["settings"]["max_num_seqs"] == 8)
    fails |= server["mishap"] == "queue" and (rate is None or rate > most / 2)
    if fails:
        result |= {"failed": 3, "failures": [{"kind": "status", "count": 3, "first": "status 500: oh"}]}
    (Path(flag(arguments, "result_dir")) / flag(arguments, "result_filename")).write_text(json.dumps(result))
    sys.exit(1 if fails else 0)


if __name__ == "__main__":
    {"serve": serve, "load": load}[sys.argv[1]](sys.argv[2:])
