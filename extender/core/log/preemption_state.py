"""Preemptions under way: part of the reservation state, and what room they hold.

A preemption is *pending* from `PreemptionPlanned` until it ended (`PreemptionCompleted`,
`PreemptionAbandoned`) and all victims of the units that were begun are gone. A root has one at a time,
so a tree chooses no new victims while old ones are going (SPEC E-2, P15).

The room that the planned assignments need is held for the preemptor from the plan on, also while victims
still sit in it: everybody sees the smaller of what is free now and what will be free when the victims are gone
and the preemptor runs. Who has a higher priority takes it over, recorded (`decisions/outranked`). The hold ends with
the admission of the preemptor (then its reservations hold the room), or with the preemption; of a tree that is
outranked on some nodes the rest is held until the victims that were begun are gone, because it asks again then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from immutables import Map

from extender.core.log.events import (
    PreemptionPlanned,
    RecordedEvent,
    VictimEvicted,
)
from extender.core.model.ids import Epoch, NodeName, PlanId, PodUid, Position, RootUid

SPARED_US: Final = (
    600_000_000  # so long nobody evicts again what comes back under the name of its victim
)
IN_VAIN: Final = (
    "victims-refuse",
    "vetoed",
    "room-lost",
)  # ends after which somebody went for nothing


class Victim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that has to go and is not known to be gone."""

    unit: str  # Kind/namespace/name
    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of its leaf, empty outside of groups
    node: NodeName


class CapacityClaim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Room for one pod of the preemptor, on the node where it is to run."""

    pod: str
    uid: PodUid
    node: NodeName
    requests: dict[str, int]


class PendingPreemption(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pending preemption; the order of `units` and of the victims in it is that of the plan."""

    id: PlanId
    root_uid: RootUid  # of the preemptor; the UID of the pod when that is no member
    root: str  # namespace/name
    kind: str  # CompositePodGroup | PodGroup | Pod
    priority: int
    position: Position  # of the plan
    epoch: Epoch  # under which it was planned
    at_us: int
    progress_us: int  # when a victim last went, or of the plan
    units: tuple[str, ...]  # all that were planned, Kind/namespace/name
    priorities: tuple[int, ...]  # of the units, in the same order
    victims: Map[PodUid, Victim]  # those not known to be gone
    begun: frozenset[str] = frozenset()  # units of which a pod is gone, or may be, by our doing
    evicted: int = 0  # victims that are gone
    claims: Map[NodeName, tuple[CapacityClaim, ...]] = Map()  # empty once admitted or ended
    awaits: frozenset[PodUid] = frozenset()  # terminated already when it was planned
    extras: frozenset[PodUid] = (
        frozenset()
    )  # members it asked for when its minimum was bound already
    ended: bool = False  # completed or abandoned; only begun units are left


BY_US = ("deleted", "evicted", "unseen")  # ways to go after which a unit counts as begun


def planned(event: RecordedEvent, fact: PreemptionPlanned, *, extras: bool) -> PendingPreemption:
    """Begin a preemption."""
    claims: dict[NodeName, list[CapacityClaim]] = {}
    for a in fact.assignments:
        claim = CapacityClaim(pod=a.pod, uid=a.uid, node=a.node, requests=fact.shapes[a.shape])
        claims.setdefault(a.node, []).append(claim)
    victims = {
        pod.uid: Victim(unit=unit.name, pod=pod.pod, uid=pod.uid, group=pod.group, node=pod.node)
        for unit in fact.victims
        for pod in unit.pods
    }
    return PendingPreemption(
        id=fact.preemption,
        root_uid=event.root_uid,
        root=event.root,
        kind=fact.kind,
        priority=fact.priority,
        position=event.position,
        epoch=event.epoch,
        at_us=event.at_us,
        progress_us=event.at_us,
        units=tuple(unit.name for unit in fact.victims),
        priorities=tuple(unit.priority for unit in fact.victims),
        victims=Map(victims),
        claims=Map({node: tuple(found) for node, found in claims.items()}),
        awaits=frozenset(pod.uid for pod in fact.awaits),
        extras=frozenset(a.uid for a in fact.assignments) if extras else frozenset(),
    )


def evicted(
    event: RecordedEvent, before: PendingPreemption, fact: VictimEvicted
) -> PendingPreemption | None:
    """Take a victim off; None when nothing is left to be done."""
    if fact.uid not in before.victims:
        return before
    after = msgspec.structs.replace(
        before,
        victims=before.victims.delete(fact.uid),
        begun=before.begun | {fact.unit} if fact.how in BY_US else before.begun,
        evicted=before.evicted + 1,
        progress_us=event.at_us,
    )
    return None if after.ended and not after.victims else after


def admitted(before: PendingPreemption) -> PendingPreemption:
    """End the hold: reservations of the preemptor hold the room from here on."""
    return msgspec.structs.replace(before, claims=Map())


def completed(before: PendingPreemption) -> PendingPreemption | None:
    """End a preemption that was worth it: what is left of its victims goes all the same."""
    if not before.victims:
        return None
    return msgspec.structs.replace(before, ended=True, claims=Map())


def abandoned(
    before: PendingPreemption, finishing: Iterable[str], *, lost: Collection[NodeName] | None = None
) -> PendingPreemption | None:
    """End a preemption; units that were not begun are spared.

    Args:
        before: What it was.
        finishing: Units that go whole.
        lost: The nodes on which room is held for it no more; None: all of them.
    """
    units = frozenset(finishing) | before.begun
    left = {uid: v for uid, v in before.victims.items() if v.unit in units}
    if not left:
        return None
    kept = {} if lost is None else {n: c for n, c in before.claims.items() if n not in lost}
    return msgspec.structs.replace(
        before, ended=True, claims=Map(kept), begun=units, victims=Map(left)
    )


def claimed_on(preemptions: Iterable[PendingPreemption]) -> Map[NodeName, tuple[RootUid, ...]]:
    """Index who holds room by node."""
    found: dict[NodeName, list[RootUid]] = {}
    for preemption in preemptions:
        for node in preemption.claims:
            found.setdefault(node, []).append(preemption.root_uid)
    return Map({node: tuple(roots) for node, roots in found.items()})
