"""Wait for what a control plane does in its own time; the one place where tests poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.controlplane.api import Api, Object
from tests.controlplane.objects import path_of


async def eventually(
    look: Callable[[], Awaitable[Any]], *, timeout_s: float = 15, every_s: float = 0.05
) -> Any:
    """Look until what is seen is true, and return it.

    Raises:
        TimeoutError: It never was; the message carries what was seen last.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (seen := await look()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"still {seen!r} after {timeout_s} s")
        await asyncio.sleep(every_s)
    return seen


async def wait_until_bound(api: Api, pod: Object, *, timeout_s: float = 15) -> Object:
    """Wait until a pod stands on a node and return it as it is then."""

    async def look() -> Object | None:
        now = await api.get(path_of(pod, named=True))
        return now if now["spec"].get("nodeName") else None

    found: Object = await eventually(look, timeout_s=timeout_s)
    return found
