"""Convert a `ReservationState`, or the difference between two, to the form of the API (`state_dto`); `gang_status` has that of a gang."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter

from extender.core.log.control_plane_features import dropped_field_texts
from extender.core.log.events import ControlPlaneFeaturesDetected
from extender.core.log.reservation_state import (
    CapacityHold,
    GangState,
    PendingPreemption,
    ReservationState,
    claims_of,
)
from extender.core.log.visible_state import visible_state
from extender.core.model.ids import GangUid, NodeName
from extender.core.model.message_formatting import rfc3339
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of
from extender.queries.state import state_dto
from extender.queries.state.gang_status import (
    BY_POD,
    CLAIM_STATES,
    NOTHING,
    PENDING,
    RootKey,
    RootWorkload,
    claims_at,
    gang_at,
    gang_status,
    workloads_of_roots,
)

_BY_GANG = attrgetter("gang", "uid")
_NO_PLACE: tuple[str, None] = ("", None)
ORDINARY = "Ordinary pods are not in the log: their usage of a node at that time, and what was free, are not known."


def build_state_report(
    whole: ReservationState, scope: state_dto.Scope, readers: Visibility = EVERYTHING
) -> state_dto.StateReport:
    """Return the requested part of a state.

    With a node or a domain: the gangs that have something there, with all their members, and only those nodes. With a
    namespace or states: its gangs or those in one of them, and their part of nodes.

    Args:
        readers: What the caller sees; of other gangs nodes have the sums by state and priority.
    """
    state = visible_state(whole, readers)
    labels = topology_of(whole, scope.node)
    nodes_asked = _wanted_nodes(scope, labels)
    roots = _roots(state, scope, nodes_asked)
    preemptions = _preemptions(state, scope, nodes_asked)
    made_for = workloads_of_roots(state.trees.values())
    selected = {root.uid for root in roots}
    if scope.states:
        preemptions = [preemption for preemption in preemptions if preemption.gang_uid in selected]
    gangs = sorted((gang_at(root, made_for) for root in roots), key=_BY_GANG)
    others: Mapping[str, tuple[state_dto.OthersAt, ...]] = {}
    if not (readers.everything or scope.namespace or scope.states):
        others = _others(whole, readers, nodes_asked)
    holds = _holds(state, roots, nodes_asked)
    claims = [
        *((p.gang, claims_at(claims_of((), [p], ()))) for p in preemptions),
        *((root.gang, claims_at(root.replacement_holds.values())) for root in roots),
        *((hold.gang, claims_at(hold.pods)) for hold in holds),
    ]
    for claim in claims_of((), (), (), whole.moves):
        mover = state.gangs.get(claim.gang_uid)
        is_asked = (
            claim.node in nodes_asked if nodes_asked is not None else claim.gang_uid in selected
        )
        if mover is not None and is_asked:
            claims.append((mover.gang, claims_at([claim])))
    nodes = _nodes(gangs, claims, labels, nodes_asked, others)
    totals = state_dto.Totals(
        gangs=len(gangs),
        pending=sum(g.state in PENDING for g in gangs),
        reserved=sum(g.reserved for g in gangs),
        bound=sum(g.bound for g in gangs),
        nodes=len(nodes),
    )
    return state_dto.StateReport(
        totals=totals,
        gangs=gangs,
        nodes=nodes,
        preemptions=[_preemption_at(p) for p in preemptions],
        control_plane=_control_plane(state.features),
        limitations=_not_known(roots, scope),
        capacity_holds=[_hold_at(hold) for hold in holds],
    )


def _control_plane(
    detected: ControlPlaneFeaturesDetected | None,
) -> state_dto.ControlPlaneAt | None:
    if detected is None:
        return None
    return state_dto.ControlPlaneAt(
        served=list(detected.served),
        dropped_fields=dropped_field_texts(detected),
        untested=list(detected.untested),
        admission_policy=detected.admission_policy,
        native_group_scheduling=detected.native_group_scheduling,
        message=detected.message,
    )


def compare(
    before: ReservationState,
    after: ReservationState,
    scope: state_dto.Scope,
    readers: Visibility = EVERYTHING,
) -> state_dto.StateDifference:
    """Return the differences between two states, for gangs that are in the requested part of either, and that readers see."""
    labels = [topology_of(state) if scope.domain else {} for state in (before, after)]
    before, after = visible_state(before, readers), visible_state(after, readers)
    uids: dict[GangUid, None] = {}
    for state, named in zip((before, after), labels, strict=True):
        nodes = _wanted_nodes(scope, named)
        uids |= dict.fromkeys(root.uid for root in _roots(state, scope, nodes))
    gangs: list[state_dto.GangChange] = []
    members: list[state_dto.MemberChange] = []
    made_for = [workloads_of_roots(state.trees.values()) for state in (before, after)]
    for uid in uids:
        old, new = before.gangs.get(uid), after.gangs.get(uid)
        newest = new or old
        assert newest is not None
        was, now = _brief(old, made_for[0]), _brief(new, made_for[1])
        if was != now:
            change = "new" if was is None else "removed" if now is None else "changed"
            gangs.append(
                state_dto.GangChange(
                    gang=newest.gang, uid=uid, change=change, before=was, after=now
                )
            )
        members += _moves(newest, old, new)
    gangs.sort(key=_BY_GANG)
    members.sort(key=BY_POD)
    roots = [root for uid in uids if (root := after.gangs.get(uid)) is not None]
    return state_dto.StateDifference(
        gangs=gangs, members=members, limitations=_not_known(roots, scope)
    )


def topology_of(
    state: ReservationState, node: NodeName | None = None
) -> Mapping[NodeName, dict[str, str]]:
    """Return the recorded labels of nodes; of different records, that of the newest admission.

    A label that was removed from a node has an empty value.
    """
    by_node: dict[NodeName, dict[str, str]] = {}
    roots = [root for root in state.gangs.values() if not node or node in root.topology]
    for root in sorted(roots, key=lambda r: (r.admitted_us, r.uid)):
        for name, labels in root.topology.items():
            by_node[name] = by_node[name] | labels if name in by_node else labels
    return by_node


def _wanted_nodes(
    scope: state_dto.Scope, labels: Mapping[NodeName, dict[str, str]]
) -> frozenset[NodeName] | None:
    """Return the requested nodes, or None for all."""
    if scope.node:
        return frozenset({scope.node})
    if scope.domain:
        return frozenset(n for n, has in labels.items() if scope.domain.items() <= has.items())
    return None


def _roots(
    state: ReservationState, scope: state_dto.Scope, nodes: frozenset[NodeName] | None
) -> list[GangState]:
    promised = {p.gang_uid for p in _preemptions(state, scope, nodes)} if nodes is not None else ()
    made_for = workloads_of_roots(state.trees.values()) if scope.states else {}
    return [
        root
        for root in state.gangs.values()
        if scope.namespace in ("", namespace_of(root.gang))
        and (nodes is None or root.uid in promised or _has_some_of(root, nodes))
        and (
            not scope.states
            or gang_status(root, made_for.get(RootKey(root.gang, root.kind))).state in scope.states
        )
    ]


def _has_some_of(root: GangState, nodes: frozenset[NodeName]) -> bool:
    members = (root.reservations, root.bound, root.replacement_holds)
    return any(member.node in nodes for some in members for member in some.values())


def _preemptions(
    state: ReservationState, scope: state_dto.Scope, nodes: frozenset[NodeName] | None
) -> list[PendingPreemption]:
    selected = [
        p
        for p in state.preemptions.values()
        if scope.namespace in ("", namespace_of(p.gang))
        and (
            nodes is None
            or not nodes.isdisjoint(p.claims)
            or any(v.node in nodes for v in p.victims.values())
        )
    ]
    return sorted(selected, key=lambda p: p.position)


def _nodes(
    gangs: Iterable[state_dto.GangAt],
    claims: Iterable[tuple[str, list[state_dto.MemberAt]]],
    labels: Mapping[NodeName, dict[str, str]],
    selected: frozenset[NodeName] | None,
    others: Mapping[str, tuple[state_dto.OthersAt, ...]],
) -> list[state_dto.NodeAt]:
    pods: dict[str, list[state_dto.PodAt]] = {}
    of_gangs = ((gang.gang, gang.members) for gang in gangs)
    for gang, members in chain(of_gangs, claims):
        for member in members:
            node = member.node
            if selected is None or node in selected:
                pod = state_dto.PodAt(
                    pod=member.pod, uid=member.uid, gang=gang, group=member.group, state=member.state,
                    requests=member.requests,
                )  # fmt: skip
                if node in pods:
                    pods[node].append(pod)
                else:
                    pods[node] = [pod]
    return [
        _node_at(node, pods.get(node, []), labels.get(NodeName(node), {}), others.get(node, ()))
        for node in sorted(pods.keys() | others.keys() if others else pods)
    ]


def _others(
    state: ReservationState, readers: Visibility, nodes: frozenset[NodeName] | None
) -> Mapping[str, tuple[state_dto.OthersAt, ...]]:
    """Return by node the sums of the members that readers do not see, by state and priority."""
    by_node: dict[str, dict[tuple[str, int], tuple[int, dict[str, int]]]] = {}
    for node, kind, priority, requests in _hidden_members(state, readers):
        if nodes is None or node in nodes:
            sums = by_node.setdefault(node, {})
            count, total = sums.get((kind, priority), (0, NOTHING))
            sums[kind, priority] = (count + 1, _sum(total, requests))
    return {
        node: tuple(
            state_dto.OthersAt(state=kind, priority=priority, pods=count, requests=total)
            for (kind, priority), (count, total) in sorted(sums.items())
        )
        for node, sums in by_node.items()
    }


def _hidden_members(
    state: ReservationState, readers: Visibility
) -> Iterator[tuple[NodeName, str, int, dict[str, int]]]:
    """Yield node, state, priority and requests of each member and claim that readers do not see."""

    def hidden(gang: str) -> bool:
        return not readers.sees(namespace_of(gang))

    gangs = [gang for gang in state.gangs.values() if hidden(gang.gang)]
    for gang in gangs:
        for member in gang.bound.values():
            yield member.node, "bound", gang.priority, member.requests
    preemptions = [p for p in state.preemptions.values() if hidden(p.gang)]
    holds = [hold for hold in state.capacity_holds.values() if hidden(hold.gang)]
    of_moves = (claim for claim in claims_of((), (), (), state.moves) if hidden(claim.pod))
    for claim in chain(claims_of(gangs, preemptions, holds), of_moves):
        yield claim.node, CLAIM_STATES[claim.kind], claim.priority, claim.requests


def _node_at(
    node: str,
    pods: list[state_dto.PodAt],
    labels: dict[str, str],
    others: tuple[state_dto.OthersAt, ...],
) -> state_dto.NodeAt:
    """Return a node with the sums of requests of its pods, and of those that the caller does not see."""
    sums: dict[str, dict[str, int]] = {}
    for pod in pods:
        total = sums.get(pod.state)
        sums[pod.state] = pod.requests if total is None else _sum(total, pod.requests)
    for other in others:
        sums[other.state] = _sum(sums.get(other.state, NOTHING), other.requests)
    if len(pods) > 1:
        pods.sort(key=BY_POD)
    return state_dto.NodeAt(
        node=node,
        topology=labels if all(labels.values()) else {k: v for k, v in labels.items() if v},
        pods=pods,
        reserved=sums.get("reserved", NOTHING),
        bound=sums.get("bound", NOTHING),
        preemption_claims=sums.get("claimed", NOTHING),
        replacement_holds=sums.get("replacement", NOTHING),
        capacity_holds=sums.get("held", NOTHING),
        move_claims=sums.get("moving", NOTHING),
        others=others,
    )


def _sum(amounts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    total = dict(amounts)
    add_amounts(total, more)
    return total


def _preemption_at(preemption: PendingPreemption) -> state_dto.PreemptionAt:
    return state_dto.PreemptionAt(
        preemption=preemption.id,
        position=preemption.position,
        planned=rfc3339(preemption.at_us),
        preemptor=preemption.gang,
        preemptor_uid=preemption.gang_uid,
        kind=preemption.kind,
        priority=preemption.priority,
        ended=preemption.ended,
        evicted=preemption.evicted,
        victims=[
            state_dto.VictimAt(pod=v.pod, uid=v.uid, unit=v.unit, node=v.node)
            for v in sorted(preemption.victims.values(), key=BY_POD)
        ],
        claims=sorted(claims_at(claims_of((), [preemption], ())), key=BY_POD),
    )


def _holds(
    state: ReservationState, roots: Iterable[GangState], nodes: frozenset[NodeName] | None
) -> list[CapacityHold]:
    """Return the capacity holds of some gangs, or on the requested nodes, the oldest first."""
    if not state.capacity_holds:
        return []
    selected = {root.uid for root in roots}
    holds = [
        hold
        for hold in state.capacity_holds.values()
        if (
            hold.gang_uid in selected
            if nodes is None
            else any(pod.node in nodes for pod in hold.pods)
        )
    ]
    return sorted(holds, key=lambda hold: hold.position)


def _hold_at(hold: CapacityHold) -> state_dto.CapacityHoldAt:
    return state_dto.CapacityHoldAt(
        hold=hold.hold,
        position=hold.position,
        held=rfc3339(hold.at_us),
        until=rfc3339(hold.until_us),
        waiting_since=rfc3339(hold.waiting_since_us),
        gang=hold.gang,
        gang_uid=hold.gang_uid,
        kind=hold.kind,
        priority=hold.priority,
        places=sorted(claims_at(hold.pods), key=BY_POD),
    )


def _not_known(roots: Iterable[GangState], scope: state_dto.Scope) -> list[str]:
    limitations = [ORDINARY]
    bound = [m for root in roots for m in root.bound.values()]
    without_requests = sum(not m.requests for m in bound)
    if without_requests:
        limitations.append(
            f"{without_requests} of {len(bound)} bound members had no reservation: their requests are not known."
        )
    if scope.domain:
        limitations.append(
            "Labels of nodes are those that admissions recorded: gangs on nodes without recorded labels "
            "are left out."
        )
    return limitations


def _brief(
    root: GangState | None, made_for: Mapping[RootKey, RootWorkload]
) -> state_dto.GangBrief | None:
    if root is None:
        return None
    status = gang_status(root, made_for.get(RootKey(root.gang, root.kind)))
    return state_dto.GangBrief(
        state=status.state,
        priority=root.priority,
        reserved=len(root.reservations),
        bound=len(root.bound),
        outcome=root.last_decision.outcome if root.last_decision is not None else "",
        reasons=status.reasons,
    )


def _moves(
    newest: GangState, old: GangState | None, new: GangState | None
) -> list[state_dto.MemberChange]:
    if old and new and (old.reservations, old.bound) == (new.reservations, new.bound):
        return []
    was, now = _placements(old), _placements(new)
    names = {uid: name for members in (was, now) for uid, (name, _) in members.items()}
    places = {uid: (was.get(uid, _NO_PLACE)[1], now.get(uid, _NO_PLACE)[1]) for uid in names}
    return [
        state_dto.MemberChange(
            pod=name, uid=uid, gang=newest.gang, before=places[uid][0], after=places[uid][1]
        )
        for uid, name in names.items()
        if places[uid][0] != places[uid][1]
    ]


def _placements(root: GangState | None) -> dict[str, tuple[str, state_dto.MemberPlacement]]:
    """Return name and place of the members of a gang, by UID."""
    if root is None:
        return {}
    members = (("reserved", root.reservations.values()), ("bound", root.bound.values()))
    return {
        str(member.uid): (member.pod, state_dto.MemberPlacement(state=state, node=member.node))
        for state, some in members
        for member in some
    }
