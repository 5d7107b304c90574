"""Whose turn it is to be let go, where kube-scheduler judges members by those that it has placed already.

A member for which kube-scheduler commits volumes or claims comes after those of its gang that need none, because
that happens before bind and cannot be taken back (DESIGN 9.7); it has arrived once kube-scheduler offers it its node.
A member that must be near other pods comes after the rest of its tree. Members that are spread come level by
level: a domain gets its next one when no domain that still gets some has fewer. Any placement
that keeps a skew can be reached so, one pod after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
    barrier_unit,
)
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName, PodUid, RootUid
from extender.core.model.pods import Pod, PodRule, PodShape


class _Levels(msgspec.Struct):
    """Pods per domain that one spread rule counts."""

    arrived: Counter[str]  # assigned, or at bind: kube-scheduler counts them
    coming: Counter[str]  # let go, and not there yet
    waiting: Counter[str]


FIRST, COMMITTING, NEEDING, DONE = range(4)


def stage_of(shape: PodShape) -> int:
    """Say in which stage of its tree a member is let go; who needs pods needs those that commit as well."""
    if shape.needs_pods:
        return NEEDING
    return COMMITTING if shape.commits else FIRST


class GateRemovalStages:
    """How far trees have come at one moment: in which stage somebody is still on his way."""

    def __init__(
        self, view: ClusterView, state: ReservationState, arrived: Callable[[PodUid], bool]
    ) -> None:
        """Prepare.

        Args:
            view: The cluster.
            state: What is held.
            arrived: Says whether kube-scheduler has placed a member.
        """
        self._view = view
        self._state = state
        self._arrived = arrived
        self._reached: dict[RootUid, dict[object, int]] = {}

    def comes_later(self, reservation: Reservation) -> bool:
        """Say whether a member waits until others have come: of its gang, or of its tree where it needs pods."""
        pod = self._view.pods.get(reservation.uid)
        stage = stage_of(pod.shape) if pod is not None else FIRST
        if stage == FIRST:
            return False
        root = self._state.roots[reservation.root_uid]
        reached = self._reached.get(root.uid)
        if reached is None:
            reached = self._reached[root.uid] = self._look(root)
        whole = None if stage == NEEDING else unit_key(root, reservation.group)
        return reached.get(whole, DONE) < stage

    def _look(self, root: GangState) -> dict[object, int]:
        """Give the lowest stage that somebody is on his way in, by unit of the barrier, and of the tree (None)."""
        units: dict[str, object] = {}
        reached: dict[object, int] = {}
        for uid, reservation in root.held.items():
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
    """Give kind and name of the group whose barrier a leaf has; None for one that the newest admission did not see."""
    try:
        unit = barrier_unit(root.groups, leaf)
    except KeyError:
        return None
    return unit.kind, unit.name


def spread_rules(view: ClusterView, reservation: Reservation) -> tuple[PodRule, ...]:
    """Give the rules by which a member takes turns."""
    pod = view.pods.get(reservation.uid)
    return tuple(r for r in pod.shape.rules if r.kind == "spread") if pod is not None else ()


def whose_turn(
    view: ClusterView,
    waiting: Sequence[Reservation],
    gone: Collection[Reservation],
    at_bind: Callable[[PodUid], bool],
) -> tuple[Reservation, ...]:
    """Choose among members that are spread those that may be let go now.

    Args:
        view: The cluster.
        waiting: Of one or more trees, none of them let go yet.
        gone: Reservations whose members were let go and are not assigned yet.
        at_bind: Says whether a member is at the barrier: kube-scheduler counts it on its node.
    """
    rules = {rule for reservation in waiting for rule in spread_rules(view, reservation)}
    levels = {rule: _levels(view, rule, waiting, gone, at_bind) for rule in rules}
    chosen = []
    for reservation in waiting:
        mine = [
            (levels[rule], rule.skew, value)
            for rule in spread_rules(view, reservation)
            if (value := _value(view, rule, reservation.node)) is not None
        ]
        if all(_may_rise(level, skew, value) for level, skew, value in mine):
            chosen.append(reservation)
            for level, _, value in mine:
                level.coming[value] += 1
                level.waiting[value] -= 1
    return tuple(chosen)


def _may_rise(level: _Levels, skew: int, value: str) -> bool:
    growing = +(level.waiting + level.coming)
    lowest = min((level.arrived[v] for v in growing), default=level.arrived[value])
    return level.arrived[value] + level.coming[value] < lowest + skew


def _levels(
    view: ClusterView,
    rule: PodRule,
    waiting: Iterable[Reservation],
    gone: Iterable[Reservation],
    at_bind: Callable[[PodUid], bool],
) -> _Levels:
    def count(nodes: Iterable[NodeName]) -> Counter[str]:
        return Counter(v for node in nodes if (v := _value(view, rule, node)) is not None)

    def meant(pod: Pod | None) -> bool:
        return pod is not None and not pod.deleting and rule.match(pod.namespace, pod.labels)

    assigned = (pod.node for pod in view.pods.values() if pod.node is not None and meant(pod))
    ours = [r for r in gone if meant(view.pods.get(r.uid))]
    return _Levels(
        arrived=count(assigned) + count(r.node for r in ours if at_bind(r.uid)),
        coming=count(r.node for r in ours if not at_bind(r.uid)),
        waiting=count(r.node for r in waiting if meant(view.pods.get(r.uid))),
    )


def _value(view: ClusterView, rule: PodRule, name: NodeName) -> str | None:
    node = view.nodes.get(name)
    return node.labels.get(rule.keys[0]) if node is not None else None
