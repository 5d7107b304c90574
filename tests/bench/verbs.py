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
from tests.bench.filter_times import MEAN, P99_AT_MOST, PATH, FilterTimes, filter_times
from tests.bench.race import create_all
from tests.bench.sides import ORDINARY, OURS, Shape
from tests.bench.stand import Stand, a_stand
from tests.e2e.scenarios.service import Service
from tests.support.waiting import eventually

HELD = Shape(pods=100)
WARM = 10  # calls that are not counted
JSON = {"Content-Type": "application/json"}


class Times(msgspec.Struct, frozen=True):
    """Many calls: those inside the service, and milliseconds of the round trips in order."""

    inside: FilterTimes
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
    """Write ExtenderArgs as kube-scheduler does (K06)."""
    bare = {key: value for key, value in pod.items() if key not in ("kind", "apiVersion")}
    bare["metadata"] = {k: v for k, v in pod["metadata"].items() if k != "managedFields"}
    return msgspec.json.encode({"Pod": bare, "Nodes": None, "NodeNames": list(names)})


def call_often(service: Service, body: bytes | None, count: int) -> Times:
    """Send the same call over one kept connection; without a body ask /livez."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    around = []

    def inside() -> FilterTimes:
        connection.request("GET", PATH)
        return filter_times(connection.getresponse().read().decode())

    for number in range(count + WARM):
        if number == WARM:  # the first open the connection and warm caches
            before = inside()
        began_s = time.perf_counter()
        if body is None:
            connection.request("GET", "/livez")
        else:
            connection.request("POST", "/scheduler/filter", body, JSON)
        reply = connection.getresponse()
        answer = reply.read()
        if number >= WARM:
            around.append((time.perf_counter() - began_s) * 1000)
        assert reply.status == 200, answer
        assert body is None or not msgspec.json.decode(answer)["Error"], answer
    times = inside().since(before)
    connection.close()
    return Times(times, tuple(around))


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
    yield [figure for what, times in seen.items() for figure in figures_of(what, times, floor)]


def figures_of(what: str, times: Sequence[Times], floor: Sequence[float]) -> Iterator[Figure]:
    """Yield the figures of one call, from several rounds."""
    common: dict[str, Any] = {"bench": "verbs", "unit": "ms", "better": "lower"}
    targets = TARGETS.get(what.startswith("one name,"), {}) if "without" not in what else {}
    inside: dict[str, list[float]] = {
        MEAN: [t.inside.mean_ms for t in times],
        P99_AT_MOST: [t.inside.at_most_ms(0.99) for t in times],
    }
    for label, values in inside.items():
        yield Figure(
            what=f"filter: {what}, inside the service {label}",
            values=tuple(values),
            target=targets.get(label, ""),
            **common,
        )
    for label, part in QUANTILES:
        yield Figure(
            what=f"filter: {what}, round trip {label}",
            values=tuple(quantile(t.around, part) for t in times),
            baseline_name="/livez p50",
            baseline=tuple(floor),
            **common,
        )


# Whether one name is offered -> figure inside the service -> goal
TARGETS = {True: {MEAN: "0.5 ms", P99_AT_MOST: "2 ms"}, False: {MEAN: "3 ms"}}
