"""`trees`: what workloads have become."""

from __future__ import annotations

from typing import Annotated

import typer

from extender.cli.commands.gang_commands import Form, in_namespace, show_list
from extender.cli.connection.service_client import Server
from extender.cli.output.printing import Output
from extender.queries.state.workload_trees import TreeAt

ROOTS_SHOWN_MAX = 3


def trees(
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only workloads of this namespace.")
    ] = "",
    server: Server = None,
    output: Form = Output.table,
) -> None:
    """List workloads with a tree label: their root groups and states, or why no tree can be made."""
    show_list(
        server,
        in_namespace("/v1/trees", namespace),
        list[TreeAt],
        output,
        columns={
            "workload": lambda line: line.workload,
            "kind": lambda line: line.kind,
            "profile": lambda line: line.profile,
            "outcome": lambda line: line.outcome,
            "groups": lambda line: str(line.groups),
            "roots": _roots,
            "reason": lambda line: line.message or "; ".join(one.message for one in line.notices),
        },
        empty=f"No workload{_there(namespace)} has the label gang-extender.dev/tree; label it, or its namespace, and "
        "create it again.",
    )


def _there(namespace: str) -> str:
    return f" in namespace {namespace!r}" if namespace else ""


def _roots(line: TreeAt) -> str:
    shown = [
        root.name + (f" ({root.state})" if root.state else "")
        for root in line.roots[:ROOTS_SHOWN_MAX]
    ]
    more = len(line.roots) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
