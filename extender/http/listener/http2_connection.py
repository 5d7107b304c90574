"""A connection of HTTP/2: kube-scheduler sends all its calls over one.

Over HTTP/1.1 it keeps two idle connections per extender, and the bind calls of a gang wait for one another: nearly each
of them has a connection with a TLS handshake of its own. It offers HTTP/2 by ALPN, as Go does (K04).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from extender.http.listener.client_certificate import ClientCertificate, certificate_of
from extender.http.listener.stream_transport import Headers, MalformedRequest, StreamTransport
from extender.http.responses.unsent_answers import LATE_S, BytesInFlight, PacedTransport
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


class Connections(Protocol):
    """The limits of the listener."""

    header_timeout_s: float
    keepalive_timeout_s: float
    in_flight: BytesInFlight

    def admit(self, gate: Any, transport: asyncio.Transport) -> str:  # noqa: ANN401
        """Count a connection, or return why it is refused."""
        ...

    def release(self, transport: asyncio.Transport, peer: str) -> None:
        """Count it no more."""
        ...


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
                if (stream := self._streams.get(number)) is None:  # it was reset by us
                    self.consumed(number, size)
                    return None
                stream.arrive(event.data or b"", size)
                return stream
            case h2.events.StreamEnded(stream_id=int(number)):
                if (stream := self._streams.get(number)) is not None:
                    stream.end_request()
                return stream
            case _:
                self._note(event)
                return None

    def _note(self, event: h2.events.Event) -> None:
        """Handle an event that brings nothing of a request."""
        match event:
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
