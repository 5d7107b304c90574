"""Replay a decision from its stored input and compare the result with what was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from extender.core.admit.gang_sentences import recorded_wishes, wish_lines
from extender.core.log.events import (
    AssignmentRecord,
    CapacityHeld,
    GangAdmitted,
    GangExtended,
    GangUnschedulable,
    MovesPlanned,
    PreemptionPlanned,
    TreeCompiled,
    TreeRefused,
    WishRecord,
)
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import Position
from extender.core.model.message_formatting import counted
from extender.core.planner.codec.request_codec import Decoder
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.moves.move_search import find_moves
from extender.core.planner.moves.move_types import MovesRequest
from extender.core.planner.plan_types import (
    PLANNER_VERSION,
    Assignment,
    DecisionInput,
    Plan,
    Refusal,
    Verdict,
    digest_of_hashes,
)
from extender.core.planner.planning import plan
from extender.core.planner.preempt.judgement import Judgement, judge
from extender.core.planner.preempt.victim_search import (
    NoPreemption,
    PreemptionPlan,
    PreemptionVerdict,
    preempt,
)
from extender.core.trees.tree_events import decode_request, replay_tree
from extender.core.verbs import preempt_verb_input
from extender.core.verbs.preempt_verb import VictimChoice, choose_victims
from extender.core.workloads.tree_compiler import TABLE_VERSION
from extender.queries.log.decision_details import ReplayableEventData

PlannedEventData = (
    GangAdmitted | GangExtended | GangUnschedulable | PreemptionPlanned | CapacityHeld
)


class DecidedAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a decision was: where its members are placed, what is evicted for them, or why neither."""

    placed: tuple[str, ...] = ()  # `pod on node`, sorted
    evicted: tuple[str, ...] = ()  # names of units, sorted
    reasons: tuple[str, ...] = ()  # of a refusal; then what would help


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a replay."""

    position: int
    same: bool
    recorded: str
    now: str
    planner_recorded: str
    planner_now: str = PLANNER_VERSION
    differences: tuple[str, ...] = ()
    answer_recorded: DecidedAnswer | None = None  # None: it is the same now, or a tree
    answer_now: DecidedAnswer | None = None


def replay_decision(
    position: Position, data: ReplayableEventData, stored: DecisionInput
) -> ReplayResult:
    """Return the replay of a single decision; see `DecisionReplayer.replay`."""
    return DecisionReplayer().replay(position, data, stored)


class DecisionReplayer:
    """Replays one decision after another; parts that their inputs share are hashed and decoded once."""

    HASHES_MAX = 20_000  # parts, of some kB each

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._nodes = NodeTable(())
        self._hashes: dict[bytes, bytes] = {}  # part -> SHA-256

    def replay(
        self, position: Position, data: ReplayableEventData, stored: DecisionInput
    ) -> ReplayResult:
        """Plan the stored input again and return how the result differs from the recorded decision.

        Raises:
            CorruptLog: The stored input is not the one the event names.
        """
        if self._digest_of(stored) != data.input_digest:
            msg = f"position {position}: the stored input does not have digest {data.input_digest}"
            raise CorruptLog(msg)
        try:
            if isinstance(data, TreeCompiled | TreeRefused):
                return _replayed_tree(position, data, stored)
            if isinstance(data, MovesPlanned):
                return _replayed_moves(position, data, stored)
        except msgspec.MsgspecError as error:
            msg = f"position {position}: the stored input cannot be read: {error}"
            raise CorruptLog(msg) from error
        if isinstance(data, PreemptionPlanned) and data.kind == "Pod":
            choice = choose_victims(
                preempt_verb_input.decode(stored.head, stored.parts), preemption=data.preemption
            )
            differences = _compare_choice(data, choice)
            return _replayed(position, data, differences, _chosen(choice), _answer_of(choice.plan))
        request = self._decoder.decode(stored.head, stored.parts)
        self._nodes = table = self._nodes.renewed(request.nodes)
        if isinstance(data, PreemptionPlanned) and data.assignments:
            answer = preempt(request, node_table=table)
            differences = _compare_victims(data, answer)
            return _replayed(position, data, differences, _found(answer), _answer_of(answer))
        if isinstance(data, GangUnschedulable):
            judged = judge(request, node_table=table)
            differences = _compare_refusal(data, judged)
            evicts = isinstance(judged.preemption, PreemptionPlan)
            chosen = judged.preemption if evicts else judged.verdict
            return _replayed(position, data, differences, _word(judged.verdict), _answer_of(chosen))
        verdict = plan(request, node_table=table)
        if isinstance(data, PreemptionPlanned):  # of the tree without its pods
            fits = isinstance(verdict, Plan)
            differences = [] if fits else [f"it does not fit anew: {_word(verdict)}"]
        else:
            if isinstance(data, CapacityHeld) and isinstance(verdict, Plan):
                minimum = tuple(a for a in verdict.assignments if not a.extra)
                verdict = replace(verdict, assignments=minimum)
            differences = _compare_admission(data, verdict)
        return _replayed(position, data, differences, _word(verdict), _answer_of(verdict))

    def _digest_of(self, stored: DecisionInput) -> str:
        """Return what `request_codec.digest_of` returns."""
        if len(self._hashes) > self.HASHES_MAX:
            self._hashes.clear()
        bodies = (stored.head, *stored.parts)
        for part in bodies:
            if part not in self._hashes:
                self._hashes[part] = hashlib.sha256(part).digest()
        return digest_of_hashes(self._hashes[part] for part in bodies)


def _replayed_tree(
    position: Position, data: TreeCompiled | TreeRefused, stored: DecisionInput
) -> ReplayResult:
    """Compile the stored input again and compare everything that the event has."""
    now = replay_tree(decode_request(stored.head), data.input_digest)
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


def _replayed_moves(position: Position, data: MovesPlanned, stored: DecisionInput) -> ReplayResult:
    """Search the moves again, and compare them in their order."""
    planned = find_moves(msgspec.json.decode(stored.head, type=MovesRequest))
    recorded, now = (
        tuple(f"{move.pod} from {move.source} to {move.target}" for move in moves)
        for moves in (data.moves, planned.moves)
    )
    differences = () if recorded == now else ("other moves, or in another order",)
    return ReplayResult(
        position=position,
        same=not differences,
        recorded=counted(len(recorded), "move"),
        now=counted(len(now), "move"),
        planner_recorded=data.planner,
        differences=differences,
        answer_recorded=DecidedAnswer(placed=recorded) if differences else None,
        answer_now=DecidedAnswer(placed=now) if differences else None,
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
    data: PlannedEventData,
    differences: list[str],
    now: str,
    answer: DecidedAnswer,
) -> ReplayResult:
    recorded = f"{len(getattr(data, 'assignments', ()))} placed"
    if isinstance(data, PreemptionPlanned):
        recorded = _evicts(data)
    elif isinstance(data, GangUnschedulable):
        recorded = data.outcome
    return ReplayResult(
        position=position,
        same=not differences,
        recorded=recorded,
        now=now,
        planner_recorded=data.planner,
        differences=tuple(differences),
        answer_recorded=_answer_of(data) if differences else None,
        answer_now=answer if differences else None,
    )


def _answer_of(decided: PlannedEventData | Verdict | PreemptionVerdict | None) -> DecidedAnswer:
    """Return the answer of an event, or of the planner now; empty where kube-scheduler decides alone."""
    if decided is None:
        return DecidedAnswer()
    if isinstance(decided, PreemptionPlan):
        units = {unit.name for unit in decided.victims}
        units |= {unit.name.partition("/")[2] for unit in decided.superseded}
        return replace(_answer_of(decided.plan), evicted=tuple(sorted(units)))
    if isinstance(decided, GangUnschedulable):
        return DecidedAnswer(reasons=(*decided.reasons, *decided.help))
    if isinstance(decided, Refusal):
        return DecidedAnswer(reasons=(*decided.reasons, *decided.relaxations))
    if isinstance(decided, NoPreemption):
        return DecidedAnswer(reasons=decided.reasons)
    evicted: list[str] = []
    if isinstance(decided, PreemptionPlanned):
        evicted = [unit.name for unit in decided.victims] + [s.gang for s in decided.superseded]
    return DecidedAnswer(
        placed=tuple(sorted(f"{a.pod} on {a.node}" for a in decided.assignments)),
        evicted=tuple(sorted(evicted)),
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
    before, after = (set(_answer_of(decided).evicted) for decided in (data, answer))
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
