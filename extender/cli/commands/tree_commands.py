"""`trees`: what workloads have become."""

from __future__ import annotations

from typing import Annotated

import typer

from extender.cli.commands.gang_commands import Form, Server, ask_service
from extender.cli.output.printing import Output, print_table, print_value
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
    query = f"?namespace={namespace}" if namespace else ""
    lines = ask_service(server, f"/v1/trees{query}", list[TreeAt])
    if output is not Output.table:
        print_value(lines, output)
        return
    print_table(
        ("workload", "kind", "profile", "outcome", "groups", "roots", "reason"),
        (
            (
                line.workload,
                line.kind,
                line.profile,
                line.outcome,
                str(line.groups),
                _roots(line),
                line.message or "; ".join(notice.message for notice in line.notices),
            )
            for line in lines
        ),
        empty="No workload has the label gang-extender.dev/tree.",
    )


def _roots(line: TreeAt) -> str:
    shown = [
        root.name + (f" ({root.state})" if root.state else "")
        for root in line.roots[:ROOTS_SHOWN_MAX]
    ]
    more = len(line.roots) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
