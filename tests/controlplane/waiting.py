"""Wait for what a control plane does in its own time."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import a_pod, a_priority_class, path_of
from tests.support.waiting import eventually


async def wait_until_bound(api: Api, pod: Object) -> Object:
    """Wait until a pod stands on a node and return it as it is then."""

    async def look() -> Object | None:
        now = await api.get(path_of(pod, named=True))
        return now if now["spec"].get("nodeName") else None

    found: Object = await eventually(look, f"{pod['metadata']['name']} is bound")
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

    await eventually(known, f"admission knows the priority class {name}")


async def create_training_runtime(api: Api, runtime: Object) -> None:
    """Create a cluster's runtime and wait until a TrainJob may name it: Trainer's webhook reads a cache, too."""
    await api.create(runtime)
    name = runtime["metadata"]["name"]
    probe = {
        "apiVersion": runtime["apiVersion"],
        "kind": "TrainJob",
        "metadata": {"name": "tries-runtime", "namespace": "default"},
        "spec": {"runtimeRef": {"name": name}},
    }

    async def known() -> bool:
        try:
            await api.post(path_of(probe), probe, dryRun="All")
        except ApiError as refused:
            return f'"{name}" not found' not in str(refused)
        return True

    await eventually(known, f"Trainer knows the runtime {name}")


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

    await eventually(known, f"admission lets {probe['kind']} through")
