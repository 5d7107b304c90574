"""Renew the lease on a connection of its own, beside the one that appends; for a thread with its own event loop."""

from __future__ import annotations

import asyncpg

from extender.ports.log_ports import LeaseGrant
from extender.store.engine import connect, our_faults
from extender.store.log.appender import close_quietly

RENEW = "SELECT gx.lease_renew($1, $2)"
TIMEOUT_S = 2.0  # of the connection and of a renewal: an append in flight makes it wait


class PostgresLeaseRenewal:
    """The `LeaseRenewal` port on PostgreSQL; all calls from one event loop."""

    def __init__(self, url: str) -> None:
        """Prepare; `open` connects.

        Args:
            url: As for `PostgresEventLog`.
        """
        self._url = url
        self._connection: asyncpg.Connection | None = None

    async def open(self) -> None:
        """See `LeaseRenewal.open`."""
        if self._connection is None or self._connection.is_closed():
            with our_faults("connecting to renew the lease"):
                self._connection = await connect(
                    self._url,
                    name="lease",
                    connect_timeout_s=TIMEOUT_S,
                    command_timeout_s=TIMEOUT_S,
                )

    async def renew(self, grant: LeaseGrant) -> None:
        """See `LeaseRenewal.renew`."""
        await self.open()
        assert self._connection is not None
        with our_faults("renewing the lease"):
            await self._connection.execute(RENEW, grant.epoch, grant.lease)

    async def close(self) -> None:
        """See `LeaseRenewal.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)
