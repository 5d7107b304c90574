"""`gangs`, and the request to a running service."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import typer
from msgspec.structs import replace

from extender import settings as settings_module
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
from extender.cli.output.printing import complain
from extender.cli.output.service_list import ServiceList
from extender.core.model.errors import BadInput
from extender.queries.state.gang_selection import GANG_STATES
from extender.queries.state.state_dto import GangAt
from extender.runtime.system_clock import SystemClock

T = TypeVar("T")
Server = Annotated[
    str | None,
    typer.Option(
        help="URL of the service; unset: GANG_EXTENDER_SERVER, else http://127.0.0.1:8888."
    ),
]


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
    ask = partial(ask_service, server)
    found = ServiceList(ask, partial(ask, wanted.path("/v1/gangs"), list[GangAt]), table)
    if watch:
        found.watch(lambda line: line.uid, lambda line: replace(line, state="removed"))
    else:
        found.print(f"No gangs{wanted.words()}.")
