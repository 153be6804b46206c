"""Where the server listens."""

import errno
import fcntl
import ipaddress
import logging
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pelton.config.serving import ServeConfig
from pelton.error_text import shown

BACKLOG = 2048
"""Connections that the system keeps until they are accepted."""

_logger = logging.getLogger("pelton.server")


def bind_sockets(config: ServeConfig) -> list[socket.socket]:
    """Take the address or the path before anything is loaded, without listening yet; one socket for each address.
    Closing that of a path removes its file.

    Warns if other machines can reach it and no key is needed. Raises ValueError if it cannot be taken, and for TLS
    files that are of no use.
    """
    _check_tls_files(config)
    if config.uds is not None:
        return [_bind_path(config.uds)]
    sockets: list[socket.socket] = []
    try:
        port = config.port
        for family, address in _resolve(config.host, port):
            sockets.append(_bind_address(family, address[0], port, config.port))
            port = sockets[0].getsockname()[1]
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    if not config.api_key and not are_loopback(sockets):
        _logger.warning(
            "Whoever can reach %s may use this server; set --api-key to let in only those who know it",
            ", ".join(server_urls(config, sockets)),
        )
    return sockets


def start_listening(sockets: Sequence[socket.socket]) -> None:
    """Let clients connect. Raises ValueError if another process has begun to, meanwhile, at the same address."""
    for bound in sockets:
        try:
            if bound.family != socket.AF_UNIX:
                # Connections inherit it; those that linger would else keep the address from the next server.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.listen(BACKLOG)
        except OSError as error:
            raise ValueError(f"the server cannot listen at {bound.getsockname()}: {error.strerror}") from None


def server_urls(config: ServeConfig, sockets: Sequence[socket.socket]) -> list[str]:
    """Where the server's paths begin, as clients write it; of a Unix socket its path, after `unix:`."""
    scheme = "http" if config.ssl_certfile is None else "https"
    urls = []
    for bound in sockets:
        if bound.family == socket.AF_UNIX:
            urls.append(f"unix:{bound.getsockname()}{config.root_path}")
            continue
        host, port = bound.getsockname()[:2]
        urls.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{config.root_path}")
    return urls


def are_loopback(sockets: Sequence[socket.socket]) -> bool:
    """Whether all have addresses that only this machine's programs reach; Unix sockets have none."""
    return all(
        bound.family != socket.AF_UNIX and ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback
        for bound in sockets
    )


def _resolve(host: str, port: int) -> list[tuple[int, tuple[str, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ValueError(
            f"host is {shown(host)}, which is no address and no name of this machine; use 127.0.0.1, or 0.0.0.0 for "
            "all networks"
        ) from None
    return list(dict.fromkeys((family, (str(address[0]),)) for family, _, _, _, address in found))


def _bind_address(family: int, host: str, port: int, asked_port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # So that a server can start again at once. Taken back, else a second one could take the address before this
        # one listens.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        bound.close()
        raise ValueError(_bind_problem(error, host, asked_port)) from None
    return bound


def _bind_problem(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another with --port, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} needs privileges that this process lacks; choose one from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host is {shown(host)}, which is no address of this machine; choose another with --host"
    return f"the server cannot use port {port} of {host}: {error.strerror}"


class _PathSocket(socket.socket):
    """A Unix socket and the lock of its path, from before it is bound until it is closed. A socket that is bound but
    does not listen yet looks to others like one whose server has ended."""

    def __init__(self, path: str) -> None:
        """Raises OSError if the path cannot be used, ValueError if it is taken."""
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._lock: int | None = None
        try:
            self._lock = _locked(path)
            _remove_stale(path)
            self.bind(path)
            self._identity = _identity(os.lstat(path))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        if self._lock is None:
            return
        with suppress(OSError):
            if _identity(os.lstat(self._path)) == self._identity:
                os.unlink(self._path)
        with suppress(OSError):
            os.unlink(_lock_path(self._path))
        os.close(self._lock)
        self._lock = None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock_path(path: str) -> str:
    return path + ".lock"


def _locked(path: str) -> int:
    """The descriptor of a file that only one server at a time holds locked. Raises ValueError if another one does."""
    while True:
        lock = os.open(_lock_path(path), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(lock).st_size:
                raise ValueError(f"uds is {shown(path)}, but {shown(_lock_path(path))} is a file; choose another path")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if _identity(os.stat(_lock_path(path))) == _identity(os.fstat(lock)):
                    return lock
        except BlockingIOError:
            os.close(lock)
            raise ValueError(f"uds is {shown(path)}, which another server uses; choose another path") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # another server has removed it, with its own lock, just before it could be locked here


def _bind_path(path: str) -> socket.socket:
    if len(os.fsencode(path)) > 107:
        raise ValueError(f"uds is {shown(path)}, which is longer than 107 bytes; choose a shorter path")
    try:
        return _PathSocket(path)
    except OSError as error:
        raise ValueError(f"uds is {shown(path)}, which cannot be used: {error.strerror}; choose another path") from None


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that has ended. Raises ValueError if it has not, or if it is something else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ValueError(f"uds is {shown(path)}, which is a file already; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ValueError(f"uds is {shown(path)}, which another server uses; choose another path")


def _check_tls_files(config: ServeConfig) -> None:
    """Raise ValueError for files of TLS that cannot be used."""
    if config.ssl_certfile is None:
        return
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        path = getattr(config, name)
        if path is not None and not Path(path).is_file():
            raise ValueError(f"{name} is {shown(path)}, which is no file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, _refuse_password)
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"ssl_certfile, ssl_keyfile and ssl_ca_certs do not make a usable certificate with its key: "
            f"{error.strerror or error}"
        ) from None


def _refuse_password() -> str:
    raise ValueError("ssl_keyfile must not be encrypted, since nobody is there to type its password")
