"""What `run_server` makes of a configuration, before and while it starts processes. No process is started."""

import msgspec
import pytest

from pelton.config import EngineArgs, ParallelConfig, ServeConfig
from pelton.engine.topology import Endpoints
from pelton.server import launch
from pelton.server.front_end import FrontEndConfig


@pytest.fixture
def served(monkeypatch):
    """The configurations that a server in this process would have got."""
    configs = []

    def serve_here(args, serve, topology, sockets):
        configs.append(serve)
        return 0

    monkeypatch.setattr(launch, "_serve_here", serve_here)
    return configs


def run(**given):
    return launch.run_server(EngineArgs(), ServeConfig(port=0, **given), ParallelConfig())


def test_keys_of_a_file(served, tmp_path):
    file = tmp_path / "keys"
    file.write_text("\nfirst\n  second\r\n")
    assert run(api_key=["given"], api_key_file=str(file)) == 0
    assert list(served[0].api_key) == ["given", "first", "second"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("\n \n", "^api_key_file is .*, which has no key; write one into it"),
        ("se cret\n", "which has a line that is no key; write one key a line"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_without_keys_lets_nobody_in(served, tmp_path, content, words):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=words) as caught:
        run(api_key_file=str(file))
    assert "cret" not in str(caught.value)
    assert not served


def test_only_api_processes_that_are_started_again_are_told_so(monkeypatch):
    started = []

    class Child:
        def __init__(self, module, arguments, *, pass_fds, config):
            decoded = msgspec.msgpack.decode(config, type=FrontEndConfig)
            started.append((decoded.addresses.index, decoded.is_restart))

    class PlayedSupervisor:
        failure = ""

        def __init__(self, args, topology, *, start_front_end, **_):
            self.start, self.topology = start_front_end, topology

        def run(self):
            endpoints = Endpoints.make(self.topology)
            for index in (0, 1, 1, 0):
                self.start(index, endpoints)
            endpoints.remove()

    monkeypatch.setattr(launch, "ChildProcess", Child)
    monkeypatch.setattr(launch, "Supervisor", PlayedSupervisor)
    assert run(api_server_count=2) == 0
    assert started == [(0, False), (1, False), (1, True), (0, True)]
