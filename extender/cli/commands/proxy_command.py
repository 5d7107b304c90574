"""`proxy`: a port of this machine that leads to the service with the token of the user, and the server behind it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Final

import msgspec
import typer

from extender.cli.connection.http_request import NoAnswer, ServiceAnswer, TimeLimits
from extender.cli.connection.service_client import Server, ServiceFinder, finder, until_interrupted
from extender.cli.output.printing import complain
from extender.core.model.errors import BadInput
from extender.listener_settings import foreign_host, foreign_origin
from extender.settings import LOOPBACK

HOST: Final = "127.0.0.1"
PATHS: Final = ("/v1", "/ui", "/metrics", "/livez", "/readyz")
POST_PATHS: Final = ("/v1/plan", "/v1/moves")
SENT: Final = ("Accept", "Content-Type", "If-None-Match", "Last-Event-ID")
NOT_RETURNED: Final = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
)
BODY_MAX: Final = 16 << 20  # of a plan query, as the service accepts it
JSON: Final = "application/json"
EMPTY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
LIMITS: Final = TimeLimits()


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class LocalProxy(ThreadingHTTPServer):
    """Passes requests on, each in a thread of its own; `port`: the port of loopback; 0: any."""

    daemon_threads = True

    def __init__(self, service_finder: ServiceFinder, server: str | None, port: int) -> None:
        try:
            super().__init__((HOST, port), _Passing)
        except OSError as error:
            raise BadInput(f"--port {port}: {error.strerror or error}") from error
        self.finder = service_finder
        self._server = server
        # One kubectl at a time, which ends with the thread that started it.
        self._finding = ThreadPoolExecutor(1)

    def find(self) -> str:
        """Return the URL of the service."""
        return self._finding.submit(self.finder.find, self._server).result()


class _Passing(BaseHTTPRequestHandler):
    """Answers one request after the other of a connection."""

    protocol_version = "HTTP/1.1"
    server: LocalProxy

    def do_GET(self) -> None:
        try:
            body = self._checked()
            if self.path == "/":
                self._answer(HTTPStatus.FOUND, {"Location": "ui/"}, b"")
                return
            self._pass_on(body)
        except _Refused as refused:
            self._problem(refused.status, refused.status.phrase, str(refused))
        except BadInput as error:
            self._problem(HTTPStatus.BAD_GATEWAY, "The service cannot be asked", str(error))
        except ConnectionError:
            self.close_connection = True  # of the caller

    do_HEAD = do_POST = do_GET  # noqa: N815 -- names of the standard library

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""

    def _checked(self) -> bytes | None:
        """Return the body of a request that may be passed on."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if text := foreign_host(host, frozenset(LOOPBACK)) or foreign_origin(origin, host):
            self.close_connection = True
            raise _Refused(HTTPStatus.FORBIDDEN, text)
        body = self._body()
        path = self.path.partition("?")[0]
        if path != "/" and not any(path == top or path.startswith(f"{top}/") for top in PATHS):
            text = f"{path}: is not passed on; there are {', '.join(PATHS)}"
            raise _Refused(HTTPStatus.NOT_FOUND, text)
        if self.command == "POST" and path not in POST_PATHS:
            raise _Refused(
                HTTPStatus.METHOD_NOT_ALLOWED, f"POST is for {' and '.join(POST_PATHS)} only"
            )
        return body

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if self.command != "POST":
            self.close_connection = self.close_connection or bool(length)
            return None
        kind = self.headers.get_content_type()
        text, status = "", HTTPStatus.BAD_REQUEST
        if kind != JSON:
            status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            text = f"Content-Type {kind!r}: the body of a request must be {JSON}"
        elif not (length.isascii() and length.isdigit()):
            text, status = "the body has no Content-Length", HTTPStatus.LENGTH_REQUIRED
        elif int(length) > BODY_MAX:
            text = f"the body has {length} bytes, more than {BODY_MAX}"
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if text:
            self.close_connection = True  # the body is not read
            raise _Refused(status, text)
        return self.rfile.read(int(length))

    def _pass_on(self, body: bytes | None) -> None:
        """Return the answer of the service, piece by piece."""
        headers = {name: self.headers[name] for name in SENT if name in self.headers}
        url = self.server.find()
        begun = False
        try:
            with self.server.finder.send(
                self.command, url + self.path, headers=headers, body=body, limits=LIMITS
            ) as answer:
                begun = True
                self._return(answer)
        except NoAnswer as error:
            if begun:
                # so that the caller sees that the answer is incomplete
                self.close_connection = True
                return
            why = self.server.finder.no_answer(url, error)
            self._problem(HTTPStatus.BAD_GATEWAY, "The service does not answer", why)

    def _return(self, answer: ServiceAnswer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in NOT_RETURNED:
                self.send_header(name, value)
        if self.command == "HEAD" or answer.status in EMPTY:
            self.end_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer.pieces():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _problem(self, status: HTTPStatus, title: str, detail: str) -> None:
        body = msgspec.json.encode({"title": title, "status": status, "detail": detail})
        self._answer(status, {"Content-Type": "application/problem+json"}, body)

    def _answer(self, status: HTTPStatus, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def proxy(port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 to listen on; 0: any.")] = 8889, server: Server = None) -> None:  # fmt: skip
    """Serve the page and the read API on a port of this machine, with your token. Every process of this machine can use it."""
    with LocalProxy(finder(), server, port) as local, until_interrupted():
        url = local.find()  # an error now, not with the first request
        print(f"http://{HOST}:{local.server_port}/ui/")
        sys.stdout.flush()
        complain(f"leads to {url} until Ctrl-C, for every process of this machine")
        local.serve_forever()
