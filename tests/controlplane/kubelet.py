"""Play the kubelets of a test's nodes: pods start, finish, end after their grace period, or misbehave.

Owns what nothing else does on a control plane without kubelets: Running and Ready, Succeeded and Failed, the
restart of a container, the confirmation of deletions, the refusal of a pod by its node. It never binds and
never picks a node. A test may make it late, let it refuse a pod, lose one, or have one finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.controlplane.api import Api, ApiError, Object

# What failed because kube-apiserver is away is tried again this often.
RETRY_S = 0.2
KILLED = 137  # the exit code of a container that SIGKILL ends


class Kubelet:
    """All kubelets of a cluster in one; an async context manager.

    Attributes:
        late_s: Delay before a bound pod runs. A test may change it at any time.
        grace_factor: Scales the grace period of deleted pods; 0 confirms at once.
        terminal: Whether a deleted pod becomes Failed before its deletion is confirmed, as the containers
            of a real one are killed. A Job with `podReplacementPolicy: Failed` waits for that.
    """

    def __init__(
        self,
        api: Api,
        *,
        late_s: float = 0.0,
        grace_factor: float = 1.0,
        terminal: bool = False,
    ) -> None:
        self.late_s = late_s
        self.grace_factor = grace_factor
        self.terminal = terminal
        self._api = api
        self._refusals: dict[tuple[str, str], str] = {}
        self._late_s: dict[tuple[str, str], float] = {}
        self._seen: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._spawn(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, Exception)]
        if failures and error is None:
            raise failures[0]
        for failure in failures:  # perhaps the reason why the test failed
            assert error is not None
            error.add_note(f"the kubelet failed as well: {failure!r}")

    def refuse(self, name: str, *, namespace: str = "default", reason: str = "OutOfcpu") -> None:
        """Refuse a pod when it comes to its node: it fails with the reason, as at admission."""
        self._refusals[namespace, name] = reason

    def delay(self, name: str, late_s: float, *, namespace: str = "default") -> None:
        """Start one pod later than the others."""
        self._late_s[namespace, name] = late_s

    async def lose(self, name: str, *, namespace: str = "default") -> None:
        """Let a pod vanish without notice, as when its node is deleted."""
        await self._confirm_deletion(namespace, name, {})

    async def succeed(self, name: str, *, namespace: str = "default") -> None:
        """Let all containers of a pod end with exit code 0: the pod becomes Succeeded."""
        await self._finish(namespace, name, 0)

    async def fail(self, name: str, *, namespace: str = "default", exit_code: int = 1) -> None:
        """Let all containers of a pod end with an exit code: the pod becomes Failed."""
        await self._finish(namespace, name, exit_code)

    async def restart(self, name: str, *, namespace: str = "default") -> None:
        """Count one more restart of every container of a running pod, as after a crash with `restartPolicy: Always`."""

        def restarted(pod: Object) -> Object:
            before = pod["status"].get("containerStatuses") or []
            counts = {one["name"]: one["restartCount"] for one in before}
            containers = [
                _container(one, {"running": {"startedAt": _now()}}, counts.get(one["name"], 0) + 1)
                for one in pod["spec"]["containers"]
            ]
            return {"containerStatuses": containers}

        await self._change(_path(namespace, name), restarted)

    async def _watch(self) -> None:
        while True:
            try:
                async for kind, pod in self._api.watch(
                    "/api/v1/pods", fieldSelector="spec.nodeName!="
                ):
                    if kind in ("ADDED", "MODIFIED"):
                        self._look_at(pod)
            except ApiError as refused:
                if not _passes(refused):
                    raise
            except aiohttp.ClientError:
                pass  # kube-apiserver is away
            await asyncio.sleep(RETRY_S)

    def _look_at(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            self._once(("end", uid), self._end(pod))
        elif pod["status"].get("phase") == "Pending":
            self._once(("begin", uid), self._begin(pod))

    def _once(self, key: tuple[str, str], work: Coroutine[Any, Any, None]) -> None:
        if key in self._seen:
            work.close()
            return
        self._seen.add(key)
        self._spawn(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)  # a failed one is kept: __aexit__ raises its error

    async def _begin(self, pod: Object) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        await asyncio.sleep(self._late_s.get((namespace, name), self.late_s))
        reason = self._refusals.get((namespace, name))
        status: Object
        if reason is not None:
            status = {"phase": "Failed", "reason": reason, "message": "refused by its node"}
        else:
            ready = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
            status = {
                "phase": "Running",
                "conditions": [{"type": kind, "status": "True"} for kind in ready],
            }
        uid = pod["metadata"]["uid"]

        def begun(now: Object) -> Object | None:
            """Return the status, unless the pod has ended meanwhile: no kubelet brings it back to life."""
            pending = now["metadata"]["uid"] == uid and now["status"].get("phase") == "Pending"
            return status if pending else None

        await self._insist(lambda: self._change(_path(namespace, name), begun))

    async def _finish(self, namespace: str, name: str, exit_code: int) -> None:
        await self._change(_path(namespace, name), lambda pod: _finished(pod, exit_code))

    async def _change(self, path: str, change: Callable[[Object], Object | None]) -> Object:
        """Write what `change` makes of the pod into its status; nothing if it makes None."""
        while True:
            now = await self._api.get(path)
            status = change(now)
            if status is None:
                return now
            metadata = now["metadata"]
            seen = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            body = {"metadata": seen, "status": status}
            try:
                return await self._api.patch(f"{path}/status", body, "strategic")
            except ApiError as refused:
                if refused.status != 409:
                    raise

    async def _end(self, pod: Object) -> None:
        metadata = pod["metadata"]
        await asyncio.sleep(metadata.get("deletionGracePeriodSeconds", 0) * self.grace_factor)
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        if self.terminal:

            def killed(now: Object) -> Object | None:
                return _finished(now, KILLED) if now["metadata"]["uid"] == uid else None

            await self._insist(lambda: self._change(_path(namespace, name), killed))
        await self._confirm_deletion(namespace, name, {"preconditions": {"uid": uid}})

    async def _confirm_deletion(self, namespace: str, name: str, options: Object) -> None:
        path = _path(namespace, name)
        await self._insist(lambda: self._api.delete(path, {"gracePeriodSeconds": 0} | options))

    async def _insist(self, send: Callable[[], Awaitable[Object]]) -> None:
        """Send until the API server has answered; what comes too late for a pod is dropped."""
        while True:
            try:
                await send()
            except ApiError as refused:
                if refused.status in (404, 409):
                    return  # the pod is gone, or another one has its name
                if not _passes(refused):
                    raise
            except aiohttp.ClientError:
                pass  # kube-apiserver is away
            else:
                return
            await asyncio.sleep(RETRY_S)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _finished(pod: Object, exit_code: int) -> Object | None:
    """Return the status of a pod whose containers have ended; None if it had ended before."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return None
    reason = "Completed" if exit_code == 0 else "Error"
    end = {"exitCode": exit_code, "reason": reason, "startedAt": _now(), "finishedAt": _now()}
    before = pod["status"].get("containerStatuses") or []
    counts = {one["name"]: one["restartCount"] for one in before}
    why = "PodCompleted" if exit_code == 0 else "PodFailed"
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "conditions": [
            {"type": kind, "status": "False", "reason": why}
            for kind in ("ContainersReady", "Ready")
        ],
        "containerStatuses": [
            _container(one, {"terminated": end}, counts.get(one["name"], 0))
            for one in pod["spec"]["containers"]
        ],
    }


def _container(container: Object, state: Object, restarts: int) -> Object:
    running = "running" in state
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": running,
        "started": running,
        "restartCount": restarts,
        "state": state,
    }


def _passes(refused: ApiError) -> bool:
    """Return whether an error comes from an outage or from load, so that a retry can succeed."""
    return refused.status >= 500 or refused.status in (410, 429)
