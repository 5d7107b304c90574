"""The port of a server that is started later belongs to nothing else until then."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from deploy.demo.ports import free_port

IP_LOCAL_PORT_RANGE = 51  # of Linux 6.3 or later: the ports that the kernel may choose from


def choosing_from(port: int, *, reuse: bool) -> socket.socket:
    """Return a socket for which the kernel can choose one port only."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    except OSError:
        made.close()
        pytest.skip("this kernel cannot be given one port to choose from")
    return made


@pytest.mark.parametrize("reuse", [False, True])
def test_the_kernel_gives_it_to_no_other_socket(reuse):
    """Neither to one that is bound to any port, nor to one that connects."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with choosing_from(port, reuse=reuse) as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", 0))
        with choosing_from(port, reuse=reuse) as other, pytest.raises(OSError, match="assign"):
            other.connect(server.getsockname())


async def test_a_server_can_listen_on_it_more_than_once():
    """And while none does, a connection is refused."""
    port = free_port()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
