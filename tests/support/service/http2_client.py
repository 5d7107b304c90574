"""A client of HTTP/2 over TLS, with one connection; it can also send what no proper client sends."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.support.certificates import client_context


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection(h2.connection.H2Connection):
    """As Go's, it goes on with its open streams after a GOAWAY; h2 would end the connection."""

    def _receive_goaway_frame(self, frame):
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        return [], [event]


class Http2Client:
    """One connection."""

    def __init__(self, reader, writer, *, window=None):
        self.reader, self.writer = reader, writer
        config = h2.config.H2Configuration(
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = Connection(config)
        if window is not None:
            codes = h2.settings.SettingCodes
            values = {codes.INITIAL_WINDOW_SIZE: window, codes.ENABLE_PUSH: 0}
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.going_away = asyncio.Event()
        self.ended = asyncio.Event()  # the connection is closed
        self.reason = None  # of the last GOAWAY
        self._settled = asyncio.Event()
        self._streams = {}
        self._task = None

    async def begin(self):
        self.h2.initiate_connection()
        self.flush()
        self._task = asyncio.create_task(self._read())
        await (
            self._settled.wait()
        )  # the windows of the server are known, or it has closed the connection

    def flush(self):
        self.writer.write(self.h2.data_to_send())

    def start(self, path, body=b"", *, method="POST", ends=True, **headers):
        """Send a request, or with `ends=False` its beginning; return its number, for `answer`.

        Raises:
            ConnectionError: The connection is closed.
        """
        if self.ended.is_set():
            raise ConnectionError("the connection is closed")
        number = self.h2.get_next_available_stream_id()
        found = {
            ":method": method, ":path": path, ":scheme": "https", ":authority": "127.0.0.1",
            "content-type": "application/json", "content-length": str(len(body)), "accept-encoding": "gzip",
        } | {name.replace("_", "-"): value for name, value in headers.items()}  # fmt: skip
        pairs = [(name, value) for name, value in found.items() if value is not None]
        self._streams[number] = {"headers": {}, "body": b"", "done": asyncio.get_running_loop().create_future()}  # fmt: skip
        self.h2.send_headers(number, pairs, end_stream=ends and not body)
        size = self.h2.max_outbound_frame_size
        for start in range(0, len(body), size):
            last = start + size >= len(body)
            self.h2.send_data(number, body[start : start + size], end_stream=ends and last)
        self.flush()
        return number

    @property
    def full(self):
        """Whether the server takes no further stream."""
        return self.h2.open_outbound_streams >= self.h2.remote_settings.max_concurrent_streams

    def reset(self, number):
        self.h2.reset_stream(number)
        self.flush()

    async def answer(self, number):
        """Return a response.

        Raises:
            ConnectionResetError: The server has reset the stream; the text is the code of the error.
            ConnectionError: The connection is closed.
        """
        return await self._streams[number]["done"]

    def has_answer(self, number):
        return self._streams[number]["done"].done()

    async def ask(self, path, body=b"", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.answer(self.start(path, data, **headers))

    async def close(self):
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()
        if self._task is not None:
            await self._task

    async def _read(self):
        try:
            with suppress(ConnectionError, ssl.SSLError):
                while data := await self.reader.read(1 << 16):
                    for event in self.h2.receive_data(data):
                        self._take(event)
                    self.flush()
        finally:
            self._end()

    def _end(self):
        """End each wait for what cannot come any more."""
        self.ended.set()
        self._settled.set()
        for stream in self._streams.values():
            if not stream["done"].done():
                stream["done"].set_exception(ConnectionError("the connection is closed"))
                stream["done"].exception()  # not every caller waits

    def _take(self, event):
        stream = self._streams.get(getattr(event, "stream_id", None))
        match event:
            case h2.events.ResponseReceived():
                stream["headers"] = dict(event.headers)
            case h2.events.DataReceived():
                stream["body"] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                headers = stream["headers"]
                status = int(headers.pop(":status"))
                if not stream["done"].done():
                    stream["done"].set_result(Answer(status, headers, stream["body"]))
            case h2.events.StreamReset():
                if not stream["done"].done():
                    code = event.error_code
                    stream["done"].set_exception(ConnectionResetError(getattr(code, "name", code)))
                    stream["done"].exception()
            case h2.events.ConnectionTerminated():
                self.reason = event.error_code
                self.going_away.set()
            case h2.events.RemoteSettingsChanged():
                self._settled.set()


@asynccontextmanager
async def http2_client(made, port, **options):
    """Open a connection to a port of loopback, with the certificate of kube-scheduler."""
    context = client_context(made)
    context.set_alpn_protocols(["h2", "http/1.1"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    client = Http2Client(reader, writer, **options)
    try:
        await client.begin()
        yield client
    finally:
        await client.close()
