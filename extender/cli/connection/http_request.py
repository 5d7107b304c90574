"""One request to the service, by the standard library: a command that asks once needs no pool of connections and no event loop.

What fails is `NoAnswer`, in words for the user of a command: what was refused or lost, and what that may mean.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from extender.core.model.errors import BadInput

CONNECTED_WITHIN_S: Final = 10.0
PIECE_BYTES: Final = 1 << 16
NEXT_PAGE: Final = 'rel="next"'
OTHER_SCHEME: Final = "is it https:// in place of http://?"
OTHER_PORT: Final = ", as the port for kube-scheduler does: the read API has a port of its own (--api-listen of serve, by default 8443)"
TLS_RECORD: Final = "\x15\x03"  # an alert of TLS, where an answer of HTTP is expected
REDIRECTIONS: Final = range(300, 400)
# In URLs, as they are: the reserved characters of RFC 3986, and what is escaped already.
AS_IT_IS: Final = "/:?#[]@!$&'()*+,;=~%"


class NoAnswer(Exception):
    """A request without a whole answer; its text is the reason."""


class NotVerified(NoAnswer):
    """The certificate of the service is not valid here."""


class TooLate(NoAnswer):
    """The service was reached, and did not answer in time."""


class TimeLimits(msgspec.Struct, frozen=True):
    """How long a request may take, in seconds; None: for ever."""

    connect_s: float = CONNECTED_WITHIN_S  # the handshake of TLS is part of it
    whole_s: float | None = None  # until the last byte of the answer
    silence_s: float | None = None  # between two pieces of it


def header_token(text: str, place: str) -> str:
    """Return a bearer token that can be sent; empty: there is none.

    Args:
        text: What a file, a kubeconfig or a program gave; whitespace around it does not count.

    Raises:
        BadInput: It is no token. What it is instead is not printed: it may be one with a fault.
    """
    token = text.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput(f"{place}: is not one token of ASCII characters without spaces")
    return token


class _Request:
    """A connection that is used for one request, and what is known when it fails."""

    def __init__(self, url: str, limits: TimeLimits, tls: ssl.SSLContext | None, name: str) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if tls else 80)
        self.target = quote(parts._replace(scheme="", netloc="").geturl() or "/", safe=AS_IT_IS)
        self.limits = limits
        self.tls = tls
        self.name = name or self.host
        self.late = threading.Event()
        within_s = min(limits.connect_s, limits.whole_s or limits.connect_s)
        self.connection = http.client.HTTPConnection(self.host, self.port, timeout=within_s)
        self._socket: socket.socket | None = None

    def connect(self) -> None:
        """Open the connection."""
        self.connection.connect()
        self._socket = self.connection.sock
        if self.tls is not None:
            self.connection.sock = self.tls.wrap_socket(self._socket, server_hostname=self.name)
            self._socket = self.connection.sock
        self._socket.settimeout(self.limits.silence_s)

    def end_late(self) -> None:
        """Break the connection off, from another thread: what reads or writes there returns."""
        self.late.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed
                # not that of `SSLSocket`, which a reader in another thread does not notice
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def failing(self, step: str) -> Iterator[None]:
        """Turn what the standard library raises into NoAnswer."""
        try:
            yield
        except (MemoryError, OverflowError) as error:  # of the length that it announced
            raise NoAnswer("it announces an answer that is larger than memory") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind: type[NoAnswer] = NoAnswer
            if self.late.is_set():
                kind = TooLate
            elif isinstance(error, ssl.SSLCertVerificationError):
                kind = NotVerified
            raise kind(self._why(error, step)) from error

    def _why(self, error: Exception, step: str) -> str:  # noqa: PLR0911 -- one for each fault
        limits = self.limits
        if self.late.is_set():
            return f"no whole answer within {limits.whole_s:g} s"
        match error:
            case ssl.SSLCertVerificationError():
                return error.verify_message
            case ssl.SSLError() if step == "connect" or not isinstance(error, ssl.SSLEOFError):
                return _tls_fault(error)
            case ssl.SSLEOFError() | ConnectionResetError() if step == "send":
                return _closed(tls=self.tls is not None)
            case socket.gaierror():
                return f"the name {self.host} has no address: {error.strerror}"
            case ConnectionRefusedError():
                return f"nothing listens on port {self.port} there (connection refused)"
            case TimeoutError() if step == "connect":
                return f"no connection within {self.connection.timeout:g} s"
            case TimeoutError():
                return f"nothing was received for {limits.silence_s:g} s"
            case http.client.HTTPException():
                return _http_fault(error, tls=self.tls is not None)
            case ConnectionError():
                return "the connection was lost before the end of the answer"
            case _:
                return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


class ServiceAnswer:
    """The answer to a request; its body can be read as long as the block of `answered` runs."""

    def __init__(self, request: _Request, url: str) -> None:
        self._request = request
        self._raw = request.connection.getresponse()
        self.status: int = self._raw.status
        self.headers = self._raw.headers
        links = [link for link in self.headers.get("Link", "").split(",") if NEXT_PAGE in link]
        target = links[0].partition("<")[2].partition(">")[0] if links else ""
        self.following = urljoin(url, target) if target else ""  # URL of the next page

    def read(self) -> bytes:
        """Return the rest of the body."""
        with self._request.failing("read"):
            body = self._raw.read()
            if self._request.late.is_set():  # a body without a length ends with its connection
                raise TimeoutError
            return body

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        while True:
            with self._request.failing("read"):
                piece = self._raw.read1(PIECE_BYTES)
            if not piece:
                return
            yield piece


@contextlib.contextmanager
def answered(
    method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, limits: TimeLimits,
    tls: ssl.SSLContext | None = None, server_name: str = "",
) -> Iterator[ServiceAnswer]:  # fmt: skip
    """Send a request, and return the answer for the time of the block; redirections are not followed.

    Args:
        headers: What is sent besides Host, Accept-Encoding and Content-Length.
        tls: How its certificate is verified; None for http://.
        server_name: The name that its certificate must have; empty: the host of the URL.

    Raises:
        NoAnswer: On entering, and from the methods of the answer.
        BadInput: It answers with a redirection.
    """
    request = _Request(url, limits, tls, server_name)
    clock = threading.Timer(limits.whole_s or 0, request.end_late)
    clock.daemon = True
    try:
        with request.failing("connect"):
            request.connect()
        if limits.whole_s is not None:
            clock.start()
        with request.failing("send"):
            # a service that refuses a large body may answer before it has read all of it
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                request.connection.request(method, request.target, body, dict(headers))
            answer = ServiceAnswer(request, url)
        if answer.status in REDIRECTIONS and answer.status != HTTPStatus.NOT_MODIFIED:
            _refuse_redirection(url, answer)
        yield answer
    finally:
        clock.cancel()
        request.connection.close()


def _refuse_redirection(url: str, answer: ServiceAnswer) -> None:
    place = urljoin(url, answer.headers.get("Location", ""))
    if urlsplit(place)[:2] != urlsplit(url)[:2]:  # elsewhere: a token must not follow
        raise BadInput(
            f"{url} answered {answer.status}: it is at {place}; give that address with --server"
        )


def _http_fault(error: http.client.HTTPException, *, tls: bool) -> str:
    match error:
        case http.client.RemoteDisconnected():
            return _closed(tls=tls)
        case http.client.BadStatusLine() if str(error).startswith(TLS_RECORD):
            return f"it answers with TLS; {OTHER_SCHEME}"
        case http.client.BadStatusLine() | http.client.LineTooLong():
            return "it does not answer with HTTP"
        case http.client.IncompleteRead():
            return "the answer ended before its end"
        case _:
            return f"{type(error).__name__}: {error}"


def _closed(*, tls: bool) -> str:
    meant = f"if it asks for a client certificate{OTHER_PORT}" if tls else OTHER_SCHEME
    return f"it closed the connection without an answer; {meant}"


def _tls_fault(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"it asks for a client certificate{OTHER_PORT}"
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or "HTTP_REQUEST" in reason:
        return "it answers without TLS; is it http:// in place of https://?"
    if isinstance(error, ssl.SSLEOFError):
        return "it closed the connection during the handshake of TLS; is it http:// in place of https://?"
    return f"TLS: {reason.replace('_', ' ').lower() or os.strerror(error.errno or 0)}"
