"""A state of the log in outside form, whole or in part, and the difference between two of them.

Pure: a `ReservationState` in, the shapes of `stateview` out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.core.events import FeaturesFound
from extender.core.features import losses
from extender.core.ids import NodeName, RootUid
from extender.core.preemptions import Preemption
from extender.core.state import (
    BoundMember,
    Reservation,
    ReservationState,
    RootState,
    Vacancy,
    standing,
)
from extender.service.audit import rfc3339
from extender.service.stateview import (
    Brief,
    Compared,
    ControlPlaneAt,
    GangAt,
    GangChange,
    GroupAt,
    MemberAt,
    MemberChange,
    NodeAt,
    Pictured,
    Place,
    PodAt,
    PreemptionAt,
    Scope,
    Totals,
    VictimAt,
)

ORDINARY = "Ordinary pods are not in the log: what they took of a node at that time, and what was free, is not known."


def picture(state: ReservationState, scope: Scope) -> Pictured:
    """Give the part of a state that is asked for.

    With a node or a domain these are the gangs that have something there, each whole, and only the nodes
    asked for. With a namespace, gangs of it and what they have of nodes.
    """
    labels = topology_of(state)
    wanted = _wanted_nodes(scope, labels)
    roots = _roots(state, scope, wanted)
    preemptions = _preemptions(state, scope, wanted)
    gangs = sorted((gang_at(root) for root in roots), key=lambda g: (g.gang, g.uid))
    nodes = _nodes(gangs, preemptions, _kept(roots), labels, wanted)
    holding = [g for g in gangs if g.state in ("admitted", "satisfied")]
    totals = Totals(
        gangs=len(gangs),
        pending=len(gangs) - len(holding),
        reserved=sum(g.reserved for g in gangs),
        bound=sum(g.bound for g in gangs),
        nodes=len(nodes),
    )
    return Pictured(
        totals=totals,
        gangs=gangs,
        nodes=nodes,
        preemptions=[_preemption_at(p) for p in preemptions],
        control_plane=_control_plane(state.features),
        not_known=_not_known(roots, scope),
    )


def _control_plane(found: FeaturesFound | None) -> ControlPlaneAt | None:
    if found is None:
        return None
    return ControlPlaneAt(
        served=list(found.served),
        dropped=losses(found),
        untested=list(found.untested),
        policy=found.policy,
        native=found.native,
        text=found.text,
    )


def compare(before: ReservationState, after: ReservationState, scope: Scope) -> Compared:
    """Say what is otherwise in the second state, of gangs that are in the part asked for in either of them."""
    found: dict[RootUid, None] = {}
    for state in (before, after):
        wanted = _wanted_nodes(scope, topology_of(state))
        found |= dict.fromkeys(root.uid for root in _roots(state, scope, wanted))
    gangs: list[GangChange] = []
    members: list[MemberChange] = []
    for uid in found:
        old, new = before.roots.get(uid), after.roots.get(uid)
        known = new or old
        assert known is not None
        was, now = _brief(old), _brief(new)
        if was != now:
            change = "new" if was is None else "gone" if now is None else "changed"
            gangs.append(GangChange(gang=known.root, uid=uid, change=change, before=was, after=now))
        members += _moves(known, old, new)
    gangs.sort(key=lambda g: (g.gang, g.uid))
    members.sort(key=lambda m: (m.pod, m.uid))
    roots = [root for uid in found if (root := after.roots.get(uid)) is not None]
    return Compared(gangs=gangs, members=members, not_known=_not_known(roots, scope))


def topology_of(state: ReservationState) -> Mapping[NodeName, dict[str, str]]:
    """Give the recorded labels of nodes; where trees recorded different ones, the younger admission's.

    A label that a node lost is there with an empty value.
    """
    found: dict[NodeName, dict[str, str]] = {}
    for root in sorted(state.roots.values(), key=lambda r: (r.admitted_us, r.uid)):
        for node, labels in root.topology.items():
            found.setdefault(node, {}).update(labels)
    return found


def gang_at(root: RootState) -> GangAt:
    """Give the outside form of a root."""
    answer = root.answer
    return GangAt(
        gang=root.root,
        uid=root.uid,
        kind=root.kind,
        priority=root.priority,
        state=standing(root),
        reserved=len(root.held),
        bound=len(root.bound),
        outcome=answer.outcome if answer is not None else "",
        reasons=answer.reasons if answer is not None else (),
        answered=rfc3339(answer.at_us) if answer is not None else "",
        answer_position=answer.position if answer is not None else 0,
        observed=rfc3339(root.observed_us),
        admitted=rfc3339(root.admitted_us) if root.admitted_us else "",
        plan=root.plan or "",
        groups=_groups(root),
        members=sorted(
            (
                *(member_at(r, "reserved") for r in root.held.values()),
                *(member_at(m, "bound") for m in root.bound.values()),
            ),
            key=lambda m: (m.pod, m.uid),
        ),
    )


def member_at(member: Reservation | BoundMember | Vacancy, state: str) -> MemberAt:
    """Give the outside form of a member."""
    return MemberAt(
        pod=member.pod,
        uid=member.uid,
        group=member.group,
        node=member.node,
        state=state,
        extra=member.extra if isinstance(member, Reservation) else False,
        requests=member.requests,
    )


def _groups(root: RootState) -> list[GroupAt]:
    if not root.groups:
        return []
    parents = {g.name: g.parent for g in root.groups}
    counts: dict[str, list[int]] = {}
    leaves = (
        [r.group for r in root.held.values()],
        [m.group for m in root.bound.values()],
    )
    for column, names in enumerate(leaves):
        for leaf in names:
            name = leaf
            while name:
                counts.setdefault(name, [0, 0])[column] += 1
                name = parents.get(name, "")
    return [
        GroupAt(
            name=g.name,
            kind=g.kind,
            parent=g.parent,
            basic=g.basic,
            minimum=g.minimum,
            members=g.members,
            domain=g.domain,
            reserved=counts.get(g.name, (0, 0))[0],
            bound=counts.get(g.name, (0, 0))[1],
        )
        for g in root.groups
    ]


def _wanted_nodes(
    scope: Scope, labels: Mapping[NodeName, dict[str, str]]
) -> frozenset[NodeName] | None:
    """Give the nodes asked for, None for all."""
    if scope.node:
        return frozenset({scope.node})
    if scope.domain:
        return frozenset(n for n, has in labels.items() if scope.domain.items() <= has.items())
    return None


def _roots(
    state: ReservationState, scope: Scope, wanted: frozenset[NodeName] | None
) -> list[RootState]:
    promised = (
        {p.root_uid for p in _preemptions(state, scope, wanted)} if wanted is not None else ()
    )
    return [
        root
        for root in state.roots.values()
        if _in_namespace(root.root, scope)
        and (wanted is None or root.uid in promised or _has_some_of(root, wanted))
    ]


def _has_some_of(root: RootState, wanted: frozenset[NodeName]) -> bool:
    members = (*root.held.values(), *root.bound.values(), *root.vacant.values())
    return any(member.node in wanted for member in members)


def _in_namespace(root: str, scope: Scope) -> bool:
    return not scope.namespace or root.partition("/")[0] == scope.namespace


def _preemptions(
    state: ReservationState, scope: Scope, wanted: frozenset[NodeName] | None
) -> list[Preemption]:
    found = [
        p
        for p in state.preemptions.values()
        if _in_namespace(p.root, scope)
        and (
            wanted is None
            or not wanted.isdisjoint(p.claims)
            or any(v.node in wanted for v in p.victims.values())
        )
    ]
    return sorted(found, key=lambda p: p.position)


def _nodes(
    gangs: Iterable[GangAt],
    preemptions: Iterable[Preemption],
    kept: Iterable[tuple[str, MemberAt]],
    labels: Mapping[NodeName, dict[str, str]],
    wanted: frozenset[NodeName] | None,
) -> list[NodeAt]:
    pods: dict[str, list[PodAt]] = {}

    def add(gang: str, members: Iterable[MemberAt]) -> None:
        for member in members:
            if wanted is None or member.node in wanted:
                pods.setdefault(member.node, []).append(
                    PodAt(
                        pod=member.pod, uid=member.uid, gang=gang, group=member.group,
                        state=member.state, requests=member.requests,
                    )
                )  # fmt: skip

    for gang in gangs:
        add(gang.gang, gang.members)
    for preemption in preemptions:
        add(preemption.root, _promised(preemption))
    for gang_name, member in kept:
        add(gang_name, (member,))
    return [node_at(NodeName(node), pods[node], labels) for node in sorted(pods)]


def node_at(node: NodeName, pods: list[PodAt], labels: Mapping[NodeName, dict[str, str]]) -> NodeAt:
    """Sum up what is on a node."""
    sums: dict[str, dict[str, int]] = {"reserved": {}, "bound": {}, "promised": {}, "kept": {}}
    for pod in pods:
        total = sums[pod.state]
        for name, amount in pod.requests.items():
            total[name] = total.get(name, 0) + amount
    return NodeAt(
        node=node,
        topology={k: v for k, v in sorted(labels.get(node, {}).items()) if v},
        pods=sorted(pods, key=lambda p: (p.pod, p.uid)),
        **sums,
    )


def _promised(preemption: Preemption) -> list[MemberAt]:
    return [
        MemberAt(
            pod=claim.pod, uid=claim.uid, group="", node=claim.node, state="promised", extra=False,
            requests=claim.requests,
        )
        for claims in preemption.claims.values() for claim in claims
    ]  # fmt: skip


def _kept(roots: Iterable[RootState]) -> list[tuple[str, MemberAt]]:
    """Give the room of lost members, each with its gang."""
    return [(root.root, member_at(v, "kept")) for root in roots for v in root.vacant.values()]


def _preemption_at(preemption: Preemption) -> PreemptionAt:
    return PreemptionAt(
        preemption=preemption.id,
        position=preemption.position,
        planned=rfc3339(preemption.at_us),
        preemptor=preemption.root,
        preemptor_uid=preemption.root_uid,
        kind=preemption.kind,
        priority=preemption.priority,
        ended=preemption.ended,
        evicted=preemption.evicted,
        victims=[
            VictimAt(pod=v.pod, uid=v.uid, unit=v.unit, node=v.node)
            for v in sorted(preemption.victims.values(), key=lambda v: (v.pod, v.uid))
        ],
        promised=sorted(_promised(preemption), key=lambda m: (m.pod, m.uid)),
    )


def _not_known(roots: Iterable[RootState], scope: Scope) -> list[str]:
    told = [ORDINARY]
    bound = [m for root in roots for m in root.bound.values()]
    unasked = sum(not m.requests for m in bound)
    if unasked:
        told.append(
            f"{unasked} of {len(bound)} bound members had no reservation: what they asked for is not known."
        )
    if scope.domain:
        told.append(
            "Labels of nodes are known as admissions recorded them: gangs on nodes without recorded labels "
            "are left out."
        )
    return told


def _brief(root: RootState | None) -> Brief | None:
    if root is None:
        return None
    return Brief(
        state=standing(root),
        priority=root.priority,
        reserved=len(root.held),
        bound=len(root.bound),
        outcome=root.answer.outcome if root.answer is not None else "",
        reasons=root.answer.reasons if root.answer is not None else (),
    )


def _moves(known: RootState, old: RootState | None, new: RootState | None) -> list[MemberChange]:
    was, now = _places(old), _places(new)
    names = _names(old) | _names(new)
    return [
        MemberChange(
            pod=names[uid], uid=uid, gang=known.root, before=was.get(uid), after=now.get(uid)
        )
        for uid in sorted({*was, *now})
        if was.get(uid) != now.get(uid)
    ]


def _places(root: RootState | None) -> dict[str, Place]:
    if root is None:
        return {}
    places = {str(r.uid): Place(state="reserved", node=r.node) for r in root.held.values()}
    return places | {str(m.uid): Place(state="bound", node=m.node) for m in root.bound.values()}


def _names(root: RootState | None) -> dict[str, str]:
    if root is None:
        return {}
    return {str(r.uid): r.pod for r in root.held.values()} | {
        str(m.uid): m.pod for m in root.bound.values()
    }
