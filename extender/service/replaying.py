"""Decide again from a stored input and compare with what was recorded."""

from __future__ import annotations

import msgspec

from extender.core.errors import CorruptLog
from extender.core.events import Event, GangAdmitted, GangExtended, GangRefused
from extender.core.planner.canonical import decode, digest_of
from extender.core.planner.placement import PLANNER_VERSION, Plan, Verdict
from extender.core.planner.search import plan
from extender.service.ports import DecisionInput


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a replay."""

    position: int
    same: bool
    recorded: str
    now: str
    planner_recorded: str
    planner_now: str = PLANNER_VERSION
    differences: tuple[str, ...] = ()


def replay_decision(
    event: Event, fact: GangAdmitted | GangExtended | GangRefused, stored: DecisionInput
) -> Replayed:
    """Plan the stored input again.

    Raises:
        CorruptLog: The stored input is not the one the fact names.
    """
    if digest_of(stored.head, stored.parts) != fact.input_digest:
        msg = (
            f"position {event.position}: the stored input does not have digest {fact.input_digest}"
        )
        raise CorruptLog(msg)
    verdict = plan(decode(stored.head, stored.parts))
    if isinstance(fact, GangRefused):
        differences = _compare_refusal(fact, verdict)
        recorded = fact.outcome
    else:
        differences = _compare_admission(fact, verdict)
        recorded = f"{len(fact.assignments)} placed"
    return Replayed(
        position=event.position,
        same=not differences,
        recorded=recorded,
        now=_word(verdict),
        planner_recorded=fact.planner,
        differences=tuple(differences),
    )


def _word(verdict: Verdict) -> str:
    if isinstance(verdict, Plan):
        return f"{len(verdict.assignments)} placed"
    return verdict.outcome


def _compare_refusal(fact: GangRefused, verdict: Verdict) -> list[str]:
    if isinstance(verdict, Plan):
        if verdict.assignments:
            return [f"a plan for {len(verdict.assignments)} members is found now"]
        reasons = verdict.reasons
    else:
        reasons = (*verdict.reasons, *verdict.relaxations)
        if verdict.outcome != fact.outcome:
            return [f"outcome {verdict.outcome} instead of {fact.outcome}"]
    if reasons != fact.reasons:
        return [f"reasons {list(reasons)} instead of {list(fact.reasons)}"]
    return []


def _compare_admission(fact: GangAdmitted | GangExtended, verdict: Verdict) -> list[str]:
    if not isinstance(verdict, Plan):
        return [f"no plan is found now: {verdict.outcome}"]
    before = {a.uid: a.node for a in fact.assignments}
    after = {a.uid: a.node for a in verdict.assignments}
    names = {a.uid: a.pod for a in fact.assignments} | {a.uid: a.pod for a in verdict.assignments}
    return [
        f"{names[uid]}: {after.get(uid, 'no node')} instead of {before.get(uid, 'no node')}"
        for uid in sorted(names)
        if before.get(uid) != after.get(uid)
    ]
