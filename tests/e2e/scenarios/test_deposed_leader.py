"""Two leaders at once, as far as it goes: one sleeps between its append and its effect, and wakes deposed.

The proxy between the first service and kube-apiserver stops the process at the very request (SIGSTOP) and refuses
it, so what was recorded was not done. A second service takes over when the lease has run out; then the first one
goes on (SIGCONT). From then on it must write nothing, neither to the API server nor to the log. The proxy between
kube-scheduler and the services has the Service's part: it leads to the one that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extender.core.preempt.preemption_lifecycle import STUCK_AFTER_US
from tests.controlplane.livedin import STUCK
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.service import Service
from tests.e2e.scenarios.test_preemption import classes, preemptor, racks, singles
from tests.support.service.manifest_builders import RACK, a_gang, a_node
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("long"),
    pytest.mark.settings(lease_duration_s="4"),
]
GPU = {"nvidia.com/gpu": 8}
WRITES = ("POST", "PUT", "PATCH", "DELETE")
SENT_WITHIN_S = 0.5


@pytest.fixture
async def second(story: Story, tmp_path: Path) -> AsyncIterator[Service]:
    """Another replica, with its own way to the API server."""
    folder = tmp_path / "second"
    folder.mkdir()
    made = Service(
        story.plane, folder, story.service.database_url,
        # the first one sends the calls that it has, on to it, which it does not without TLS
        certificates=story.service.certificates, identity="second", lease_duration_s="4",
    )  # fmt: skip
    made.starts = 1  # what is published is of this very log
    await made.start()
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(story.service.pid, signal.SIGCONT)
        await asyncio.to_thread(made.stop)


async def role_of(service: Service) -> dict[str, Any]:
    """Return the first check of readiness, the lease, with the names of all."""
    checks: list[dict[str, Any]] = (await service.get("/v1/readiness"))["checks"]
    return checks[0] | {"names": [c["name"] for c in checks]}


async def no_pod_is_terminating(story: Story) -> None:
    """Wait until neighbours that terminate and never go are known to stay: a preemption would wait for them."""

    async def known() -> bool:
        ends = [
            datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
            for pod in (await story.api.get("/api/v1/pods"))["items"]
            if STUCK in pod["metadata"].get("finalizers", ())
            and "deletionTimestamp" in pod["metadata"]
        ]
        since = datetime.now(UTC) - timedelta(microseconds=STUCK_AFTER_US) - timedelta(seconds=1)
        return all(end < since for end in ends)

    await story.until(known)


def is_effect(effect: str, method: str, path: str) -> bool:
    return {
        "nomination": method == "PATCH" and "/pods/" in path and path.endswith("/status"),
        "binding": method == "POST" and path.endswith("/binding"),
        "deletion": method == "DELETE" and "/pods/" in path,
    }[effect]


@pytest.mark.parametrize("effect", ["nomination", "binding", "deletion"])
async def test_a_leader_that_slept_has_no_further_effect(
    story: Story, second: Service, effect: str
) -> None:
    """Stopped at its first nomination, Binding or deletion: the next leader does it, the sleeper nothing."""
    asleep = asyncio.Event()
    stopping = False

    async def at_the_effect(method: str, path: str) -> web.Response | None:
        nonlocal stopping
        if not is_effect(effect, method, path):
            return None
        if not stopping:
            stopping = True
            # what it has decided to send is on its way by then: nothing can take back what is between check and socket
            await asyncio.sleep(SENT_WITHIN_S)
            os.kill(story.service.pid, signal.SIGSTOP)
            asleep.set()
        await asleep.wait()
        return web.Response(status=503)

    story.server.before = at_the_effect
    if effect == "deletion":
        await story.create(*classes(), *racks("a"), *singles("a0", "a1"))
        await no_pod_is_terminating(story)
        await story.create(*preemptor(topo=RACK))
    else:
        await story.create(*(a_node(f"n{i}", gpu=8) for i in range(4)))
        await story.create(*a_gang("g", pods=4, requests=GPU))
    await eventually(asleep.is_set)
    story.verbs.target = second.verbs_url

    async def leads() -> bool:
        return "reconciled" in (await role_of(second))["names"] and await second.ready()

    await eventually(leads)
    seen, story.server.before = len(story.server.seen), None
    os.kill(story.service.pid, signal.SIGCONT)

    async def knows() -> bool:
        return "held by second" in str((await role_of(story.service))["reason"])

    await story.until(knows)
    await story.until_bound(2 if effect == "deletion" else 4, "hi" if effect == "deletion" else "g")
    await story.until_event("GangScheduled")
    written = [(m, p) for m, p in story.server.seen[seen:] if m in WRITES]
    events = await second.events()
    log_lines = [
        line for line in story.service.log.read_text().splitlines() if '"call"' not in line
    ]
    assert written == [], (written, [f["actor"] for f in events], *log_lines[-12:])
    taken = next(f for f in events if f["type"] == "LeaseAcquired" and f["actor"] == "second")
    assert {f["actor"] for f in events if f["position"] >= taken["position"]} == {"second"}
    assert {f["actor"] for f in events if f["position"] < taken["position"]} == {"e2e"}
    assert await story.service.ready(), "it follows, and answers"
    if effect == "deletion":
        assert not await story.bound("single")
    gone = [f["data"]["uid"] for f in events if f["type"] == "VictimGone"]
    assert len(gone) == len(set(gone)) == (2 if effect == "deletion" else 0)


@pytest.mark.full
async def test_a_kube_scheduler_that_slept_binds_nothing_elsewhere(story: Story) -> None:
    """Its bind calls come after the tree was planned onto other nodes: errors, and then it does what is planned."""
    gate, came = asyncio.Event(), asyncio.Event()

    async def late(method: str, path: str) -> web.Response | None:
        if path.endswith("/bind") and not gate.is_set():
            came.set()
            await gate.wait()
        return None

    story.verbs.before = late
    await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    await eventually(came.is_set)
    scheduler = story.plane.schedulers["scheduler"]
    scheduler.pause()
    try:
        admitted = await story.until_event("GangAdmitted")
        await story.create(a_node("n2", gpu=8), a_node("n3", gpu=8))
        for node in ("n0", "n1"):
            await story.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})

        async def elsewhere() -> (
            bool
        ):  # after the first cordon it may be planned onto n1 and a new node
            again = await story.until_event("GangAdmitted", after=admitted["position"])
            return {a["node"] for a in again["data"]["assignments"]} == {"n2", "n3"}

        await story.until(elsewhere)
    finally:
        scheduler.resume()
    gate.set()
    bound = await story.until_bound(2, "g")
    assert set(bound.values()) == {"n2", "n3"}
    refused = [c["error"] for c in story.service.calls("bind") if c["outcome"] == "refused"]
    assert any("has its reservation on node" in error for error in refused), refused
    await story.check_events()
