"""What may have to go so that a tree finds room: the planner's vocabulary of preemption.

A *unit* goes whole or stays whole: a lone pod, the pods of the highest group above a pod that is
disrupted as a whole, or the room that one tree (or a lone preemptor) holds and nobody runs in yet, reserved
or being made for it, which costs nothing. Pods that are terminating are in no unit: their room comes free by itself.

Everything here is part of `PlanRequest` and is encoded with it. Nothing here decides.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import PodShape

UnitKind = Literal["pod", "group", "reservation"]


class PlanVictim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pod on a node, assigned or (in a unit of kind `reservation`) only expected there."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    shape: int  # index into `Evictable.shapes`: the room it takes, and where it could run again
    created_us: int = 0  # what is lost with it grows with its age
    budgets: tuple[int, ...] = ()  # indexes into `Evictable.budgets`: those that protect it
    gang: int = -1  # index into `Evictable.gangs`: the leaf it is a member of; -1: none
    rules: tuple[int, ...] = ()  # indexes into `PlanRequest.rules`: those that count it


class PlanUnit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Pods that go together.

    `name`: `Pod/ns/name`, `PodGroup/ns/name` or `CompositePodGroup/ns/name`; of reservations that of
    the root. `uid`: of the pod, the group, or the root. `priority`: of the pod, or of its tree.
    """

    name: str
    uid: str
    kind: UnitKind
    priority: int
    pods: tuple[PlanVictim, ...]  # sorted by pod
    may_preempt: bool = True  # its own policy lets it evict others when it comes back
    doomed: bool = False  # it has to go for somebody else already

    @property
    def costs(self) -> bool:
        """Say whether anybody loses anything by its going; units that do not are priced last, as reservations are."""
        return self.kind != "reservation" and not self.doomed


class PlanGang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A group of a tree with running members, so that extras are told from what a gang needs."""

    name: str  # Kind/namespace/name
    minimum: int  # minCount or minGroupCount; 1 when basic
    parent: int = -1  # index of the group above it, which comes first; -1: a root
    running: int = 0  # members of a leaf that run now
    counts: bool = True  # it can be broken: a gang, and not itself part of a unit


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodDisruptionBudget: how many of the pods it protects may still go."""

    name: str  # namespace/name
    allowed: int


class Evictable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that could make room for one tree, and the tree's right to ask for it."""

    priority: int  # of the root that asks
    may_preempt: bool = True  # False: preemptionPolicy Never
    units: tuple[PlanUnit, ...] = ()  # sorted by kind, name and UID (of a tree made again)
    shapes: tuple[PodShape, ...] = ()
    gangs: tuple[PlanGang, ...] = ()
    budgets: tuple[PlanBudget, ...] = ()
    going: tuple[PlanVictim, ...] = ()  # pods that terminate already, sorted by pod
    spared: tuple[
        str, ...
    ] = ()  # names of units left alone: this tree had them evicted before, sorted
