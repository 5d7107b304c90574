"""The types of preemption in a plan request: what can be evicted so that a tree fits.

A *unit* is evicted as a whole or not at all: one pod; the pods of the highest group with disruption mode "all"
above a pod; or capacity that one tree (or one pod) holds without running there, by reservations or capacity
claims. Taking that capacity evicts no pod. Terminating pods are in no unit: their capacity becomes free anyway.

Everything here is part of `PlanRequest` and is encoded with it. Must not decide anything.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape

UnitKind = Literal["pod", "group", "reservation"]
MINUTE_US: Final = 60_000_000
# GPU-minutes of one pod that count: more than any pod has worked, and what a million pods lose fits into 64 bits. An extended
# resource may count bytes.
WORK_MAX: Final = 1 << 40


class PlanVictim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pod on a node: assigned, or (in a unit of kind `reservation`) with a reservation there."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    shape: int  # index into `Evictable.shapes`: what it requests, and where it could run again
    since_us: int = 0  # begin of the work that an eviction loses: its start, or its last checkpoint
    budgets: tuple[int, ...] = ()  # indexes into `Evictable.budgets`: those that protect it
    gang: int = -1  # index into `Evictable.gangs`: the leaf it is a member of; -1: none
    rules: tuple[int, ...] = ()  # indexes into `PlanRequest.rules`: those whose tables count it


class PlanUnit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Pods that are evicted together.

    `name`: `Pod/ns/name`, `PodGroup/ns/name` or `CompositePodGroup/ns/name`; of reservations that of
    the root. `uid`: of the pod, the group, or the root. `priority`: of the pod, or of its tree.
    """

    name: str
    uid: str
    kind: UnitKind
    priority: int
    pods: tuple[PlanVictim, ...]  # sorted by pod
    # its preemption policy allows it to evict others when it is created again
    may_preempt: bool = True
    disruption_target: bool = False  # it is a victim of another preemption already

    @property
    def has_cost(self) -> bool:
        """Return whether evicting it loses running work that no other preemption ends anyway."""
        return self.kind != "reservation" and not self.disruption_target

    @property
    def is_whole_group(self) -> bool:
        """Return whether it is a group that is disrupted as a whole."""
        return self.kind == "group"


class PlanGang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A group of a tree with running members: what it needs, so that extra members can be recognized."""

    name: str  # Kind/namespace/name
    minimum: int  # minCount or minGroupCount; 1 when basic
    required: bool = False  # the group above it cannot do without it
    parent: int = -1  # index of the group above it, which comes first; -1: a root
    running: int = 0  # members of a leaf that run now
    # a gang that is not itself part of a unit: evictions can bring it below its minimum
    counts: bool = True


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodDisruptionBudget: how many of the pods it protects may still be evicted."""

    name: str  # namespace/name
    allowed: int


class PlanDomain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A domain that the tree could have if some pods went, all of which may be evicted or terminate (D20)."""

    group: GroupKey | None  # of the tree, that would have it alone; None: others have it alone
    key: str
    value: str
    pods: tuple[PodUid, ...]  # those of other trees that are there, sorted


class Evictable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that could be evicted for one tree, and whether the tree may preempt."""

    priority: int  # of the preemptor
    may_preempt: bool = True  # False: preemptionPolicy Never
    # whether only `going` is asked about, as by `only_awaiting`: there are no units, and no answer speaks of evictions
    only_awaits: bool | UnsetType = UNSET  # never False: older inputs have their bytes without it
    # sorted by kind, name and UID (a name may occur with several UIDs)
    units: tuple[PlanUnit, ...] = ()
    shapes: tuple[PodShape, ...] = ()
    gangs: tuple[PlanGang, ...] = ()
    budgets: tuple[PlanBudget, ...] = ()
    going: tuple[PlanVictim, ...] = ()  # terminating pods, sorted by pod
    # names of units that are left out because this tree had them evicted before, sorted
    spared: tuple[str, ...] = ()
    # those of `PlanRequest.closed` and `PlanExclusive.taken` that can be emptied, sorted; never empty
    domains: tuple[PlanDomain, ...] | UnsetType = UNSET
    # The whole minute of the decision since 1970, so that two passes of one minute weigh lost work alike. Unset: lost work does
    # not count, as in older inputs and where there is no clock.
    now_min: int | UnsetType = UNSET

    def lost_min(self, unit: PlanUnit) -> int:
        """Return the work that an eviction of a unit loses, in GPU-minutes; 0 where it has no cost."""
        if isinstance(self.now_min, UnsetType) or not unit.has_cost:
            return 0
        return sum(
            work_min(self.shapes[pod.shape], pod.since_us, self.now_min) for pod in unit.pods
        )


def work_min(shape: PodShape, since_us: int, now_min: int) -> int:
    """Return the GPU-minutes of a pod from a time to a minute, both since 1970; never negative, and at most `WORK_MAX`.

    >>> work_min(PodShape(requests=(("nvidia.com/gpu", 8),)), 119_000_000, 3)
    16
    """
    return min(shape.accelerators * max(now_min - since_us // MINUTE_US, 0), WORK_MAX)
