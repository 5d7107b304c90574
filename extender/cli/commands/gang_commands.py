"""`gangs`, and lists of a running service."""

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
from extender.cli.output.gang_columns import gang_columns, gang_name
from extender.cli.output.list_table import ListForm, ListTable
from extender.core.model.errors import BadInput
from extender.queries.state.gang_selection import GANG_STATES
from extender.queries.state.state_dto import GangAt
from extender.runtime.system_clock import SystemClock


def root_path(name: str, namespace: str) -> str:
    """Return NAMESPACE/NAME of a root group; `namespace` is the default.

    A kind before it, as `-o name` prints it, is left out.

    Raises:
        BadInput: The name has more than one slash, or a part is empty.
    """
    path = name if "/" in name else f"{namespace}/{name}"
    path = path.removeprefix("PodGroup/").removeprefix("CompositePodGroup/")
    if path.count("/") != 1 or path.startswith("/") or path.endswith("/"):
        msg = f"gang {name!r} is not NAME or NAMESPACE/NAME"
        raise BadInput(msg)
    return path


def gangs(  # noqa: PLR0917 -- typer reads options from the signature
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
    """List the gangs of the service, with their state."""
    wanted = listed(namespace, all_namespaces, states, GANG_STATES, selector)
    table = ListTable(
        gang_columns(SystemClock().now_us),
        gang_name,
        list_format(output, no_headers, sort_by),
    )
    ask = asks(server, watch=watch)
    found = ServiceList(ask, partial(ask, wanted.path("/v1/gangs"), list[GangAt]), table)
    if watch:
        found.watch(lambda line: line.uid, lambda line: replace(line, state="removed"))
    else:
        found.print(f"No gangs{wanted.words()}.")
