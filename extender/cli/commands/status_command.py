"""`status`: the state of the service on one screen, what is wrong first, or as a file for a maintainer."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from extender.cli.connection.service_client import Ask, Server, asks, finder, read_body
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, complain, print_folded, print_value
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import bytes_text, counted, duration_text, parse_time
from extender.queries.state.service_status import ServiceStatus

INTERVAL_S: Final = 2.0
CLEAR: Final = "\x1b[H\x1b[2J"


def status(
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Print it again and again, until Ctrl-C.")] = False,
    bundle: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Write a .tar.gz for a maintainer: status, settings without secrets, metrics, gangs, the last events, and the logs "
            "where kubectl reaches them.",
        ),
    ] = "",
    names: Annotated[
        bool, typer.Option(help="Whether --bundle has the names of namespaces, groups, pods and nodes; without, each has a number, and the logs are left out.")
    ] = True,
    server: Server = None,
    output: ValueForm = Output.table,
) -> None:  # fmt: skip
    """Show the state of the service on one screen, what is wrong first. Exit 1 when something is.

    Version, leader and replicas, log, database, last verification and anchor, gangs by state and the oldest wait, refused
    calls, certificates, and when kube-scheduler called last.
    """
    if bundle and watch:
        raise BadInput(f"--bundle {bundle}: not together with --watch")
    if not names and not bundle:
        raise BadInput("--no-names: is for --bundle FILE, which is not given")
    ask = asks(server, watch=watch)
    if watch:
        _watch(ask, output)
        return
    current = ask("/v1/status", ServiceStatus)
    if bundle:
        write_bundle(server, Path(bundle), current, names=names)
    _print(current, output)
    raise typer.Exit(1 if current.problems else 0)


def _watch(ask: Ask, output: Output) -> None:
    """Print the status until Ctrl-C; a service that does not answer is asked again."""
    wrong, lost = False, False
    try:
        while True:
            try:
                current = ask("/v1/status", ServiceStatus)
                if lost:
                    complain("the service answers again")
                wrong, lost = bool(current.problems), False
                if output is Output.json:  # one line each, as lists that are watched
                    sys.stdout.write(msgspec.json.encode(current).decode() + "\n")
                else:
                    sys.stdout.write(CLEAR if sys.stdout.isatty() else "---\n")
                    _print(current, output)
                sys.stdout.flush()
            except BadInput as error:
                wrong = True
                if not lost:
                    complain(f"{error}; trying again")
                lost = True
            except typer.Exit:  # the error has been printed
                wrong = lost = True
            time.sleep(INTERVAL_S)
    except KeyboardInterrupt:
        raise typer.Exit(1 if wrong else 0) from None


def _print(current: ServiceStatus, output: Output) -> None:
    if output is not Output.table:
        print_value(current, output)
        return
    for problem in current.problems:
        print_folded("WRONG: ", problem.text)
        print_folded("    what to do: ", problem.help)
    if not current.problems:
        print("Nothing is wrong.")
    print()
    for title, text in status_rows(current):
        print_folded(f"{title:<15} ", text)


def status_rows(current: ServiceStatus) -> Iterator[tuple[str, str]]:
    """Yield title and text of each row of a status; ages are up to the time of the answer."""

    def ago(at: str) -> str:
        age_us = parse_time(current.time, "time") - parse_time(at, "time")
        return f"{duration_text(max(0, age_us // 1_000_000))} ago"

    leader, database, verified, anchor = (
        current.leader, current.database, current.verification, current.anchor,
    )  # fmt: skip
    yield (
        "service",
        f"gang-extender {current.version}; replica {current.replica} answers ({current.role}), started {ago(current.started)}",
    )
    yield (
        "leader",
        f"{leader.name} at {leader.address}, epoch {leader.epoch}; lease of {leader.ttl_s:g} s renewed {ago(leader.renewed)}"
        if leader is not None
        else "none",
    )
    yield "replicas", ", ".join(current.replicas) or "not known"
    log = current.log
    behind = log.head - log.read
    read = f"; {counted(behind, 'event')} of it not read by this replica yet" if behind > 0 else ""
    yield "log", f"position {log.head}, {ago(log.time)}{read}" if log.time else "empty"
    disk = (
        f"; disk {bytes_text(database.disk_free_bytes)} free of {bytes_text(database.disk_bytes)}"
        if database.disk_free_bytes is not None and database.disk_bytes is not None
        else "; its disk is of another machine"
    )
    yield (
        "database",
        f"{database.place}: " + (database.error or f"{bytes_text(database.bytes)}{disk}"),
    )
    if verified is not None:
        result = (
            counted(verified.finding_count, "finding")
            if verified.finding_count
            else "nothing was changed"
        )
        yield (
            "verified",
            f"up to position {verified.position}, {ago(verified.time)}, with {counted(verified.anchors, 'anchor')}: {result}",
        )
    else:
        yield "verified", "not yet by this leader" if current.leader_answers else "not known"
    signed = "signed" if anchor is not None and anchor.signed else "not signed"
    yield (
        "anchor",
        f"of position {anchor.position}, {ago(anchor.time)}, {signed}"
        if anchor is not None
        else "none was published by this leader"
        if current.leader_answers
        else "not known",
    )
    states = ", ".join(f"{count} {state}" for state, count in current.gangs.items())
    yield "gangs", states or "none"
    wait = current.oldest_wait
    if wait is not None:
        yield "oldest wait", f"{wait.gang} ({wait.state}), since {ago(wait.since)}"
    refused = ", ".join(f"{count} {reason}" for reason, count in current.refused.items())
    yield "refused calls", f"{refused or 'none'} since the start of this replica"
    for certificate in current.certificates:
        left_us = parse_time(certificate.ends, "ends") - parse_time(current.time, "time")
        ends = f"in {duration_text(left_us // 1_000_000)}" if left_us > 0 else "ended"
        yield "certificate", f"{certificate.name}: {certificate.ends[:19]}Z, {ends}"
    called = current.scheduler_called
    yield "kube-scheduler", f"called {ago(called)}" if called else "has not called"
    for check in current.checks:
        if check.ok and check.reason:
            yield "remark", f"{check.name}: {check.reason}"


EVENTS: Final = 1000  # of the end of the log, in a bundle
# Files of a bundle that are answers of the service, by their path there.
ANSWERS: Final = {
    "readiness.json": "/v1/readiness",
    "gangs.json": "/v1/gangs",
    "trees.json": "/v1/trees",
    "events.json": f"/v1/events?order=newest&limit={EVENTS}",
    "metrics.txt": "/metrics",
}
# Names of objects: NAMESPACE/NAME or KIND/NAMESPACE/NAME.
_PATH: Final = re.compile(r"(?:[A-Z]\w*/)?([a-z0-9.-]+)/([a-z0-9.-]+)")
_NODES: Final = frozenset({"node", "nodes", "from_node", "to_node"})
_DOMAINS: Final = frozenset({"domain", "before", "after"})  # by topology key
_NAMED: Final = frozenset({"name", "pod", "group", "gang", "preemptor", "workload", "unit"})
# Values that are no names: replacing a gang that is called `waiting` must not change a state.
_WORDS: Final = frozenset(
    {
        "type", "kind", "state", "role", "time", "version", "outcome", "actor", "planner", "uid", "gang_uid", "since", "started",
        "renewed", "ends", "ok", "sub_type",
    }
)  # fmt: skip
# Keys that are no names, whatever a group is called.
_FIELDS: Final = _WORDS | _NAMED | _NODES
_PLACES: Final = frozenset({"address", "place"})  # of replicas and of the database
_REPLICAS: Final = frozenset({"replica", "replicas"})  # names of any form, by default HOST:PORT
_LEFT_OUT: Final = "(left out)"
_METRIC_NAMES: Final = re.compile(r'\b(namespace|file|folder)="((?:[^"\\]|\\.)*)"')
# Fields of the status whose names are words of ours.
_OURS: Final = frozenset({"checks", "certificates", "settings", "gangs"})


class NamesRemoved:
    """Files of a bundle without names: these are read from the structured fields of all files, then each is replaced, also within sentences.

    Args:
        files: By name; those in JSON end with `.json`.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._values = {
            name: msgspec.json.decode(body)
            for name, body in files.items()
            if name.endswith(".json")
        }
        self._numbers: dict[str, str] = {}
        self._counts = {"ns": 0, "node": 0, "object": 0, "replica": 0}
        for value in self._values.values():
            self._collect(value, "")
        # the longest first: `train-long` before `train`
        names = sorted(self._numbers, key=lambda name: (-len(name), name))
        pattern = "|".join(map(re.escape, names)) or r"(?!)"
        self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])")

    def files(self) -> dict[str, bytes]:
        """Return the files, with numbers in place of names."""
        changed: dict[str, bytes] = {}
        for name, body in self._files.items():
            if name in self._values:
                value = self._values[name]
                if name == "status.json":
                    value = _without_settings(value)
                changed[name] = msgspec.json.encode(self._replaced(value, ""))
            else:
                text = body.decode(errors="replace")
                changed[name] = _METRIC_NAMES.sub(self._label, text).encode()
        return changed

    def _label(self, match: re.Match[str]) -> str:
        value = match[2]
        return f'{match[1]}="{self._numbers.get(value, _LEFT_OUT if value else "")}"'

    def _collect(self, value: object, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if key == "topology":  # by node, and by topology key below it
                    self._number(name, "node")
                    self._collect(inner, "domain")
                elif key in _DOMAINS:
                    self._number(str(inner), "object")
                elif name not in _OURS:
                    self._collect(inner, str(name))
        elif isinstance(value, list):
            for inner in value:
                self._collect(inner, key)
        elif isinstance(value, str) and key not in _WORDS:
            for name, prefix in _names_in(value, key):
                self._number(name, prefix)

    def _number(self, name: str, prefix: str) -> None:
        if name and name not in self._numbers:
            self._counts[prefix] += 1
            self._numbers[name] = f"{prefix}-{self._counts[prefix]}"

    def _replaced(self, value: object, key: str) -> object:
        if isinstance(value, dict):
            return {
                name if name in _FIELDS else self._numbers.get(name, name): self._replaced(
                    inner, str(name)
                )
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self._replaced(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        if key in _PLACES:
            return value and _LEFT_OUT
        if key in _WORDS:
            number = self._numbers.get(value, "")
            return number if number.startswith("replica-") else value  # as an actor
        return self._pattern.sub(lambda match: self._numbers[match[0]], value)


def _names_in(text: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield the names in the value of a field, each with the prefix of its number."""
    if key in _REPLICAS:
        yield text, "replica"
    elif match := _PATH.fullmatch(text):
        yield match[1], "ns"
        yield match[2], "object"
    elif key == "namespace":
        yield text, "ns"
    elif key in _NODES:
        yield text, "node"
    elif key == "domain":
        yield text.rpartition("=")[2], "object"
    elif key in _NAMED and re.fullmatch(r"[a-z0-9.-]+", text):
        yield text, "object"


def _without_settings(status: dict[str, Any]) -> dict[str, Any]:
    settings = {
        name: value if isinstance(value, bool | int | float) or not value else _LEFT_OUT
        for name, value in status["settings"].items()
    }
    return status | {"settings": settings}


def write_bundle(server: str | None, path: Path, current: ServiceStatus, *, names: bool) -> None:
    """Write the bundle."""
    contents = [
        f"gang-extender status --bundle, {current.time}. Names are {'as they are' if names else 'numbers'}."
    ]
    files = {"status.json": msgspec.json.encode(current)}
    for name, where in ANSWERS.items():
        _add(files, contents, name, partial(read_body, server, where))
    if names:
        _add(files, contents, "logs.txt", lambda: finder().logs().encode())
    else:
        files = NamesRemoved(files).files()
        contents.append(
            "logs.txt: left out, because texts of logs may have names that nothing else has"
        )
    contents[1:1] = [f"{name}: {len(body)} bytes" for name, body in files.items()]
    files["contents.txt"] = ("\n".join(contents) + "\n").encode()
    try:
        with tarfile.open(path, "w:gz") as archive:
            for name, body in files.items():
                entry = tarfile.TarInfo(f"gang-extender-status/{name}")
                entry.size, entry.mtime = len(body), parse_time(current.time, "time") // 1_000_000
                archive.addfile(entry, io.BytesIO(body))
    except OSError as error:
        raise BadInput(f"--bundle {path}: cannot be written: {error.strerror or error}") from error
    complain(f"{path}: {', '.join(files)}; look at it before you send it")


def _add(
    files: dict[str, bytes], contents: list[str], name: str, read: Callable[[], bytes]
) -> None:
    """Add a file to a bundle, or the reason why it is not there to the contents."""
    try:
        files[name] = read()
    except BadInput as error:
        contents.append(f"{name}: left out: {error}")
