"""Configuration of the server and of its engine cores."""

import argparse

import pytest

from pelton.config.options import auto_or_human_integer, human_integer
from pelton.config.serving import (
    ParallelConfig,
    ServeConfig,
    add_serving_flags,
    check_serving,
    serving_from_flags,
)

REFUSED = [
    (ServeConfig, "host", ""),
    (ServeConfig, "host", "a\nb"),
    (ServeConfig, "host", None),
    (ServeConfig, "port", -1),
    (ServeConfig, "port", 65536),
    (ServeConfig, "port", "8000"),
    (ServeConfig, "uds", ""),
    (ServeConfig, "served_model_name", "gpt"),
    (ServeConfig, "served_model_name", [""]),
    (ServeConfig, "served_model_name", [5]),
    (ServeConfig, "chat_template", ""),
    (ServeConfig, "trust_request_chat_template", 1),
    (ServeConfig, "root_path", "models"),
    (ServeConfig, "root_path", "/models/"),
    (ServeConfig, "root_path", "/a b"),
    (ServeConfig, "root_path", "/"),
    (ServeConfig, "ssl_certfile", 5),
    (ServeConfig, "allowed_origins", "*"),
    (ServeConfig, "allowed_origins", ["example.org"]),
    (ServeConfig, "allowed_origins", ["https://example.org/"]),
    (ServeConfig, "api_server_count", 0),
    (ServeConfig, "api_server_count", 65),
    (ServeConfig, "shutdown_timeout", -1.0),
    (ServeConfig, "shutdown_timeout", float("inf")),
    (ServeConfig, "shutdown_timeout", "30"),
    (ServeConfig, "max_num_queued_reqs", 0),
    (ServeConfig, "stall_timeout", 0),
    (ServeConfig, "stall_timeout", None),
    (ServeConfig, "log_requests", "yes"),
    (ServeConfig, "enable_admin_endpoints", None),
    (ServeConfig, "metrics_prefix", "a:b"),
    (ServeConfig, "metrics_prefix", "1a"),
    (ServeConfig, "metrics_prefix", ""),
    (ServeConfig, "max_request_bytes", 0),
    (ParallelConfig, "data_parallel_size", 0),
    (ParallelConfig, "data_parallel_size_local", -1),
    (ParallelConfig, "data_parallel_start_rank", -1),
    (ParallelConfig, "data_parallel_address", ""),
    (ParallelConfig, "data_parallel_rpc_port", 0),
    (ParallelConfig, "data_parallel_rpc_port", 65536),
    (ParallelConfig, "headless", 1),
]


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_refused_values(kind, name, value):
    with pytest.raises(ValueError, match=f"^{name} must .*, got "):
        kind(**{name: value})


@pytest.mark.parametrize("keys", [[""], ["qj x"], ["qjé"], ["qj\n"], "qj", ["qj", 5], None])
def test_keys_are_refused_without_being_shown(keys):
    with pytest.raises(ValueError, match=r"^api_key must be") as caught:
        ServeConfig(api_key=keys)
    assert "qj" not in str(caught.value)


def test_keys_are_not_shown():
    assert "secret" not in repr(ServeConfig(api_key=["secret"]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"uds": "/tmp/s", "port": 80}, "^uds is '/tmp/s', and host or port is given too.*leave out uds, or"),
        ({"uds": "/tmp/s", "host": "::"}, "^uds is"),
        ({"ssl_keyfile": "key.pem"}, "^ssl_keyfile is 'key.pem', but there is no ssl_certfile; give it too"),
        ({"ssl_ca_certs": "ca.pem"}, "^ssl_ca_certs is 'ca.pem', but there is no ssl_certfile; give it too"),
    ],
)
def test_contradictions_of_the_server(given, words):
    with pytest.raises(ValueError, match=words):
        ServeConfig(**given)


def test_what_goes_together():
    ServeConfig(uds="/tmp/s", ssl_certfile="both.pem", ssl_ca_certs="ca.pem")
    ServeConfig(host="::1", port=0, allowed_origins=["*", "https://example.org:8080"], root_path="/a/b-c")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 4, "start_rank": 1}, "^data_parallel_start_rank is 1, but the node that serves .*or add headless"),
        ({"size": 2, "start_rank": 2, "headless": True}, "start_rank is 2, but ranks go up to 1; lower it, or raise"),
        ({"size": 2, "size_local": 3}, "size_local is 3, which makes ranks up to 2, but data_parallel_size is 2"),
        ({"size": 4, "size_local": 2, "start_rank": 3, "headless": True}, "size_local is 2, which makes ranks up to 4"),
        ({"size": 4, "size_local": 0, "headless": True}, "size_local is 0, so this node would do nothing; raise"),
    ],
)
def test_contradictions_of_engine_cores(given, words):
    with pytest.raises(ValueError, match=words):
        parallel(**given)


def parallel(headless=False, **given):
    return ParallelConfig(headless=headless, **{f"data_parallel_{name}": value for name, value in given.items()})


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({}, [0]),
        ({"size": 3}, [0, 1, 2]),
        ({"size": 3, "size_local": 2}, [0, 1]),
        ({"size": 3, "size_local": 0}, []),
        ({"size": 3, "start_rank": 1, "headless": True}, [1, 2]),
        ({"size": 3, "start_rank": 1, "size_local": 1, "headless": True}, [1]),
    ],
)
def test_local_ranks(given, ranks):
    assert list(parallel(**given).local_ranks) == ranks


@pytest.mark.parametrize(
    ("name", "value"), [("api_server_count", 2), ("api_key", ["k"]), ("port", 80), ("uds", "/tmp/s")]
)
def test_headless_nodes_serve_no_http(name, value):
    serve = ServeConfig(**{name: value})
    check_serving(serve, ParallelConfig())
    with pytest.raises(ValueError, match=f"^{name} is given, but a headless node serves no HTTP; leave it out"):
        check_serving(serve, ParallelConfig(headless=True))


def test_headless_nodes_end_like_others():
    check_serving(ServeConfig(shutdown_timeout=1.0), ParallelConfig(headless=True))


def parse(*flags):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_serving_flags(parser, parser)
    return serving_from_flags(parser.parse_args(flags))


def test_no_flags_are_the_defaults():
    assert parse() == (ServeConfig(), ParallelConfig())


def test_flags():
    serve, cores = parse(
        *("--port", "0", "--api-key", "a", "--api-key", "b", "--served-model-name", "x", "--shutdown-timeout", "2"),
        *("--log-requests", "-asc", "3", "--max-num-queued-reqs", "7", "-dp", "4", "-dpl", "2"),
    )
    assert serve == ServeConfig(
        port=0,
        api_key=["a", "b"],
        served_model_name=["x"],
        shutdown_timeout=2.0,
        log_requests=True,
        api_server_count=3,
        max_num_queued_reqs=7,
    )
    assert cores == ParallelConfig(data_parallel_size=4, data_parallel_size_local=2)


def test_flags_are_checked_together():
    with pytest.raises(ValueError, match=r"^port is given, but a headless node"):
        parse("--headless", "--port", "9000")


@pytest.mark.parametrize(
    "flags",
    [
        ["--allowed-origins", "https://a.org", "--allowed-origins", "https://b.org"],
        ["--allowed-origins", '["https://a.org", "https://b.org"]'],
        ["--allowed-origins", '["https://a.org"]', "--allowed-origins", "https://b.org"],
    ],
)
def test_origins_come_one_by_one_or_as_json(flags):
    assert parse(*flags)[0].allowed_origins == ["https://a.org", "https://b.org"]


@pytest.mark.parametrize("text", ["[1]", "[", '["*"'])
def test_origins_that_are_no_list(text):
    with pytest.raises(argparse.ArgumentError, match="must be an origin or a JSON list of origins, got"):
        parse("--allowed-origins", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("2m", 2_000_000), ("1M", 1 << 20), ("1G", 1 << 30)],
)
def test_integers_for_people(text, value):
    assert human_integer(text) == auto_or_human_integer(text) == value


@pytest.mark.parametrize("text", ["", "k", "4kb", "-4", "1.5K", "1.5", "1.0001k", "4 k", "0x10", "٤", "1e3", "9" * 30])
def test_what_is_no_integer(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be an integer such as 4096, 4k \(4000\)"):
        human_integer(text)


def test_auto_is_no_number():
    assert auto_or_human_integer("auto") is None
