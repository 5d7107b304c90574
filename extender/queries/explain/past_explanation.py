"""Explain any object by its name as it was at a time of the past, from the log alone: its checks, and the names in its answer.

The log has gangs, their groups, members that were reserved or bound, workloads, preemptions and the nodes of these. It
does not have ordinary pods, members that only waited, or free capacity; `limitations` has that in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from extender.core.admit.gang_sentences import (
    about_it,
    victims_text,
    waiting_text,
)
from extender.core.fairness.wait_reasons import ReadmissionPause, WaitReason
from extender.core.log.events import GangAdmitted, GangObserved, GangRemoved, TreeRetired
from extender.core.log.gang_phase import (
    CAPACITY_TAKEN,
    PREEMPTING,
    TAKEN,
    UNDECIDED,
    capacity_was_taken,
)
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import (
    GangState,
    LastDecision,
    MemberLoss,
    ReservationState,
)
from extender.core.model.errors import NotFound
from extender.core.model.ids import NodeName
from extender.core.model.message_formatting import counted, spaced
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden
from extender.core.planner.plan_types import COMPLETE
from extender.ports.query_ports import (
    EventFilter,
    EventQueries,
    GangIncarnation,
    PodPlacement,
)
from extender.queries.explain.explanation import (
    CHECKS,
    Check,
    CheckName,
    Explanation,
    Outcome,
    Related,
)
from extender.queries.explain.gang_checks import (
    Finding,
    bound_text,
    checks_until,
    lost_text,
    not_examined,
    waits_at,
    with_outcome,
    with_unheld,
)
from extender.queries.explain.name_lookup import (
    GROUP_KINDS,
    ObjectName,
    WantedName,
    in_other_namespace,
    matches,
    similar_names,
)
from extender.queries.log.event_dto import rfc3339
from extender.queries.log.gang_history import loss_reason
from extender.queries.log.visible_queries import visible_queries
from extender.queries.state.gang_status import GangStatus, gang_status
from extender.queries.state.historical_state import HistoricalState, PointInTime
from extender.queries.state.state_report import ORDINARY, gang_at
from extender.queries.state.workload_trees import RootKey, root_groups, workloads_of_roots
from extender.runtime.cooperative_yield import Yielder

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
            subject=who,
            text=f"{done}: {text}",
            checks=checks_until("bound", "yes", text),
            reasons=status.reasons,
        )
    if status.state == "admitted":
        text = f"{len(gang.bound)} bound, {len(gang.reservations)} reserved"
        checks = checks_until("accepted by kube-scheduler", "not recorded", text)
        return Finding(
            subject=who,
            text=f"had its capacity reserved: {text}",
            checks=_not_recorded(checks, *_BEFORE_BIND),
            reasons=status.reasons,
        )
    if status.state == PREEMPTING and preemption is not None:
        text = victims_text(preemption)
        outcome: Outcome = "no" if preemption.victims else "yes"
        checks = with_outcome(checks_until("victims gone", outcome, text), outcome, "fits now")
        return Finding(
            subject=who,
            text=f"waited for victims of its preemption: {text}",
            checks=_not_recorded(checks, *_BEFORE_BIND) if not preemption.victims else checks,
        )
    if status.state in ("degraded", "preempted", "suspended"):
        return _lost(who, gang.last_decision, status)
    if gang.last_decision is None:
        reason = CAPACITY_TAKEN if capacity_was_taken(gang) else UNDECIDED
        return Finding(
            subject=who,
            text=f"was pending: {reason}",
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
            subject=who,
            text=f"{refused.text}; it {waiting_text(turn.sentence())}",
            checks=checks,
            reasons=refused.reasons,
            help=(*help_, *refused.help),
        )
    if gang is not None and capacity_was_taken(gang):
        text = f"{waiting_text(TAKEN)}; it {waiting_text(turn.sentence())}"
        return Finding(subject=who, text=text, checks=checks, help=help_)
    return Finding(
        subject=who,
        text=waiting_text(turn.sentence(), lost_text(status)),
        checks=checks,
        # that members are missing is not so any more
        reasons=decision.reasons if decision is not None and decision.outcome != "waiting" else (),
        help=help_,
    )


def _lost(who: str, decision: LastDecision | None, status: GangStatus) -> Finding:
    """Return the finding about a gang whose minimum was not bound any more."""
    counts = f"{status.present} of {counted(status.needed, 'pod')} of the minimum"
    checks = _refused(who, decision).checks if decision is not None else _only_known()
    last = Check(check="bound", outcome="no", text=counts)
    return Finding(
        subject=who,
        text=f"was {status.state}: {status.loss}",
        checks=(*checks[:-1], last),
        reasons=status.reasons[1:],
    )


def _refused(who: str, decision: LastDecision) -> Finding:
    """Return the finding about a gang with a refusal that held."""
    first, *others = decision.reasons or ("no reason was recorded",)
    problem = about_it(who, first)
    since = f" (refused at {rfc3339(decision.at_us)}, position {decision.position})"
    if decision.outcome == "invalid":
        text = f"was not valid and was not scheduled: {problem}{since}"
        checks = checks_until("tree valid", "no", first)
    elif decision.outcome == "waiting":
        text = f"{waiting_text(first, verb='waited')}{since}"
        outcome: Outcome = "unknown" if first == COMPLETE else "no"  # not looked at
        checks = checks_until(waits_at(first), outcome, first)
    elif decision.when_empty == "never":
        first, *others = decision.reasons_when_empty or (first,)
        problem = about_it(who, first)
        text = f"could never be placed on the nodes of that time, also when no other pod ran: {problem}{since}"
        checks = checks_until("fits an empty cluster", "no", first)
    elif decision.outcome == "unknown":
        text = f"may have fitted or not: {problem}{since}"
        checks = checks_until("fits now", "unknown", first)
    else:
        empty = "; it fitted when no other pod ran" if decision.when_empty == "fits" else ""
        text = f"did not fit: {problem}{empty}{since}"
        checks = checks_until("fits now", "no", first)
    if decision.when_empty == "unknown":
        checks = not_examined(checks)
    elif not decision.when_empty:
        checks = _not_recorded(checks, "fits an empty cluster")
    return Finding(subject=who, text=text, checks=checks, reasons=tuple(others), help=decision.help)


def _not_recorded(checks: tuple[Check, ...], *names: CheckName) -> tuple[Check, ...]:
    return with_outcome(checks, "not recorded", *names)


def _only_known() -> tuple[Check, ...]:
    """Return the checks of a gang about which nothing but its existence is recorded."""
    known: tuple[CheckName, ...] = ("group named", "group exists")
    return tuple(
        Check(check=name, outcome="yes" if name in known else "not recorded") for name in CHECKS
    )


# What the log has of a pod, the most important first.
_ROLES: Final = ("bound", "reserved", "victim", "preemptor", "lost")


class RecordedPod(NamedTuple):
    """A pod in a state of the log."""

    role: str  # bound | reserved | victim | preemptor | lost
    node: str  # empty: the preemptor has none yet
    group: str  # of a member: the name of its PodGroup
    gang: GangState | None  # of a member
    preemption: PendingPreemption | None  # of a victim or preemptor


def recorded_names(state: ReservationState) -> Iterator[ObjectName]:
    """Yield every object that a state of the log names, some of them more than once."""
    for root in state.gangs.values():
        yield ObjectName(root.kind, root.gang)
        namespace = root.gang.partition("/")[0]
        yield from (ObjectName(group.kind, f"{namespace}/{group.name}") for group in root.groups)
    for tree in state.trees.values():
        yield ObjectName(tree.kind, tree.workload)
    for pod, one in _pods(state):
        if not is_hidden(pod):
            yield ObjectName("Pod", pod)
        if one.node:
            yield ObjectName("Node", one.node)


def recorded_pod(state: ReservationState, path: str) -> RecordedPod | None:
    """Return what a state has of a pod, or None; of a member that is a victim also the preemption.

    Args:
        state: The state.
        path: namespace/name of the pod.
    """
    found = [one for pod, one in _pods(state) if pod == path]
    if not found:
        return None
    first = min(found, key=lambda one: _ROLES.index(one.role))
    if first.role == "bound":
        victim = next((one for one in found if one.role == "victim"), first)
        return first._replace(preemption=victim.preemption)
    return first


def pods_on(state: ReservationState, node: str) -> list[RecordedPod]:
    """Return the members and victims that a state has on a node, one for each role of a pod."""
    return [one for _, one in _pods(state) if one.node == node]


def _pods(state: ReservationState) -> Iterator[tuple[str, RecordedPod]]:
    for root in state.gangs.values():
        for bound in root.bound.values():
            yield bound.pod, RecordedPod("bound", bound.node, bound.group, root, None)
        for held in root.reservations.values():
            yield held.pod, RecordedPod("reserved", held.node, held.group, root, None)
        for left in root.replacement_holds.values():
            yield left.pod, RecordedPod("lost", left.node, left.group, root, None)
        for gone in root.lost_with_node.values():
            yield gone.pod, RecordedPod("lost", gone.node, gone.group, root, None)
        if root.last_loss is not None:
            loss = root.last_loss
            yield loss.pod, RecordedPod("lost", loss.node, "", root, None)
    for preemption in state.preemptions.values():
        for victim in preemption.victims.values():
            yield victim.pod, RecordedPod("victim", victim.node, victim.group, None, preemption)
        if preemption.kind == "Pod":
            yield preemption.gang, RecordedPod("preemptor", "", "", None, preemption)


GANGS_MAX = 20  # gangs of a node that are named
RETIRED_MAX = 1_000  # ends of workloads that are searched
WAITING_PODS = (
    "Members without a reservation are not in the log: which of them waited is not known."
)


class PastExplanations:
    """Answers questions about one object as the log had it at a time.

    Args:
        past: The states of the past.
        log: Finds what the state of that time does not have, such as deleted groups.
    """

    def __init__(self, past: HistoricalState, log: EventQueries) -> None:
        self._past = past
        self._log = log

    async def explain(
        self, wanted: WantedName, at: str, readers: Visibility = EVERYTHING
    ) -> Explanation:
        """Return the state of an object at a time or position, and why it was in it.

        Args:
            wanted: The name. Of several objects with it the first of `KINDS` is explained.
            at: Time (RFC 3339 with offset) or position.
            readers: What the caller sees.

        Raises:
            BadInput: There is no such time or position in the log.
            NotFound: The log has nothing of that name; the message has similar names.
            StoreUnavailable: The database did not answer.
        """
        if not readers.everything:
            seen = PastExplanations(self._past, visible_queries(self._log, readers))
            return await seen._explain(wanted, at, readers)
        return await self._explain(wanted, at, readers)

    async def _explain(self, wanted: WantedName, at: str, readers: Visibility) -> Explanation:
        moment, state = await self._past.state_at(at, readers)
        found = await matches(recorded_names(state), wanted, Yielder())
        if not found:
            elsewhere = await in_other_namespace(recorded_names(state), wanted, Yielder())
            if elsewhere is not None:
                found = await matches(recorded_names(state), elsewhere, Yielder())
        if found:
            about = _of(state, found[0])
        else:
            about = await self._at_another_time(wanted, moment, state)
        same = tuple(Related(kind=o.kind, name=o.path, relation="same name") for o in found[1:])
        return msgspec.structs.replace(
            about,
            answer=f"At {moment.time}, position {moment.position}: {about.answer}",
            related=(*about.related, *same),
            limitations=(ORDINARY, WAITING_PODS),
            as_of=moment.time,
            position=moment.position,
            at=moment.requested,
        )

    async def _at_another_time(
        self, wanted: WantedName, moment: PointInTime, state: ReservationState
    ) -> Explanation:
        """Explain an object that the log has only before or after a moment.

        Raises:
            NotFound: The log does not have it, or it is a group that has never been a root.
        """
        path, kind = f"{wanted.namespace}/{wanted.name}", wanted.kind
        found = None
        if kind in ("", *GROUP_KINDS):
            found = await self._other_root(path, kind, moment)
        if found is None and kind in ("", "Pod"):
            found = _other_placement(path, await self._log.placements(path), moment)
        if found is None and kind not in ("Pod", "Node", *GROUP_KINDS):
            found = await self._retired(path, kind, moment)
        node = NodeName(wanted.name)
        nodes = kind == "Node" or not (kind or wanted.given_namespace)
        if found is None and nodes and await self._log.has_node(node):
            found = Explanation(
                kind="Node",
                name=node,
                answer=f"Node {node} had no member, reservation or victim of a gang",
            )
        if found is not None:
            return found
        near = await similar_names(recorded_names(state), wanted, Yielder())
        raise NotFound(_not_found(wanted, moment, near))

    async def _other_root(self, path: str, kind: str, moment: PointInTime) -> Explanation | None:
        lives = await self._log.incarnations(path)
        before = [life for life in lives if life.last_position <= moment.position]
        after = [life for life in lives if life.first_position > moment.position]
        life = before[-1] if before else after[0] if after else None
        if life is None:
            return None
        kinds = EventFilter(gang_uid=life.uid, types=("GangObserved", "GangAdmitted"), limit=1)
        first = next(iter(await self._log.events(kinds)), None)
        data = first.data if first is not None else None
        of = data.kind if isinstance(data, GangObserved | GangAdmitted) else ""
        if kind and of and kind != of:
            return None
        who = f"{of or 'gang'} {path}"
        if not before:
            first_time = _when(life.first_us, life.first_position)
            text = f"{who} was not in the log yet: it was first recorded at {first_time}"
            return _absent(of, path, text)
        return await self._removed(of, who, life)

    async def _removed(self, kind: str, who: str, life: GangIncarnation) -> Explanation:
        ends = EventFilter(gang_uid=life.uid, types=("GangRemoved",), newest_first=True, limit=1)
        end = next(iter(await self._log.events(ends)), None)
        reason = end.data.reason if end is not None and isinstance(end.data, GangRemoved) else ""
        because = f" ({reason})" if reason else ""
        return _absent(
            kind,
            life.gang,
            f"{who} did not exist any more: it was removed at {_when(life.last_us, life.last_position)}{because}",
            f"`gang-extender explain {life.gang} --at {life.last_position - 1}` has its last state",
        )

    async def _retired(self, path: str, kind: str, moment: PointInTime) -> Explanation | None:
        wanted = EventFilter(types=("TreeRetired",), newest_first=True, limit=RETIRED_MAX)
        for event in await self._log.events(wanted):
            data = event.data
            if (
                isinstance(data, TreeRetired)
                and data.workload == path
                and kind in ("", data.kind)
                and event.position <= moment.position
            ):
                return _absent(
                    data.kind,
                    path,
                    f"{data.kind} {path} had no groups any more: they were removed "
                    f"at {_when(event.at_us, event.position)} ({data.reason})",
                    f"`gang-extender explain {data.kind}/{path} --at {event.position - 1}` has its last state",
                )
        return None


def _of(state: ReservationState, subject: ObjectName) -> Explanation:
    if subject.kind == "Node":
        return _node(state, subject)
    if subject.kind == "Pod":
        return _pod(state, subject)
    if subject.kind in GROUP_KINDS:
        return _group(state, subject)
    return _workload(state, subject)


def _group(state: ReservationState, subject: ObjectName) -> Explanation:
    roots = [g for g in state.gangs.values() if (g.kind, g.gang) == (subject.kind, subject.path)]
    if roots:
        return _gang(state, subject, max(roots, key=lambda root: root.observed_us))[1]
    namespace, _, name = subject.path.partition("/")
    root, group = next(
        (root, group)
        for root in state.gangs.values()
        if root.gang.startswith(f"{namespace}/")
        for group in root.groups
        if (group.kind, group.name) == (subject.kind, name)
    )
    finding, about = _gang(state, subject, root)
    assert about.gang is not None
    here = next(
        one for one in about.gang.groups if (one.kind, one.name) == (group.kind, group.name)
    )
    domain = "".join(f" in {key}={value}" for key, value in here.domain.items())
    has = f"with {here.bound} bound and {here.reserved} reserved members{domain}"
    return msgspec.structs.replace(
        about, answer=f"{subject}, {has}, was a child group of {finding.clause}"
    )


def _gang(
    state: ReservationState, subject: ObjectName, gang: GangState
) -> tuple[Finding, Explanation]:
    """Explain an object by the gang that it belongs to."""
    workloads = workloads_of_roots(state.trees.values())
    made_for = workloads.get(RootKey(gang.gang, gang.kind))
    status = gang_status(gang, made_for)
    finding = recorded_finding(gang, status, state.preemptions.get(gang.uid))
    if gang.uid not in state.capacity_holds:
        finding = with_unheld(finding, state, gang, None, state.at_us)
    related = []
    if subject != ObjectName(gang.kind, gang.gang):
        related.append(Related(kind=gang.kind, name=gang.gang, relation="root group"))
    if made_for is not None and made_for.workload != f"{subject.kind}/{subject.path}":
        kind, _, path = made_for.workload.partition("/")
        related.append(Related(kind=kind, name=path, relation="workload"))
    return finding, Explanation(
        kind=subject.kind,
        name=subject.path,
        answer=finding.answer,
        state=status.state,
        checks=finding.checks,
        reasons=finding.reasons,
        help=finding.help,
        related=tuple(related),
        gang=gang_at(gang, workloads),
    )


def _pod(state: ReservationState, subject: ObjectName) -> Explanation:
    one = recorded_pod(state, subject.path)
    assert one is not None
    by = ""
    if one.preemption is not None:
        by = spaced(one.preemption.preemptor)
    if one.gang is None:
        return _outside(subject, one, by)
    finding, about = _gang(state, subject, one.gang)
    place = {
        "bound": f"ran on {one.node}{f' and was to be evicted for {by}' if by else ''}",
        "reserved": f"had capacity reserved on {one.node}",
        "lost": f"was lost on {one.node}{_loss(one.gang.last_loss, subject.path)}",
    }[one.role]
    return msgspec.structs.replace(about, answer=f"{subject} {place}, a member of {finding.clause}")


def _outside(subject: ObjectName, one: RecordedPod, by: str) -> Explanation:
    """Explain a pod that no gang of the state has: a victim, or a preemptor outside of groups."""
    assert one.preemption is not None
    if one.role == "preemptor":
        text = f"waited for victims of its preemption: {victims_text(one.preemption)}"
    else:
        text = f"ran on {one.node} and was to be evicted for {by}"
    root = Related(kind=one.preemption.kind, name=one.preemption.gang, relation="preemptor")
    return Explanation(
        kind="Pod",
        name=subject.path,
        answer=f"{subject} {text}",
        related=() if one.role == "preemptor" or is_hidden(root.name) else (root,),
    )


def _loss(loss: MemberLoss | None, pod: str) -> str:
    if loss is None or loss.pod != pod:
        return ""
    reason = (
        f"evicted for {spaced(loss.preemptor)}"
        if loss.preemptor
        else loss_reason(loss.cause, loss.message)
    )
    return f" at {_when(loss.at_us, loss.position)} ({reason})"


def _workload(state: ReservationState, subject: ObjectName) -> Explanation:
    named = (subject.kind, subject.path)
    tree = next(t for t in state.trees.values() if (t.kind, t.workload) == named)
    namespace = subject.path.partition("/")[0]
    names = {f"{namespace}/{parent or name}" for _, name, parent in root_groups(tree)}
    roots = sorted(
        (root for root in state.gangs.values() if root.gang in names), key=lambda root: root.gang
    )
    if tree.outcome == "refused" or not roots:
        why = tree.message or tree.reason or "no gang of it was recorded yet"
        return Explanation(
            kind=subject.kind,
            name=subject.path,
            answer=f"{subject} had no groups in the log: {why}",
            state=tree.outcome,
        )
    _, about = _gang(state, subject, roots[0])
    more = f" (the first of {len(roots)} root groups)" if len(roots) > 1 else ""
    links = tuple(Related(kind=r.kind, name=r.gang, relation="root group") for r in roots[1:])
    return msgspec.structs.replace(
        about, answer=f"{subject}{more}: {about.answer}", related=(*about.related, *links)
    )


def _node(state: ReservationState, subject: ObjectName) -> Explanation:
    here = pods_on(state, subject.path)
    roles = {
        role: sum(one.role == role for one in here)
        for role in ("bound", "reserved", "victim", "lost")
    }
    roots = {one.gang.uid: one.gang for one in here if one.gang is not None and one.role != "lost"}
    words = [f"{roles['bound']} bound and {roles['reserved']} reserved members"]
    words.append(f"of {counted(len(roots), 'gang')}")
    if roles["victim"]:
        words.append(f"and {counted(roles['victim'], 'victim')} of preemptions")
    ordered = sorted(roots.values(), key=lambda gang: gang.gang)
    return Explanation(
        kind="Node",
        name=subject.path,
        answer=f"{subject} had {' '.join(words)}",
        related=tuple(
            Related(kind=gang.kind, name=gang.gang, relation="gang on this node")
            for gang in ordered[:GANGS_MAX]
        ),
    )


def _other_placement(
    pod: str, placements: Sequence[PodPlacement], moment: PointInTime
) -> Explanation | None:
    """Explain a pod that the state does not have, from where it was before, or is later; None: nowhere.

    Args:
        pod: namespace/name.
        placements: All of it, newest first.
        moment: The time that the question is about.
    """
    places = [one for one in placements if one.kind != "replacement"]
    if not places:
        return None
    before = [one for one in places if one.from_position <= moment.position]
    one = before[0] if before else places[-1]
    verb = "ran" if one.kind == "bound" else "had capacity reserved"
    leaf = f"PodGroup {pod.partition('/')[0]}/{one.pod_group}"
    of = f"as a member of {leaf}" if one.pod_group else f"for gang {one.gang}"
    since = _when(one.from_at_us, one.from_position)
    if not before:
        text = f"Pod {pod} was not in the log yet: it {verb} on {one.node} from {since}, {of}"
        return _absent("Pod", pod, text)
    end = _when(one.to_at_us or 0, one.to_position or 0)
    why = f"evicted for {one.by_gang}" if one.by_gang else one.end_reason or one.end_type or ""
    text = f"Pod {pod} was not there any more: it {verb} on {one.node} until {end}, {of}"
    return _absent("Pod", pod, f"{text} ({why})" if why else text)


def _when(at_us: int, position: int) -> str:
    return f"{rfc3339(at_us)}, position {position}"


def _absent(kind: str, name: str, text: str, *help_: str) -> Explanation:
    """Return the explanation of an object that the state does not have."""
    group = kind in GROUP_KINDS
    history = (f"`gang-extender history {name}` has its events",) if group else ()
    return Explanation(
        kind=kind,
        name=name,
        answer=text,
        checks=checks_until("group exists", "no", text) if group else (),
        help=(*help_, *history),
    )


def _not_found(wanted: WantedName, moment: PointInTime, near: list[ObjectName]) -> str:
    path = f"{wanted.namespace}/{wanted.name}"
    what = f"{wanted.kind} {path}" if wanted.kind else path
    text = (
        f"at {moment.time}, position {moment.position}, the log had nothing that is called {what}"
    )
    if near:
        return f"{text}; did you mean {', '.join(str(one) for one in near)}?"
    return f"{text}; ordinary pods, and groups that were never placed, are not in the log"
