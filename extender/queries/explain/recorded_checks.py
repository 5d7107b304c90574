"""The checks on the way of a gang to its nodes, from what the log recorded about it by a time of the past."""

from __future__ import annotations

from typing import Final

from extender.core.admit.gang_sentences import (
    about_it,
    victims_text,
    waiting_answer,
)
from extender.core.fairness.wait_reasons import ReadmissionPause, WaitReason
from extender.core.log.gang_phase import (
    CAPACITY_TAKEN,
    PREEMPTING,
    TAKEN,
    UNDECIDED,
    capacity_was_taken,
)
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import GangState, LastDecision
from extender.core.model.wording import counted
from extender.core.planner.plan_types import COMPLETE
from extender.queries.explain.explanation import CHECKS, Check, CheckName, Outcome
from extender.queries.explain.gang_checks import (
    Finding,
    bound_text,
    checks_until,
    lost_text,
    not_examined,
    waits_at,
    with_outcome,
)
from extender.queries.log.event_dto import rfc3339
from extender.queries.state.gang_status import GangStatus

# What only the cluster of that time could show, unless the gang was bound.
_BEFORE_BIND: Final[tuple[CheckName, ...]] = ("gates removed", "accepted by kube-scheduler")


def recorded_finding(
    gang: GangState, status: GangStatus, preemption: PendingPreemption | None
) -> Finding:
    """Return the finding about a gang in a state of the past.

    Args:
        gang: The gang in that state.
        status: As it was shown.
        preemption: Its pending preemption in that state; None: there was none.
    """
    who = f"{gang.kind} {gang.gang}"
    if status.state in ("scheduled", "completed"):
        done = "had ended: its members had succeeded" if status.state == "completed" else "ran"
        text = bound_text(gang, status)
        return Finding(
            answer=f"{who} {done}: {text}",
            checks=checks_until("bound", "yes", text),
            reasons=status.reasons,
        )
    if status.state == "admitted":
        text = f"{len(gang.bound)} bound, {len(gang.reservations)} reserved"
        checks = checks_until("accepted by kube-scheduler", "not recorded", text)
        return Finding(
            answer=f"{who} had its capacity reserved: {text}",
            checks=_not_recorded(checks, *_BEFORE_BIND),
            reasons=status.reasons,
        )
    if status.state == PREEMPTING and preemption is not None:
        text = victims_text(preemption)
        outcome: Outcome = "no" if preemption.victims else "yes"
        checks = with_outcome(checks_until("victims gone", outcome, text), outcome, "fits now")
        return Finding(
            answer=f"{who} waited for victims of its preemption: {text}",
            checks=_not_recorded(checks, *_BEFORE_BIND) if not preemption.victims else checks,
        )
    if status.state in ("degraded", "preempted", "suspended"):
        return _lost(who, gang.last_decision, status)
    if gang.last_decision is None:
        reason = CAPACITY_TAKEN if capacity_was_taken(gang) else UNDECIDED
        return Finding(
            answer=f"{who} was pending: {reason}",
            checks=_only_known(),
        )
    return _refused(who, gang.last_decision)


def turn_finding(
    who: str, turn: WaitReason, gang: GangState | None, status: GangStatus | None
) -> Finding:
    """Return the finding about a complete tree that waits to be recorded, to be searched, or for the end of a back-off.

    Its last refusal comes first; that it is planned again comes after it.

    Args:
        who: The root, as sentences begin.
        turn: Why it waits.
        gang: Its state, with the answer before; None: the log does not have it yet.
        status: As it is shown; None likewise.
    """
    checks = checks_until("fits now", "unknown", turn.sentence())
    help_: tuple[str, ...] = ()
    if isinstance(turn, ReadmissionPause):  # it has fitted
        help_ = (turn.help(),)
    else:
        checks = not_examined(checks)
    decision = gang.last_decision if gang is not None else None
    if decision is not None and decision.outcome in ("impossible", "unknown"):
        refused = _refused(who, decision)
        return Finding(
            answer=waiting_answer(f"{refused.answer}; it", turn.sentence()),
            checks=checks,
            reasons=refused.reasons,
            help=(*help_, *refused.help),
        )
    if gang is not None and capacity_was_taken(gang):
        answer = waiting_answer(f"{waiting_answer(who, TAKEN)}; it", turn.sentence())
        return Finding(answer=answer, checks=checks, help=help_)
    return Finding(
        answer=waiting_answer(who, turn.sentence(), lost_text(status)),
        checks=checks,
        # that members are missing is not so any more
        reasons=decision.reasons if decision is not None and decision.outcome != "waiting" else (),
        help=help_,
    )


def _lost(who: str, decision: LastDecision | None, status: GangStatus) -> Finding:
    """Return the finding about a gang whose minimum was not bound any more."""
    first, *others = status.reasons or ("its last loss is not known",)
    counts = f"{status.present} of {counted(status.needed, 'pod')} of the minimum"
    checks = _refused(who, decision).checks if decision is not None else _only_known()
    last = Check(check="bound", outcome="no", text=counts)
    return Finding(
        answer=f"{who} was {status.state}: {first.removeprefix('preempted: ')}",
        checks=(*checks[:-1], last),
        reasons=tuple(others),
    )


def _refused(who: str, decision: LastDecision) -> Finding:
    """Return the finding about a gang with a refusal that held."""
    first, *others = decision.reasons or ("no reason was recorded",)
    problem = about_it(who, first)
    since = f" (refused at {rfc3339(decision.at_us)}, position {decision.position})"
    if decision.outcome == "invalid":
        answer = f"{who} was not valid and was not scheduled: {problem}{since}"
        checks = checks_until("tree valid", "no", first)
    elif decision.outcome == "waiting":
        waited = f": {first}" if first == COMPLETE else f" for {first.removeprefix('waiting for ')}"
        answer = f"{who} waited{waited}{since}"
        outcome: Outcome = "unknown" if first == COMPLETE else "no"  # not looked at
        checks = checks_until(waits_at(first), outcome, first)
    elif decision.when_empty == "never":
        first, *others = decision.reasons_when_empty or (first,)
        problem = about_it(who, first)
        answer = f"{who} could never be placed on the nodes of that time, also when no other pod ran: {problem}{since}"
        checks = checks_until("fits an empty cluster", "no", first)
    elif decision.outcome == "unknown":
        answer = f"{who} may have fitted or not: {problem}{since}"
        checks = checks_until("fits now", "unknown", first)
    else:
        empty = "; it fitted when no other pod ran" if decision.when_empty == "fits" else ""
        answer = f"{who} did not fit: {problem}{empty}{since}"
        checks = checks_until("fits now", "no", first)
    if decision.when_empty == "unknown":
        checks = not_examined(checks)
    elif not decision.when_empty:
        checks = _not_recorded(checks, "fits an empty cluster")
    return Finding(answer=answer, checks=checks, reasons=tuple(others), help=decision.help)


def _not_recorded(checks: tuple[Check, ...], *names: CheckName) -> tuple[Check, ...]:
    return with_outcome(checks, "not recorded", *names)


def _only_known() -> tuple[Check, ...]:
    """Return the checks of a gang about which nothing but its existence is recorded."""
    known: tuple[CheckName, ...] = ("group named", "group exists")
    return tuple(
        Check(check=name, outcome="yes" if name in known else "not recorded") for name in CHECKS
    )
