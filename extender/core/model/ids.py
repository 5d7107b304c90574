"""Distinct types for identifiers, so that the type checker finds a mix-up."""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
GangUid = NewType("GangUid", str)  # UID of a root group: the name of its stream in the log
PlanId = NewType("PlanId", str)  # UUID of one admission; the annotation on each Binding made for it
Epoch = NewType("Epoch", int)  # number of a lease, only growing
Position = NewType("Position", int)  # place in the whole log, contiguous from 1

NIL_GANG = GangUid("00000000-0000-0000-0000-000000000000")  # stream of events that concern no root

GroupKind = Literal["PodGroup", "CompositePodGroup"]


class GroupKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """Kind, namespace and name of a group; a group that is deleted and created again has the same key, but another UID."""

    namespace: str
    name: str
    kind: GroupKind

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"
