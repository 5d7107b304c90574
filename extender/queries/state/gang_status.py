"""A gang as it is shown: its state, what became of one that was bound, how much of its minimum is there, and why; and its form in the API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from extender.core.admit.gang_sentences import wish_lines
from extender.core.log.capacity_claim import CapacityClaim, ClaimKind
from extender.core.log.events import GroupRecord
from extender.core.log.gang_phase import (
    MinimumStatus,
    effective_phase,
    minimum_status,
    roots_of,
    undecided_reason,
    waiting_since_us,
)
from extender.core.log.reservation_state import (
    BoundMember,
    GangState,
    MemberLoss,
    Reservation,
    WorkloadTree,
)
from extender.core.model.ids import GangUid
from extender.core.model.message_formatting import counted, rfc3339, spaced
from extender.queries.log.event_dto import loss_reason
from extender.queries.state import state_dto

NOTHING: Final[dict[str, int]] = {}
BY_POD: Final = attrgetter("pod", "uid")
CLAIM_STATES: Final[Mapping[ClaimKind, str]] = {
    "reservation": "reserved",
    "preemption": "claimed",
    "replacement": "replacement",
    "hold": "held",
    "move": "moving",
}
SUSPENDED: Final = "suspended"
NOT_WAITING: Final = frozenset({"scheduled", "completed", SUSPENDED})  # for pods of its minimum
PENDING: Final = frozenset(
    {"observed", "waiting", "unschedulable", "preempting", "invalid", "preempted"}
)


class RootWorkload(msgspec.Struct, frozen=True, gc=False):
    """The workload that a root group was made for."""

    workload: str  # Kind/namespace/name
    suspended: bool = False  # its controller keeps its pods away
    resumed_us: int = 0  # when it was resumed last; 0: never
    recorded_us: int = 0  # when what is made from it was recorded last
    minima: Mapping[tuple[str, str], int] = {}  # of its groups now, by kind and name
    uid: str = ""
    # the children that its groups require now, by kind and name
    required: Mapping[tuple[str, str], tuple[str, ...]] = {}


class RootKey(msgspec.Struct, frozen=True, gc=False):
    """A root group: namespace/name and kind."""

    gang: str
    kind: str


def workloads_of_roots(trees: Iterable[WorkloadTree]) -> Mapping[RootKey, RootWorkload]:
    """Return the workload that each root group was made for.

    A root that a user wrote, above the groups of workloads, is not there.
    """
    return {RootKey(*root): root_workload(tree) for tree in trees for root in roots_of(tree)}


def suspended_roots(
    gangs: Iterable[GangState], made_for: Mapping[RootKey, RootWorkload]
) -> Iterator[GangState]:
    """Yield the root groups of suspended workloads that have had no pod yet, so that the log has no gang for them.

    Their UID is empty, and they are observed since the workload was recorded as suspended.
    """
    suspended = {key: workload for key, workload in made_for.items() if workload.suspended}
    if suspended:
        for gang in gangs:
            suspended.pop(RootKey(gang.gang, gang.kind), None)
    for key, workload in suspended.items():
        yield GangState(
            uid=GangUid(""), gang=key.gang, kind=key.kind, observed_us=workload.recorded_us
        )


def root_workload(tree: WorkloadTree) -> RootWorkload:
    """Return the workload of a tree."""
    return RootWorkload(
        f"{tree.kind}/{tree.workload}",
        tree.suspended,
        tree.resumed_us,
        tree.at_us,
        {(group.kind, group.name): group.minimum for group in tree.groups},
        tree.uid,
        {(group.kind, group.name): group.required for group in tree.groups},
    )


def root_groups(tree: WorkloadTree) -> list[tuple[str, str, str]]:
    """Return kind, name and parent of the groups of a workload that are below none of its own.

    One with a parent is below a root that a user wrote.
    """
    names = {group.name for group in tree.groups}
    groups = [(group.kind, group.name, group.parent) for group in tree.groups]
    groups += [("PodGroup", group.name, group.parent) for group in tree.adopted]
    return [group for group in groups if group[2] not in names]


class GangStatus(msgspec.Struct, frozen=True, gc=False):
    """The state of a gang as it is shown."""

    state: str  # as in the table in `extender/README.md`
    present: int  # pods of the minimum that are bound, or ended with success
    needed: int  # pods of the minimum; 0 before the first admission
    reasons: tuple[str, ...]
    waiting_since_us: int = 0  # since when the minimum is not bound; 0: it is, or need not be
    loss: str = ""  # what became of a gang whose minimum is not bound any more, see `reasons`


def gang_status(root: GangState, made_for: RootWorkload | None = None) -> GangStatus:
    """Return the state of a gang as it is shown, with its reasons, the most important first.

    A gang whose minimum is not bound any more has its last loss as the first reason; one whose workload is suspended, that.

    Args:
        made_for: Its workload, whose present minima count; None: there is none.
    """
    reasons = root.last_decision.reasons if root.last_decision is not None else ()
    if undecided := undecided_reason(root):
        reasons = (undecided,)
    groups = _groups_now(root.groups, made_for) if made_for is not None else root.groups
    minimum = minimum_status(root, groups)
    state: str = effective_phase(root, minimum)
    loss = ""
    if state == "completed":
        reasons = ()
    elif made_for is not None and made_for.suspended and not root.bound:
        state, loss = SUSPENDED, _suspended_text(made_for)
        reasons = (loss, *(() if undecided else reasons))
    elif root.phase == "scheduled" and minimum.present < minimum.needed:
        loss = _last_loss_text(root, minimum, state)
        reasons = (f"preempted: {loss}" if state == "preempted" else loss, *reasons)
    suspended, resumed_us = (
        (made_for.suspended, made_for.resumed_us) if made_for is not None else (False, 0)
    )
    waits = state not in NOT_WAITING and not suspended
    since_us = waiting_since_us(root, resumed_us) if waits else 0
    return GangStatus(state, minimum.present, minimum.needed, reasons, since_us, loss)


def status_before_the_log(made_for: RootWorkload | None) -> GangStatus | None:
    """Return the state of a gang that has had no pod yet, so that the log does not have it.

    Args:
        made_for: The workload of its root group; None: there is none.

    Returns:
        *suspended* if the workload is; None: nothing is known but its groups.
    """
    if made_for is None or not made_for.suspended:
        return None
    text = _suspended_text(made_for)
    return GangStatus(SUSPENDED, 0, 0, (text,), loss=text)


def _suspended_text(made_for: RootWorkload) -> str:
    return f"{spaced(made_for.workload)} is suspended"


def _groups_now(groups: tuple[GroupRecord, ...], made_for: RootWorkload) -> tuple[GroupRecord, ...]:
    """Return groups with the minima and required groups that their workload has now: one that was scaled down needs less."""

    def now(group: GroupRecord) -> GroupRecord:
        key = (group.kind, group.name)
        minimum = made_for.minima.get(key, group.minimum)
        required = made_for.required.get(key, group.required)
        if (minimum, required) == (group.minimum, group.required):
            return group
        return replace(group, minimum=minimum, required=required)

    return tuple(map(now, groups))


def loss_text(loss: MemberLoss) -> str:
    """Return how a member was lost."""
    if loss.preemptor:
        return f"evicted for {spaced(loss.preemptor)}"
    return loss_reason(loss.cause, loss.message)


def _last_loss_text(root: GangState, minimum: MinimumStatus, state: str) -> str:
    loss = root.last_loss
    counts = f"{minimum.present} of {counted(minimum.needed, 'pod')} of the minimum {'is' if minimum.needed == 1 else 'are'} there"
    if loss is None:
        return counts
    pod = f"pod {loss.pod} on {loss.node} at {rfc3339(loss.at_us)}"
    own = loss.preemptor == f"{root.kind}/{root.gang}"
    text = "evicted with its gang, to be placed anew" if own else loss_text(loss)
    if state == "preempted":
        return f"{text}; last was {pod}"
    return f"{counts}; last lost: {pod}: {text}"


def gang_at(
    root: GangState, made_for: Mapping[RootKey, RootWorkload], *, with_members: bool = True
) -> state_dto.GangAt:
    """Return a gang in the form of the API, with or without its members."""
    answer = root.last_decision
    workload = made_for.get(RootKey(root.gang, root.kind))
    status = gang_status(root, workload)
    return state_dto.GangAt(
        gang=root.gang,
        uid=root.uid,
        kind=root.kind,
        priority=root.priority,
        state=status.state,
        reserved=len(root.reservations),
        bound=len(root.bound),
        outcome=answer.outcome if answer is not None else "",
        reasons=status.reasons,
        last_decision_time=rfc3339(answer.at_us) if answer is not None else "",
        last_decision_position=answer.position if answer is not None else 0,
        observed=rfc3339(root.observed_us),
        admitted=rfc3339(root.admitted_us) if root.admitted_us else "",
        plan=root.plan or "",
        groups=_groups(root),
        members=_members(root) if with_members else [],
        workload=workload.workload if workload is not None else "",
        minimum_present=status.present,
        minimum_needed=status.needed,
        last_loss=_loss_at(root.last_loss),
        waiting_since=rfc3339(status.waiting_since_us) if status.waiting_since_us else "",
        help=answer.help if answer is not None else (),
        when_empty=answer.when_empty if answer is not None else "",
    )


def _loss_at(loss: MemberLoss | None) -> state_dto.MemberLossAt | None:
    if loss is None:
        return None
    return state_dto.MemberLossAt(
        pod=loss.pod,
        uid=loss.uid,
        node=loss.node,
        cause="preempted" if loss.preemptor else loss.cause,
        message=loss.message,
        preemptor=loss.preemptor,
        position=loss.position,
        time=rfc3339(loss.at_us),
    )


def _members(root: GangState) -> list[state_dto.MemberAt]:
    """Return all members in the form of the API, by name; without a call for each, because there are thousands."""
    members = claims_at(root.reservations.values())
    if root.bound:
        members += [
            state_dto.MemberAt(
                pod=m.pod, uid=m.uid, group=m.group, node=m.node, state="bound", extra=False, requests=m.requests
            )
            for m in root.bound.values()
        ]  # fmt: skip
    members.sort(key=BY_POD)
    return members


def _groups(root: GangState) -> list[state_dto.GroupAt]:
    if not root.groups:
        return []
    reserved = _counted(root.groups, root.reservations.values()) if root.reservations else NOTHING
    bound = _counted(root.groups, root.bound.values()) if root.bound else NOTHING
    return [
        state_dto.GroupAt(
            name=g.name,
            kind=g.kind,
            parent=g.parent,
            basic=g.basic,
            minimum=g.minimum,
            members=g.members,
            domain=g.domain,
            reserved=reserved.get(g.name, 0),
            bound=bound.get(g.name, 0),
            wishes=wish_lines(g.name, g.wishes) if g.wishes else (),
        )
        for g in root.groups
    ]


def _counted(
    groups: Iterable[GroupRecord], members: Iterable[Reservation | BoundMember]
) -> dict[str, int]:
    """Return the number of members of each group, with those of all groups below it."""
    leaves: dict[str, int] = {}
    for member in members:
        leaves[member.group] = leaves.get(member.group, 0) + 1
    counts = dict(leaves)
    parents = {g.name: g.parent for g in groups}
    for leaf, count in leaves.items():
        name = parents.get(leaf)
        while name:
            counts[name] = counts.get(name, 0) + count
            name = parents.get(name)
    return counts


def claims_at(claims: Iterable[CapacityClaim]) -> list[state_dto.MemberAt]:
    """Return claims in the form of the API, which has leaf and `extra` of a preemptor's members only with their reservations."""
    return [
        state_dto.MemberAt(
            pod=claim.pod, uid=claim.uid, group="" if claim.kind == "preemption" else claim.group, node=claim.node,
            state=CLAIM_STATES[claim.kind], extra=claim.extra and claim.kind == "reservation", requests=claim.requests,
        )
        for claim in claims
    ]  # fmt: skip
