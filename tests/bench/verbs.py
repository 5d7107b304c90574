"""Filter over HTTP on the wire format of kube-scheduler: time inside the service, and round trip.

The service runs against a real API server with 5,000 nodes; kube-scheduler is not started, so that
reservations stay and there is no other caller. The pods are those of the API server, in the shape that
kube-scheduler sends. The floor of a round trip is /livez on the same connection.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tests.bench.figures import QUANTILES, Figure, Scale, quantile
from tests.bench.race import create_all
from tests.bench.sides import ORDINARY, OURS, Shape
from tests.bench.stand import Stand, a_stand
from tests.e2e.scenarios.service import Service
from tests.support.waiting import eventually

HELD = Shape(pods=100)
JSON = {"Content-Type": "application/json"}


class Times(msgspec.Struct, frozen=True):
    """Milliseconds of many calls, in order."""

    inside: tuple[float, ...]
    around: tuple[float, ...]


async def prepare(stand: Stand, nodes: int) -> dict[str, bytes]:
    """Let the service hold reservations for a gang, and write down the calls to be made."""
    await stand.sweep()
    await stand.fleet(nodes)
    await stand.start_service()
    assert stand.service is not None
    service = stand.service
    async with stand.loader() as api:
        for group in OURS.groups(HELD, stand.minor):
            await api.create(group)
        await create_all(api, list(OURS.pods(HELD)))

        async def admitted() -> list[dict[str, Any]]:
            return await service.events("GangAdmitted")

        event = (await eventually(admitted))[0]

        async def lifted() -> bool:
            pods = (await api.get(f"/api/v1/namespaces/{OURS.namespace}/pods"))["items"]
            return not any(pod["spec"].get("schedulingGates") for pod in pods)

        await eventually(lifted)
        # One more of the gang than it may have: a member without a reservation.
        waiting = OURS.pod("late", "g-late")
        outside = ORDINARY.pod("outside", "")
        made = [await api.create(pod) for pod in (waiting, outside)]
        first = event["data"]["assignments"][0]
        namespace, _, name = first["pod"].partition("/")
        member = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    names = [f"n{number:05}" for number in range(nodes)]
    return {
        "one name, reservation exists": filter_body(member, [first["node"]]),
        f"{nodes:,} names, pod outside all groups": filter_body(made[1], names),
        f"{nodes:,} names, member without a place": filter_body(made[0], names),
    }


def filter_body(pod: dict[str, Any], names: Sequence[str]) -> bytes:
    """Write ExtenderArgs as kube-scheduler does (EXTENDER 1.2)."""
    bare = {key: value for key, value in pod.items() if key not in ("kind", "apiVersion")}
    bare["metadata"] = {k: v for k, v in pod["metadata"].items() if k != "managedFields"}
    return msgspec.json.encode({"Pod": bare, "Nodes": None, "NodeNames": list(names)})


def call_often(service: Service, body: bytes | None, count: int) -> Times:
    """Send the same call over one kept connection; without a body ask /livez."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    known = len(service.calls("filter"))
    around = []
    for number in range(count + 10):
        began_s = time.perf_counter()
        if body is None:
            connection.request("GET", "/livez")
        else:
            connection.request("POST", "/scheduler/filter", body, JSON)
        reply = connection.getresponse()
        answer = reply.read()
        if number >= 10:  # the first open the connection and warm caches
            around.append((time.perf_counter() - began_s) * 1000)
        assert reply.status == 200, answer
        assert body is None or not msgspec.json.decode(answer)["Error"], answer
    connection.close()
    lines = service.calls("filter")[known + 10 :]
    return Times(tuple(line["total_ms"] for line in lines), tuple(around))


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure all calls in turns."""
    if not scale.wants("verbs", "filter"):
        return
    nodes, count, rounds = (200, 50, 2) if scale.quick else (5000, 500, scale.rounds)
    print(f"verbs: about {1 + rounds} min", flush=True)
    stand = a_stand()
    seen: dict[str, list[Times]] = {}
    floor: list[float] = []
    try:
        bodies = asyncio.run(prepare(stand, nodes))
        assert stand.service is not None
        for _ in range(rounds):
            floor.append(quantile(call_often(stand.service, None, count).around, 0.5))
            for what, body in bodies.items():
                seen.setdefault(what, []).append(call_often(stand.service, body, count))
    finally:
        asyncio.run(stand.stop())
        asyncio.run(stand.sweep())
    yield [
        Figure(
            bench="verbs",
            what=f"filter: {what}, {place} {label}",
            unit="ms",
            better="lower",
            values=tuple(quantile(getattr(t, field), part) for t in times),
            baseline_name="/livez p50" if field == "around" else "",
            baseline=tuple(floor) if field == "around" else (),
            target=TARGETS.get((what.split(",")[0] == "one name", field, label), "")
            if "without" not in what
            else "",
        )
        for what, times in seen.items()
        for field, place in (("inside", "inside the service"), ("around", "round trip"))
        for label, part in QUANTILES
    ]


TARGETS = {
    (True, "inside", "p50"): "0.5 ms",
    (True, "inside", "p99"): "2 ms",
    (False, "inside", "p50"): "3 ms",
}
