"""The trees of workloads as they are now: `GET /v1/trees` and `gang-extender trees`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from extender.core.log.reservation_state import GangState, ReservationState, WorkloadTree
from extender.core.model.message_formatting import rfc3339
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of
from extender.queries.state.gang_selection import GangSelection, ObjectLabels
from extender.queries.state.gang_status import RootWorkload, gang_status, root_groups, root_workload


class TreeRoot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A root group of a workload."""

    name: str
    kind: str
    state: str  # of the gang; empty: not in the log yet


class TreeNotice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a user should know about a tree."""

    reason: str
    message: str


class TreeAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tree of one workload."""

    workload: str  # namespace/name
    kind: str
    uid: str
    generation: int  # of the workload when it was compiled
    profile: str
    outcome: str  # compiled | basic: its pods are placed one by one | refused: its pods wait
    # Kind/namespace/name of the owner of the groups, if it is not the workload; else empty
    owner: str
    groups: int  # with those of the workload's own controller
    roots: tuple[TreeRoot, ...]
    reason: str  # of outcomes basic and refused
    message: str
    notices: tuple[TreeNotice, ...]
    position: int  # of the event; `gang-extender decision replay POSITION` compiles it again
    time: str  # RFC 3339, UTC


def trees_at(
    state: ReservationState,
    selection: GangSelection,
    labels: ObjectLabels,
    readers: Visibility = EVERYTHING,
) -> Iterator[TreeAt]:
    """Yield the trees of workloads, by namespace, name and kind.

    Args:
        selection: Only these; a tree is in the states of its root groups, and its outcome counts as a state.
    """
    gangs = {gang.gang: gang for gang in state.gangs.values()}
    selected = [
        tree
        for tree in state.trees.values()
        if readers.sees(namespace_of(tree.workload))
        and selection.in_namespace(tree.workload)
        and selection.has_labels(labels.of_workload(tree.uid))
    ]
    for tree in sorted(selected, key=lambda tree: (tree.workload, tree.kind, tree.uid)):
        line = _tree_at(tree, gangs)
        if selection.in_state(line.outcome, *(root.state for root in line.roots)):
            yield line


def _tree_at(tree: WorkloadTree, gangs: Mapping[str, GangState]) -> TreeAt:
    namespace = tree.workload.partition("/")[0]
    made_for = root_workload(tree)
    return TreeAt(
        workload=tree.workload,
        kind=tree.kind,
        uid=tree.uid,
        generation=tree.generation,
        profile=tree.profile,
        outcome=tree.outcome,
        owner=tree.owner,
        groups=len(tree.groups) + len(tree.adopted),
        roots=tuple(
            TreeRoot(
                name=name,
                kind=kind,
                state=_state(gangs.get(f"{namespace}/{parent or name}"), made_for),
            )
            for kind, name, parent in root_groups(tree)
        ),
        reason=tree.reason,
        message=tree.message,
        notices=tuple(TreeNotice(reason=n.reason, message=n.message) for n in tree.notices),
        position=tree.position,
        time=rfc3339(tree.at_us),
    )


def _state(gang: GangState | None, made_for: RootWorkload) -> str:
    return gang_status(gang, made_for).state if gang is not None else ""
