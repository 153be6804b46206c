"""Serving: the HTTP server, and the engine cores behind it."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from pelton.checks import check_flag, check_integer, finite_float
from pelton.config.options import add_flags, from_flags, option
from pelton.error_text import shown

MAX_API_SERVERS = 64
MAX_PORT = 2**16 - 1
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+")
_METRICS_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_API_KEY = re.compile(r"[!-~]+")


def _origins(text: str) -> list[str]:
    """One origin, or a JSON list of origins."""
    if not text.startswith("["):
        return [text]
    try:
        origins = json.loads(text)
    except ValueError:
        origins = None
    if isinstance(origins, list) and all(isinstance(origin, str) for origin in origins):
        return origins
    raise argparse.ArgumentTypeError(f"must be an origin or a JSON list of origins, got {shown(text)}")


@dataclass(frozen=True)
class ServeConfig:
    """The HTTP server: where it listens, whom it answers, and how it ends."""

    host: str = option("127.0.0.1", "Address or name to listen on; 0.0.0.0 or :: for all networks.")
    port: int = option(8000, "TCP port to listen on; 0 means any that is free.")
    uds: str | None = option(None, "Path of a Unix socket to listen on, instead of host and port.", type=str)
    api_key: Sequence[str] = option(
        (),
        "Key that clients must send as `Authorization: Bearer KEY`; several, or repeated: each is let in. The pages "
        "/, /health, /ping, /metrics, /version and /openapi.json need none. Default: everybody is let in.",
        secret=True,
        action="extend",
        nargs="+",
        type=str,
        metavar="KEY",
    )
    api_key_file: str | None = option(
        None,
        "File with further such keys, one a line. Other users of the machine see the flags of a process, and so "
        "api_key; the file may be readable for its owner only.",
        type=str,
        metavar="FILE",
    )
    served_model_name: Sequence[str] = option(
        (),
        "Name of the model in requests and answers; several, or repeated: the first is the one in answers. Default: "
        "MODEL; of a path, its last part.",
        action="extend",
        nargs="+",
        type=str,
        metavar="NAME",
    )
    chat_template: str | None = option(
        None, "Template to use instead of the model's, as a file or as text.", type=str, metavar="TEMPLATE"
    )
    trust_request_chat_template: bool = option(
        False,
        "Let requests bring chat templates of their own. They run in a sandbox, but one expression may take any time "
        "and memory, and hold up all requests: only for clients that you trust.",
    )
    tool_call_parser: str = option(
        "auto",
        "How the model writes calls of tools: hermes, json, llama3_json, mistral or pythonic; auto: as its chat "
        "template tells.",
        metavar="NAME",
    )
    enable_auto_tool_choice: bool = option(
        True, "Let the model decide whether it calls a tool; otherwise requests with tools must say tool_choice."
    )
    root_path: str = option(
        "", "Path before all of the server's own, if a proxy serves it below one, such as /models.", metavar="PATH"
    )
    ssl_keyfile: str | None = option(None, "Private key of ssl_certfile, in PEM format.", type=str, metavar="FILE")
    ssl_certfile: str | None = option(
        None,
        "Certificate chain in PEM format, and its private key unless ssl_keyfile is given: serve HTTPS.",
        type=str,
        metavar="FILE",
    )
    ssl_ca_certs: str | None = option(
        None,
        "Certificates in PEM format: clients must show a certificate that one of these has signed.",
        type=str,
        metavar="FILE",
    )
    allowed_origins: Sequence[str] = option(
        (),
        "Origin, such as https://example.org, whose web pages may use the server from a browser, or * for all, or a "
        "JSON list; repeatable. Default: none but the server's own page, since any page that somebody opens beside it "
        "could otherwise send requests.",
        action="extend",
        type=_origins,
        metavar="ORIGIN",
    )
    api_server_count: int = option(
        1,
        "Processes that answer HTTP; more than one where tokenizing and streaming take a whole core.",
        aliases=("-asc",),
    )
    shutdown_timeout: float = option(
        30.0,
        "Seconds for requests to finish after SIGTERM or Ctrl-C, before the rest is aborted; as long as Kubernetes "
        "waits by default.",
    )
    max_num_queued_reqs: int | None = option(
        None, "Requests that may wait to run; further ones get status 503 at once. Default: no limit.", type=int
    )
    stall_timeout: float = option(
        60.0, "Seconds without a finished step, while requests are pending, after which /health says 503."
    )
    log_requests: bool = option(False, "Write one line of JSON per request to standard error.")
    enable_admin_endpoints: bool = option(False, "Serve POST /reset_prefix_cache, /start_profile and /stop_profile.")
    metrics_prefix: str = option(
        "vllm", "What the names in /metrics begin with, before a colon; the default fits existing dashboards."
    )
    max_request_bytes: int = option(
        32 << 20,
        "Largest body of a request, in bytes; larger ones get status 413. The default holds several prompts of a "
        "million tokens.",
    )

    def __post_init__(self) -> None:
        _check_text("host", self.host)
        check_integer("port", self.port, low=0, high=MAX_PORT)
        for name in ("api_key_file", "uds", "chat_template", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name), printable=name != "chat_template")
        for name in ("api_key", "served_model_name", "allowed_origins"):
            _check_sequence(name, getattr(self, name))
        self._check_patterns()
        _check_text("tool_call_parser", self.tool_call_parser)
        for name in (
            "trust_request_chat_template",
            "enable_auto_tool_choice",
            "log_requests",
            "enable_admin_endpoints",
        ):
            check_flag(name, getattr(self, name))
        check_integer("api_server_count", self.api_server_count, low=1, high=MAX_API_SERVERS)
        if self.max_num_queued_reqs is not None:
            check_integer("max_num_queued_reqs", self.max_num_queued_reqs, low=1)
        check_integer("max_request_bytes", self.max_request_bytes, low=1)
        if finite_float("shutdown_timeout", self.shutdown_timeout) < 0:
            raise ValueError(f"shutdown_timeout must be at least 0 seconds, got {self.shutdown_timeout}")
        if finite_float("stall_timeout", self.stall_timeout) <= 0:
            raise ValueError(f"stall_timeout must be more than 0 seconds, got {self.stall_timeout}")
        self._check_combinations()

    def _check_patterns(self) -> None:
        for key in self.api_key:
            if not _API_KEY.fullmatch(key):
                raise ValueError("api_key must be printable ASCII characters without spaces; choose another key")
        for name in self.served_model_name:
            _check_text("served_model_name", name)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"allowed_origins must hold * or origins such as https://example.org, without a path and in small "
                    f"letters, got {shown(origin)}"
                )
        if not isinstance(self.root_path, str) or not (self.root_path == "" or _ROOT_PATH.fullmatch(self.root_path)):
            raise ValueError(f"root_path must begin with / and not end with it, got {shown(self.root_path)}")
        if not isinstance(self.metrics_prefix, str) or not _METRICS_PREFIX.fullmatch(self.metrics_prefix):
            raise ValueError(
                f"metrics_prefix must be letters, digits and underscores, the first no digit, "
                f"got {shown(self.metrics_prefix)}"
            )

    def _check_combinations(self) -> None:
        if self.uds is not None and (self.host, self.port) != (_default("host"), _default("port")):
            raise ValueError(
                f"uds is {shown(self.uds)}, and host or port is given too, but there is one place to listen; "
                "leave out uds, or host and port"
            )
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ValueError(f"{name} is {shown(getattr(self, name))}, but there is no ssl_certfile; give it too")


@dataclass(frozen=True)
class ParallelConfig:
    """Engine cores, each with the whole model, among which requests are shared out."""

    data_parallel_size: int = option(1, "Engine cores in all, each with the whole model.", aliases=("-dp",))
    data_parallel_size_local: int | None = option(
        None,
        "Engine cores that this node starts. Default: all from data_parallel_start_rank on.",
        aliases=("-dpl",),
        type=int,
    )
    data_parallel_start_rank: int = option(
        0, "With headless: rank of the first engine core that this node starts.", aliases=("-dpr",)
    )
    data_parallel_address: str = option(
        "127.0.0.1", "Address of the node that serves HTTP, as the other nodes reach it.", aliases=("-dpa",)
    )
    data_parallel_rpc_port: int = option(
        29550, "Port of that node for the engine cores of other nodes.", aliases=("-dpp",)
    )
    headless: bool = option(False, "Serve no HTTP: start engine cores for the node at data_parallel_address.")

    def __post_init__(self) -> None:
        check_integer("data_parallel_size", self.data_parallel_size, low=1)
        check_integer("data_parallel_start_rank", self.data_parallel_start_rank, low=0)
        if self.data_parallel_size_local is not None:
            check_integer("data_parallel_size_local", self.data_parallel_size_local, low=0)
        _check_text("data_parallel_address", self.data_parallel_address)
        check_integer("data_parallel_rpc_port", self.data_parallel_rpc_port, low=1, high=MAX_PORT)
        check_flag("headless", self.headless)
        if self.data_parallel_start_rank and not self.headless:
            raise ValueError(
                f"data_parallel_start_rank is {self.data_parallel_start_rank}, but the node that serves HTTP begins "
                "with rank 0; leave it out, or add headless"
            )
        if self.data_parallel_start_rank >= self.data_parallel_size:
            raise ValueError(
                f"data_parallel_start_rank is {self.data_parallel_start_rank}, but ranks go up to "
                f"{self.data_parallel_size - 1}; lower it, or raise data_parallel_size"
            )
        if self.local_ranks.stop > self.data_parallel_size:
            raise ValueError(
                f"data_parallel_size_local is {self.data_parallel_size_local}, which makes ranks up to "
                f"{self.local_ranks.stop - 1}, but data_parallel_size is {self.data_parallel_size}; lower "
                "data_parallel_size_local, or raise data_parallel_size"
            )
        if self.headless and not self.local_ranks:
            raise ValueError(
                "headless is True and data_parallel_size_local is 0, so this node would do nothing; raise "
                "data_parallel_size_local"
            )

    @property
    def local_ranks(self) -> range:
        """Ranks of the engine cores that this node starts."""
        start, num_local = self.data_parallel_start_rank, self.data_parallel_size_local
        return range(start, self.data_parallel_size if num_local is None else start + num_local)


_OF_HEADLESS_NODES = frozenset({"shutdown_timeout"})
"""Fields of `ServeConfig` that mean something where no HTTP is served."""


def check_serving(serve: ServeConfig, parallel: ParallelConfig) -> None:
    """Raise ValueError if the two contradict each other."""
    if not parallel.headless:
        return
    for declared in fields(serve):
        if declared.name not in _OF_HEADLESS_NODES and getattr(serve, declared.name) != declared.default:
            raise ValueError(f"{declared.name} is given, but a headless node serves no HTTP; leave it out, or headless")


def add_serving_flags(serve: "argparse._ActionsContainer", parallel: "argparse._ActionsContainer") -> None:
    """Add the flags of both to a parser, or to a group of flags each."""
    add_flags(serve, fields(ServeConfig))
    add_flags(parallel, fields(ParallelConfig))


def serving_from_flags(namespace: argparse.Namespace) -> tuple[ServeConfig, ParallelConfig]:
    """Raises ValueError for values that are not valid, alone or together."""
    serve, parallel = from_flags(ServeConfig, namespace), from_flags(ParallelConfig, namespace)
    check_serving(serve, parallel)
    return serve, parallel


def _default(name: str) -> Any:
    return next(declared.default for declared in fields(ServeConfig) if declared.name == name)


def _check_text(name: str, value: Any, *, printable: bool = True) -> None:
    if not isinstance(value, str) or not value or "\0" in value or (printable and not value.isprintable()):
        what = "printable text" if printable else "text"
        raise ValueError(f"{name} must be {what} of at least one character, got {shown(value)}")


def _check_sequence(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        got = "" if name == "api_key" else f", got {shown(value)}"
        raise ValueError(f"{name} must be a list of strings{got}")
