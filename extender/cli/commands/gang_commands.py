"""`gangs`, and lists of a running service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar
from urllib.parse import urlencode

import typer

from extender.cli.connection.service_client import Server, ask_service
from extender.cli.output.printing import Output, print_table, print_value
from extender.core.model.errors import BadInput
from extender.core.model.wording import spaced
from extender.queries.state.state_dto import GangAt

T = TypeVar("T")
Form = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]


def show_list(
    server: str | None,
    path: str,
    kind: type[list[T]],
    output: Output,
    *,
    columns: Mapping[str, Callable[[T], str]],
    empty: str,
) -> None:
    """Print a list of a running service, see `ask_service`: as a table with these columns, or as it is.

    Args:
        server: URL of the service, or None.
        path: Path and query of the list.
        kind: Its type.
        output: Form of the output.
        columns: Titles, and what each has of a line.
        empty: What is printed in place of a table without lines.
    """
    lines = ask_service(server, path, kind)
    if output is not Output.table:
        print_value(lines, output)
        return
    rows = ([text(line) for text in columns.values()] for line in lines)
    print_table(tuple(columns), rows, empty=empty)


def in_namespace(path: str, namespace: str) -> str:
    """Return the path of a list, restricted to a namespace unless that is empty."""
    return path + ("?" + urlencode({"namespace": namespace}) if namespace else "")


def root_path(name: str, namespace: str) -> str:
    """Return NAMESPACE/NAME of a root group; `namespace` is the default.

    Raises:
        BadInput: The name has more than one slash, or a part is empty.
    """
    path = name if "/" in name else f"{namespace}/{name}"
    if path.count("/") != 1 or path.startswith("/") or path.endswith("/"):
        msg = f"gang {name!r} is not NAME or NAMESPACE/NAME"
        raise BadInput(msg)
    return path


def gangs(
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only root groups of this namespace.")
    ] = "",
    server: Server = None,
    output: Form = Output.table,
) -> None:
    """List the gangs of the service, with their state."""
    show_list(
        server,
        in_namespace("/v1/gangs", namespace),
        list[GangAt],
        output,
        columns={
            "gang": lambda line: line.gang,
            "kind": lambda line: line.kind,
            "priority": lambda line: str(line.priority),
            "state": lambda line: line.state,
            "reserved": lambda line: str(line.reserved),
            "bound": lambda line: str(line.bound),
            "minimum": minimum_text,
            "workload": lambda line: spaced(line.workload),
            "reason": lambda line: line.reasons[0] if line.reasons else "",
        },
        empty=f"No gangs in namespace {namespace!r}." if namespace else "No gangs.",
    )


def minimum_text(line: GangAt) -> str:
    """Return how many pods of the minimum of a gang are there, `3/8`; empty before its first admission."""
    return f"{line.minimum_present}/{line.minimum_needed}" if line.minimum_needed else ""
