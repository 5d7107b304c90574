"""Read the state of a server process from its files.

Owns the reading of `postmaster.pid` and of the server's diagnostics. Must not start or signal a process. Note: a
server that was killed and never waited for is a zombie and still has a process id, which PostgreSQL takes for a
running server.
"""

from __future__ import annotations

from pathlib import Path

from extender.store.embedded.os_account import ServerHome


def pid_file(server_home: ServerHome) -> list[str]:
    """Return the lines of `postmaster.pid`: process id first, status eighth; empty without the file."""
    try:
        return (
            (server_home.cluster / "postmaster.pid")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
    except OSError:
        return []


def is_ready(server_home: ServerHome, *, pid: int | None = None) -> bool:
    """Return whether the server accepts connections, by postmaster.pid; `pid` detects a stale file."""
    lines = pid_file(server_home)
    status_line = 7
    if len(lines) <= status_line or lines[status_line].strip() != "ready":
        return False
    return lines[0] == str(pid) if pid is not None else _state(int(lines[0])) not in {"", "Z"}


def _state(pid: int) -> str:
    """Return the state letter of a process, empty if it does not exist."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):
        return ""


def remove_zombie_pid_file(server_home: ServerHome) -> None:
    """Remove the pid file of a server that is a zombie, as when PID 1 does not wait for orphans."""
    lines = pid_file(server_home)
    if lines and lines[0].isdigit() and _state(int(lines[0])) == "Z":
        (server_home.cluster / "postmaster.pid").unlink(missing_ok=True)


def predecessor_is_ending(server_home: ServerHome, *, since: int) -> bool:
    """Return whether a start failed because a killed server is still ending; then another try soon helps.

    Args:
        server_home: Directories of the server.
        since: Size of the diagnostics before the start; the ending server writes there too.
    """
    text = _tail(server_home, since=since, bytes_max=65_536)
    return "postmaster.pid" in text or "pre-existing shared memory" in text


def log_tail(server_home: ServerHome, *, since: int) -> str:
    """Return the last lines of the server's log, for a message.

    Args:
        server_home: Directories of the server.
        since: Size of the diagnostics before the start.
    """
    return " | ".join(_tail(server_home, since=since, bytes_max=1000).splitlines()[-4:])


def diagnostics_size(server_home: ServerHome) -> int:
    """Return the size of the diagnostics, in bytes; 0 without the file."""
    try:
        return server_home.diagnostics.stat().st_size
    except OSError:
        return 0


def _tail(server_home: ServerHome, *, since: int, bytes_max: int) -> str:
    try:
        with server_home.diagnostics.open("rb") as file:
            file.seek(max(since, diagnostics_size(server_home) - bytes_max))
            return file.read().decode(errors="replace")
    except OSError as error:
        return str(error)
