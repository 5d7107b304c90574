"""Framing and reuse of the connections for writes, against a server that sends exactly these bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from kubernetes_asyncio.client import Configuration

from extender.cli.certificates.certificate_folder import CertificateFolder
from extender.cluster.connection import kept_connections
from extender.cluster.connection.api_client import ApiServer
from extender.cluster.connection.kept_connections import (
    Answer,
    KeptConnections,
    MalformedAnswer,
)
from tests.support.certificates import (
    certificate_folder,
    client_context,
    files_of,
    server_context,
)
from tests.support.waiting import eventually

REQUEST = b"PATCH /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\n"


class Scripted:
    """Sends the next of its answers for each request, piece by piece; an empty piece closes the connection."""

    def __init__(self) -> None:
        self.answers: list[Sequence[bytes]] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.open_connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while request := await reader.read(4096):
                self.requests.append(request)
                for piece in self.answers.pop(0):
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)  # so that pieces arrive one by one
        finally:
            self.open_connections -= 1
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    """A listening server."""
    scripted = Scripted()
    listening = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield scripted
    listening.close()


@pytest.fixture
async def kept(server: Scripted) -> AsyncIterator[KeptConnections]:
    """Connections to it."""
    connections = KeptConnections(server.url, None, server_hostname=None, connect_timeout_s=5)
    yield connections
    connections.close()


def in_s(seconds: float) -> float:
    """Return a time by the clock of the event loop."""
    return asyncio.get_running_loop().time() + seconds


async def exchange(kept: KeptConnections) -> Answer:
    return await kept.exchange(REQUEST, lambda: True, until_s=in_s(3600))


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
FRAMED: dict[str, tuple[Sequence[bytes], bytes]] = {
    "length": ([OK + b"Content-Length: 5\r\n\r\nhello"], b"hello"),
    "length, header in lower case": ([OK + b"content-length:5\r\n\r\nhello"], b"hello"),
    "length, in pieces": ([OK[:9], OK[9:] + b"Content-Len", b"gth: 5\r\n\r\nhe", b"llo"], b"hello"),
    "no body": ([OK + b"Content-Length: 0\r\n\r\n"], b""),
    "204": ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    "after 100": ([b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 2\r\n\r\nok"], b"ok"),
    "chunked": ([CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"], b"hello"),
    "chunks": ([CHUNKED + b"2\r\nhe\r\n", b"3;x=y\r\nll", b"o\r\n0\r\n", b"\r\n"], b"hello"),
    "large hexadecimal chunk": ([CHUNKED + b"1A\r\n" + b"x" * 26 + b"\r\n0\r\n\r\n"], b"x" * 26),
    "trailers": ([CHUNKED + b"5\r\nhello\r\n0\r\nA: b\r\n", b"C: d\r\n\r\n"], b"hello"),
    "a line end cut in two": ([CHUNKED + b"5\r", b"\nhello\r", b"\n0\r\n\r", b"\n"], b"hello"),
}


@pytest.mark.parametrize("name", FRAMED)
async def test_an_answer_is_read_and_the_connection_used_again(
    server: Scripted, kept: KeptConnections, name: str
) -> None:
    """All forms in which a server can send a body whose end can be known."""
    pieces, body = FRAMED[name]
    server.answers = [pieces, pieces]
    assert [(await exchange(kept)).body for _ in range(2)] == [body, body]
    assert server.connections == 1
    assert server.requests == [REQUEST, REQUEST]


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
        [OK + b"\r\no", b"k", b""],
    ],
    ids=["close", "HTTP/1.0", "until the end"],
)
async def test_a_connection_that_ends_is_not_used_again(
    server: Scripted, kept: KeptConnections, pieces: Sequence[bytes]
) -> None:
    """The next request would be lost on it."""
    server.answers = [pieces, pieces]
    assert [(await exchange(kept)).body for _ in range(2)] == [b"ok", b"ok"]
    assert server.connections == 2


@pytest.mark.parametrize(
    "pieces",
    [
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [OK + b"Content-Length: -1\r\n\r\n"],
        [OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n"],
        [CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"],
        [CHUNKED + b"z\r\nhello\r\n0\r\n\r\n"],
        [CHUNKED + b"2\r\nok\r\n0\r\n\r\nmore"],
    ],
)
async def test_a_malformed_answer_ends_its_connection(
    server: Scripted, kept: KeptConnections, pieces: Sequence[bytes]
) -> None:
    """What follows it could be taken for the next answer."""
    server.answers = [pieces, [OK + b"Content-Length: 2\r\n\r\nok"]]
    with pytest.raises(MalformedAnswer):
        await exchange(kept)
    assert (await exchange(kept)).body == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("pieces", [[b""], [OK, b""], [OK + b"Content-Length: 9\r\n\r\nhel", b""]])
async def test_an_answer_that_is_cut_off_is_an_error(
    server: Scripted, kept: KeptConnections, pieces: Sequence[bytes]
) -> None:
    """The request may have been executed: it is not sent again."""
    server.answers = [pieces]
    with pytest.raises(ConnectionResetError):
        await exchange(kept)
    assert len(server.requests) == 1


async def test_after_a_cancelled_request_its_connection_is_gone(
    server: Scripted, kept: KeptConnections
) -> None:
    """Else the late answer would be taken for that of the next request."""
    server.answers = [[OK], [OK + b"Content-Length: 2\r\n\r\nok"]]
    asking = asyncio.create_task(exchange(kept))
    await eventually(lambda: server.requests, "the request")
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert (await exchange(kept)).body == b"ok"
    assert server.connections == 2


async def test_an_answer_that_comes_too_late_is_an_error(
    server: Scripted, kept: KeptConnections
) -> None:
    """The request may have been executed; its connection is not used again, because the answer may still come."""
    server.answers = [[OK], [OK + b"Content-Length: 2\r\n\r\nok"]]
    with pytest.raises(TimeoutError):
        await kept.exchange(REQUEST, lambda: True, until_s=in_s(0.5))
    assert (await exchange(kept)).body == b"ok"
    assert server.connections == 2


async def test_a_connection_that_cannot_be_made_in_time_is_an_error(server: Scripted) -> None:
    """Whichever ends first: the time for the connection, or that for the response."""
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = silent.getsockname()
    with silent, contextlib.ExitStack() as fillers:
        for _ in range(4):  # the queue of connections that were not accepted is full then
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        for connect_timeout_s, within_s in ((3600, 0.2), (0.2, 3600)):
            kept = KeptConnections(
                url, None, server_hostname=None, connect_timeout_s=connect_timeout_s
            )
            with pytest.raises(TimeoutError):
                await kept.exchange(REQUEST, lambda: True, until_s=in_s(within_s))


async def test_a_request_that_may_not_be_sent_leaves_its_connection(
    server: Scripted, kept: KeptConnections
) -> None:
    """It is asked after the wait for a connection."""
    server.answers = [[OK + b"Content-Length: 2\r\n\r\nok"]]
    with pytest.raises(ConnectionAbortedError, match="not the leader"):
        await kept.exchange(REQUEST, lambda: False, until_s=in_s(10))
    assert server.requests == []
    assert (await exchange(kept)).body == b"ok"
    assert server.connections == 1


async def test_a_connection_that_was_idle_for_long_is_closed(
    server: Scripted, kept: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between the two may have forgotten it."""
    server.answers = [[OK + b"Content-Length: 2\r\n\r\nok"]] * 2
    await exchange(kept)
    monkeypatch.setattr(kept_connections, "IDLE_S", -1.0)
    await exchange(kept)
    assert server.connections == 2


@contextlib.asynccontextmanager
async def write(url: str, folder: CertificateFolder) -> AsyncIterator[None]:
    """Send a write, and close."""
    tls = client_context(folder)
    kept = KeptConnections(url, tls, server_hostname=None, connect_timeout_s=3600)
    assert (await exchange(kept)).body == b"ok"
    kept.close()
    yield


@contextlib.asynccontextmanager
async def watch(url: str, folder: CertificateFolder) -> AsyncIterator[None]:
    """Begin a watch, and end it before its server does."""
    configuration = Configuration(host=url)
    configuration.ssl_ca_cert = str(folder.certificate("ca"))
    configuration.cert_file, configuration.key_file = (str(path) for path in files_of(folder)[:2])
    async with ApiServer(configuration) as api_server:
        async with api_server.watch("/x", {}, idle_s=3600) as pieces:
            assert await anext(pieces) == b"ok"
        yield


@pytest.mark.parametrize(
    ("use", "answer"),
    [
        (write, OK + b"Content-Length: 2\r\n\r\nok"),
        (watch, OK + b"Content-Length: 3\r\n\r\nok"),
    ],
    ids=["write", "watch"],
)
async def test_connections_close_without_an_answer_of_the_server(
    tmp_path: Path, use: Callable[..., contextlib.AbstractAsyncContextManager[None]], answer: bytes
) -> None:
    """The end of TLS asks for one, and a frozen server would have none for the 30 s that asyncio waits."""
    folder = certificate_folder(tmp_path)

    def serve() -> bytes:
        """Answer a request; return what comes then on the connection below TLS."""
        with server_context(folder).wrap_socket(listener.accept()[0], server_side=True) as secure:
            assert secure.recv(4096)
            secure.sendall(answer)
            with socket.socket(fileno=secure.detach()) as plain:
                return plain.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(asyncio.to_thread(serve))
        async with use(url, folder):
            assert await serving == b""


async def test_a_connection_in_use_closes_with_its_answer(
    server: Scripted, kept: KeptConnections
) -> None:
    """Nothing else would close it: these connections are not asked again."""
    server.answers = [[OK, b"Content-Length: 2\r\n\r\nok"]]
    asking = asyncio.create_task(exchange(kept))
    await eventually(lambda: server.requests, "the request")
    kept.close()
    assert (await asking).body == b"ok"
    await eventually(lambda: server.open_connections == 0, "the end of the connection")


async def test_a_connection_that_the_server_closed_is_not_taken(
    server: Scripted, kept: KeptConnections
) -> None:
    """As an API server does when it stops."""
    fine = OK + b"Content-Length: 2\r\n\r\nok"
    server.answers = [[fine, b""], [fine]]
    await exchange(kept)
    await asyncio.sleep(0.1)
    assert (await exchange(kept)).body == b"ok"
    assert server.connections == 2
