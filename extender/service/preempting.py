"""What a pending preemption means for the next plan of its tree (SPEC E-11, P15).

A tree whose victims are still going is planned like any other, on the room that is free and that is held for
it: when it fits, it is admitted at once. When it does not fit yet, it waits and says nothing new. When all its
victims are gone and it does not fit all the same, the preemption is given up.
"""

from __future__ import annotations

from typing import Literal

from extender.core.decisions.evictions import Knowledge, abandonment, better_offer
from extender.core.events import AbandonReason, Draft
from extender.core.ids import RootUid
from extender.core.planner.placement import GIVEN, Plan, Refusal, Verdict
from extender.core.preemptions import Preemption
from extender.core.state import ReservationState
from extender.core.view import ClusterView


def under_way(state: ReservationState, uid: RootUid) -> Preemption | None:
    """Give the preemption by which a tree waits for room, if it does."""
    preemption = state.preemptions.get(uid)
    return None if preemption is None or preemption.ended else preemption


def may_admit(
    preemption: Preemption | None, verdict: Verdict | Literal["explain", "search"]
) -> bool:
    """Say whether the answer of the planner is to be acted on now.

    Extras for which room is made are not admitted in part while victims go (SPEC C.6).
    """
    if preemption is None or not preemption.victims:
        return True
    if isinstance(verdict, Refusal):
        return verdict.outcome == "waiting"  # not complete any more: given up below
    if not isinstance(verdict, Plan) or not verdict.assignments:
        return False
    wanted = {claim.uid for claims in preemption.claims.values() for claim in claims}
    return not preemption.extras or wanted <= {a.uid for a in verdict.assignments}


def before_verdict(
    view: ClusterView, preemption: Preemption | None, verdict: Verdict, known: Knowledge
) -> list[Draft]:
    """Give the facts of a pending preemption that come before those of a verdict that is acted on."""
    if preemption is None:
        return []
    if isinstance(verdict, Plan) and verdict.assignments:
        nodes = frozenset(a.node for a in verdict.assignments)
        fact = better_offer(view, preemption, nodes, known) if preemption.victims else None
    else:
        why, text = _why_refused(verdict)
        fact = abandonment(view, preemption, known, why=why, text=text)
    return [known.draft(preemption, fact)] if fact is not None else []


def _why_refused(verdict: Verdict) -> tuple[AbandonReason, str]:
    text = verdict.reasons[0] if verdict.reasons else "no room"
    if isinstance(verdict, Refusal) and verdict.outcome == "waiting":
        return "invalid", f"the tree is not complete any more: {text}"
    if GIVEN in text:
        return "vetoed", text
    return "room-lost", text
