"""A proxy between one service and PostgreSQL that a test can cut, stop, or read from.

It listens on a socket of its own in a folder of its own and forwards to the socket (or port) of the real server, so
each replica has its own proxy and a cut leaves the others connected. A connection is named as the service names it
(`application_name`): "append" writes the log, "follow" listens for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from sqlalchemy import make_url

PORT = 5432
NAME = re.compile(rb"application_name\0(?:gang-extender )?([^\0]*)\0")
# Sees (name of the connection, bytes from the service); True: they are lost, with all that follow on it.
Look = Callable[[str, bytes], Awaitable[bool]]


class _Connection(msgspec.Struct, eq=False):
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    name: str = ""
    lost: bool = False


class DatabaseProxy:
    """Forwards PostgreSQL connections; an async context manager.

    Args:
        database_url: Of the real server.

    Attributes:
        url: What the service gets instead.
        sent: Asked before bytes of the service go to the server.
        answered: Asked before bytes of the server go to the service.
    """

    def __init__(self, database_url: str) -> None:
        self._real = make_url(database_url)
        self._folder = Path(tempfile.mkdtemp(prefix="gxp-"))  # short: socket paths are limited
        own = self._real.set(host=None, port=None, query={"host": str(self._folder)})
        self.url = own.render_as_string(hide_password=False)
        self.sent: Look | None = None
        self.answered: Look | None = None
        self._refusing = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._held: dict[str, asyncio.Event] = {}  # by name of connection
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        path = self._folder / f".s.PGSQL.{PORT}"
        self._server = await asyncio.start_unix_server(self._serve, path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def cut(self, how: str) -> None:
        """Cut it: "refused" ends all connections and takes no new one, "silent" lets nothing through."""
        if how == "silent":
            self._flows.clear()
            return
        self._refusing = True
        for connection in self._connections:
            for writer in connection.writers:
                writer.transport.abort()

    def mend(self) -> None:
        """Forward everything again, also what came in while nothing was forwarded."""
        self._refusing = False
        self._flows.set()

    def lead_to(self, database_url: str) -> None:
        """Lead to another server from now on, as a DNS name does after a failover; open connections end."""
        self._real = make_url(database_url)
        self.cut("refused")
        self.mend()

    def hold(self, name: str) -> None:
        """Hold back what the server sends on connections of one name."""
        self._held[name] = asyncio.Event()

    def let_go(self, name: str) -> None:
        """Forward what was held back, and all that follows."""
        self._held.pop(name).set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            return
        there, back = await self._open()
        connection = _Connection((writer, back))
        self._connections.add(connection)
        pipes = {
            asyncio.create_task(self._to_server(connection, reader, back)),
            asyncio.create_task(self._to_service(connection, there, writer)),
        }
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.discard(connection)
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            back.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self._real.port or PORT
        folder = self._real.query.get("host")
        if folder is None:
            return await asyncio.open_connection(self._real.host, port)
        return await asyncio.open_unix_connection(Path(str(folder)) / f".s.PGSQL.{port}")

    async def _to_server(
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(1 << 16):
            if not connection.name and (found := NAME.search(data)):
                connection.name = found[1].decode()
            await self._flows.wait()
            if self.sent is not None and await self.sent(connection.name, data):
                connection.lost = True
            if connection.lost:
                continue
            sink.write(data)
            await sink.drain()

    async def _to_service(
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(1 << 16):
            await self._flows.wait()
            if connection.name in self._held:
                await self._held[connection.name].wait()
            if self.answered is not None and await self.answered(connection.name, data):
                connection.lost = True
            if connection.lost:
                continue
            sink.write(data)
            await sink.drain()
