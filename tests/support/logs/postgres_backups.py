"""Older copies of a PostgreSQL: a base backup put in its place, a standby that lags and is promoted.

Real servers, real backups (the low-level API of PostgreSQL), so that whatever a copy brings with it (the
lease row, checkpoints, its timeline) is there.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import asyncpg

from extender.store.connections import plain_url
from extender.store.embedded.embedded_server import SUPERUSER, EmbeddedPostgres
from tests.support.waiting import eventually


async def _question(url: str, text: str, *args: object) -> object:
    connection = await asyncpg.connect(plain_url(url))
    try:
        return await connection.fetchval(text, *args)
    finally:
        await connection.close()


class Backup:
    """A base backup of a running server, taken while it serves."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._place = server._started_home().home / "backup"

    async def take(self) -> None:
        """Copy the data directory between start and stop of a backup, WAL last."""
        cluster = self._server._started_home().cluster
        connection = await asyncpg.connect(plain_url(self._server.url))
        try:
            await connection.execute("SELECT pg_backup_start('test', true)")
            copy = ["cp", "-a", str(cluster), str(self._place)]
            # files may vanish during the copy (PostgreSQL manual, "Making a Base Backup Using the Low Level API")
            await asyncio.to_thread(subprocess.run, copy, check=False, capture_output=True)
            label = await connection.fetchval("SELECT labelfile FROM pg_backup_stop(false)")
        finally:
            await connection.close()
        shutil.rmtree(self._place / "pg_wal")
        subprocess.run(["cp", "-a", str(cluster / "pg_wal"), str(self._place)], check=True)
        for name in ("postmaster.pid", "postmaster.opts"):
            (self._place / name).unlink(missing_ok=True)
        written = self._place / "backup_label"
        written.write_text(str(label))
        owner = (self._place / "PG_VERSION").stat()
        os.chown(written, owner.st_uid, owner.st_gid)

    async def restore(self) -> None:
        """Kill the server and start it again on the copy."""
        server, cluster = self._server, self._server._started_home().cluster
        process = server._server
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        await asyncio.to_thread(process.wait, 10)
        shutil.rmtree(cluster)
        subprocess.run(["cp", "-a", str(self._place), str(cluster)], check=True)
        await server._run_until_ready()


class Standby:
    """An asynchronous standby made by `pg_basebackup`, with a socket directory of its own."""

    def __init__(self, primary: EmbeddedPostgres, folder: Path) -> None:
        self._primary = primary
        self._programs = primary._programs()
        self.cluster = folder / "standby"
        self.sockets = folder / "sockets"
        self._process: subprocess.Popen[bytes] | None = None
        self._account = primary._started_home().account

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}@/gang_extender?host={self.sockets}"

    async def start(self) -> None:
        """Copy the primary, follow it, and wait until it streams."""
        primary = self._primary._started_home().cluster
        rules, people = primary / "pg_hba.conf", primary / "pg_ident.conf"
        rules.write_text(rules.read_text() + "local replication all peer map=gang\n")
        server = pwd.getpwuid(self._account.uid).pw_name  # the standby asks under this name
        people.write_text(f'{people.read_text()}gang "{server}" "{SUPERUSER}"\n')
        await _question(self._primary.url, "SELECT pg_reload_conf()")
        source = f"host={self._primary._started_home().sockets} user={SUPERUSER}"
        command = [self._programs / "pg_basebackup", "-D", self.cluster, "-R", "-X", "stream", "-c", "fast",
                   "-d", source]  # fmt: skip
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        self.sockets.mkdir()
        for path in (self.cluster, *self.cluster.rglob("*"), self.sockets):
            if not path.is_symlink():
                os.chown(path, self._account.uid, self._account.gid)
        log = (self.cluster.parent / "standby.log").open("ab")
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self.cluster, "-c", "listen_addresses=",
             "-c", f"unix_socket_directories={self.sockets}", "-c", "fsync=off"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.cluster.parent,
            user=None if self._account.is_us else self._account.uid,
            group=None if self._account.is_us else self._account.gid,
            extra_groups=None if self._account.is_us else [],
        )  # fmt: skip
        log.close()
        await self._until(
            "SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'"
        )

    async def _until(self, question: str, *args: object) -> None:
        async def look() -> object:
            try:
                return await _question(self.url, question, *args)
            except (OSError, asyncpg.PostgresError):
                assert self._process is not None
                assert self._process.poll() is None, "the standby ended"
                return None

        await eventually(look, question)

    async def lag_from_now(self) -> None:
        """Replay the WAL of the primary up to now, then receive no more."""
        lsn = await _question(self._primary.url, "SELECT pg_current_wal_lsn()::text")
        await self._until("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn)
        await _question(self.url, "ALTER SYSTEM SET primary_conninfo = ''")
        await _question(self.url, "SELECT pg_reload_conf()")
        await self._until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    async def promote(self) -> None:
        """Become the primary."""
        assert await _question(self.url, "SELECT pg_promote()")
        await self._until("SELECT NOT pg_is_in_recovery()")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
