"""What a run leaves behind: containers, pods, networks, volumes, mounts, processes, a port in use."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.compose.engine import RUN, CommandError, Engine

REMOVALS_MAX = 10


def leftovers(engine: Engine, address: str, port: int) -> list[str]:
    """Return what is there of a project; empty when nothing is."""
    found = []
    for kind, arguments in {
        "container": ("ps", "--all", "--external", "--format={{.Names}}"),
        "pod": ("pod", "ps", "--format={{.Name}}"),
        "network": ("network", "ls", "--filter=name=gang-extender", "--format={{.Name}}"),
        "volume": ("volume", "ls", "--format={{.Name}}"),
    }.items():
        found += [f"{kind} {name}" for name in engine.podman(*arguments).splitlines()]
    storage = str(engine.storage)
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        place = line.split()[1]
        if place.startswith((f"{storage}/", f"{RUN}/")) and "/merged" in place:
            found.append(f"mount {place}")
    found += [f"process {pid} {line}" for pid, line in processes(storage, str(RUN))]
    with socket.socket() as probe:
        if probe.connect_ex((address, port)) == 0:
            found.append(f"listener on {address}:{port}")
    return found


def processes(*words: str) -> list[tuple[int, str]]:
    """Return pid and command line of processes that name one of the words there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if any(word in line for word in words):
            found.append((int(folder.name), line.strip()[:200]))
    return found


def running(pids: dict[int, str]) -> list[int]:
    """Return which of the processes, each known by pid and start time, still run."""
    return [pid for pid, began in pids.items() if began and start_time(pid) == began]


def start_time(pid: int) -> str:
    """Return when a process began, in ticks since boot; empty when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state == "Z" else rest[18]


def remove_all(engine: Engine) -> None:
    """Remove whatever a run left, by force; all that this engine has is ours.

    podman before 5 removes containers that share a network in an order that does not always work,
    and one that its restart policy starts meanwhile stays: so it is asked until none is there.

    Raises:
        CommandError: Something stays.
    """
    for _ in range(REMOVALS_MAX):
        engine.succeeds("rm", "--all", "--force", "--time=5")
        if not engine.podman("ps", "--all", "--quiet"):
            break
    else:
        raise CommandError(f"cannot be removed: {engine.podman('ps', '--all')}")
    engine.podman("pod", "rm", "--all", "--force")
    engine.podman("volume", "rm", "--all", "--force")
    engine.podman("network", "prune", "--force")
