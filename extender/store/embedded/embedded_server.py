"""Run an embedded PostgreSQL server, for a laptop, a demo or a single host, as a child of the process, and read its state from its files.

Owns starting and stopping that server. Must not be used in production: production names a server in
GANG_EXTENDER_DATABASE_URL. Notes: on Linux the kernel sends SIGINT to the server when the thread that started
it ends for any reason, so it must be started from the main thread. On other systems a killed owner leaves the
server running, and the user has to stop it. A second process on the same data directory connects to the server
of the first, and starts its own when the first has ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import pwd
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote

from extender.core.model.errors import InvariantBroken, StoreUnavailable
from extender.runtime.child_process import end_with_parent
from extender.store.embedded.os_account import (
    PORT,
    Binaries,
    ServerHome,
    change_owner,
    find_binaries,
    prepare_server_home,
    usable_binaries,
)
from extender.store.schema_migration import AUDITOR, WRITER, prepare_roles


def _read(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _pid_file(server_home: ServerHome) -> list[str]:
    """Return the lines of `postmaster.pid`: process id first, status eighth; empty without the file."""
    return _read(server_home.cluster / "postmaster.pid").splitlines()


def is_ready(server_home: ServerHome, *, pid: int | None = None) -> bool:
    """Return whether the server accepts connections, by postmaster.pid; `pid` detects a stale file."""
    lines = _pid_file(server_home)
    if [line.strip() for line in lines[7:8]] != ["ready"]:
        return False
    return lines[0] == str(pid) if pid is not None else _state(lines[0]) not in {"", "Z"}


def _state(pid: str) -> str:
    """Return the state letter of a process, empty if it does not exist."""
    return "".join(_read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1])


def remove_zombie_pid_file(server_home: ServerHome) -> None:
    """Remove the pid file of a server that is a zombie, as when PID 1 does not wait for orphans."""
    lines = _pid_file(server_home)
    if lines and lines[0].isdigit() and _state(lines[0]) == "Z":
        (server_home.cluster / "postmaster.pid").unlink(missing_ok=True)


def predecessor_is_ending(server_home: ServerHome, *, since: int) -> bool:
    """Return whether a start failed because a killed server is still ending; then another try soon helps.

    Args:
        since: Size of the diagnostics before the start; the ending server writes there too.
    """
    text = _tail(server_home, since=since, bytes_max=65_536)
    return "postmaster.pid" in text or "pre-existing shared memory" in text


def log_tail(server_home: ServerHome, *, since: int) -> str:
    """Return the last lines of the server's log, for a message."""
    return " | ".join(_tail(server_home, since=since, bytes_max=1000).splitlines()[-4:])


def diagnostics_size(server_home: ServerHome) -> int:
    """Return the size of the diagnostics, in bytes; 0 without the file."""
    diagnostics = server_home.diagnostics
    return diagnostics.stat().st_size if diagnostics.exists() else 0


def _tail(server_home: ServerHome, *, since: int, bytes_max: int) -> str:
    try:
        with server_home.diagnostics.open("rb") as file:
            file.seek(max(since, diagnostics_size(server_home) - bytes_max))
            return file.read().decode(errors="replace")
    except OSError as error:
        return str(error)


logger = logging.getLogger(__name__)

DATABASE = "gang_extender"
SUPERUSER = "gang_extender"
LOGIN_ROLES = (SUPERUSER, WRITER, AUDITOR)  # roles that our account may connect as

# What asyncpg would take from PG* variables and from ~/.pgpass, which are meant for another server. Peer authentication
# uses no password.
APART_FROM_ENVIRONMENT = (
    f"port={PORT}&password=-&sslmode=disable&sslnegotiation=postgres"
    "&target_session_attrs=any&gsslib=gssapi&krbsrvname=postgres"
)

INITDB_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 60.0  # includes crash recovery of a full WAL
FAST_STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
WATCH_S = 0.25
RETRY_S = 0.2
DIAGNOSTICS_BYTES_MAX = 8 << 20

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "50",
    "shared_buffers": "64MB",
    "jit": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "log_min_messages": "warning",
    "max_wal_size": "1GB",
}


class EmbeddedPostgres:
    """One embedded server; at most one process owns it, others share it.

    Args:
        data_dir: Directory of the service. The database cluster is in its directory `postgres/`, or in the
            directory to which that is a link (see `os_account`).
        pg_bin: Folder with `postgres` and `initdb`; None: search wheel, PATH, distribution.
        settings: Server settings on top of `SETTINGS`, by the server's names.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        pg_bin: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._pg_bin = pg_bin
        self._settings = {**SETTINGS, **(settings or {})}
        self._home: ServerHome | None = None
        self._binaries: Binaries | None = None
        self._lock: IO[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Return the database URL of the superuser; the server may be down."""
        sockets = quote(str(self._started_home().sockets), safe="")
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={sockets}&{APART_FROM_ENVIRONMENT}"

    @property
    def pid(self) -> int | None:
        """Return the process id of the server if this process owns it, else None."""
        return None if self._server is None else self._server.pid

    async def start(self) -> str:
        """Start the server, or connect to that of another process, and restart it when it ends.

        Returns:
            The database URL.

        Raises:
            BadInput: No usable programs, account or directory, or data of another version.
            StoreUnavailable: The server does not start; the message ends with the last lines of its log.
        """
        await self._start()
        try:
            await prepare_roles(self.url)
        except BaseException:
            await self.stop()
            raise
        self._watch = asyncio.create_task(self._keep(), name="embedded-postgres")
        return self.url

    async def _start(self) -> None:
        self._main_thread_only()
        self._home = await asyncio.to_thread(prepare_server_home, self._data_dir)
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while not self._try_own():
            if is_ready(self._home):
                break
            if asyncio.get_running_loop().time() > deadline:
                raise StoreUnavailable(
                    f"another process owns {self._home.home} but its server is not ready"
                )
            await asyncio.sleep(POLL_S)
        if self._lock is not None:
            try:
                await self._prepare()
                await self._run_until_ready()
            except BaseException:
                await self._stop_server()
                self._disown()
                raise

    async def stop(self) -> None:
        """Stop the server if this process owns it, by a fast shutdown, so that the next start needs no recovery."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        await self._stop_server()
        self._disown()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Ownership

    def _try_own(self) -> bool:
        server_home = self._started_home()
        if self._lock is None:
            lock = server_home.lock.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            change_owner(server_home.lock, server_home.account)
            self._lock = lock
        return True

    def _disown(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _keep(self) -> None:
        """Restart the server when it ends; start one when the owner has ended."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                if self._server is not None and self._server.poll() is None:
                    continue
                if self._server is not None:
                    logger.error("embedded server died", extra={"status": self._server.returncode})
                    self._server = None
                elif not self._try_own():
                    continue
                await self._prepare()
                await self._run_until_ready()
                logger.warning("embedded server started again", extra={"pid": self.pid})
            except Exception:
                logger.exception("embedded server does not start; trying again")

    # The cluster

    async def _prepare(self) -> None:
        server_home = self._started_home()
        version_file = server_home.cluster / "PG_VERSION"
        major = int(version_file.read_text(encoding="utf-8")) if version_file.is_file() else None
        binaries = await asyncio.to_thread(find_binaries, folder=self._pg_bin, major=major)
        self._binaries = await asyncio.to_thread(usable_binaries, binaries, server_home)
        if major is None:
            await asyncio.to_thread(self._make_cluster)
        self._write_access_rules()

    def _make_cluster(self) -> None:
        """Create the database cluster in another directory and rename it, so that it is complete or missing."""
        server_home = self._started_home()
        new = server_home.cluster.with_name("pg.new")
        self._run(["rm", "-rf", "--", str(new)])
        programs = self._programs()
        durable = self._settings.get("fsync", "on") != "off"
        self._run([
            str(programs / "initdb"), "-D", str(new), "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--data-checksums",
            "--auth-local=peer", "--auth-host=reject", "--no-instructions", *([] if durable else ["--no-sync"]),
        ])  # fmt: skip
        fast = [] if durable else ["-F"]
        single = [str(programs / "postgres"), "--single", "-D", str(new), *fast, "template1"]
        self._run(single, stdin=f'CREATE DATABASE "{DATABASE}"\n')
        new.rename(server_home.cluster)

    def _write_access_rules(self) -> None:
        """Allow only our account and root to connect, by peer authentication."""
        server_home = self._started_home()
        accounts = dict.fromkeys((pwd.getpwuid(os.geteuid()).pw_name, "root"))
        ident = "".join(f'gang "{name}" "{role}"\n' for name in accounts for role in LOGIN_ROLES)
        for name, content in (
            ("pg_hba.conf", "local all all peer map=gang\n"),
            ("pg_ident.conf", ident),
        ):
            path = server_home.cluster / name
            if not path.is_file() or path.read_text(encoding="utf-8") != content:
                new = path.with_name(name + ".new")
                new.write_text(content, encoding="utf-8")
                new.chmod(0o600)
                change_owner(new, server_home.account)
                new.replace(path)

    def _run(self, command: list[str], *, stdin: str = "") -> None:
        """Run a short program under the server's account."""
        try:
            done = subprocess.run(  # noqa: S603 - fixed programs, arguments of our own
                command,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=INITDB_TIMEOUT_S,
                check=False,
                **self._as_account(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StoreUnavailable(f"{command[0]}: {error}") from error
        if done.returncode != 0:
            words = " ".join((done.stderr or done.stdout).split()[-80:])
            raise StoreUnavailable(f"{command[0]} failed with status {done.returncode}: {words}")

    # The server

    async def _run_until_ready(self) -> None:
        """Start the server and wait until it is ready; try again while a killed predecessor is still ending."""
        server_home = self._started_home()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_TIMEOUT_S
        while True:
            remove_zombie_pid_file(server_home)
            self._rotate_diagnostics()
            since = diagnostics_size(server_home)
            self._server = self._spawn()
            while self._server.poll() is None:
                if is_ready(server_home, pid=self._server.pid):
                    return
                if loop.time() > deadline:
                    break
                await asyncio.sleep(POLL_S)
            if loop.time() > deadline or not predecessor_is_ending(server_home, since=since):
                await self._stop_server()
                raise StoreUnavailable(
                    f"the embedded server does not start: {log_tail(server_home, since=since)}"
                )
            self._server = None
            await asyncio.sleep(RETRY_S)

    def _rotate_diagnostics(self) -> None:
        diagnostics = self._started_home().diagnostics
        if diagnostics_size(self._started_home()) > DIAGNOSTICS_BYTES_MAX:
            diagnostics.replace(diagnostics.with_suffix(".log.1"))

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._main_thread_only()
        server_home = self._started_home()
        command = [str(self._programs() / "postgres"), "-D", str(server_home.cluster)]
        for name, value in {
            **self._settings,
            "port": str(PORT),
            "unix_socket_directories": str(server_home.sockets),
        }.items():
            command += ["-c", f"{name}={value}"]
        with server_home.diagnostics.open("ab") as diagnostics:
            change_owner(server_home.diagnostics, server_home.account)
            return subprocess.Popen(  # noqa: S603 - fixed program, arguments of our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=diagnostics,
                stderr=diagnostics,
                start_new_session=True,  # Ctrl-C in a terminal goes to this process only, which stops the server
                preexec_fn=end_with_parent(signal.SIGINT),  # noqa: PLW1509 - one system call, its library already loaded
                **self._as_account(),
            )

    async def _stop_server(self) -> None:
        server = self._server
        if server is None:
            return
        for number, limit_s in (
            (signal.SIGINT, FAST_STOP_TIMEOUT_S),
            (signal.SIGQUIT, 5.0),
            (signal.SIGKILL, 5.0),
        ):
            if server.poll() is not None:
                break
            server.send_signal(number)
            try:
                await asyncio.to_thread(server.wait, limit_s)
            except subprocess.TimeoutExpired:
                logger.warning(
                    "embedded server does not stop",
                    extra={"pid": server.pid, "signal": number.name},
                )
        self._server = None

    def _started_home(self) -> ServerHome:
        if self._home is None:
            raise InvariantBroken("the embedded server has not been started")
        return self._home

    def _programs(self) -> Path:
        assert self._binaries is not None
        return self._binaries.folder

    def _as_account(self) -> dict[str, Any]:
        """Return folder, environment and account of a program, as arguments of `subprocess`."""
        # An unknown locale stops initdb, and the server's account must not get our secrets.
        names = {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"} & os.environ.keys()
        environment = {name: os.environ[name] for name in names} | {"LC_ALL": "C", "TZ": "UTC"}
        server_home = self._started_home()
        options = {"cwd": server_home.home, "env": environment}
        if (account := server_home.account).is_us:
            return options
        return {**options, "user": account.uid, "group": account.gid, "extra_groups": []}

    @staticmethod
    def _main_thread_only() -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvariantBroken(
                "the embedded server must be started from the main thread: it ends with its thread"
            )
