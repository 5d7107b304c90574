"""Replay a decision from its stored input and compare the result with what was recorded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from extender.core.admit.wish_sentences import recorded_wishes, wish_lines
from extender.core.log.events import (
    AssignmentRecord,
    CapacityHeld,
    GangAdmitted,
    GangExtended,
    GangUnschedulable,
    PreemptionPlanned,
    TreeCompiled,
    TreeRefused,
    WishRecord,
)
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import Position
from extender.core.model.message_formatting import counted
from extender.core.planner.codec.request_codec import decode, digest_of
from extender.core.planner.plan_types import PLANNER_VERSION, Assignment, Plan, Verdict
from extender.core.planner.planning import plan
from extender.core.planner.preempt.judgement import Judgement, judge
from extender.core.planner.preempt.victim_search import PreemptionPlan, PreemptionVerdict, preempt
from extender.core.trees.tree_events import decode_request, replay_tree
from extender.core.verbs import preempt_verb_input
from extender.core.verbs.preempt_verb import VictimChoice, choose_victims
from extender.core.workloads.tree_compiler import TABLE_VERSION
from extender.ports.log_ports import DecisionInput
from extender.queries.log.decision_details import ReplayableEventData


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a replay."""

    position: int
    same: bool
    recorded: str
    now: str
    planner_recorded: str
    planner_now: str = PLANNER_VERSION
    differences: tuple[str, ...] = ()


def replay_decision(
    position: Position,
    data: ReplayableEventData,
    stored: DecisionInput,
) -> ReplayResult:
    """Plan the stored input again and return how the result differs from the recorded decision.

    Raises:
        CorruptLog: The stored input is not the one the event names.
    """
    if digest_of(stored.head, stored.parts) != data.input_digest:
        msg = f"position {position}: the stored input does not have digest {data.input_digest}"
        raise CorruptLog(msg)
    if isinstance(data, TreeCompiled | TreeRefused):
        return _replayed_tree(position, data, stored)
    if isinstance(data, PreemptionPlanned) and data.kind == "Pod":
        choice = choose_victims(
            preempt_verb_input.decode(stored.head, stored.parts), preemption=data.preemption
        )
        return _replayed(
            position, data, _compare_choice(data, choice), _evicts(data), _chosen(choice)
        )
    request = decode(stored.head, stored.parts)
    if isinstance(data, PreemptionPlanned):
        if not data.assignments:  # of the tree without its pods
            whole = plan(request)
            differences = (
                [] if isinstance(whole, Plan) else [f"it does not fit anew: {_word(whole)}"]
            )
            return _replayed(position, data, differences, _evicts(data), _word(whole))
        answer = preempt(request)
        return _replayed(
            position, data, _compare_victims(data, answer), _evicts(data), _found(answer)
        )
    if isinstance(data, GangUnschedulable):
        judged = judge(request)
        differences = _compare_refusal(data, judged)
        return _replayed(position, data, differences, data.outcome, _word(judged.verdict))
    verdict = plan(request)
    if isinstance(data, CapacityHeld):
        minimum = (
            msgspec.structs.replace(
                verdict, assignments=tuple(a for a in verdict.assignments if not a.extra)
            )
            if isinstance(verdict, Plan)
            else verdict
        )
        differences = _compare_admission(data, minimum)
        recorded, verdict = f"{len(data.assignments)} placed", minimum
    else:
        differences = _compare_admission(data, verdict)
        recorded = f"{len(data.assignments)} placed"
    return _replayed(position, data, differences, recorded, _word(verdict))


def _replayed_tree(
    position: Position, data: TreeCompiled | TreeRefused, stored: DecisionInput
) -> ReplayResult:
    """Compile the stored input again and compare everything that the event has."""
    try:
        now = replay_tree(decode_request(stored.head), data.input_digest)
    except msgspec.MsgspecError as error:
        msg = f"position {position}: the stored input cannot be read: {error}"
        raise CorruptLog(msg) from error
    differences = []
    if type(now) is not type(data):
        differences.append(f"{_tree(now)} instead of {_tree(data)}")
    else:
        for field in data.__struct_fields__:
            before, after = getattr(data, field), getattr(now, field)
            if before != after and field != "table_version":
                differences.append(f"{field}: {after} instead of {before}")
    return ReplayResult(
        position=position,
        same=not differences,
        recorded=_tree(data),
        now=_tree(now),
        planner_recorded=f"table {data.table_version}",
        planner_now=f"table {TABLE_VERSION}",
        differences=tuple(differences),
    )


def _tree(data: TreeCompiled | TreeRefused | None) -> str:
    if data is None:
        return "scheduled by another controller"
    return (
        f"refused: {data.reason}"
        if isinstance(data, TreeRefused)
        else counted(len(data.groups), "group")
    )


def _replayed(
    position: Position,
    data: GangAdmitted | GangExtended | GangUnschedulable | PreemptionPlanned | CapacityHeld,
    differences: list[str],
    recorded: str,
    now: str,
) -> ReplayResult:
    return ReplayResult(
        position=position,
        same=not differences,
        recorded=recorded,
        now=now,
        planner_recorded=data.planner,
        differences=tuple(differences),
    )


def _evicts(data: PreemptionPlanned) -> str:
    return f"{counted(len(data.victims), 'unit')} evicted, {len(data.assignments)} placed"


def _found(answer: PreemptionVerdict) -> str:
    if isinstance(answer, PreemptionPlan):
        return (
            f"{counted(len(answer.victims), 'unit')} evicted, {len(answer.plan.assignments)} placed"
        )
    return f"no preemption: {answer.cause}"


def _compare_victims(data: PreemptionPlanned, answer: PreemptionVerdict) -> list[str]:
    if not isinstance(answer, PreemptionPlan):
        return [f"no pod is evicted now: {answer.reasons[0]}"]
    before = {unit.name for unit in data.victims} | {s.gang for s in data.superseded}
    after = {unit.name for unit in answer.victims}
    after |= {unit.name.partition("/")[2] for unit in answer.superseded}
    return _others(before, after) + _moved(data.assignments, answer.plan.assignments)


def _compare_choice(data: PreemptionPlanned, choice: VictimChoice) -> list[str]:
    """Return how the recorded answer of the preempt verb for a lone pod differs from the answer now."""
    plan = choice.plan
    if plan is None:
        return [f"no unit is evicted now: {_chosen(choice)}"]
    before, after = ({unit.name for unit in f.victims} for f in (data, plan))
    costs = [f"cost {plan.cost} instead of {data.cost}"] if plan.cost != data.cost else []
    return _others(before, after) + _moved(data.assignments, plan.assignments) + costs


def _chosen(choice: VictimChoice) -> str:
    if choice.plan is not None:
        return _evicts(choice.plan)
    nodes = ", ".join(candidate.node for candidate in choice.candidates)
    return f"kube-scheduler may use {nodes}" if nodes else "no node may be used"


def _others(before: set[str], after: set[str]) -> list[str]:
    texts = [f"{name}: not evicted now" for name in sorted(before - after)]
    return texts + [f"{name}: evicted now" for name in sorted(after - before)]


def _moved(
    before: Sequence[AssignmentRecord], after: Sequence[Assignment | AssignmentRecord]
) -> list[str]:
    was, now = {a.uid: a.node for a in before}, {a.uid: a.node for a in after}
    names = {a.uid: a.pod for a in before} | {a.uid: a.pod for a in after}
    return [
        f"{names[uid]}: {now.get(uid, 'no node')} instead of {was.get(uid, 'no node')}"
        for uid in sorted(names)
        if was.get(uid) != now.get(uid)
    ]


def _word(verdict: Verdict) -> str:
    if isinstance(verdict, Plan):
        return f"{len(verdict.assignments)} placed"
    return verdict.outcome


def _compare_refusal(data: GangUnschedulable, judged: Judgement) -> list[str]:
    """Compare a refusal; of its notes those of a search for victims that is part of the decision."""
    help_: tuple[str, ...] = ()
    verdict, notes = judged.verdict, judged.notes
    if isinstance(judged.preemption, PreemptionPlan):
        return [f"victims are found now: {_found(judged.preemption)}"]
    if notes and data.preemption_notes[-len(notes) :] != notes:
        return [f"notes {list(notes)} instead of {list(data.preemption_notes)}"]
    if isinstance(verdict, Plan):
        if verdict.assignments:
            return [f"a plan for {counted(len(verdict.assignments), 'member')} is found now"]
    else:
        help_ = verdict.relaxations
        if verdict.outcome != data.outcome:
            return [f"outcome {verdict.outcome} instead of {data.outcome}"]
        if data.when_empty and verdict.when_empty != data.when_empty:
            return [f"on an empty cluster {verdict.when_empty} instead of {data.when_empty}"]
    now, before = (*verdict.reasons, *help_), (*data.reasons, *data.help)
    return [f"reasons {list(now)} instead of {list(before)}"] if now != before else []


def _compare_admission(
    data: GangAdmitted | GangExtended | CapacityHeld, verdict: Verdict
) -> list[str]:
    if not isinstance(verdict, Plan):
        return [f"no plan is found now: {verdict.outcome}"]
    moved = _moved(data.assignments, verdict.assignments)
    return moved if isinstance(data, CapacityHeld) else moved + _other_wishes(data, verdict)


def _other_wishes(data: GangAdmitted | GangExtended, verdict: Plan) -> list[str]:
    before = {(group.kind, group.name): group.wishes for group in data.groups if group.wishes}
    planned = recorded_wishes(verdict.wishes)
    now = {(str(key.kind), key.name): wishes for key, wishes in planned.items()}

    def reached(records: Sequence[WishRecord]) -> str:
        return "; ".join(line.text for line in wish_lines("", records)) or "no wish"

    return [
        f"{' '.join(group)}: {reached(now.get(group, ()))} instead of {reached(before.get(group, ()))}"
        for group in sorted(before.keys() | now.keys())
        if before.get(group) != now.get(group)
    ]
