"""`pelton serve`: what it takes, and what it refuses before anything is loaded."""

import subprocess
import sys
import types

import pytest

from pelton.cli.main import main
from pelton.config import EngineArgs, ParallelConfig, ServeConfig


@pytest.fixture
def started(monkeypatch):
    """What the server would be started with."""
    calls = []

    def run_server(args, serve, parallel):
        calls.append((args, serve, parallel))
        return 7

    module = types.ModuleType("pelton.server.launch")
    module.run_server = run_server
    monkeypatch.setitem(sys.modules, "pelton.server.launch", module)
    return calls


def test_help_does_without_the_engine_and_the_server():
    script = (
        "import sys\n"
        "from pelton.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'huggingface_hub', 'jinja2', 'tqdm', 'msgspec', 'zmq', 'fastapi',\n"
        "    'pydantic', 'starlette', 'uvicorn', 'asyncio', 'pelton.llm', 'pelton.engine', 'pelton.server'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: pelton serve" in done.stdout


def test_defaults(started):
    assert main(["serve"]) == 7
    assert started == [(EngineArgs(), ServeConfig(), ParallelConfig())]


@pytest.mark.parametrize("model", [["m"], ["--model", "m"]])
def test_flags_of_all_kinds(started, model):
    flags = ["--port", "0", "--max-model-len", "4k", "--api-key", "k", "-dp", "2"]
    assert main(["serve", *model, *flags]) == 7
    assert main(["serve", *flags, *model]) == 7
    expected = (
        EngineArgs.create(model="m", max_model_len=4000),
        ServeConfig(port=0, api_key=["k"]),
        ParallelConfig(data_parallel_size=2),
    )
    assert started == [expected, expected]


def test_the_context_of_the_model_by_name(started):
    assert main(["serve", "--max-model-len", "auto"]) == 7
    assert started[0][0] == EngineArgs()


def test_the_text_of_a_template_is_handed_on(started, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert main(["serve", "--chat-template", str(file)]) == 7
    assert started[0][1] == ServeConfig(chat_template="{{ messages }}")


@pytest.mark.parametrize(
    ("flags", "keys", "names"),
    [
        (["m", "--api-key", "a", "b", "--served-model-name", "x", "y"], ["a", "b"], ["x", "y"]),
        (["--api-key", "a", "--api-key", "b", "c", "--port", "1", "m"], ["a", "b", "c"], []),
        (["--served-model-name", "x", "--", "m"], [], ["x"]),
        (["--model", "m", "--served-model-name", "x", "y"], [], ["x", "y"]),
    ],
)
def test_several_keys_and_names(started, flags, keys, names):
    assert main(["serve", *flags]) == 7
    args, serve, _ = started[0]
    assert args == EngineArgs.create(model="m")
    assert (list(serve.api_key), list(serve.served_model_name)) == (keys, names)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--api-key", "k", "m"], "--api-key has several values, and no model is given, so that the last value may be"),
        (["--served-model-name", "k", "m"], "meant as MODEL; write MODEL before the flags"),
        (["--trust-remote-code"], "Pelton never runs code that comes with a model; leave it out"),
        (["m", "--model", "m"], "MODEL and --model are both given; leave one of them out"),
        (["--chat-template", "{% if"], "chat template"),
        (["--chat-template", "/no/such/file"], "/no/such/file"),
        (["--ssl-keyfile", "key.pem"], "ssl_keyfile is 'key.pem', but there is no ssl_certfile; give it too"),
        (["--headless", "-asc", "2"], "api_server_count is given, but a headless node serves no HTTP"),
        (["-dpr", "1"], "data_parallel_start_rank is 1, but"),
        (["--block-size", "0"], "block_size must be at least 1, got 0"),
    ],
)
def test_mistakes_are_refused_at_once(started, capsys, flags, words):
    assert main(["serve", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pelton: ")
    assert words in line
    assert not started


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-model-len", "4kb"], "--max-model-len: must be an integer such as 4096, 4k (4000) or 4K (4096)"),
        (["--port", "http"], "--port: invalid int value: 'http'"),
        (["a", "b"], "unrecognized arguments: b"),
    ],
)
def test_mistakes_of_the_command_line(started, capsys, flags, words):
    with pytest.raises(SystemExit) as end:
        main(["serve", *flags])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert not started
