"""Pending preemptions and their capacity claims: part of the reservation state.

A preemption is *pending* from `PreemptionPlanned` until it ended (`PreemptionCompleted`,
`PreemptionCancelled`) and all victims of the units that were begun are gone. A unit is *begun* when one
of its pods was evicted. A root has one preemption at a time, so a tree chooses no new victims while
earlier ones terminate (E-2, P15).

The capacity of the planned assignments is claimed for the preemptor from the plan on, also while victims still use
it: for all other pods a node has the smaller of what is free now and what will be free when the victims are gone and
the preemptor runs. A preemptor of higher priority can take the claim over (`core/preempt/preemption_takeover`).
The claim ends with the admission of the preemptor, whose reservations then hold the capacity, or with the preemption.
After a takeover on some nodes the claims of a tree on the other nodes stay until the begun victims are gone, because
the tree is planned again then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from immutables import Map

from extender.core.log.capacity_claim import CapacityClaim, planned_claims
from extender.core.log.events import (
    GangRemoved,
    MemberTerminated,
    PodBound,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
)
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.message_formatting import counted
from extender.core.model.visibility import is_hidden

# For this time a preemptor does not evict a unit of the same name again, and a victim that is gone is remembered.
EVICTION_MEMORY_US: Final = 600_000_000
# Reasons after which the preemptor did not get the freed capacity.
FAILED_REASONS: Final = ("deletion-rejected", "node-rejected", "capacity-lost")
# Reasons of a cancelled preemption after which evictions were not in vain: others run there, or the preemptor runs elsewhere.
NOT_IN_VAIN: Final = ("taken-over", "no-longer-needed")
# A completed one was in vain when each member that was bound for it ran for less, see `PreemptorRun`.
RAN_BRIEFLY_US: Final = 60_000_000
# Values of `VictimGone.via` after which a unit counts as begun.
EVICTED_BY_EXTENDER: Final = ("deleted", "evicted", "unobserved")


class Victim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that is to be evicted and is not known to be gone."""

    unit: str  # Kind/namespace/name
    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of its leaf, empty outside of groups
    node: NodeName


class EvictedPod(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A victim that is gone, for the end of the member that it was, which may be recorded later."""

    preemptor: str  # Kind/namespace/name
    position: Position  # of the plan
    gone_us: int
    priority: int = 0  # of the preemptor
    pods: int = 0  # of the preemptor that the plan places; 0: not known


NO_PREEMPTOR: Final = EvictedPod("", Position(0), 0)


class PendingPreemption(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pending preemption; `units` and the victims of a unit are in the order of the plan."""

    id: PlanId
    gang_uid: GangUid  # of the preemptor; the UID of the pod if that is an unmanaged pod
    gang: str  # namespace/name
    kind: str  # CompositePodGroup | PodGroup | Pod
    priority: int
    position: Position  # of the plan
    epoch: Epoch  # under which it was planned
    at_us: int
    progress_us: int  # when the last victim was gone, or when it was planned
    units: tuple[str, ...]  # all planned units, Kind/namespace/name
    priorities: tuple[int, ...]  # of the units, in the same order
    victims: Map[PodUid, Victim]  # victims not known to be gone
    started_units: frozenset[str] = frozenset()  # units of which we evicted a pod, or may have
    evicted: int = 0  # victims that are gone
    claims: Map[NodeName, tuple[CapacityClaim, ...]] = Map()  # empty once admitted or ended
    # Pods that already terminated when it was planned.
    already_terminating: frozenset[PodUid] = frozenset()
    # Extra members that it was planned for, after the minimum of the preemptor was bound.
    extras: frozenset[PodUid] = frozenset()
    ended: bool = False  # completed or cancelled; only victims of begun units are left
    pods: int = 0  # of the preemptor that the plan places; 0: not known

    @property
    def gives_up(self) -> bool:
        """Return whether a gang evicts itself, to be placed anew (D26)."""
        return self.units == (f"{self.kind}/{self.gang}",)

    @property
    def preemptor(self) -> str:
        """Return `Kind/namespace/name` of the preemptor, or what stands for it where its name is hidden."""
        return self.gang if is_hidden(self.gang) else f"{self.kind}/{self.gang}"


class PreemptorRun(msgspec.Struct):
    """How long the members ran that were bound for a preemptor: event by event of its gang, from its plan on.

    These are the members that were bound until the preemption was completed. Each ran from its binding to its end, or to the
    end of its gang. The report *lost-work* computes the same in SQL.
    """

    completed: bool = False
    longest_us: int = 0  # that one of the members that have ended ran
    bound_us: dict[PodUid, int] = {}  # when the members were bound that still run

    def follow(self, event: RecordedEvent) -> None:
        """Take the next event of the gang."""
        ended: list[PodUid] = []
        match event.data:
            case PodBound() as data if not self.completed:
                self.bound_us[data.uid] = event.at_us
            case PreemptionCompleted():
                self.completed = True
            case MemberTerminated() as data if data.uid in self.bound_us:
                ended = [data.uid]
            case GangRemoved():
                ended = [*self.bound_us]
            case _:
                pass
        for uid in ended:
            self.longest_us = max(self.longest_us, event.at_us - self.bound_us.pop(uid))

    @property
    def was_brief(self) -> bool:
        """Return whether the preemption is completed, and each member has ended after less than a minute."""
        return self.completed and not self.bound_us and self.longest_us < RAN_BRIEFLY_US

    def lasts(self, now_us: int) -> bool:
        """Return whether a member runs, or ran, for a minute."""
        running_us = max((now_us - at_us for at_us in self.bound_us.values()), default=0)
        return self.completed and max(self.longest_us, running_us) >= RAN_BRIEFLY_US


def planned(event: RecordedEvent, data: PreemptionPlanned, *, extras: bool) -> PendingPreemption:
    """Return the preemption that `PreemptionPlanned` starts."""
    claims: dict[NodeName, list[CapacityClaim]] = {}
    planned_for = planned_claims(
        "preemption", data.preemption, event.gang_uid, data, at_us=event.at_us
    )
    for claim in planned_for:
        claims.setdefault(claim.node, []).append(claim)
    victims = {
        pod.uid: Victim(unit=unit.name, pod=pod.pod, uid=pod.uid, group=pod.group, node=pod.node)
        for unit in data.victims
        for pod in unit.pods
    }
    return PendingPreemption(
        id=data.preemption,
        gang_uid=event.gang_uid,
        gang=event.gang,
        kind=data.kind,
        priority=data.priority,
        position=event.position,
        epoch=event.epoch,
        at_us=event.at_us,
        progress_us=event.at_us,
        units=tuple(unit.name for unit in data.victims),
        priorities=tuple(unit.priority for unit in data.victims),
        victims=Map(victims),
        claims=Map({node: tuple(on_node) for node, on_node in claims.items()}),
        already_terminating=frozenset(pod.uid for pod in data.already_terminating),
        extras=frozenset(a.uid for a in data.assignments) if extras else frozenset(),
        pods=len(data.assignments),
    )


def evicted_pod(event: RecordedEvent, preemption: PendingPreemption) -> EvictedPod:
    """Return what is remembered of a victim whose `VictimGone` is the event."""
    return EvictedPod(
        f"{preemption.kind}/{preemption.gang}",
        preemption.position,
        event.at_us,
        preemption.priority,
        preemption.pods,
    )


def recently_gone(pods: Map[PodUid, EvictedPod], now_us: int) -> Map[PodUid, EvictedPod]:
    """Return the victims that are gone for less than `EVICTION_MEMORY_US`."""
    old = [uid for uid, pod in pods.items() if now_us - pod.gone_us >= EVICTION_MEMORY_US]
    if not old:
        return pods
    kept = pods.mutate()
    for uid in old:
        del kept[uid]
    return kept.finish()


def evicted(
    event: RecordedEvent, before: PendingPreemption, data: VictimGone
) -> PendingPreemption | None:
    """Return the preemption without a victim that is gone; None when it is over."""
    if data.uid not in before.victims:
        return before
    started_units = before.started_units
    if data.via in EVICTED_BY_EXTENDER:
        started_units |= {data.unit}
    after = msgspec.structs.replace(
        before,
        victims=before.victims.delete(data.uid),
        started_units=started_units,
        evicted=before.evicted + 1,
        progress_us=event.at_us,
    )
    return None if after.ended and not after.victims else after


def admitted(before: PendingPreemption) -> PendingPreemption:
    """Return the preemption without its claims: the reservations of the preemptor replace them."""
    return msgspec.structs.replace(before, claims=Map())


def completed(before: PendingPreemption) -> PendingPreemption | None:
    """Return a completed preemption; the remaining victims are still evicted. None when there are none."""
    if not before.victims:
        return None
    return msgspec.structs.replace(before, ended=True, claims=Map())


def cancelled(
    before: PendingPreemption, finishing: Iterable[str], *, lost: Collection[NodeName] | None = None
) -> PendingPreemption | None:
    """Return a cancelled preemption without the units that were not begun; None when no victim is left.

    Args:
        finishing: Units that are evicted whole.
        lost: The nodes on which its claims end; None: all nodes.
    """
    units = frozenset(finishing) | before.started_units
    left = {uid: v for uid, v in before.victims.items() if v.unit in units}
    if not left:
        return None
    kept = {} if lost is None else {n: c for n, c in before.claims.items() if n not in lost}
    return msgspec.structs.replace(
        before, ended=True, claims=Map(kept), started_units=units, victims=Map(left)
    )


def preemption_summary(data: PreemptionPlanned) -> str:
    """Return whose capacity a preemption uses, as text; the SQL function `gx.preempting_message` returns the same."""
    units = len(data.victims)
    pods = sum(len(unit.pods) for unit in data.victims)
    if units and not data.assignments:
        return f"evicts its own {counted(pods, 'pod')}, to be placed anew"
    parts = []
    if units:
        parts.append(
            f"{counted(pods, 'pod')} of {counted(units, 'disruption unit')} of lower priority"
        )
    if data.already_terminating:
        parts.append(f"{counted(len(data.already_terminating), 'pod')} on the way out")
    if data.superseded:
        parts.append(f"reservations of {counted(len(data.superseded), 'tree')} of lower priority")
    return f"uses the capacity of {', '.join(parts)}" if parts else "the capacity is free"
