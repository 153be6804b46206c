"""Paths of Unix sockets: who has one, and until when. `test_runner` has the rest."""

import os
import socket
import subprocess
import sys

import pytest

from pelton.config import ServeConfig
from pelton.server.sockets import are_loopback, bind_sockets


@pytest.fixture
def config(tmp_path):
    return ServeConfig(uds=str(tmp_path / "socket"))


def test_a_server_that_does_not_listen_yet_has_its_path(config):
    (first,) = bind_sockets(config)
    with pytest.raises(ValueError, match=r"^uds is .*, which another server uses; choose another path"):
        bind_sockets(config)
    first.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(config.uds)
    first.close()


def test_nothing_is_left_of_a_socket_that_was_closed(config, tmp_path):
    for _ in range(2):
        (bound,) = bind_sockets(config)
        assert {path.name for path in tmp_path.iterdir()} == {"socket", "socket.lock"}
        bound.close()
        bound.close()
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_server_left_is_taken_over(config, tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pelton.config import ServeConfig\n"
        "from pelton.server.sockets import bind_sockets\n"
        "sockets = bind_sockets(ServeConfig(uds=sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, config.uds], timeout=60, check=False)
    assert {path.name for path in tmp_path.iterdir()} == {"socket", "socket.lock"}
    (bound,) = bind_sockets(config)
    bound.close()
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_somebody_else_is_left_alone(config):
    """He has moved it to the path, meanwhile."""
    (bound,) = bind_sockets(config)
    os.unlink(config.uds)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(config.uds)
        bound.close()
        assert os.path.exists(config.uds)


def test_a_server_that_knows_no_locks_has_its_path(config):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(config.uds)
        other.listen()
        with pytest.raises(ValueError, match="which another server uses"):
            bind_sockets(config)
    assert os.path.exists(config.uds)


def test_a_file_beside_the_path_is_left_alone(config, tmp_path):
    (tmp_path / "socket.lock").write_text("precious")
    with pytest.raises(ValueError, match=r"^uds is .*, but '.*socket.lock' is a file; choose another path"):
        bind_sockets(config)
    assert (tmp_path / "socket.lock").read_text() == "precious"
    assert not os.path.exists(config.uds)


def test_a_lock_that_was_removed_is_none(config, monkeypatch):
    """Between opening and locking it, the server that had it has ended."""
    opened = []

    def open_and_lose(*arguments):
        opened.append(os_open(*arguments))
        if len(opened) == 1:
            os.unlink(config.uds + ".lock")
        return opened[-1]

    os_open = os.open
    monkeypatch.setattr(os, "open", open_and_lose)
    (bound,) = bind_sockets(config)
    assert len(opened) == 2
    with pytest.raises(ValueError, match="which another server uses"):
        bind_sockets(config)
    bound.close()


@pytest.mark.parametrize(("given", "expected"), [({"host": "127.0.0.1"}, True), ({"host": "0.0.0.0"}, False)])
def test_which_sockets_only_this_machine_reaches(given, expected):
    (bound,) = bind_sockets(ServeConfig(port=0, api_key=["k"], **given))
    assert are_loopback([bound]) == expected
    bound.close()


def test_unix_sockets_have_no_address(config):
    (bound,) = bind_sockets(config)
    assert not are_loopback([bound])
    bound.close()
