"""Wait for what a control plane does in its own time; the one place where tests poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import a_pod, a_priority_class, path_of

# What comes at all comes within seconds on an idle machine; a busy one may be this slow.
TIMEOUT_S = 90.0


async def eventually(
    look: Callable[[], Awaitable[Any]], *, timeout_s: float = TIMEOUT_S, every_s: float = 0.05
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


async def wait_until_bound(api: Api, pod: Object, *, timeout_s: float = TIMEOUT_S) -> Object:
    """Wait until a pod stands on a node and return it as it is then."""

    async def look() -> Object | None:
        now = await api.get(path_of(pod, named=True))
        return now if now["spec"].get("nodeName") else None

    found: Object = await eventually(look, timeout_s=timeout_s)
    return found


async def create_priority_class(api: Api, name: str, value: int, **more: Any) -> None:
    """Create a priority class and wait until pods and groups may name it."""
    await api.create(a_priority_class(name, value, **more))
    await until_priority_class_known(api, name)


async def until_priority_class_known(api: Api, name: str) -> None:
    """Wait until pods and groups may name a priority class: admission reads them from a cache, which is a moment late."""

    async def known() -> bool:
        pod = a_pod("tries-priority-class", priorityClassName=name)
        try:
            await api.post(path_of(pod), pod, dryRun="All")
        except ApiError as refused:
            if "no PriorityClass" in str(refused):
                return False
            raise
        return True

    await eventually(known)


async def until_admission_knows(api: Api, path: str, probe: Mapping[str, Any]) -> None:
    """Wait until admission lets objects of a kind through: it answers 503 for some seconds after its definition.

    Args:
        api: The client of an administrator.
        path: The collection of the kind; an admission policy mutates it.
        probe: An object of the kind; it is not stored, and need not be valid.
    """

    async def known() -> bool:
        try:
            await api.post(path, probe, dryRun="All")
        except ApiError as refused:
            return refused.status != HTTPStatus.SERVICE_UNAVAILABLE
        return True

    await eventually(known)
