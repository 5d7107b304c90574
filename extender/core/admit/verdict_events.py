"""The events that record the planner's answer about a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from extender.core.admit.gang_sentences import recorded_wishes
from extender.core.log import events as ev
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pod_groups import Tree
from extender.core.model.quantities import add_amounts
from extender.core.planner.plan_types import (
    PLANNER_VERSION,
    Assignment,
    Plan,
    PlanNode,
    PlanRequest,
    Refusal,
    Verdict,
)

# A number that is a word of its own, not a part of a name such as `rack-3`.
_NUMBER = re.compile(r"(?<![\w./-])\d+(?![\w./-])")


class EventContext(ev.EventSource, frozen=True, kw_only=True):
    """Fields of the events that are not part of the answer."""

    plan: PlanId  # id for a new admission
    digest: str  # of the planner's input, hex
    topology_keys: tuple[str, ...] = ()  # recorded for every used node, beside the keys of the tree
    # why preemption does not help, without names of other namespaces; empty: there are none in it
    notes_reduced: tuple[str, ...] = ()


def draft_for(tree: Tree, data: ev.AnyEventData, context: EventContext) -> ev.NewEvent:
    """Return an event for the stream of the root."""
    return context.draft(tree.root.uid, tree.root.key.path, data)


def decide_observed(
    state: ReservationState, tree: Tree, context: EventContext
) -> list[ev.NewEvent]:
    """Return the event for a root that the log does not have yet, if it is one."""
    return [] if tree.root.uid in state.gangs else [draft_for(tree, observed(tree), context)]


def observed(tree: Tree) -> ev.GangObserved:
    """Return the first event of a root."""
    return ev.GangObserved(
        kind=tree.root.key.kind,
        priority=tree.root.priority,
        groups=len(tree.groups),
        members=len(tree.pods),
    )


def decide_invalid(state: ReservationState, tree: Tree, context: EventContext) -> list[ev.NewEvent]:
    """Return the events for an invalid tree; none if the log has the same problems."""
    if is_recorded_invalid(state, tree):
        return []
    return [
        *decide_observed(state, tree, context),
        draft_for(tree, ev.GangInvalid(problems=_problem_texts(tree)), context),
    ]


def is_recorded_invalid(state: ReservationState, tree: Tree) -> bool:
    """Return whether the log has the current problems of an invalid tree."""
    root = state.gangs.get(tree.root.uid)
    return (
        root is not None
        and root.last_decision is not None
        and root.last_decision.reasons == _problem_texts(tree)
    )


def _problem_texts(tree: Tree) -> tuple[str, ...]:
    return tuple(f"{p.rule}: {p.message}" for p in tree.problems)


def decide_verdict(
    state: ReservationState,
    tree: Tree,
    request: PlanRequest,
    verdict: Verdict,
    context: EventContext,
    considered: tuple[str, ...] = (),
    *,
    again: bool = False,
) -> list[ev.NewEvent]:
    """Return the events for an admission, an extension, or a refusal that differs from the last one.

    Args:
        considered: Why preemption does not help, if the planner tried it.
        again: Record a refusal although the reasons are those of the last one: it has a conflict now.
    """
    drafts = decide_observed(state, tree, context)
    root = state.gangs.get(tree.root.uid)
    if isinstance(verdict, Plan) and verdict.assignments:
        drafts.append(draft_for(tree, _admission(root, tree, request, verdict, context), context))
        hold = state.capacity_holds.get(tree.root.uid)
        if hold is not None:
            ended = ev.CapacityHoldReleased(
                hold=hold.hold, reason="admitted", message="it was admitted"
            )
            drafts.append(draft_for(tree, ended, context))
        return drafts
    data = _refusal(verdict, context, considered)
    if not data.reasons or not (again or _differs(root, data)):
        return drafts
    return [*drafts, draft_for(tree, data, context)]


def is_recorded(
    root: GangState | None, verdict: Verdict, considered: tuple[str, ...], *, explained: bool
) -> bool:
    """Return whether a tree is refused as recorded, but for numbers in the texts, such as members that have arrived.

    Args:
        explained: The explanation counts, too; False: the verdict has none, the record may have one.
    """
    last = root.last_decision if root is not None else None
    if last is None or not isinstance(verdict, Refusal) or last.outcome != verdict.outcome:
        return False
    before, now = [*last.reasons], [*verdict.reasons, *considered]
    if explained:
        before += (*last.help, last.when_empty)
        now += (*verdict.relaxations, verdict.when_empty)
    return [_NUMBER.sub("#", text) for text in before] == [_NUMBER.sub("#", text) for text in now]


def _differs(root: GangState | None, data: ev.GangUnschedulable) -> bool:
    last = root.last_decision if root is not None else None
    now = (data.outcome, data.reasons + data.preemption_notes, data.help, data.when_empty)
    return last is None or (last.outcome, last.reasons, last.help, last.when_empty) != now


def _refusal(
    verdict: Verdict, context: EventContext, considered: tuple[str, ...]
) -> ev.GangUnschedulable:
    # of a plan: the minimum is satisfied, and there is no place for extra members
    data = ev.GangUnschedulable(
        outcome="impossible" if verdict.search.exhausted else "unknown",
        reasons=verdict.reasons,
        planner=PLANNER_VERSION,
        input_digest=context.digest,
        search_nodes=verdict.search.nodes,
        exhausted=verdict.search.exhausted,
        preemption_notes=considered,
        preemption_notes_reduced=context.notes_reduced,
    )
    if isinstance(verdict, Plan):
        return data
    return msgspec.structs.replace(
        data,
        outcome=verdict.outcome,
        conflict=tuple(
            ev.ConflictRecord(kind=c.kind, object=c.object, message=c.message)
            for c in verdict.conflict
        ),
        help=verdict.relaxations,
        when_empty=verdict.when_empty,
        reasons_when_empty=verdict.reasons_when_empty,
    )


def _admission(
    root: GangState | None, tree: Tree, request: PlanRequest, plan: Plan, context: EventContext
) -> ev.GangAdmitted | ev.GangExtended:
    extended = ev.GangExtended(
        plan=context.plan,
        priority=tree.root.priority,
        groups=group_records(tree, plan),
        shapes=tuple(dict(shape.requests) for shape in request.shapes),
        assignments=assignment_records(plan.assignments),
        unplaced=plan.unplaced,
        topology=_topology(tree, request.nodes, {a.node for a in plan.assignments}, context),
        planner=PLANNER_VERSION,
        input_digest=context.digest,
        search_nodes=plan.search.nodes,
        exhausted=plan.search.exhausted,
    )
    if root is not None and root.plan is not None:
        return extended
    # an admission has all fields of an extension, and the kind of the root
    return ev.GangAdmitted(kind=tree.root.key.kind, **msgspec.structs.asdict(extended))


def assignment_records(assignments: Iterable[Assignment]) -> tuple[ev.AssignmentRecord, ...]:
    """Return the records of places."""
    return tuple(
        ev.AssignmentRecord(
            pod=a.pod, uid=a.uid, group=a.group.name, node=a.node, shape=a.shape, extra=a.extra
        )
        for a in assignments
    )


def group_records(tree: Tree, plan: Plan | None) -> tuple[ev.GroupRecord, ...]:
    """Return the groups of a tree, root first, with the domains of a plan and what their wishes reached."""
    domains = {p.group: dict(p.domain) for p in plan.placements} if plan is not None else {}
    wishes = recorded_wishes(plan.wishes) if plan is not None else {}
    return tuple(
        ev.GroupRecord(
            kind=group.key.kind,
            name=group.key.name,
            parent=group.parent or "" if group.key != tree.root.key else "",
            basic=group.basic,
            minimum=1 if group.basic else group.minimum,
            required=() if group.basic else group.required,
            domain=domains.get(group.key, {}),
            members=len(tree.members.get(group.key, ())),
            disruption_mode=group.disruption_mode,
            uid=group.uid,
            wishes=wishes.get(group.key, ()),
        )
        for group in tree.groups
    )


def _topology(
    tree: Tree, nodes: Iterable[PlanNode], used: set[NodeName], context: EventContext
) -> dict[str, dict[str, str]]:
    keys = sorted(
        {key for group in tree.groups for key in group.constraints.topology_keys}
        | set(context.topology_keys)
    )
    return {
        node.name: {key: node.labels[key] for key in keys if key in node.labels}
        for node in nodes
        if node.name in used
    }


def still_holds(request: PlanRequest, plan: Plan, now: PlanRequest) -> bool:
    """Return whether a plan made for `request` may be recorded with the input `now`.

    The check is conservative: the tree must be the same, and every used node must be the same except for its free
    capacity, which must suffice for the plan. It is needed because the input may change while the planner runs in
    another process.
    """
    if (
        request.root != now.root
        or request.shapes != now.shapes
        or request.claims_in_use != now.claims_in_use
        or request.rules != now.rules
        or request.closed != now.closed
    ):
        return False
    before = {node.name: node for node in request.nodes}
    after = {node.name: node for node in now.nodes}
    needed: dict[NodeName, dict[str, int]] = {}
    for assignment in plan.assignments:
        capacity = needed.setdefault(assignment.node, {})
        add_amounts(capacity, dict(request.shapes[assignment.shape].requests))
    for name, capacity in needed.items():
        new, old = after.get(name), before[name]
        if new is None or msgspec.structs.replace(new, free=old.free, reserved=old.reserved) != old:
            return False
        if any(new.free.get(resource, 0) < amount for resource, amount in capacity.items()):
            return False
    refused: set[tuple[NodeName, PodUid | int | None]] = {
        (v.node, v.uid if v.uid is not None else v.shape) for v in now.rejected_nodes
    }
    return not any(
        (a.node, a.uid) in refused or (a.node, a.shape) in refused for a in plan.assignments
    )


# --- whether a refusal holds: a refused tree is not planned again until some node has gained capacity

# Less capacity, labels of unused nodes, reservations of other trees: most changes of a cluster cannot help a refused
# tree, so it is not planned again for them (L39).


class ComparedNodes:
    """The results of `only_less` by the identity of both sides: many trees were refused with the same nodes."""

    def __init__(self) -> None:
        # with both tuples, so that the ids stay valid
        self._compared: dict[tuple[int, int], tuple[object, object, bool]] = {}

    def clear(self) -> None:
        """Drop all results."""
        self._compared.clear()

    def only_less(self, before: tuple[PlanNode, ...], now: tuple[PlanNode, ...]) -> bool:
        """Return the result of `only_less`."""
        key = (id(before), id(now))
        entry = self._compared.get(key)
        if entry is None:
            entry = self._compared[key] = (before, now, only_less(before, now))
        return entry[2]


def would_be_refused(refused: PlanRequest, now: PlanRequest, compared: ComparedNodes) -> bool:
    """Return whether the planner, which refused one request, would certainly refuse another one of the same tree."""
    same_tree = refused.root is now.root and refused.shapes is now.shapes
    if not same_tree and (refused.root != now.root or refused.shapes != now.shapes):
        return False
    if (refused.budget, refused.explain, refused.rules) != (now.budget, now.explain, now.rules):
        return False
    if refused.closed != now.closed:
        return False
    if not set(refused.rejected_nodes) <= set(now.rejected_nodes):
        return False
    if not set(refused.claims_in_use) <= set(now.claims_in_use):
        return False
    return refused.nodes is now.nodes or compared.only_less(refused.nodes, now.nodes)


def only_less(before: tuple[PlanNode, ...], now: tuple[PlanNode, ...]) -> bool:
    """Return whether no node has gained capacity, and no node was added or removed.

    A removed node cannot help a tree either, but it changes the texts of refusals, so it counts as a change.
    """
    if len(before) != len(now):
        return False
    return all(a is b or _less(a, b) for a, b in zip(before, now, strict=True))


def _less(before: PlanNode, now: PlanNode) -> bool:
    same = msgspec.structs.replace(
        now, free=before.free, host_ports=before.host_ports, reserved=before.reserved
    )
    return (
        same == before
        and set(before.host_ports) <= set(now.host_ports)
        and all(now.free.get(name, 0) <= amount for name, amount in before.free.items())
        and now.free.keys() <= before.free.keys()
    )
