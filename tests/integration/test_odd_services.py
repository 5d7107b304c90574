"""What a command prints where the address is wrong, or what is there answers in no way, in half, slowly, or as another program does."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from extender.cli.connection.http_request import TimeLimits, TooLate, answered
from extender.cli.connection.service_client import ServiceFinder
from tests.support.certificates import certificate_folder
from tests.support.service.command_line import run_command

HEAD = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"


def page(status, kind, body):
    return HEAD % (status, kind, len(body), body)


class OddServer:
    """Answers each connection with the same bytes, and closes it.

    Args:
        answer: The bytes.
        context: TLS settings; None: without TLS.
    """

    def __init__(self, answer, context=None):
        self.answer, self.context = answer, context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed by `end`
                return
            with contextlib.suppress(OSError), connection:
                peer = connection
                if self.context is not None:
                    peer = self.context.wrap_socket(connection, server_side=True)
                peer.recv(65536)
                peer.sendall(self.answer)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(65536)

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def odd():
    """Start an OddServer; it ends with the test."""
    started = []

    def start(*words):
        started.append(OddServer(*words))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("certificates"), names=["127.0.0.1"])


ODD = {
    "nothing": (b"", "it closed the connection without an answer; is it https:// in place of http://?"),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2p1\r\n", "it does not answer with HTTP"),
    "an alert of TLS": (b"\x15\x03\x01\x00\x02\x02\x46", "it answers with TLS; is it https:// in place of http://?"),
    "half of it": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Type: application/json\r\n\r\n[", "the answer ended before its end"),
    "not JSON": (page(b"200 OK", b"text/plain", b"hello"), "did not answer as gang-extender does: "),
    "another JSON": (page(b"200 OK", b"application/json", b'{"items": 1}'), "did not answer as gang-extender does: "),
    "a page": (page(b"404 Not Found", b"text/html", b"<html></html>"), "answered 404, not as gang-extender does; is http://127.0.0.1:"),
    "a place elsewhere": (
        b"HTTP/1.1 308 Permanent Redirect\r\nLocation: https://gang.example.com/v1/gangs\r\nContent-Length: 0\r\n\r\n",
        "it is at https://gang.example.com/v1/gangs; give that address with --server",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_one_sentence(odd, name):
    """About the address, without the words of a library."""
    answer, sentence = ODD[name]
    server = odd(answer)
    done = run_command("gangs", "--server", f"http://127.0.0.1:{server.port}")
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert sentence in done.stderr
    assert f"127.0.0.1:{server.port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_error_of_a_service_cannot_steer_the_terminal(odd):
    """Its escape sequences are spaces, as in a table."""
    detail = b'{"detail": "\\u001b[2Jgone \\u009b31m\\nno"}'
    server = odd(page(b"404 Not Found", b"application/problem+json", detail))
    done = run_command("gangs", "--server", f"http://127.0.0.1:{server.port}")
    assert done.stderr == "gang-extender:  [2Jgone  31m\nno\n"


@pytest.mark.parametrize(("output", "bracket"), [("table", "["), ("markdown", "\\[")])
def test_an_answer_about_moves_cannot_steer_the_terminal(odd, output, bracket):
    answer = b'{"verdict": "fits", "question": "drain \\u001b[2Jn0", "emptied": ["n0\\u009b31m"]}'
    server = odd(page(b"200 OK", b"application/json", answer))
    words = ("--server", f"http://127.0.0.1:{server.port}", "-o", output)
    done = run_command("drain", "n0", *words)
    assert done.returncode == 0, done
    assert f"drain  {bracket}2Jn0: no move is needed\n" in done.stdout
    assert "empty then: n0 31m\n" in done.stdout


def test_pages_without_an_end_are_an_error(odd):
    """A page that names itself as the next one."""
    link = b'Link: </v1/gangs/a/b/history?after=1>; rel="next"'
    server = odd(b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: 2\r\n\r\n[]" % link)
    words = ("--server", f"http://127.0.0.1:{server.port}", "--limit", "1000", "-o", "json")
    done = run_command("history", "a/b", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "as its next page, which was read before it; is it the right --server?" in done.stderr


STREAMS = ("nothing", "another protocol", "a page", "a place elsewhere", "not JSON")


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_never_began_is_an_error(odd, name):
    server = odd(ODD[name][0])
    done = run_command("events", "--follow", "--server", f"http://127.0.0.1:{server.port}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"127.0.0.1:{server.port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_https_where_there_is_no_tls(odd):
    server = odd(page(b"400 Bad Request", b"text/plain", b"no"))
    done = run_command("gangs", "--server", f"https://127.0.0.1:{server.port}")
    assert done.returncode == 2
    assert "it answers without TLS; is it http:// in place of https://?" in done.stderr


def test_http_where_there_is_tls(odd, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate("server"), certificates.key("server"))
    server = odd(b"", context)
    done = run_command("gangs", "--server", f"http://127.0.0.1:{server.port}")
    assert done.returncode == 2
    assert "is it https:// in place of http://?" in done.stderr


def test_the_port_of_kube_scheduler_asks_for_a_certificate(odd, certificates):
    """The sentence names the option of the other port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate("server"), certificates.key("server"))
    context.load_verify_locations(certificates.certificate("ca"))
    context.verify_mode = ssl.CERT_REQUIRED
    server = odd(b"", context)
    ca = str(certificates.certificate("ca"))
    done = run_command(
        "gangs", "--server", f"https://127.0.0.1:{server.port}", "--server-ca-file", ca
    )
    assert done.returncode == 2
    assert "a client certificate, as the port for kube-scheduler does" in done.stderr
    assert "--api-listen" in done.stderr


def test_a_name_without_an_address():
    done = run_command("gangs", "--server", "http://gang-extender.invalid:8888")
    assert done.returncode == 2
    assert (
        "no answer from http://gang-extender.invalid:8888: the name gang-extender.invalid has no address"
        in done.stderr
    )


class Dripping(OddServer):
    """Sends the begin of an answer, and then keeps the connection."""

    def serve(self):
        connection, _ = self.listener.accept()
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(self.answer)
            connection.recv(65536)  # until the peer has ended
        with contextlib.suppress(OSError):
            self.listener.accept()  # until `end`


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["]
)
def test_an_answer_without_an_end_is_not_waited_for(begin):
    """Wherever it stops; what was asked is over after the whole time, not after each silence."""
    server = Dripping(begin)
    url = f"http://127.0.0.1:{server.port}/v1/gangs"
    with (
        pytest.raises(TooLate, match=r"^no whole answer within 0\.2 s$"),
        answered("GET", url, headers={}, body=None, limits=TimeLimits(whole_s=0.2)) as answer,
    ):
        answer.read()
    server.end()


def test_a_late_answer_is_not_called_absent():
    """A service that was reached runs; what it waits for is another question."""
    text = ServiceFinder(None, None).no_answer("http://a:1", TooLate("no whole answer within 9 s"))
    assert text.startswith("http://a:1: no whole answer within 9 s; it listens there, and may be")
    assert "gang-extender serve" not in text


@pytest.mark.parametrize(
    "words", [("config",), ("config", "-o", "json"), ("serve", "--help")], ids=" ".join
)
def test_a_reader_that_ends_is_no_error(words):
    """As `| head -1`: nothing on stderr, and the exit code by which a shell shows SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "extender", *words],
            stdout=writing, stderr=subprocess.PIPE, env=os.environ, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("length", [10**20, 10**15])
def test_an_answer_larger_than_memory_is_announced(length):
    """Nothing of it is there: the length alone is allocated by the standard library."""
    server = OddServer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n[]" % length)
    try:
        done = run_command("gangs", "--server", f"http://127.0.0.1:{server.port}")
    finally:
        server.end()
    assert done.returncode == 2
    assert "it announces an answer that is larger than memory" in done.stderr
