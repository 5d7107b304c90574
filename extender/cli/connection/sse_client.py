"""Client for the server-sent events of GET /v1/events?follow: reconnects with the last id, to any replica.

Does not decode the events. Note: it retries for ever when a service answers 503 or is silent, but fails when no
service has ever answered, because then the address is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from extender.cli.connection.http_request import NoAnswer, TimeLimits
from extender.cli.connection.service_client import ServiceFinder, detail_of
from extender.core.model.errors import BadInput, PositionGone

# a service sends something every ten seconds
LIMITS: Final = TimeLimits(connect_s=5.0, silence_s=30.0)
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


class _Broken(Exception):
    """The connection was lost, or could not be opened."""


class Stream:
    """The events of a log, each once, from any of several replicas."""

    def __init__(
        self,
        servers: Sequence[str | None],
        query: Sequence[tuple[str, str]],
        finder: ServiceFinder,
        *,
        complain: Callable[[str], None],
    ) -> None:
        """Store the arguments.

        Args:
            servers: As `ServiceFinder.find` takes them; when one is lost, the next one is used.
            query: Parameters besides `follow`.
            finder: Finds each of them, again after it was lost.
            complain: Called once when the connection is lost, and when it is restored.
        """
        self._servers = servers
        self._query = query
        self._finder = finder
        self._complain = complain
        self._position = ""  # as in Last-Event-ID

    def events(self) -> Iterator[bytes]:
        """Yield the JSON of each event, for ever.

        Raises:
            BadInput: No service answers at the beginning, or one rejects the query.
            PositionGone: The log ends before the position of this stream.
        """
        for server in self._servers:  # one that cannot be right is an error at the beginning
            self._finder.find(server)
        turn, failures, lost = 0, 0, ""
        while True:
            try:
                url = self._url_of(self._servers[turn % len(self._servers)])
                for body in self._once(url):
                    if lost:
                        self._complain(f"connected to {url}")
                    failures, lost = 0, ""
                    if body:
                        yield body
            except _Broken as error:
                turn += 1
                failures += 1
                if not self._position and failures >= len(self._servers):
                    raise BadInput(str(error)) from error
                if not lost:
                    self._complain(f"{error}; trying again")
                lost = str(error)
                time.sleep(min(PAUSE_FIRST_S * 2 ** min(failures, 10), PAUSE_MAX_S))

    def _url_of(self, server: str | None) -> str:
        try:
            return self._finder.find(server)
        except BadInput as error:  # the port could not be forwarded again
            raise _Broken(str(error)) from error

    def _once(self, url: str) -> Iterator[bytes]:
        """Yield the events of one connection until it breaks; empty bytes for other data."""
        headers = {"Last-Event-ID": self._position} if self._position else {}
        address = f"{url}/v1/events?{urlencode([('follow', 'true'), *self._query])}"
        try:
            with self._finder.send("GET", address, headers=headers, limits=LIMITS) as answer:
                kind = answer.headers.get("Content-Type", "").partition(";")[0]
                if answer.status != HTTPStatus.OK or kind != "text/event-stream":
                    raise _refused(url, answer.status, answer.read())
                yield from self._read(answer.pieces())
        except NoAnswer as error:
            raise _Broken(self._finder.no_answer(url, error)) from error
        raise _Broken(f"{url} ended the stream")

    def _read(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        kind = data = b""
        for line in _lines(pieces):
            field, _, value = line.partition(b": ")
            if field == b"id":
                self._position = value.decode()
            elif field == b"event":
                kind = value
            elif field == b"data":
                data = value
            elif not line:
                if kind == b"problem":
                    raise PositionGone(_detail(data))
                yield data
                kind = data = b""


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines; an event is one line, of megabytes if it has thousands of pods."""
    parts: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        parts.append(first)
        for line in rest:
            yield b"".join(parts)
            parts = [line]


def _detail(body: bytes) -> str:
    return detail_of(body) or body[:200].decode(errors="replace")


def _refused(server: str, status: int, body: bytes) -> Exception:
    if status == HTTPStatus.CONFLICT:
        return PositionGone(_detail(body))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _Broken(f"{server} answered {status}: {_detail(body)}")
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return BadInput(_detail(body))
    return BadInput(
        f"{server}/v1/events answered {status}, not a stream; is it the right --server?"
    )
