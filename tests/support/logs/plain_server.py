"""A PostgreSQL server with nothing of ours around it, for commands that a text has operators run as its account."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extender.store.embedded.os_account import (
    Account,
    find_binaries,
    prepare_server_home,
    usable_binaries,
)


class PlainServer:
    """A server under its own account, with a superuser `postgres` and only a socket.

    Args:
        folder: Where its data is; reachable for that account.
    """

    def __init__(self, folder: Path) -> None:
        home = prepare_server_home(folder)
        self.account: Account = home.account
        self.sockets = home.sockets
        self.data = home.home / "data"
        self.backups = home.home / "backup"
        self.programs = usable_binaries(find_binaries(), home).folder
        self.environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PGDATA": str(self.data),
            "PGHOST": str(self.sockets),
            "PGUSER": "postgres",
            "HOME": str(home.home),
            "LC_ALL": "C",
        }

    def url(self, role: str = "postgres", database: str = "gang_extender") -> str:
        """Return the URL of a database for a role."""
        return f"postgresql://{role}@/{database}?host={self.sockets}"

    def bash(self, script: str, cwd: Path, **environment: str) -> str:
        """Run a script as the account of the server; return what it printed."""
        us = self.account.is_us
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=cwd, env=self.environment | environment, text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            user=None if us else self.account.uid, group=None if us else self.account.gid,
            extra_groups=None if us else [],
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    def create(self) -> None:
        """Create its data and start it."""
        here = self.backups.parent
        settings = (
            f"listen_addresses = ''\nunix_socket_directories = '{self.sockets}'\nfsync = off\n"
        )
        self.bash(
            f"mkdir {self.backups}; initdb --username=postgres --auth=trust --no-sync > /dev/null\n"
            f'cat >> "$PGDATA/postgresql.conf" <<CONF\n{settings}CONF\n'
            "pg_ctl start --wait --log=backup/server.log > /dev/null",
            here,
        )

    def stop(self) -> None:
        """Stop it, if it runs."""
        self.bash("pg_ctl stop --mode=immediate > /dev/null || true", self.backups.parent)


@contextmanager
def plain_server(folder: Path) -> Iterator[PlainServer]:
    """Run a server in a folder."""
    server = PlainServer(folder)
    try:
        server.create()
        yield server
    finally:
        server.stop()
