"""The state of a gang as it is shown: what became of a gang that was bound, how much of its minimum is there, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from extender.core.log.events import GroupRecord
from extender.core.log.gang_phase import effective_phase, minimum_status
from extender.core.log.reservation_state import GangState, MemberLoss
from extender.core.model.pods import SUCCEEDED
from extender.queries.log.event_dto import rfc3339
from extender.queries.log.gang_history import LOST

SUSPENDED: Final = "suspended"
PENDING: Final = frozenset(
    {"observed", "waiting", "unschedulable", "preempting", "invalid", "preempted"}
)


class RootWorkload(msgspec.Struct, frozen=True, gc=False):
    """The workload that a root group was made for."""

    workload: str  # Kind/namespace/name
    suspended: bool = False  # its controller keeps its pods away
    minima: Mapping[tuple[str, str], int] = {}  # of its groups now, by kind and name


class GangStatus(msgspec.Struct, frozen=True, gc=False):
    """The state of a gang as it is shown."""

    state: str  # as in the table in `extender/README.md`
    present: int  # pods of the minimum that are bound, or ended with success
    needed: int  # pods of the minimum; 0 before the first admission
    reasons: tuple[str, ...]


def gang_status(root: GangState, made_for: RootWorkload | None = None) -> GangStatus:
    """Return the state of a gang as it is shown, with its reasons, the most important first.

    A gang whose minimum is not bound any more has its last loss as the first reason.

    Args:
        root: The gang.
        made_for: Its workload, whose present minima count; None: there is none.
    """
    reasons = root.last_decision.reasons if root.last_decision is not None else ()
    groups = _groups_now(root.groups, made_for.minima) if made_for is not None else root.groups
    state = effective_phase(root, groups)
    if root.phase != "scheduled":
        needed = minimum_status(root, groups).needed if groups else 0
        return GangStatus(state, _present(root, groups), needed, reasons)
    status = minimum_status(root, groups)
    if state == "completed":
        return GangStatus(state, status.present, status.needed, ())
    if status.present >= status.needed:
        return GangStatus(state, status.present, status.needed, reasons)
    counts = f"{status.present} of {status.needed} pods of the minimum are there"
    if made_for is not None and made_for.suspended and not root.bound:
        kind, _, path = made_for.workload.partition("/")
        first = f"{kind} {path} is suspended"
        return GangStatus(SUSPENDED, status.present, status.needed, (first, *reasons))
    first = _loss_text(root.last_loss, counts, state)
    return GangStatus(state, status.present, status.needed, (first, *reasons))


def _present(root: GangState, groups: tuple[GroupRecord, ...]) -> int:
    return minimum_status(root, groups).present if groups else 0


def _groups_now(
    groups: tuple[GroupRecord, ...], minima: Mapping[tuple[str, str], int]
) -> tuple[GroupRecord, ...]:
    """Return groups with the minima that their workload has now: one that was scaled down needs less."""
    if all(minima.get((g.kind, g.name), g.minimum) == g.minimum for g in groups):
        return groups
    return tuple(
        msgspec.structs.replace(g, minimum=minima.get((g.kind, g.name), g.minimum)) for g in groups
    )


def _loss_text(loss: MemberLoss | None, counts: str, state: str) -> str:
    """Return the sentence about the last loss of a gang whose minimum is not bound any more."""
    if loss is None:
        return counts
    when = rfc3339(loss.at_us)
    pod = f"pod {loss.pod} on {loss.node} at {when}"
    if loss.preemptor:
        kind, _, path = loss.preemptor.partition("/")
        text = f"evicted for {kind} {path}"
    else:
        text = loss_reason(loss.cause, loss.message)
    if state == "preempted":
        return f"preempted: {text}; last was {pod}"
    return f"{counts}; last lost: {pod}: {text}"


def loss_reason(cause: str, message: str) -> str:
    """Return why a member that was no victim of a recorded preemption ended, with its own message if it has one."""
    _, reason = LOST[cause]
    return f"{reason} ({message})" if message and message != SUCCEEDED else reason
