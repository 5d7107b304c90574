"""Claims on the capacity of nodes: what is not free for others although no pod uses it yet.

`core/capacity/capacity_claims` has the table of their kinds: who must leave them free, and when they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from immutables import Map

from extender.core.log.events import CapacityHeld, GangAdmitted, GangExtended, PreemptionPlanned
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid

ClaimKind: TypeAlias = Literal[
    "reservation",  # for a member of an admitted tree
    "preemption",  # for a member of a preemptor, or a lone pod, until the victims are gone
    "replacement",  # for the member that replaces a lost one
    "hold",  # for a member of a tree that has waited for long, as the capacity frees
    "move",  # on the new node of a member that is to be moved, for its replacement
]
ClaimKey: TypeAlias = tuple[ClaimKind, GangUid, PodUid]


class CapacityClaim(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Capacity of a node that is kept for one pod."""

    kind: ClaimKind
    plan: PlanId  # of the admission, the preemption, the hold or the moves
    gang_uid: GangUid  # for which it is kept; the UID of the pod where that is alone
    pod: str  # namespace/name; of a replacement or a move: the member that is replaced
    uid: PodUid
    group: str  # name of the leaf; empty: not known
    node: NodeName
    requests: dict[str, int]
    priority: int
    at_us: int
    until_us: int = 0  # when it ends at the latest; 0: no such time is recorded
    extra: bool = False  # beyond the minimum of the tree

    @property
    def key(self) -> ClaimKey:
        """Return its key among the claims on its node."""
        return self.kind, self.gang_uid, self.uid


ClaimsOnNode: TypeAlias = Map[ClaimKey, CapacityClaim]
NO_CLAIMS: ClaimsOnNode = Map()


def planned_claims(
    kind: ClaimKind,
    plan: PlanId,
    gang_uid: GangUid,
    data: GangAdmitted | GangExtended | PreemptionPlanned | CapacityHeld,
    *,
    at_us: int,
    until_us: int = 0,
) -> Iterator[CapacityClaim]:
    """Yield the claims that the event of a plan makes."""
    for record in data.assignments:
        yield CapacityClaim(
            kind=kind, plan=plan, gang_uid=gang_uid, pod=record.pod, uid=record.uid, group=record.group,
            node=record.node, requests=data.shapes[record.shape], priority=data.priority, at_us=at_us, until_us=until_us,
            extra=record.extra,
        )  # fmt: skip
