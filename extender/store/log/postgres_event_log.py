"""The event log on PostgreSQL: implements the port with `appender` and `log_reader`.

Owns the lease calls and the subscription. Must not fold or decide. Note: the lease is acquired and renewed on
the connection that appends. So an acquisition waits for an append in flight, of this or another process, and
the database can terminate that session if it hangs.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

import asyncpg

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import CorruptLog, Fenced, StoreUnavailable
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import (
    DatabaseUsage,
    LeaseGrant,
    LeaseRecord,
    LogHead,
    LogMark,
    LogPage,
)
from extender.store.connections import ConnectionPool, our_faults
from extender.store.log.appender import Appender, Limits
from extender.store.log.log_reader import (
    HEAD,
    PAGE,
    PAGE_EVENTS,
    SETTINGS,
    chain_at,
    read_on_new_connection,
    read_pages,
    reading_connection,
    use_raw_json,
    verify,
)
from extender.store.tables import CHANNEL, POSITION_MAX

logger = logging.getLogger(__name__)

START = Position(0)
SHORT_EVENTS = 10_000  # a tenth of a second of reading, without the time to open a connection
POLL_S = 0.5  # notifications may get lost with a connection; this bounds the lag of a follower
RECONNECT_S = (0.1, 0.2, 0.5, 1.0, 2.0)
TAKE_TRIES = 3
LOCK_NOT_AVAILABLE = "55P03"

TAKE = "SELECT * FROM gx.lease_acquire($1, $2, $3, $4)"
EVICT = "SELECT gx.lease_revoke($1)"
RENEW = "SELECT gx.lease_renew($1, $2)"
RELEASE = "SELECT gx.lease_release($1, $2)"
LEASE = """
SELECT epoch, holder, address, ttl_ms,
       coalesce((extract(epoch FROM renewed_at) * 1000000)::bigint, 0) AS renewed_us,
       coalesce(clock_timestamp() >= renewed_at + ttl_ms * interval '1 millisecond', true) AS expired
FROM gx.lease WHERE id = 1 AND epoch > 0
"""
TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
AT = "SELECT event_id::text, hash, at_us FROM gx.event WHERE position = $1"
RENEWAL_LIMITS = Limits(  # an append in flight makes a renewal wait
    connect_timeout_s=2.0, command_timeout_s=2.0
)
REPLICA = "replica "  # in the name of a connection, before the identity of a replica; a name has at most 63 bytes
USAGE = """
SELECT pg_database_size(current_database()) AS bytes,
       ARRAY(
           SELECT DISTINCT substr(application_name, length($1) + 1) FROM pg_stat_activity
           WHERE datname = current_database() AND starts_with(application_name, $1) ORDER BY 1
       ) AS replicas
"""
FIND = "SELECT event_id::text, position FROM gx.event WHERE event_id = ANY ($1::uuid[])"


class PostgresEventLog:
    """The `EventLog` port on PostgreSQL. Connections are opened at the first use; close it with `close`.

    After `StoreUnavailable` from `append` the grant is spent: `take` the lease again, `find` the ids of the
    events, and append those that were not found at the new head. `take` comes first, because it ensures that the
    old session writes nothing more.

    Args:
        url: `postgresql://…` or `postgresql+asyncpg://…`. Not through a pooling proxy: the append connection
            must be a session.
        page_events: Events per page of `read` and `follow`.
        replica: Identity of the replica that this process is, for `usage`; empty: it is none.
        writer: In the name of the connection that appends and renews the lease.
    """

    def __init__(
        self,
        url: str,
        *,
        limits: Limits | None = None,
        page_events: int = PAGE_EVENTS,
        replica: str = "",
        writer: str = "append",
    ) -> None:
        self._url = url
        limits = limits or Limits()
        self._page_events = page_events
        self._appender = Appender(url, limits, writer)
        self._connection = ConnectionPool(  # for small queries
            url,
            use_raw_json,
            name=f"{REPLICA}{replica}" if replica else "ask",
            single=True,
            settings=SETTINGS,
            connect_timeout_s=limits.connect_timeout_s,
            command_timeout_s=limits.command_timeout_s,
        )

    async def close(self) -> None:
        """Close the connections; appends in flight get `StoreUnavailable`. The lease is not released."""
        await self._appender.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # The lease

    async def take(self, *, holder: str, address: str, ttl_ms: int, above: int = 0) -> LeaseGrant:
        """See `EventLog.take`."""
        for _ in range(TAKE_TRIES):
            async with self._appender.connection.use("taking the lease") as connection:
                try:
                    row = await connection.fetchrow(TAKE, holder, address, ttl_ms, above)
                except asyncpg.PostgresError as error:
                    if error.sqlstate != LOCK_NOT_AVAILABLE:
                        raise
                    ended = await connection.fetchval(EVICT, holder)
                    logger.warning(
                        "leader's session ended", extra={"sessions": ended, "holder": holder}
                    )
                    continue
            assert row is not None
            return LeaseGrant(
                epoch=Epoch(row["granted_epoch"]),
                lease=str(row["granted_lease"]),
                head=_head(row["head_position"], row["head_hash"], row["head_at_us"]),
                previous_holder=row["previous_holder"],
                previous_epoch=Epoch(row["previous_epoch"]),
                timeline=row["granted_timeline"],
            )
        raise StoreUnavailable("taking the lease: another session keeps its row locked")

    async def open(self) -> None:
        """See `LeaseRenewal.open`."""
        async with self._appender.connection.use("connecting to renew the lease"):
            pass

    async def renew(self, grant: LeaseGrant) -> None:
        """See `EventLog.renew`."""
        async with self._appender.connection.use("renewing the lease") as connection:
            await connection.execute(RENEW, grant.epoch, grant.lease)

    async def release(self, grant: LeaseGrant) -> None:
        """See `EventLog.release`."""
        try:
            async with self._appender.connection.use("releasing the lease") as connection:
                await connection.execute(RELEASE, grant.epoch, grant.lease)
        except Fenced:
            return

    async def lease(self) -> LeaseRecord | None:
        """See `EventLog.lease`."""
        rows = await self._connection.rows("reading the lease", LEASE)
        return LeaseRecord(**rows[0]) if rows else None

    async def time_us(self) -> int:
        """See `EventLog.time_us`."""
        return int(await self._connection.value("reading the clock", TIME))

    async def usage(self) -> DatabaseUsage:
        """Return the size of the database, and the replicas whose connection for small queries is open."""
        doing, prefix = "reading the size of the database", f"gang-extender {REPLICA}"
        (row,) = await self._connection.rows(doing, USAGE, prefix)
        return DatabaseUsage(row["bytes"], tuple(row["replicas"]))

    # Writing

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
        """See `EventLog.append`."""
        return await self._appender.append(grant, events)

    # Reading

    async def find(self, event_ids: Sequence[str]) -> Mapping[str, Position]:
        """See `EventLog.find`."""
        rows = await self._connection.rows("looking events up", FIND, list(event_ids))
        return {row["event_id"]: Position(row["position"]) for row in rows}

    async def head(self) -> LogHead:
        """See `EventLog.head`."""
        rows = await self._connection.rows("reading the head", HEAD)
        return _head(*rows[0]) if rows else LogHead()

    async def at(self, position: Position) -> LogHead | None:
        """See `EventLog.at`."""
        if position == 0:
            return LogHead()
        rows = await self._connection.rows("looking a position up", AT, position)
        return _head(position, rows[0]["hash"], rows[0]["at_us"]) if rows else None

    async def holds(self, mark: LogMark) -> bool:
        """See `EventLog.holds`."""
        if mark.position == 0:
            return True
        rows = await self._connection.rows("looking a position up", AT, mark.position)
        return any(
            mark.event_id in ("", row["event_id"]) and mark.chain in (b"", bytes(row["hash"]))
            for row in rows
        )

    def read(
        self, *, after: Position = START, until: Position | None = None
    ) -> AsyncIterator[LogPage]:
        """See `EventLog.read`. Up to `SHORT_EVENTS` are read without opening a new connection."""
        size = self._page_events
        if until is not None and until - after <= SHORT_EVENTS:
            fetch = functools.partial(self._connection.rows, "reading the log")
            return read_pages(fetch, after=after, until=until, page_events=size)
        return read_on_new_connection(self._url, after=after, until=until, page_events=size)

    async def follow(self, *, after: Position) -> AsyncIterator[LogPage]:
        """Yield pages forever; reconnects when the database is unavailable.

        Raises:
            CorruptLog: See `read`; or the event that was read last is not in the log any more.
        """
        position: int = after
        chain: bytes | None = None
        failures = 0
        while True:
            try:
                async with self._listen() as (connection, wait):
                    with our_faults("following the log"):
                        stored_chain = await chain_at(connection.fetch, position)
                    if chain is not None and stored_chain != chain:
                        raise CorruptLog(
                            f"position {position} has another event than before; the history of the log has changed"
                        )
                    chain = stored_chain
                    while True:
                        with our_faults("following the log"):
                            rows = await connection.fetch(
                                PAGE, position, POSITION_MAX, self._page_events
                            )
                        page = verify(rows, after=position, previous=chain)
                        failures, chain = 0, page.chain
                        if page:
                            position = page[-1].position
                            yield page
                        else:
                            await wait()
            except StoreUnavailable as fault:
                logger.warning("follower lost the database", extra={"error": str(fault)})
                await asyncio.sleep(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
                failures += 1

    @asynccontextmanager
    async def _listen(
        self,
    ) -> AsyncIterator[tuple[asyncpg.Connection, Callable[[], Awaitable[None]]]]:
        """Open a connection that is notified of appends; yield it and a function that waits for one, or `POLL_S`."""
        notified = asyncio.Event()

        def on_notify(*_: object) -> None:
            notified.set()

        async def wait() -> None:
            try:
                async with asyncio.timeout(POLL_S):
                    await notified.wait()
            except TimeoutError:
                pass
            notified.clear()

        async with reading_connection(self._url, name="follow") as connection:
            with our_faults("following the log"):
                await connection.add_listener(CHANNEL, on_notify)
            yield connection, wait


def _head(position: int | None, chain: bytes, at_us: int) -> LogHead:
    """Return the head of a log; `position` None or 0: it is empty."""
    return LogHead(position=Position(position), chain=chain, at_us=at_us) if position else LogHead()


def lease_renewal(url: str) -> PostgresEventLog:
    """Return the `LeaseRenewal` port on PostgreSQL: a log of which only the lease is renewed, on a connection of its own."""
    return PostgresEventLog(url, limits=RENEWAL_LIMITS, writer="lease")
