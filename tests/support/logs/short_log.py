"""A short log with known positions and times, for tests of queries about the past.

| position | seconds | event |
|---|---|---|
| 1 | 0 | the lease |
| 2 | 10 | ns/low observed |
| 3 | 10 | ns/low admitted: a on n1 (rack r1), b on n2 (rack r2), 2 GPUs each |
| 4 | 20 | a bound |
| 5 | 30 | b bound |
| 6 | 30 | ns/low satisfied |
| 7 | 40 | other/high observed |
| 8 | 50 | other/high unschedulable: no capacity |
| 9 | 60 | other/high preempts a; its pod h is promised n1 |
| 10 | 70 | a evicted |
| 11 | 70 | a lost |
| 12 | 80 | other/high admitted: h on n1 |
| 13 | 90 | ns/stray: x bound to n9, past us |
| 14 | 100 | ns/low completed |
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    LeaseAcquired,
    MemberTerminated,
    PodBound,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.model.ids import NIL_GANG, Epoch, GangUid, NodeName, PlanId, PodUid, Position

START_US = 1_790_000_000_000_000  # 2026-09-21T14:13:20Z
GPUS = {"nvidia.com/gpu": 2, "pods": 1}
RACK = "rack"


def at_us(seconds: float) -> int:
    """Return a moment of the story in microseconds since 1970."""
    return START_US + int(seconds * 1e6)


def admitted(name: str, **places: str) -> GangAdmitted:
    """Admit a PodGroup; keywords are pods and their nodes."""
    racks = {NodeName(node): {RACK: node.replace("n", "r")} for node in places.values()}
    return GangAdmitted(
        plan=PlanId(f"plan-{name}"), kind="PodGroup", priority=5 if name == "high" else 1,
        groups=(GroupRecord(kind="PodGroup", name=name, minimum=len(places), members=len(places)),),
        shapes=(GPUS,), topology=racks,
        assignments=tuple(
            AssignmentRecord(pod=f"ns/{pod}", uid=PodUid(pod), group=name, node=NodeName(node))
            for pod, node in places.items()
        ),
    )  # fmt: skip


def bound(name: str, pod: str, node: str, plan: str = "") -> PodBound:
    return PodBound(
        plan=PlanId(plan or f"plan-{name}"), pod=f"ns/{pod}", uid=PodUid(pod), node=NodeName(node), group=name
    )  # fmt: skip


def events() -> list[tuple[float, str, object]]:
    victim = VictimPod(pod="ns/a", uid=PodUid("a"), node=NodeName("n1"), group="low")
    unit = VictimUnit(kind="Pod", path="ns/a", uid="a", priority=1, pods=(victim,))
    plan = PreemptionPlanned(
        preemption=PlanId("preemption"), kind="PodGroup", priority=5, victims=(unit,), cost={},
        alternatives=(), shapes=(GPUS,),
        assignments=(
            AssignmentRecord(pod="other/h", uid=PodUid("h"), group="high", node=NodeName("n1")),
        ),
    )  # fmt: skip
    gone = VictimGone(
        preemption=PlanId("preemption"), unit="Pod/ns/a", pod="ns/a", uid=PodUid("a"),
        node=NodeName("n1"), via="deleted", requested_us=at_us(61), gone_us=at_us(70),
    )  # fmt: skip
    lost = MemberTerminated(pod="ns/a", uid=PodUid("a"), node=NodeName("n1"), cause="deleted")
    return [
        (0, "", LeaseAcquired(holder="me", address="")),
        (10, "ns/low", GangObserved(kind="PodGroup", priority=1, members=2)),
        (10, "ns/low", admitted("low", a="n1", b="n2")),
        (20, "ns/low", bound("low", "a", "n1")),
        (30, "ns/low", bound("low", "b", "n2")),
        (30, "ns/low", GangScheduled(plan=PlanId("plan-low"), bound=2)),
        (40, "other/high", GangObserved(kind="PodGroup", priority=5, members=1)),
        (
            50,
            "other/high",
            GangUnschedulable(outcome="impossible", reasons=("no node has 2 GPUs",)),
        ),
        (60, "other/high", plan),
        (70, "other/high", gone),
        (70, "ns/low", lost),
        (80, "other/high", admitted("high", h="n1")),
        (90, "ns/stray", bound("stray", "x", "n9", plan="-")),
        (100, "ns/low", GangRemoved(reason="deleted")),
    ]


def story() -> Iterator[RecordedEvent]:
    """Return the events of the story."""
    versions: dict[GangUid, int] = {}
    for number, (seconds, root, data) in enumerate(events(), start=1):
        uid = GangUid(f"uid-of-{root}") if root else NIL_GANG
        versions[uid] = versions.get(uid, 0) + 1
        yield RecordedEvent(
            position=Position(number), event_id=str(UUID(int=number)), epoch=Epoch(1), at_us=at_us(seconds),
            gang_uid=uid, stream_version=versions[uid], gang=root, actor="me", cause="", data=data,
        )  # fmt: skip
