"""Loopback ports for servers that are started later, perhaps more than once."""

from __future__ import annotations

import atexit
import contextlib
import socket

_KEPT = contextlib.ExitStack()
atexit.register(_KEPT.close)


def free_port() -> int:
    """Return a free loopback port, reserved for our servers until this process ends.

    The socket stays bound and does not listen: no other program gets the port from the kernel, be it to listen or
    for a connection of its own. A server that sets SO_REUSEADDR, as those of Go and asyncio do, may listen on it.
    """
    kept = _KEPT.enter_context(socket.socket())
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port: int = kept.getsockname()[1]
    return port
