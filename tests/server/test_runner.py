"""How the server begins and ends."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess

import httpx
import pytest
from starlette.responses import PlainTextResponse

from pelton.config import ServeConfig
from pelton.server import runner
from pelton.server.runner import serve
from pelton.server.sockets import bind_sockets, server_urls
from pelton.server.sse_response import run_until_disconnected
from tests.server.running import PATIENCE, IdleLLM, in_loop, running

HELLO = PlainTextResponse("hello")


class Slow:
    """Answers when it is let, or when the engine ends."""

    def __init__(self, llm):
        self.llm = llm
        self.began = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/quick":
            await HELLO(scope, receive, send)
            return
        await receive()
        self.began.set()
        ends = [asyncio.create_task(event.wait()) for event in (self.may_answer, self.llm.ended)]
        try:
            await run_until_disconnected(receive, asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
        except BaseException:
            self.was_cancelled = True
            raise
        finally:
            for task in ends:
                task.cancel()
        text = "answer" if self.may_answer.is_set() else "aborted"
        await PlainTextResponse(text)(scope, receive, send)


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, PATIENCE)


def test_a_server_answers_and_ends():
    async def main():
        async with running(HELLO) as server:
            assert (await server.client.get("/")).text == "hello"
            server.stop.ask()
            assert await server.ended() == 0
            assert (server.llm.drain_timeouts, server.llm.num_shutdowns) == ([30.0], 1)
            with pytest.raises(httpx.ConnectError):
                await server.client.get("/")

    in_loop(main)


def test_headers_tell_nothing_of_the_server():
    async def main():
        async with running(HELLO) as server:
            headers = (await server.client.get("/")).headers
        assert "server" not in headers
        assert "date" in headers

    in_loop(main)


def test_requests_finish_before_the_end():
    async def main():
        llm = IdleLLM(pending=True)
        app = Slow(llm)
        async with running(app, llm) as server:
            request = asyncio.create_task(server.client.get("/slow"))
            await soon(app.began.wait())
            server.stop.ask()
            await soon(llm.drain_began.wait())
            with pytest.raises(OSError):  # noqa: PT011 - which one depends on the system
                await server.connect()
            app.may_answer.set()
            llm.drained.set()
            answer = await soon(request)
            assert (answer.text, answer.headers["connection"]) == ("answer", "close")
            assert await server.ended() == 0

    in_loop(main)


def test_what_takes_too_long_is_aborted():
    async def main():
        llm = IdleLLM(pending=True)
        app = Slow(llm)
        async with running(app, llm, shutdown_timeout=0.01) as server:
            request = asyncio.create_task(server.client.get("/slow"))
            await soon(app.began.wait())
            server.stop.ask()
            assert (await soon(request)).text == "aborted"
            assert await server.ended() == 0
            assert llm.drain_timeouts == [0.01]

    in_loop(main)


def test_the_second_wish_skips_the_waiting(caplog):
    async def main():
        llm = IdleLLM(pending=True)
        app = Slow(llm)
        async with running(app, llm, shutdown_timeout=1000.0) as server:
            request = asyncio.create_task(server.client.get("/slow"))
            await soon(app.began.wait())
            server.stop.ask(signal.SIGTERM)
            await soon(llm.drain_began.wait())
            server.stop.ask(signal.SIGTERM)
            assert await server.ended() == 128 + signal.SIGTERM
            await soon(asyncio.wait([request]))
            request.exception()
            assert llm.num_shutdowns == 1

    in_loop(main)
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_answers_that_notice_nothing_are_cancelled(monkeypatch):
    monkeypatch.setattr(runner, "FAREWELL_SECONDS", 0.01)
    monkeypatch.setattr(runner, "ABORT_SECONDS", 0.01)

    async def main():
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async with running(app) as server:
            _, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await soon(began.wait())
            server.stop.ask()
            assert await server.ended() == 0
            await soon(cancelled.wait())
            writer.transport.abort()

    in_loop(main)


def test_clients_that_do_not_read_are_left_behind(monkeypatch):
    monkeypatch.setattr(runner, "FAREWELL_SECONDS", 0.1)

    async def main():
        left = asyncio.Event()

        async def app(scope, receive, send):
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            try:
                await run_until_disconnected(receive, endless(send))
            finally:
                left.set()

        async def endless(send):
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)

        async with running(app) as server:
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await soon(reader.readuntil(b"xxxx"))
            writer.transport.pause_reading()
            server.stop.ask()
            assert await server.ended() == 0
            await soon(left.wait())
            writer.transport.abort()

    in_loop(main)


def test_idle_connections_do_not_hold_up_the_end():
    async def main():
        async with running(HELLO) as server:
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await soon(reader.readuntil(b"hello"))
            server.stop.ask()
            assert await server.ended() == 0
            assert await soon(reader.read()) == b""
            writer.close()

    in_loop(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(number):
    """Two of them here: the first begins the end, the second makes it quick."""

    async def main():
        llm = IdleLLM(pending=True)
        config = ServeConfig(port=0, shutdown_timeout=1000.0)
        ready = asyncio.Event()
        task = asyncio.create_task(serve(HELLO, config, bind_sockets(config), llm, on_ready=ready.set))
        await soon(ready.wait())
        os.kill(os.getpid(), number)
        await soon(llm.drain_began.wait())
        assert not task.done()
        os.kill(os.getpid(), number)
        assert await soon(task) == 128 + number

    before = signal.getsignal(number)
    in_loop(main)
    assert signal.getsignal(number) == before


def test_cancellation_ends_the_server():
    async def main():
        config, llm, ready = ServeConfig(port=0), IdleLLM(pending=True), asyncio.Event()
        sockets = bind_sockets(config)
        task = asyncio.create_task(serve(HELLO, config, sockets, llm, on_ready=ready.set))
        await soon(ready.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert llm.num_shutdowns == 1
        assert sockets[0].fileno() == -1

    in_loop(main)


def test_the_port_is_taken_before_anybody_listens():
    config = ServeConfig(port=0)
    (bound,) = bind_sockets(config)
    with bound:
        port = bound.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        message = rf"^port {port} of 127\.0\.0\.1 is in use; choose another with --port, or 0"
        with pytest.raises(ValueError, match=message):
            bind_sockets(ServeConfig(port=port))
        bound.listen()
        with pytest.raises(ValueError, match=message):
            bind_sockets(ServeConfig(port=port))
    for again in bind_sockets(ServeConfig(port=port)):
        again.close()


def test_a_port_can_be_used_again_at_once():
    """Connections of a server that has ended linger in the system."""

    async def main():
        async with running(HELLO) as server:
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert await soon(reader.read())
            port = server.port
            writer.close()
        return port

    for again in bind_sockets(ServeConfig(port=in_loop(main))):
        again.close()


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("no.such.host.invalid", r"^host is 'no\.such\.host\.invalid', which is no address and no name"),
        ("a..b", r"^host is 'a\.\.b', which is no address and no name"),
        ("192.0.2.1", r"^host is '192\.0\.2\.1', which is no address of this machine; choose another with --host"),
    ],
)
def test_hosts_that_are_not_here(host, words):
    with pytest.raises(ValueError, match=words):
        bind_sockets(ServeConfig(host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_only_this_machine_needs_no_warning(caplog, host):
    for bound in bind_sockets(ServeConfig(host=host, port=0)):
        bound.close()
    assert not caplog.records


def test_other_machines_without_a_key_are_warned_of(caplog):
    for keys, num_warnings in ((["k"], 0), ([], 1)):
        for bound in bind_sockets(ServeConfig(host="0.0.0.0", port=0, api_key=keys)):
            bound.close()
        assert len(caplog.records) == num_warnings
    assert "may use this server; set --api-key" in caplog.text


def test_a_name_with_several_addresses_has_one_port(monkeypatch):
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: addresses)
    config = ServeConfig(host="both", port=0)
    first, second = bind_sockets(config)
    with first, second:
        port = first.getsockname()[1]
        assert server_urls(config, [first, second]) == [f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}"]


def test_urls(monkeypatch):
    (bound,) = bind_sockets(ServeConfig(port=0))
    with bound:
        port = bound.getsockname()[1]
        config = ServeConfig(port=0, ssl_certfile="x.pem", root_path="/models")
        assert server_urls(config, [bound]) == [f"https://127.0.0.1:{port}/models"]


def test_a_unix_socket(tmp_path):
    async def main():
        config = ServeConfig(uds=str(tmp_path / "socket"))
        sockets, ready, llm = bind_sockets(config), asyncio.Event(), IdleLLM()
        assert server_urls(config, sockets) == [f"unix:{config.uds}"]
        stop = runner.StopRequest()
        task = asyncio.create_task(serve(HELLO, config, sockets, llm, stop=stop, on_ready=ready.set))
        await soon(ready.wait())
        with pytest.raises(ValueError, match="which another server uses; choose another path"):
            bind_sockets(config)
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=config.uds)) as client:
            assert (await client.get("http://x/")).text == "hello"
        stop.ask()
        assert await soon(task) == 0
        assert list(tmp_path.iterdir()) == []

    in_loop(main)


@pytest.mark.parametrize(
    ("name", "words"),
    [("file", "which is a file already"), ("no/folder", "No such file"), ("x" * 120, "longer than 107 bytes")],
)
def test_paths_of_no_use(tmp_path, name, words):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ValueError, match=f"^uds is .*{words}.*; choose a"):
        bind_sockets(ServeConfig(uds=str(tmp_path / name)))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and its certificate, for 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(certificate, mutual):
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    given = {"ssl_certfile": cert, "ssl_keyfile": key, **({"ssl_ca_certs": cert} if mutual else {})}

    async def main():
        context = ssl.create_default_context(cafile=cert)
        async with running(HELLO, **given) as server:
            assert server.url.startswith("https://")
            if mutual:
                async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                    with pytest.raises(httpx.HTTPError):
                        await client.get(server.url)
                context.load_cert_chain(cert, key)
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                assert (await client.get(server.url)).text == "hello"

    in_loop(main)


def test_certificates_of_no_use(certificate, tmp_path):
    cert, other = str(certificate / "cert.pem"), tmp_path / "other.pem"
    with pytest.raises(ValueError, match=r"^ssl_certfile is .*other\.pem', which is no file$"):
        bind_sockets(ServeConfig(port=0, ssl_certfile=str(other)))
    other.write_text("junk")
    for given in (
        {"ssl_certfile": str(other)},
        {"ssl_certfile": cert},
        {"ssl_certfile": cert, "ssl_keyfile": str(other)},
    ):
        with pytest.raises(ValueError, match="do not make a usable certificate with its key"):
            bind_sockets(ServeConfig(port=0, **given))
    command = ["openssl", "pkey", "-in", "key.pem", "-aes256", "-passout", "pass:secret", "-out", str(other)]
    subprocess.run(command, cwd=certificate, check=True, capture_output=True)
    with pytest.raises(ValueError, match=r"^ssl_keyfile must not be encrypted"):
        bind_sockets(ServeConfig(port=0, ssl_certfile=cert, ssl_keyfile=str(other)))
