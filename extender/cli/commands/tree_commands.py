"""`trees`: what workloads have become."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from extender.cli.connection.service_client import Server
from extender.cli.connection.service_list import ServiceList, asks
from extender.cli.options.list_options import (
    AllNamespaces,
    Form,
    NoHeaders,
    OfNamespace,
    Selector,
    SortBy,
    States,
    Watch,
    list_format,
    listed,
)
from extender.cli.output.list_table import Column, ListForm, ListTable, number_column, time_column
from extender.queries.state.gang_selection import TREE_STATES
from extender.queries.state.workload_trees import TreeAt

ROOTS_SHOWN_MAX = 3


def trees(  # noqa: PLR0917 -- typer reads options from the signature
    namespace: OfNamespace = "",
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    states: States = None,
    watch: Watch = False,
    output: Form = ListForm.table,
    sort_by: SortBy = "",
    no_headers: NoHeaders = False,
    server: Server = None,
) -> None:
    """List workloads with a tree label: their root groups and states, or why no tree can be made."""
    part = listed(namespace, all_namespaces, states, TREE_STATES, selector)
    table = ListTable(
        _COLUMNS,
        lambda line: f"{line.kind}/{line.workload}",
        list_format(output, no_headers, sort_by),
    )
    ask = asks(server, watch=watch)
    tree_list = ServiceList(ask, partial(ask, part.path("/v1/trees"), list[TreeAt]), table)
    if watch:
        tree_list.watch(lambda line: line.uid, lambda line: replace(line, outcome="removed"))
    elif part.restricted:
        tree_list.print(f"No workload with a tree{part.words()}.")
    else:
        tree_list.print(
            "No workload has the label gang-extender.dev/tree; label it, or its namespace, and create it again."
        )


def _roots(line: TreeAt) -> str:
    shown = [
        root.name + (f" ({root.state})" if root.state else "")
        for root in line.roots[:ROOTS_SHOWN_MAX]
    ]
    more = len(line.roots) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


_COLUMNS: tuple[Column[TreeAt], ...] = (
    Column(title="workload", text=lambda line: line.workload),
    Column(title="kind", text=lambda line: line.kind),
    Column(title="profile", text=lambda line: line.profile),
    Column(title="outcome", text=lambda line: line.outcome, colored=True),
    number_column("groups", lambda line: line.groups),
    number_column("generation", lambda line: line.generation, wide=True),
    number_column("position", lambda line: line.position, wide=True),
    time_column("compiled", lambda line: line.time, wide=True),
    Column(title="uid", text=lambda line: line.uid, wide=True),
    Column(title="owner", text=lambda line: line.owner, wide=True),
    Column(title="roots", text=_roots),
    Column(
        title="reason",
        text=lambda line: line.message or "; ".join(one.message for one in line.notices),
    ),
)
