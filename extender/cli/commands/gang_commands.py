"""`gangs`, and the request to a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar
from urllib.parse import urlencode

import msgspec
import typer

from extender import settings as settings_module
from extender.cli.output.printing import Output, complain, print_table, print_value
from extender.core.model.errors import BadInput
from extender.core.model.wording import spaced
from extender.queries.state.state_dto import GangAt

T = TypeVar("T")
Server = Annotated[
    str | None,
    typer.Option(
        help="URL of the service; unset: GANG_EXTENDER_SERVER, else http://127.0.0.1:8888."
    ),
]
Form = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]


class _Problem(msgspec.Struct):
    detail: str = ""
    status: int = 0


def ask_service(
    server: str | None, path: str, kind: type[T], *, body: bytes | None = None, within_s: float = 10
) -> T:
    """Return the decoded answer of a running service, by GET, or by POST with a body.

    Raises:
        BadInput: The service did not answer, or is not a gang-extender.
        typer.Exit: The service answered with an error, which is printed.
    """
    import aiohttp

    base = settings_module.load(server=server).server.rstrip("/")

    async def fetch() -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=within_s, sock_connect=10)
        method = "GET" if body is None else "POST"
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, base + path, data=body) as reply,
        ):
            return reply.status, await reply.read()

    try:
        status, body = asyncio.run(fetch())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        msg = f"no answer from {base}: {error}; is `gang-extender serve` running there? (--server URL)"
        raise BadInput(msg) from error
    if status != 200:  # noqa: PLR2004 -- OK
        try:
            detail = msgspec.json.decode(body, type=_Problem).detail
        except msgspec.MsgspecError:
            detail = body[:200].decode(errors="replace")
        complain(detail or f"{base}{path} answered {status}")
        raise typer.Exit(1 if status == 404 else 2)  # noqa: PLR2004 -- not found is a "no"
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        msg = (
            f"{base}{path} did not answer as gang-extender does: {error}; is it the right --server?"
        )
        raise BadInput(msg) from error


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
