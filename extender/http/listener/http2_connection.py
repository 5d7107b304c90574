"""A connection of HTTP/2: kube-scheduler sends all its calls over one.

Over HTTP/1.1 it keeps two idle connections per extender, and the bind calls of a gang wait for one another: nearly each
of them has a connection with a TLS handshake of its own. It offers HTTP/2 by ALPN, as Go does (K04).

Each stream is the transport of a connection of HTTP/1.1 that has one request: the request becomes bytes as Go writes them over
HTTP/1.1, and the bytes of the response become frames. So calls, limits and checks are implemented once, and both versions are answered alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import h2.utilities
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from extender.http.listener.tls_contexts import ClientCertificate, certificate_of
from extender.http.responses.unsent_answers import (
    HIGH_BYTES,
    LATE_S,
    BytesInFlight,
    PacedTransport,
    UnsentBytes,
)
from extender.telemetry import METRICS, LimitedLines

log = logging.getLogger(__name__)
ENDED = LimitedLines(log, "a connection of HTTP/2 is ended")
REFUSED = LimitedLines(log, "a request of HTTP/2 is refused")

# as in the server of Go; a caller that has more calls dials again for each of them
STREAMS_MAX: Final = 250
STREAM_WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 1 << 24
HEADER_BYTES_MAX: Final = 16 * 1024  # of a request, unpacked
# That arrive without the end of a frame, or of headers in several.
FRAME_BYTES_MAX: Final = 64 * 1024
STREAM_ID_MAX: Final = 2**31 - 1
# Between GOAWAY and the end of a connection without requests; Go closes it at once.
LINGER_S: Final = 1.0
# In one turn of the loop: frames may be tiny, and each costs some 20 us of it.
FRAMES_PER_TURN: Final = 64
# Of a connection within a second: pings, settings, resets, windows, and data without a byte to mention.
CONTROL_FRAMES_PER_S: Final = 1_000
COUNTED_S: Final = 1.0  # tests on a slow machine count for longer
SENT_PER_WINDOW_BYTES: Final = 256  # sent bytes that allow the caller one window update more
TINY_BYTES: Final = 256  # of data, without being the last of a request
# Of what the caller does not take, beside the answers of its open calls: they stay with their streams.
UNTAKEN_BYTES_MAX: Final = 1 << 20
PREFACE_BYTES: Final = 24
FRAME_HEAD_BYTES: Final = 9
DATA, HEADERS, END_STREAM = 0, 1, 1
HEAD_BYTES_MAX: Final = 64 * 1024  # of a response
NO_BODY: Final = (204, 304)
# RFC 9113, 8.2.2: of one connection of HTTP/1.1, and not part of HTTP/2.
OF_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_OF_REQUEST: Final = h2.utilities.HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)
Headers = list[tuple[bytes, bytes]]


class Connections(Protocol):
    """The limits of the listener."""

    header_timeout_s: float
    keepalive_timeout_s: float
    in_flight: BytesInFlight

    def admit(self, gate: Any, transport: asyncio.Transport) -> str:  # noqa: ANN401
        """Count a connection, or return why it is refused."""

    def release(self, transport: asyncio.Transport, peer: str) -> None:
        """Count it no more."""


class Http2Connection(asyncio.Protocol):
    """One connection.

    Args:
        make: Makes the protocol of a connection of HTTP/1.1, for each stream.
    """

    def __init__(self, limits: Connections, make: Callable[[], asyncio.Protocol]) -> None:
        self._limits = limits
        self._make = make
        self._loop = asyncio.get_running_loop()
        self.in_flight = limits.in_flight
        self._transport: PacedTransport | None = None
        self._holds = False  # the caller does not take what was sent
        self._received = bytearray()  # frames that were not looked at yet
        self._preface_left = PREFACE_BYTES
        self._works = False  # the next turn of the loop goes on with them
        self._second_s = 0.0  # when the counts began
        self._control_frames = 0
        self._sent_bytes = 0
        self._peer = ""
        self._admitted = False
        self._streams: dict[int, StreamTransport] = {}
        self._certificate: ClientCertificate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unparsed_bytes = 0
        # While a part of a frame has arrived on an idle connection
        self._idle_until: float | None = None
        self._goes_away = False
        self._flushes = False
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=False,
                header_encoding=None,
                # `request_head` does it, once for all requests that have the same
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                # what is sent was written by aiohttp and by us
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                codes.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX,
            },
        )

    # -- protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and send the settings."""
        real = cast(asyncio.Transport, transport)
        self._transport = PacedTransport(real, self.in_flight, self._hold)
        name = transport.get_extra_info("peername")
        self._peer = name[0] if isinstance(name, tuple) else ""
        if self._limits.admit(self, self._transport):
            self._transport.close()
            return
        self._admitted = True
        self._certificate = certificate_of(transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self._flush()
        self._wait(self._limits.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Handle the frames that have arrived, some of them in each turn of the loop."""
        if not self._admitted:
            return
        self._received += data
        if not self._works:
            self._work()

    def _work(self) -> None:
        """Handle some frames, and have the next turn of the loop go on with the rest."""
        if not self._is_open():
            self._received.clear()
            return
        assert self._transport is not None
        piece, more = self._next_frames()
        if self._control_frames > CONTROL_FRAMES_PER_S + self._sent_bytes // SENT_PER_WINDOW_BYTES:
            METRICS.http_requests_refused.labels("control-frames").inc()
            text = f"more than {CONTROL_FRAMES_PER_S} frames in a second that bring nothing of a request"
            self._refuse(ErrorCodes.ENHANCE_YOUR_CALM, text)  # RFC 9113, 10.5
            return
        self._receive(piece)
        if more != self._works and self._is_open():
            (self._transport.pause_reading if more else self._transport.resume_reading)()
        self._works = more
        if more:
            self._loop.call_soon(self._work)

    def _next_frames(self) -> tuple[bytes, bool]:
        """Take the next whole frames, `FRAMES_PER_TURN` of them, and count those that bring nothing of a request.

        Returns:
            Their bytes, and whether there may be more.
        """
        received, at, frames = self._received, 0, 0
        if self._preface_left:
            at = min(self._preface_left, len(received))
            self._preface_left -= at
        now_s = self._loop.time()
        if now_s - self._second_s >= COUNTED_S:
            self._second_s, self._control_frames, self._sent_bytes = now_s, 0, 0
        while frames < FRAMES_PER_TURN and len(received) - at >= FRAME_HEAD_BYTES:
            size = int.from_bytes(received[at : at + 3])
            end = at + FRAME_HEAD_BYTES + size
            if size > self._h2.max_inbound_frame_size:
                self._refuse(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                break
            if end > len(received):
                break
            kind, flags = received[at + 3], received[at + 4]
            number = int.from_bytes(received[at + 5 : at + 9]) & STREAM_ID_MAX
            ends = flags & END_STREAM and number in self._streams
            tiny = kind == DATA and size < TINY_BYTES and not ends
            self._control_frames += tiny or kind not in (DATA, HEADERS)
            at, frames = end, frames + 1
        piece = bytes(received[:at])
        del received[:at]
        return piece, frames == FRAMES_PER_TURN and bool(received)

    def _refuse(self, code: ErrorCodes, text: str) -> None:
        """End the connection with a reason for the caller."""
        ENDED.warn(self._peer, peer=self._peer, error=text)
        self._received.clear()
        with contextlib.suppress(h2.exceptions.ProtocolError):  # h2 has ended it already
            self._h2.close_connection(code)
        self._flush()
        self.close()

    def _receive(self, data: bytes) -> None:
        """Handle frames, and give each request what came of it in one piece."""
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            ENDED.warn(self._peer, peer=self._peer, error=str(error))
            self._flush()  # with the reason for the caller
            self.close()
            return
        # headers in several frames
        self._unparsed_bytes = 0 if events else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > FRAME_BYTES_MAX:
            self.close()
            return
        self._note_progress(events)
        touched: dict[int, StreamTransport] = {}
        for event in events:
            if (stream := self._take(event)) is not None:
                touched[stream.stream_id] = stream
        for stream in touched.values():
            stream.deliver()
        self._flush()

    def eof_received(self) -> bool | None:
        """Close the connection: no request can come any more, and none that is open gets its rest."""
        return None

    def pause_writing(self) -> None:
        """Keep what comes from now on."""
        if self._transport is not None:
            self._transport.pause()

    def resume_writing(self) -> None:
        """Go on."""
        if self._transport is not None:
            self._transport.resume()

    def _hold(self, holds: bool) -> None:  # noqa: FBT001 -- as `PacedTransport` calls it
        """Let the streams wait, or go on."""
        self._holds = holds
        for stream in tuple(self._streams.values()):
            stream.hold(writing=not holds)
            if not holds and len(stream.unsent):
                self.send_body(stream)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all streams."""
        self._stop_waiting()
        if self._transport is not None:
            self._transport.lose()
        for stream in tuple(self._streams.values()):
            stream.lose(exc or ConnectionResetError("the connection is closed"))
        if self._admitted and self._transport is not None:
            self._limits.release(self._transport, self._peer)

    # -- events ---------------------------------------------------------------------------------

    def _take(self, event: h2.events.Event) -> StreamTransport | None:
        """Handle an event; return the stream that has something to deliver."""
        match event:
            case h2.events.RequestReceived(stream_id=int(number), headers=list(headers)):
                return self._open(number, headers, event.stream_ended is None)
            case h2.events.DataReceived(stream_id=int(number)):
                size = event.flow_controlled_length or 0
                if (stream := self._streams.get(number)) is not None:
                    stream.arrive(event.data or b"", size)
                    return stream
                self.consumed(number, size)  # it was reset by us
            case h2.events.StreamEnded(stream_id=int(number)):
                if (stream := self._streams.get(number)) is not None:
                    stream.end_request()
                return stream
            case h2.events.StreamReset(stream_id=int(number)):
                if (stream := self._streams.get(number)) is not None:
                    stream.lose(ConnectionResetError("the caller has reset the stream"))
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in tuple(self._streams.values()):
                    if len(stream.unsent):
                        self.send_body(stream)
            case h2.events.ConnectionTerminated():  # h2 sends nothing more either
                self.close()
            case _:  # pings and settings are answered by h2
                pass
        return None

    def _open(self, number: int, headers: Headers, has_body: bool) -> StreamTransport | None:  # noqa: FBT001
        try:
            stream = StreamTransport(self, number, headers, has_body=has_body)
        except MalformedRequest as error:
            REFUSED.warn(self._peer, peer=self._peer, error=str(error))
            self._h2.reset_stream(number, ErrorCodes.PROTOCOL_ERROR)
            self._control_frames += 1
            return None
        self._streams[number] = stream
        self._idle_until = None
        self._stop_waiting()
        stream.attach(self._make())
        return stream

    # -- what a stream asks for -----------------------------------------------------------------

    def extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 -- as in asyncio
        """Return what the transport knows, and the certificate, which is parsed once for all streams."""
        if name == "client_certificate":
            return self._certificate
        assert self._transport is not None
        return self._transport.get_extra_info(name, default)

    def send_head(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        """Send the headers of a response."""
        if self._is_open():
            self._h2.send_headers(stream_id, headers, end_stream=ends)
            self._flush_soon()

    def send_body(self, stream: StreamTransport) -> None:
        """Send what the windows of flow control let through; the rest is sent when the caller opens them."""
        number, unsent = stream.stream_id, stream.unsent
        while self._is_open() and (len(unsent) or stream.complete) and not self._holds:
            window = self._h2.local_flow_control_window(number)
            size = min(window, self._h2.max_outbound_frame_size, len(unsent))
            if size <= 0 and len(unsent):
                break
            ends = stream.complete and size == len(unsent)
            self._h2.send_data(number, unsent.take(size), end_stream=ends)
            self._sent_bytes += size
            if ends:
                stream.sent()
                break
            self._flush()  # shows whether the caller takes it
        stream.settle()
        self._flush_soon()

    def reset(self, stream_id: int) -> None:
        """End a stream: after a whole response without an error, else as one that failed."""
        stream = self._streams.get(stream_id)
        whole = stream is not None and stream.complete and not len(stream.unsent)
        code = ErrorCodes.NO_ERROR if whole else ErrorCodes.INTERNAL_ERROR
        # its end may have arrived in the bytes that are being looked at
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            if self._is_open():
                self._h2.reset_stream(stream_id, code)
                self._flush_soon()

    def consumed(self, stream_id: int, size: int) -> None:
        """Let the caller send so many bytes more."""
        if size and self._is_open():
            self._h2.acknowledge_received_data(size, stream_id)
            self._flush_soon()

    def forget(self, stream: StreamTransport) -> None:
        """Drop a stream; without any, the connection is idle."""
        self._streams.pop(stream.stream_id, None)
        if not self._streams:
            self._wait(LINGER_S if self._goes_away else self._limits.keepalive_timeout_s)

    def end_after_response(self) -> None:
        """Have the caller open another connection for its next requests; those that are open go on.

        h2 sends nothing more after its own GOAWAY, so the frame is written here. It names no stream as the last one:
        a request that crosses it is answered as well (RFC 9113, 6.8).
        """
        if self._goes_away or not self._is_open():
            return
        assert self._transport is not None
        self._goes_away = True
        self._flush()
        self._transport.write(GoAwayFrame(stream_id=0, last_stream_id=STREAM_ID_MAX).serialize())
        if not self._streams:
            self._wait(LINGER_S)

    # -- the end --------------------------------------------------------------------------------

    def close_unless_calling(self) -> bool:
        """Announce the end of the connection; return whether it is open still, for its calls or for those that cross that."""
        self.end_after_response()
        return self._is_open()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # -- bytes and time -------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Send what is to be sent in one piece with what else is written in this turn of the loop."""
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if len(self._transport.unsent) > UNTAKEN_BYTES_MAX:
                METRICS.http_requests_refused.labels("answer-not-read").inc()
                self._transport.abort()

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _note_progress(self, events: list[h2.events.Event]) -> None:
        """Limit the time of a frame that has begun to arrive where no request is open; the idle time goes on after it."""
        if self._streams or self._goes_away or self._timer is None:
            return
        if events and self._idle_until is not None:
            left_s = self._idle_until - self._loop.time()
            self._idle_until = None
            self._wait(max(left_s, 0.0))
        elif not events and self._idle_until is None:
            self._idle_until = self._timer.when()
            self._wait(self._limits.header_timeout_s)

    def _wait(self, within_s: float) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(within_s, self._due)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        late_s = self._loop.time() - (self._timer.when() if self._timer is not None else 0.0)
        if late_s > LATE_S:  # what was on its way meanwhile may still arrive
            self._wait(LATE_S)
            return
        self._timer = None
        if not self._goes_away:
            self.end_after_response()
        elif self._is_open():
            self._h2.close_connection()  # names the last request: what comes later may be sent again
            self._flush()
            self.close()


class MalformedRequest(Exception):
    """A request that cannot be one of HTTP/1.1: RFC 9113, 8.1.1."""


class StreamTransport(asyncio.Transport):
    """A request and its response; it has what aiohttp calls of a transport, and no more.

    Args:
        has_body: Whether data or its end will arrive.

    Raises:
        MalformedRequest: The headers are not those of a request.
    """

    def __init__(
        self, connection: Http2Connection, stream_id: int, headers: Headers, *, has_body: bool
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

    def is_closing(self) -> bool:
        """Return whether nothing can be sent any more."""
        return self._closed or self.complete

    def pause_reading(self) -> None:
        """Let the caller send no more than its window of flow control."""
        self._reading = False

    def resume_reading(self) -> None:
        """Let the caller go on."""
        self._reading = True
        unread, self._unread = self._unread, 0
        if unread and not self._closed:
            self._connection.consumed(self.stream_id, unread)

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
