"""`status`: the state of the service on one screen, what is wrong first, or as a file for a maintainer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from extender.cli.commands.status_bundle import write_bundle
from extender.cli.connection.service_client import Server
from extender.cli.connection.service_list import Ask, asks
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, complain, print_value
from extender.cli.output.table_rows import print_folded
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import bytes_text, counted, duration_text
from extender.queries.log.event_dto import parse_time
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
