"""What `pelton bench serve` measures, and its flags, which have vLLM's names."""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.bench.bounds import LATENCIES, Bound, parse_bound
from pelton.bench.serving.result_keys import is_result_key
from pelton.checks import check_choice, check_flag, check_integer, finite_float
from pelton.config.options import json_object, option
from pelton.error_text import shown

BACKENDS = ("openai", "openai-chat", "vllm")
ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
RAMP_UPS = ("linear", "exponential")
GOODPUT_LATENCIES = ("ttft", "tpot", "e2el")
OWN_FIELDS = ("model", "prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n")
"""Fields of a request that the benchmark sets itself."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BASE_URL = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_HOST, _PORT = "127.0.0.1", 8000
_MAX_PORT = 2**16 - 1


def _pair(separator: str, form: str) -> Any:
    def parse(text: str) -> tuple[str, str]:
        name, found, value = text.partition(separator)
        if not found or not name:
            raise argparse.ArgumentTypeError(f"must have the form {form}, got {shown(text)}")
        return name, value

    return parse


def _goal(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must have the form ttft:MILLISECONDS, got {shown(text)}") from None


def _bound(text: str) -> Bound:
    try:
        return parse_bound(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class BenchServeConfig:
    """The server, the load on it, and what is told of it."""

    backend: str = option(
        "openai",
        "Interface of the server: openai: completions of prompts; openai-chat: answers in a conversation; vllm: the "
        "same as openai.",
        choices=BACKENDS,
    )
    base_url: str | None = option(
        None, "Where the server is, instead of host and port; with /v1 at its end or without.", type=str, metavar="URL"
    )
    host: str = option(_HOST, "Address or name of the server.")
    port: int = option(_PORT, "Its TCP port.")
    endpoint: str | None = option(
        None,
        f"Path of the requests. Default: {ENDPOINTS['openai']}; with openai-chat, {ENDPOINTS['openai-chat']}.",
        type=str,
        metavar="PATH",
    )
    model: str | None = option(
        None, "Name of the model in requests. Default: the first that /v1/models lists.", type=str
    )
    served_model_name: str | None = option(
        None, "Name of the model in requests, where it is not what model says.", type=str, metavar="NAME"
    )
    tokenizer: str | None = option(
        None,
        "Model whose tokenizer makes the prompts: an alias, a path or a hub id. Default: what /v1/models calls the "
        "root of the model, or else its name.",
        type=str,
        metavar="MODEL",
    )
    header: Sequence[tuple[str, str]] = option(
        (),
        "Header of all requests; repeatable. OPENAI_API_KEY in the environment becomes `Authorization: Bearer`.",
        secret=True,
        action="append",
        type=_pair("=", "NAME=VALUE"),
        metavar="NAME=VALUE",
    )
    request_rate: float = option(
        math.inf, "Requests per second, at random moments (see burstiness); inf: all at the beginning."
    )
    burstiness: float = option(
        1.0,
        "Shape of the Gamma distribution of the time between requests: 1: a Poisson process; less: more bursts; more: "
        "more even.",
    )
    max_concurrency: int | None = option(
        None,
        "Most requests that are under way at once; others wait, which is not in their latencies. Default: no limit.",
        type=int,
    )
    ramp_up_strategy: str | None = option(
        None,
        "Change the request rate from the first request to the last: linear, by equal amounts; exponential, by equal "
        "factors. In place of request_rate.",
        choices=RAMP_UPS,
        type=str,
    )
    ramp_up_start_rps: float | None = option(
        None, "Requests per second at the beginning; with ramp_up_strategy.", type=float
    )
    ramp_up_end_rps: float | None = option(None, "Requests per second at the end; with ramp_up_strategy.", type=float)
    num_warmups: int = option(0, "Requests before the measurement, drawn anew from the same dataset.")
    ready_check_timeout_sec: float = option(600.0, "Seconds to wait for the server to be ready; 0: do not wait.")
    ignore_eos: bool = option(
        False, "Go on after the end-of-sequence token, so that every answer has the length of its request."
    )
    temperature: float = option(0.0, "Sampling temperature; 0 means greedy.")
    top_p: float | None = option(None, "Sample from this probability mass. Default: the server's.", type=float)
    top_k: int | None = option(None, "Sample from the k most likely tokens. Default: the server's.", type=int)
    min_p: float | None = option(
        None,
        "Leave out tokens below this share of the likeliest one's probability. Default: the server's.",
        type=float,
    )
    extra_body: Mapping[str, Any] | None = option(
        None,
        "Further fields of each request, as a JSON object; they win over the flags.",
        type=json_object,
        metavar="JSON",
    )
    percentile_metrics: str = option(",".join(LATENCIES), "Latencies to report, separated by commas.", metavar="NAMES")
    metric_percentiles: str = option("50,90,95,99", "Percentiles of them, separated by commas.", metavar="NUMBERS")
    goodput: Sequence[tuple[str, float]] = option(
        (),
        "Count requests per second that meet all of these: ttft, tpot and e2el in milliseconds, such as ttft:200 "
        "e2el:2000.",
        action="extend",
        nargs="+",
        type=_goal,
        metavar="NAME:MILLISECONDS",
    )
    stop_when: Sequence[Bound] = option(
        (),
        "End the run as soon as it is sure that this will be true of it, unless requests under way fail, such as "
        "'p99_e2el_ms>500': mean, median or a percentile of ttft, tpot or e2el, or failed; repeatable.",
        action="append",
        type=_bound,
        metavar="BOUND",
    )
    request_timeout: float = option(6 * 3600.0, "Seconds after which a request has failed.")
    max_seconds: float | None = option(
        None,
        "Seconds after which the run ends; what has not been answered by then has failed. Default: no limit.",
        type=float,
    )
    save_result: bool = option(False, "Write the result to a JSON file.", action="store_true")
    save_detailed: bool = option(False, "With the latencies, lengths and texts of each request.", action="store_true")
    append_result: bool = option(
        False, "Add the result to the file as a line, in place of what save_result does.", action="store_true"
    )
    result_dir: str | None = option(None, "Folder of that file. Default: the current one.", type=str, metavar="FOLDER")
    result_filename: str | None = option(
        None, "Its name. Default: made of backend, rate, model and time.", type=str, metavar="NAME"
    )
    metadata: Sequence[tuple[str, str]] = option(
        (),
        "Entries that the result shall have too.",
        action="extend",
        nargs="+",
        type=_pair("=", "KEY=VALUE"),
        metavar="KEY=VALUE",
    )
    label: str | None = option(None, "Names the run, in its result and in the name of the file.", type=str)
    plot: str | None = option(None, "Draw the run into this HTML file.", type=str, metavar="FILE")
    disable_tqdm: bool = option(False, "Show no progress.", action="store_true")

    def __post_init__(self) -> None:
        self._check_server()
        self._check_load()
        self._check_sampling()
        self._check_report()
        self._check_files()

    @property
    def is_chat(self) -> bool:
        return self.backend == "openai-chat"

    @property
    def server_url(self) -> str:
        """Without a slash at its end, nor /v1."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        url = f"http://{host}:{self.port}" if self.base_url is None else self.base_url
        return url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def request_path(self) -> str:
        return ENDPOINTS["openai-chat" if self.is_chat else "openai"] if self.endpoint is None else self.endpoint

    @property
    def latencies(self) -> list[str]:
        """Those to report."""
        return _names(self.percentile_metrics)

    @property
    def percentiles(self) -> list[float]:
        return [float(text) for text in _names(self.metric_percentiles)]

    def _check_server(self) -> None:
        check_choice("backend", self.backend, BACKENDS)
        if self.base_url is not None and not _BASE_URL.fullmatch(self.base_url):
            raise ValueError(f"base_url must be such as http://127.0.0.1:8000, got {shown(self.base_url)}")
        if self.base_url is not None and (self.host, self.port) != (_HOST, _PORT):
            raise ValueError("base_url is given, and host or port too; leave one of them out")
        if not self.host or not self.host.isprintable() or " " in self.host or "/" in self.host:
            raise ValueError(f"host must be an address or a name, got {shown(self.host)}; --base-url takes whole URLs")
        check_integer("port", self.port, low=1, high=_MAX_PORT)
        if not self.request_path.startswith("/"):
            raise ValueError(f"endpoint must begin with /, got {shown(self.request_path)}")
        for name, value in self.header:
            if not _HEADER_NAME.fullmatch(name) or not value.isprintable():
                raise ValueError(f"header {shown(name)} is no header of HTTP; name and value must be printable")

    def _check_load(self) -> None:
        for name in ("request_rate", "burstiness"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        finite_float("burstiness", self.burstiness)
        if self.burstiness != 1.0 and math.isinf(self.request_rate) and self.ramp_up_strategy is None:
            raise ValueError("burstiness is given, but all requests are sent at once; give a request_rate")
        if self.max_concurrency is not None:
            check_integer("max_concurrency", self.max_concurrency, low=1)
        check_integer("num_warmups", self.num_warmups, low=0)
        if finite_float("ready_check_timeout_sec", self.ready_check_timeout_sec) < 0.0:
            raise ValueError(f"ready_check_timeout_sec must be at least 0, got {self.ready_check_timeout_sec}")
        self._check_above_0("request_timeout", "max_seconds")
        self._check_ramp_up()

    def _check_ramp_up(self) -> None:
        names = ("ramp_up_start_rps", "ramp_up_end_rps")
        if self.ramp_up_strategy is None:
            for name in names:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is given without ramp_up_strategy; choose {' or '.join(RAMP_UPS)}")
            return
        check_choice("ramp_up_strategy", self.ramp_up_strategy, RAMP_UPS)
        if not math.isinf(self.request_rate):
            raise ValueError("request_rate and ramp_up_strategy are both given; leave one of them out")
        for name in names:
            if getattr(self, name) is None:
                raise ValueError(f"ramp_up_strategy needs {name}, in requests per second")
        self._check_above_0(*names)

    def _check_above_0(self, *names: str) -> None:
        """Those that are given."""
        for name in names:
            value = getattr(self, name)
            if value is not None and finite_float(name, value) <= 0.0:
                raise ValueError(f"{name} must be above 0, got {value}")

    def _check_sampling(self) -> None:
        check_flag("ignore_eos", self.ignore_eos)
        for name in ("temperature", "top_p", "min_p"):
            if getattr(self, name) is not None:
                finite_float(name, getattr(self, name))
        for name in OWN_FIELDS:
            if name in (self.extra_body or ()):
                raise ValueError(f"extra_body has {name}, which the benchmark sets itself; leave it out")

    def _check_report(self) -> None:
        for name in self.latencies:
            check_choice("percentile_metrics", name, LATENCIES)
        for text in _names(self.metric_percentiles):
            if not _is_percentile(text):
                raise ValueError(f"metric_percentiles must be numbers from 0 to 100, got {shown(text)}")
        for name, limit in self.goodput:
            check_choice("goodput", name, GOODPUT_LATENCIES)
            if not 0.0 <= limit < math.inf:
                raise ValueError(f"goodput of {name} must be at least 0 milliseconds, got {limit}")
        if len(dict(self.goodput)) < len(self.goodput):
            raise ValueError("goodput has a latency twice; give each one limit")
        for bound in self.stop_when:
            _check_stop(bound)

    @property
    def saves(self) -> bool:
        """Whether a file with the result is wanted."""
        return self.save_result or self.append_result

    def _check_files(self) -> None:
        names = [name for name, _ in self.metadata]
        for name in names:
            if is_result_key(name):
                raise ValueError(f"metadata has {shown(name)}, which is an entry of results; choose another key")
            if names.count(name) > 1:
                raise ValueError(f"metadata has {shown(name)} twice; give each key one value")
        if self.save_result and self.append_result:
            raise ValueError("save_result and append_result are both given; leave one of them out")
        if self.append_result and not self.result_filename:
            raise ValueError("append_result needs the name of a file to add to; give result_filename")
        if self.saves:
            return
        for name in ("save_detailed", "result_dir", "result_filename", "metadata"):
            if getattr(self, name):
                raise ValueError(f"{name} is given, but no result is saved; add --save-result, or leave it out")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _is_percentile(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 100.0
    except ValueError:
        return False


def _check_stop(bound: Bound) -> None:
    """Raise ValueError for a bound that nothing can prove before the end."""
    if bound.comparison not in (">", ">="):
        raise ValueError(f"stop_when is {bound}, which only the end can tell; it must say > or >=")
    metric = bound.latency
    if bound.metric != "failed" and (metric is None or metric.statistic == "std" or metric.latency == "itl"):
        raise ValueError(
            f"stop_when is {bound}, which only the end can tell; it must be the mean, median or a percentile of ttft, "
            "tpot or e2el, or failed"
        )
