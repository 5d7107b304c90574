"""Order of gate removal, for members whose scheduling depends on members that kube-scheduler has placed already.

- A member for which kube-scheduler binds volumes or allocates claims comes after the other members of its gang,
  because this happens before bind and cannot be undone (K35). It has arrived when kube-scheduler offers its node.
- A member with required pod affinity comes after the rest of its tree.
- Members with a spread rule come level by level: a domain gets its next member when no domain that still gets
  members has fewer. Every placement that respects the skew can be reached in this way, one pod after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from extender.core.log.gang_phase import barrier_unit
from extender.core.log.reservation_state import GangState, Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.pods import Pod, PodRule, PodShape


class _Levels(msgspec.Struct):
    """Number of pods per domain that one spread rule counts."""

    arrived: Counter[str]  # assigned, or at bind: kube-scheduler counts them
    coming: Counter[str]  # gate removed, not yet at bind
    waiting: Counter[str]


FIRST, COMMITTING, NEEDING, DONE = range(4)


def stage_of(shape: PodShape) -> int:
    """Return the stage in which the gate of a member is removed."""
    if shape.has_pod_affinity:
        return NEEDING
    return COMMITTING if shape.commits else FIRST


class GateRemovalStages:
    """The stages of trees at one instant: the lowest stage with a member that has not arrived."""

    def __init__(
        self, view: ClusterView, state: ReservationState, arrived: Callable[[PodUid], bool]
    ) -> None:
        """Create an empty cache; `arrived`: returns whether kube-scheduler has placed a member."""
        self._view = view
        self._state = state
        self._arrived = arrived
        self._reached: dict[GangUid, dict[object, int]] = {}

    def must_wait(self, reservation: Reservation) -> bool:
        """Return whether a member must wait for members of its gang, or of its whole tree if it has pod affinity."""
        pod = self._view.pods.get(reservation.uid)
        stage = stage_of(pod.shape) if pod is not None else FIRST
        if stage == FIRST:
            return False
        root = self._state.gangs[reservation.gang_uid]
        reached = self._reached.get(root.uid)
        if reached is None:
            reached = self._reached[root.uid] = self._look(root)
        whole = None if stage == NEEDING else unit_key(root, reservation.group)
        return reached.get(whole, DONE) < stage

    def _look(self, root: GangState) -> dict[object, int]:
        """Return the lowest stage with a member that has not arrived, by barrier unit, and for the tree (None)."""
        units: dict[str, object] = {}
        reached: dict[object, int] = {}
        for uid, reservation in root.reservations.items():
            mate = self._view.pods.get(uid)
            if mate is None or mate.node is not None or self._arrived(uid):
                continue
            leaf, stage = reservation.group, stage_of(mate.shape)
            if leaf not in units:
                units[leaf] = unit_key(root, leaf)
            for key in (units[leaf], None):
                reached[key] = min(stage, reached.get(key, DONE))
        return reached


def unit_key(root: GangState, leaf: str) -> tuple[str, str] | None:
    """Return kind and name of the barrier unit of a leaf; None for a leaf that is not in the newest admission."""
    try:
        unit = barrier_unit(root.groups, leaf)
    except KeyError:
        return None
    return unit.kind, unit.name


def spread_rules(view: ClusterView, reservation: Reservation) -> tuple[PodRule, ...]:
    """Return the spread rules of a member."""
    pod = view.pods.get(reservation.uid)
    return tuple(r for r in pod.shape.rules if r.kind == "spread") if pod is not None else ()


def next_to_release(
    view: ClusterView,
    waiting: Sequence[Reservation],
    ungated: Collection[Reservation],
    at_bind: Callable[[PodUid], bool],
) -> tuple[Reservation, ...]:
    """Return the members with spread rules whose gate may be removed now.

    Args:
        waiting: Reservations of one or more trees whose members still have the gate.
        ungated: Reservations whose members have no gate any more and are not assigned yet.
        at_bind: Returns whether a member is at the bind barrier: kube-scheduler counts it on its node.
    """

    def levels_of(rule: PodRule) -> _Levels:
        def count(nodes: Iterable[NodeName]) -> Counter[str]:
            return Counter(v for node in nodes if (v := _value(view, rule, node)) is not None)

        def counted(pod: Pod | None) -> bool:
            return pod is not None and not pod.deleting and rule.match(pod.namespace, pod.labels)

        assigned = (pod.node for pod in view.pods.values() if pod.node is not None and counted(pod))
        released = [r for r in ungated if counted(view.pods.get(r.uid))]
        return _Levels(
            arrived=count(assigned) + count(r.node for r in released if at_bind(r.uid)),
            coming=count(r.node for r in released if not at_bind(r.uid)),
            waiting=count(r.node for r in waiting if counted(view.pods.get(r.uid))),
        )

    rules = {rule for reservation in waiting for rule in spread_rules(view, reservation)}
    levels = {rule: levels_of(rule) for rule in rules}
    chosen = []
    for reservation in waiting:
        domains = [
            (levels[rule], rule.skew, value)
            for rule in spread_rules(view, reservation)
            if (value := _value(view, rule, reservation.node)) is not None
        ]
        if all(_may_rise(level, skew, value) for level, skew, value in domains):
            chosen.append(reservation)
            for level, _, value in domains:
                level.coming[value] += 1
                level.waiting[value] -= 1
    return tuple(chosen)


def _may_rise(level: _Levels, skew: int, value: str) -> bool:
    growing = +(level.waiting + level.coming)
    lowest = min((level.arrived[v] for v in growing), default=level.arrived[value])
    return level.arrived[value] + level.coming[value] < lowest + skew


def _value(view: ClusterView, rule: PodRule, name: NodeName) -> str | None:
    node = view.nodes.get(name)
    return node.labels.get(rule.keys[0]) if node is not None else None
