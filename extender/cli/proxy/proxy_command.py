"""`proxy`: a port of this machine that leads to the service with the token of the user."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated

import typer

from extender.cli.connection.service_client import Server, finder
from extender.cli.output.printing import complain


def proxy(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 to listen on; 0: any.")
    ] = 8889,
    server: Server = None,
) -> None:
    """Serve the page and the read API on a port of this machine, with your token. Every process of this machine can use it."""
    asyncio.run(_serve(port, server))


async def _serve(port: int, server: str | None) -> None:
    from extender.cli.proxy.local_proxy import HOST, LocalProxy

    url = await asyncio.to_thread(finder().find, server)  # an error now, not with the first request
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with LocalProxy(finder(), server).serving(port) as listening:
        print(f"http://{HOST}:{listening}/ui/")
        sys.stdout.flush()
        complain(f"leads to {url} until Ctrl-C, for every process of this machine")
        await stopping.wait()
