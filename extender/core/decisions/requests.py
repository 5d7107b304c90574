"""Make the planner's input from the view, the state and a tree.

Reservations of the tree itself are passed as bound members: they pin, and keep their room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from extender.core.decisions.rows import NodeRows, taken_room
from extender.core.groups import Group, Tree
from extender.core.ids import GroupKey, NodeName, PodUid
from extender.core.planner.placement import (
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanRequest,
    Veto,
)
from extender.core.pods import Pod, PodShape
from extender.core.state import Reservation, ReservationState, RootState, VetoKey
from extender.core.view import ClusterView

GATE = "gang-extender.dev/admission"
EMPTY_HINTS: Final[Mapping[PodUid, NodeName]] = {}


def is_candidate(pod: Pod) -> bool:
    """Say whether a pod may be planned: pending, staying, and held by nobody but us."""
    return pod.node is None and not pod.deleting and all(gate == GATE for gate in pod.gates)


def is_running(pod: Pod) -> bool:
    """Say whether a pod is a bound member; one with a deletionTimestamp is none (DESIGN 9.10)."""
    return pod.node is not None and not pod.deleting


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
    hints: Mapping[PodUid, NodeName] = EMPTY_HINTS,
) -> PlanRequest:
    """Ask the planner about one tree.

    Args:
        view: The cluster.
        state: What is held.
        tree: What is to be placed.
        rows: Rows of earlier requests.
        budget: In search nodes.
        vetoes: Those that hold now.
        hints: Nodes to try first.
    """
    root_state = state.roots.get(tree.root.uid)
    held: Mapping[PodUid, Reservation] = root_state.held if root_state is not None else {}
    shapes = _Shapes()
    root = _plan_group(tree, tree.root, held, shapes, hints)
    taken = taken_room(view, state, priority=tree.root.priority, root_uid=tree.root.uid)
    return PlanRequest(
        root=root,
        nodes=rows.rows(view, taken),
        shapes=tuple(shapes.index),
        vetoes=_vetoes(view, state, tree, shapes, vetoes),
        claims_in_use=_claims_in_use(view, state, tree),
        budget=budget,
    )


def _plan_group(
    tree: Tree,
    group: Group,
    held: Mapping[PodUid, Reservation],
    shapes: _Shapes,
    hints: Mapping[PodUid, NodeName],
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
                PlanMember(
                    pod=pod.path,
                    uid=pod.uid,
                    shape=number,
                    prefer=hints.get(pod.uid, pod.nominated),
                )
            )
    return PlanGroup(
        key=group.key,
        basic=group.basic,
        minimum=group.minimum,
        topology=group.topology,
        members=tuple(members),
        bound=tuple(bound),
        groups=tuple(
            _plan_group(tree, child, held, shapes, hints)
            for child in tree.children.get(group.key, ())
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
