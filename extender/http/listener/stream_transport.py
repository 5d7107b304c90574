"""One stream of HTTP/2 as the transport of a connection of HTTP/1.1 that has one request.

The request becomes bytes as Go writes them over HTTP/1.1, and the bytes of the response become frames. So there is one
implementation of calls, limits and checks, and both versions are answered alike.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

import h2.exceptions
import h2.utilities

from extender.http.responses.unsent_answers import HIGH_BYTES, BytesInFlight, UnsentBytes

Headers = list[tuple[bytes, bytes]]

HEAD_BYTES_MAX: Final = 64 * 1024  # of a response
NO_BODY: Final = (204, 304)
# RFC 9113, 8.2.2: of one connection of HTTP/1.1, and not part of HTTP/2.
OF_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_OF_REQUEST: Final = h2.utilities.HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)


class MalformedRequest(Exception):
    """A request that cannot be one of HTTP/1.1: RFC 9113, 8.1.1."""


class Frames(Protocol):
    """The connection that sends the frames of a stream."""

    @property
    def in_flight(self) -> BytesInFlight:
        """Return what counts the bytes that callers do not take."""
        ...

    def extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 -- as in asyncio
        """Return what a transport knows about the connection."""
        ...

    def send_head(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        """Send the headers of a response."""
        ...

    def send_body(self, stream: StreamTransport) -> None:
        """Send what `stream.unsent` has, as far as the caller takes it now."""
        ...

    def reset(self, stream_id: int) -> None:
        """End a stream without a complete response."""
        ...

    def end_after_response(self) -> None:
        """Take no new requests on the connection."""
        ...

    def forget(self, stream: StreamTransport) -> None:
        """Drop a stream that has ended."""
        ...

    def consumed(self, stream_id: int, size: int) -> None:
        """Let the caller send so many bytes more."""
        ...


class StreamTransport(asyncio.Transport):
    """A request and its response.

    Args:
        has_body: Whether data or its end will arrive.

    Raises:
        MalformedRequest: The headers are not those of a request.
    """

    def __init__(
        self, connection: Frames, stream_id: int, headers: Headers, *, has_body: bool
    ) -> None:
        super().__init__()
        self.stream_id = stream_id
        # of the body of the response
        self.unsent = UnsentBytes(connection.in_flight, self.abort)
        self.complete = False  # nothing of the response is to come
        self._connection = connection
        head = request_head(tuple(headers), has_body=has_body)
        self._method, self._chunked = head.method, head.chunked
        self._arrived: list[bytes] = [head.text]
        self._request_ended = False
        self._protocol: asyncio.Protocol | None = None
        self._closed = False
        self._reading = True
        self._unread = 0
        self._response = bytearray()  # until its head is complete
        self._connection_holds = False  # the connection takes no more bytes
        # the protocol waits, for the connection or for the window of the stream
        self._holds = False
        self._left: int | None = None  # bytes of the body to come; None: until it is closed
        self._responding = False

    # -- frames ---------------------------------------------------------------------------------

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Let a protocol answer the request."""
        self._protocol = protocol
        protocol.connection_made(self)

    def arrive(self, data: bytes, size: int) -> None:
        """Take data of the request; `size` with the padding."""
        if data:
            self._arrived.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if self._reading and not self._closed:
            self._connection.consumed(self.stream_id, size)
        else:
            self._unread += size

    def end_request(self) -> None:
        """Take the end of the request."""
        self._request_ended = True
        if self._chunked:
            self._arrived.append(b"0\r\n\r\n")

    def deliver(self) -> None:
        """Give the protocol what has arrived."""
        if self._arrived and self._protocol is not None and not self._closed:
            data, self._arrived = b"".join(self._arrived), []
            self._protocol.data_received(data)

    def lose(self, error: Exception | None = None) -> None:
        """End it: the caller has reset the stream, or the connection is gone."""
        if not self._closed:
            self._closed = True
            self.unsent.drop()
            self._connection.forget(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def hold(self, *, writing: bool) -> None:
        """Take whether the connection takes more bytes."""
        self._connection_holds = not writing
        self.settle()

    def settle(self) -> None:
        """Count what the window did not let through, and let the protocol wait while that is much."""
        if self._closed:
            return
        self.unsent.settle()
        holds = self._connection_holds or len(self.unsent) > HIGH_BYTES
        if self._protocol is None or holds == self._holds:
            return
        self._holds = holds
        if holds:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    def sent(self) -> None:
        """End the stream: all of the response is sent."""
        if self._closed:
            return
        self._closed = True
        self.unsent.drop()
        if not self._request_ended:
            self._connection.reset(self.stream_id)  # what is still to come is not wanted
        self._connection.forget(self)
        if self._protocol is not None:
            # after the protocol has returned from its write
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    # -- transport ------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 -- as in asyncio
        """Return what the transport of the connection knows."""
        return self._connection.extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        """Return whether nothing can be sent any more."""
        return self._closed or self.complete

    def is_reading(self) -> bool:
        """Return whether data that arrives is taken."""
        return self._reading and not self._closed

    def pause_reading(self) -> None:
        """Let the caller send no more than its window of flow control."""
        self._reading = False

    def resume_reading(self) -> None:
        """Let the caller go on."""
        self._reading = True
        unread, self._unread = self._unread, 0
        if unread and not self._closed:
            self._connection.consumed(self.stream_id, unread)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return len(self.unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a part of a response of HTTP/1.1."""
        if self.is_closing():
            return
        if not self._responding:
            self._response += data
            if not self._begin_response():
                return
            data = bytes(self._response)
            self._response.clear()
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        self.unsent.add(data)
        self.complete = self._left == 0
        self._connection.send_body(self)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send parts of a response."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return false: a response ends by its length, or with `close`."""
        return False

    def close(self) -> None:
        """End the stream; what was written is sent before."""
        if self.is_closing():
            return
        if self._responding and self._left is None:
            self.complete = True
            self._connection.send_body(self)
        else:
            self.abort()

    def abort(self) -> None:
        """End the stream at once."""
        if not self._closed:
            self._connection.reset(self.stream_id)
            self.lose()

    def _begin_response(self) -> bool:
        """Send the head of the response if it is complete; leave what follows it in `_response`."""
        end = self._response.find(b"\r\n\r\n")
        if end < 0:
            if len(self._response) > HEAD_BYTES_MAX:
                self.abort()
            return False
        status, headers = response_head(bytes(self._response[:end]))
        del self._response[: end + 4]
        if status < 200:  # noqa: PLR2004 -- RFC 9110, 15.2: another head follows
            return self._begin_response()
        self._responding = True
        fields = dict(headers)
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            raise NotImplementedError(
                "a response in chunks has no place on the listener of the verbs"
            )
        if b"close" in fields.get(b"connection", b"").lower():
            self._connection.end_after_response()
        length = fields.get(b"content-length")
        self._left = int(length) if length is not None else None
        if self._method == b"HEAD" or status in NO_BODY:
            self._left = 0
        kept = [(b":status", b"%d" % status)]
        kept += [(name, value) for name, value in headers if name not in OF_CONNECTION]
        self.complete = self._left == 0
        self._connection.send_head(self.stream_id, kept, ends=self.complete)
        if self.complete:
            self.sent()
            return False
        return True


class RequestHead(NamedTuple):
    """The head of a request of HTTP/1.1."""

    text: bytes
    method: bytes
    chunked: bool  # its body has no length


@functools.lru_cache(maxsize=256)  # kube-scheduler sends the same headers again and again
def request_head(headers: tuple[tuple[bytes, bytes], ...], *, has_body: bool) -> RequestHead:
    """Return the head of a request of HTTP/2 as one of HTTP/1.1.

    Raises:
        MalformedRequest: The headers are not those of a request (RFC 9113, 8.2 and 8.3), or HTTP/1.1 has no such request.
    """
    try:
        checked = list(h2.utilities.validate_headers(headers, _OF_REQUEST))
    except h2.exceptions.ProtocolError as error:
        raise MalformedRequest(str(error)) from error
    pseudo: dict[bytes, bytes] = {}
    lines: list[bytes] = []
    sized = False
    for name, value in checked:
        if name.startswith(b":"):
            pseudo[name] = value
        elif name != b"host":
            sized = sized or name == b"content-length"
            lines.append(b"%b: %b\r\n" % (name, value))
        else:
            pseudo.setdefault(b":authority", value)
    method, path = pseudo[b":method"], pseudo.get(b":path", b"")
    if not method.isalpha() or not path or b" " in path:
        raise MalformedRequest("method or path is not usable")
    chunked = has_body and not sized
    if chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    host = pseudo.get(b":authority", b"")
    first = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, path, host)
    return RequestHead(first + b"".join(lines) + b"\r\n", method, chunked)


def response_head(text: bytes) -> tuple[int, Headers]:
    """Return the status and the headers, with names in lower case, of the head of a response."""
    first, *lines = text.split(b"\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip()))
    return int(first.split(b" ", 2)[1]), headers
