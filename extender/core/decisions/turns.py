"""Whose turn it is to be let go, where kube-scheduler judges members by those that it has placed already.

A member that must be near other pods comes after the rest of its tree. Members that are spread come level by
level: a domain gets its next one when no domain that still gets some has fewer. Any placement
that keeps a skew can be reached so, one pod after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from extender.core.ids import NodeName, PodUid
from extender.core.pods import Pod, PodRule
from extender.core.state import Reservation, ReservationState
from extender.core.view import ClusterView


class _Levels(msgspec.Struct):
    """Pods per domain that one spread rule counts."""

    arrived: Counter[str]  # assigned, or at bind: kube-scheduler counts them
    coming: Counter[str]  # let go, and not there yet
    waiting: Counter[str]


def comes_later(
    view: ClusterView,
    state: ReservationState,
    reservation: Reservation,
    at_bind: Callable[[PodUid], bool],
) -> bool:
    """Say whether a member needs other pods, and some of its tree are still on their way."""
    pod = view.pods.get(reservation.uid)
    if pod is None or not pod.shape.needs_pods:
        return False
    mates = (view.pods.get(uid) for uid in state.roots[reservation.root_uid].held)
    return any(
        mate is not None
        and mate.node is None
        and not mate.shape.needs_pods
        and not at_bind(mate.uid)
        for mate in mates
    )


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
