"""Make the planner's input from the view, the state and a tree.

Free room on a node is what is left after assigned pods (terminating ones too), unassigned pods that
are nominated there with equal or higher priority, and every held reservation whose pod is not
assigned yet. Reservations of the tree itself are passed as bound members: they pin, and keep their room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from extender.core.groups import Group, Tree
from extender.core.ids import GroupKey, NodeName, PodUid
from extender.core.nodes import Node
from extender.core.planner.placement import (
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    Veto,
)
from extender.core.pods import HostPort, Pod, PodShape
from extender.core.state import Reservation, ReservationState, RootState, VetoKey
from extender.core.view import NOTHING, ClusterView, Usage

GATE = "gang-extender.dev/admission"


def is_candidate(pod: Pod) -> bool:
    """Say whether a pod may be planned: pending, staying, and held by nobody but us."""
    return pod.node is None and not pod.deleting and all(gate == GATE for gate in pod.gates)


def is_running(pod: Pod) -> bool:
    """Say whether a pod is a bound member; one with a deletionTimestamp is none (DESIGN 9.10)."""
    return pod.node is not None and not pod.deleting


class _Extra(msgspec.Struct):
    """Room taken on a node by what is not assigned there."""

    requests: dict[str, int]
    ports: list[HostPort]
    reserved: bool


class NodeRows:
    """Rows of the planner's input, remembered for as long as their node, usage and holds are the same objects."""

    def __init__(self) -> None:
        self._rows: dict[NodeName, tuple[Node, Usage, PlanNode]] = {}
        self._order: tuple[NodeName, ...] = ()
        self._generation = -1

    def rows(self, view: ClusterView, extra: Mapping[NodeName, _Extra]) -> tuple[PlanNode, ...]:
        """Give one row per node, sorted by name."""
        if view.generation != self._generation:
            self._order = tuple(sorted(view.nodes))
            self._generation = view.generation
            self._rows = {name: row for name, row in self._rows.items() if name in view.nodes}
        return tuple(self._row(view, name, extra.get(name)) for name in self._order)

    def _row(self, view: ClusterView, name: NodeName, extra: _Extra | None) -> PlanNode:
        node, usage = view.nodes[name], view.usage.get(name, NOTHING)
        if extra is not None:
            return _make_row(node, usage, extra)
        known = self._rows.get(name)
        if known is not None and known[0] is node and known[1] is usage:
            return known[2]
        row = _make_row(node, usage, None)
        self._rows[name] = (node, usage, row)
        return row


def _make_row(node: Node, usage: Usage, extra: _Extra | None) -> PlanNode:
    free = dict(node.allocatable)
    ports = list(usage.host_ports)
    for name, amount in usage.requests.items():
        if name in free:
            free[name] -= amount
    if extra is not None:
        for name, amount in extra.requests.items():
            if name in free:
                free[name] -= amount
        ports += extra.ports
    return PlanNode(
        name=node.name,
        labels=node.labels,
        taints=node.taints,
        unschedulable=node.unschedulable or node.deleting,
        allocatable=node.allocatable,
        free=free,
        host_ports=tuple(sorted(set(ports))),
        reserved=extra is not None and extra.reserved,
    )


def _add(extra: dict[NodeName, _Extra], node: NodeName, requests: Mapping[str, int]) -> _Extra:
    row = extra.setdefault(node, _Extra({}, [], reserved=False))
    for name, amount in requests.items():
        row.requests[name] = row.requests.get(name, 0) + amount
    return row


def unassigned_room(
    view: ClusterView,
    state: ReservationState,
    *,
    priority: int,
    root_uid: str = "",
) -> dict[NodeName, _Extra]:
    """Collect per node what reservations and nominations take beside the assigned pods.

    Args:
        priority: Nominations below it are not counted (kube-scheduler ignores them as well).
        root_uid: Reservations of this tree are counted as room but not flagged as somebody else's.
    """
    extra: dict[NodeName, _Extra] = {}
    for node, held in state.held_on.items():
        for reservation in held.values():
            pod = view.pods.get(reservation.uid)
            if pod is not None and pod.node is not None:
                continue  # the pod itself is counted by now
            row = _add(extra, node, reservation.requests)
            row.reserved = row.reserved or reservation.root_uid != root_uid
            if pod is not None:
                row.ports += pod.shape.host_ports
    for pod in view.nominated.values():
        if pod.group is not None or pod.priority < priority or pod.nominated is None:
            continue  # nominations of members are ours: their reservations count, nothing else
        row = _add(extra, pod.nominated, dict(pod.shape.requests))
        row.ports += pod.shape.host_ports
    return extra


class _Shapes:
    """Shapes of one request, each once, in order of first use."""

    def __init__(self) -> None:
        self.index: dict[PodShape, int] = {}

    def number(self, shape: PodShape) -> int:
        """Give the index of a shape."""
        return self.index.setdefault(shape, len(self.index))


def plan_request(
    view: ClusterView,
    state: ReservationState,
    tree: Tree,
    *,
    rows: NodeRows,
    budget: int,
    vetoes: Collection[VetoKey] = (),
) -> PlanRequest:
    """Ask the planner about one tree.

    Args:
        vetoes: Those that hold now.
    """
    root_state = state.roots.get(tree.root.uid)
    held: Mapping[PodUid, Reservation] = root_state.held if root_state is not None else {}
    shapes = _Shapes()
    root = _plan_group(tree, tree.root, held, shapes)
    extra = unassigned_room(view, state, priority=tree.root.priority, root_uid=tree.root.uid)
    return PlanRequest(
        root=root,
        nodes=rows.rows(view, extra),
        shapes=tuple(shapes.index),
        vetoes=_vetoes(view, state, tree, shapes, vetoes),
        claims_in_use=_claims_in_use(view, state, tree),
        budget=budget,
    )


def _plan_group(
    tree: Tree, group: Group, held: Mapping[PodUid, Reservation], shapes: _Shapes
) -> PlanGroup:
    members: list[PlanMember] = []
    bound: list[PlanBound] = []
    for pod in tree.members.get(group.key, ()):
        if is_running(pod):
            assert pod.node is not None
            bound.append(PlanBound(pod=pod.path, uid=pod.uid, node=pod.node))
        elif not is_candidate(pod):
            continue
        elif (reservation := held.get(pod.uid)) is not None:
            bound.append(PlanBound(pod=pod.path, uid=pod.uid, node=reservation.node))
        elif not group.deleting:
            number = shapes.number(pod.shape)
            members.append(
                PlanMember(pod=pod.path, uid=pod.uid, shape=number, prefer=pod.nominated)
            )
    return PlanGroup(
        key=group.key,
        basic=group.basic,
        minimum=group.minimum,
        topology=group.topology,
        members=tuple(members),
        bound=tuple(bound),
        groups=tuple(
            _plan_group(tree, child, held, shapes) for child in tree.children.get(group.key, ())
        ),
        mode=group.mode,
    )


def _vetoes(
    view: ClusterView,
    state: ReservationState,
    tree: Tree,
    shapes: _Shapes,
    holding: Collection[VetoKey],
) -> tuple[Veto, ...]:
    found = []
    for key in holding:
        veto = state.vetoes.get(key)
        if veto is None or key.root_uid != tree.root.uid or key.node not in view.nodes:
            continue
        pod = view.pods.get(key.uid)
        if pod is None:
            continue
        shape = shapes.index.get(pod.shape) if veto.by_shape else None
        if shape is not None:
            found.append(Veto(node=key.node, shape=shape))
        else:
            found.append(Veto(node=key.node, uid=key.uid))
    return tuple(sorted(found, key=lambda v: (v.node, v.uid or "", v.shape or 0)))


def _claims_in_use(view: ClusterView, state: ReservationState, tree: Tree) -> tuple[str, ...]:
    asked = {claim for pod in tree.pods for claim in pod.shape.exclusive_claims}
    if not asked:
        return ()
    used = {claim for usage in view.usage.values() for claim in usage.claims}
    for uid in state.root_of:
        pod = view.pods.get(uid)
        if pod is not None and pod.node is None:
            used.update(pod.shape.exclusive_claims)
    return tuple(sorted(asked & used))


def members_wanting(tree: Tree, root: RootState | None) -> tuple[Pod, ...]:
    """Give the candidates of a tree that hold no reservation yet."""
    held: Mapping[PodUid, Reservation] = root.held if root is not None else {}
    return tuple(
        pod
        for group in tree.groups
        if not group.deleting
        for pod in tree.members.get(group.key, ())
        if is_candidate(pod) and pod.uid not in held
    )


def foreign_gates(tree: Tree) -> tuple[str, ...]:
    """Name the gates of others that keep pods of a tree from being members, sorted."""
    return tuple(
        sorted({g for pod in tree.pods if pod.node is None for g in pod.gates if g != GATE})
    )


def group_key_of(root: RootState) -> GroupKey:
    """Name the root group that a stream is about."""
    namespace, _, name = root.root.partition("/")
    kind = "CompositePodGroup" if root.kind == "CompositePodGroup" else "PodGroup"
    return GroupKey(namespace, name, kind)  # type: ignore[arg-type]
