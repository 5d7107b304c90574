"""Explain any object by its name as it was at a time of the past, from the log alone: its checks, and the names in its answer.

The log has gangs, their groups, members that were reserved or bound, workloads, preemptions and the nodes of these. It
does not have ordinary pods, members that only waited, or free capacity; `limitations` has that in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from extender.core.admit.gang_sentences import victims_text
from extender.core.log.events import GangAdmitted, GangObserved, GangRemoved, TreeRetired
from extender.core.log.gang_phase import CAPACITY_TAKEN, PREEMPTING, UNDECIDED, capacity_was_taken
from extender.core.log.reservation_state import (
    GangState,
    MemberLoss,
    PendingPreemption,
    ReservationState,
    WorkloadTree,
)
from extender.core.model.ids import NodeName
from extender.core.model.message_formatting import counted, label_text, rfc3339, spaced
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden, namespace_of
from extender.ports.query_ports import EventFilter, EventQueries, GangIncarnation, PodPlacement
from extender.queries.explain.explanation import (
    CHECKS,
    Check,
    CheckName,
    Explanation,
    Outcome,
    Related,
)
from extender.queries.explain.name_lookup import GROUP_KINDS, ObjectName, WantedName
from extender.queries.explain.object_explanation import (
    Finding,
    ObjectDetails,
    ObjectReader,
    bound_text,
    checks_until,
    gangs_on_node,
    held_refusal,
    with_outcome,
    with_unheld,
)
from extender.queries.log.event_filter import visible_queries
from extender.queries.state.gang_status import (
    GangStatus,
    RootKey,
    gang_at,
    gang_status,
    loss_text,
    root_groups,
    workloads_of_roots,
)
from extender.queries.state.historical_state import HistoricalState, PointInTime
from extender.queries.state.state_report import ORDINARY

# What only the cluster of that time could show, unless the gang was bound.
_BEFORE_BIND: Final[tuple[CheckName, ...]] = ("gates removed", "accepted by kube-scheduler")


def recorded_finding(
    gang: GangState, status: GangStatus, preemption: PendingPreemption | None
) -> Finding:
    """Return the finding about a gang in a state of the past; `preemption`: its pending preemption in that state; None: there was none."""
    who, decision = f"{gang.kind} {gang.gang}", gang.last_decision
    if status.state in ("scheduled", "completed"):
        done = "had ended: its members had succeeded" if status.state == "completed" else "ran"
        text = bound_text(gang, status)
        checks = checks_until("bound", "yes", text)
        return Finding(who, f"{done}: {text}", checks, reasons=status.reasons)
    if status.state == "admitted":
        text = f"{len(gang.bound)} bound, {len(gang.reservations)} reserved"
        checks = checks_until("accepted by kube-scheduler", "not recorded", text)
        checks = with_outcome(checks, "not recorded", *_BEFORE_BIND)
        text = f"had its capacity reserved: {text}"
        return Finding(who, text, checks, reasons=status.reasons)
    if status.state == PREEMPTING and preemption is not None:
        text = victims_text(preemption)
        outcome: Outcome = "no" if preemption.victims else "yes"
        checks = with_outcome(checks_until("victims gone", outcome, text), outcome, "fits now")
        if not preemption.victims:
            checks = with_outcome(checks, "not recorded", *_BEFORE_BIND)
        text = f"waited for victims of its preemption: {text}"
        return Finding(who, text, checks)
    # nothing but its existence is recorded
    checks = with_outcome(checks_until("bound", "yes"), "not recorded", *CHECKS[2:])
    if status.state in ("degraded", "preempted", "suspended"):
        if decision is not None:
            checks = held_refusal(who, decision).checks
        counts = f"{status.present} of {counted(status.needed, 'pod')} of the minimum"
        checks = (*checks[:-1], Check(check="bound", outcome="no", text=counts))
        text = f"was {status.state}: {status.loss}"
        return Finding(who, text, checks, reasons=status.reasons[1:])
    if decision is None:
        reason = CAPACITY_TAKEN if capacity_was_taken(gang) else UNDECIDED
        return Finding(who, f"was pending: {reason}", checks)
    return held_refusal(who, decision)


# What the log has of a pod, the most important first.
_ROLES: Final = ("bound", "reserved", "victim", "preemptor", "lost")


class RecordedPod(NamedTuple):
    """A pod in a state of the log."""

    role: str  # bound | reserved | victim | preemptor | lost
    pod: str  # namespace/name; what stands for it, if it is hidden
    node: str  # empty: the preemptor has none yet
    gang: GangState | None  # of a member
    preemption: PendingPreemption | None  # of a victim or preemptor


def recorded_pods(state: ReservationState) -> Iterator[RecordedPod]:
    """Yield what a state of the log has of pods, one for each role of a pod."""
    for root in state.gangs.values():
        for bound in root.bound.values():
            yield RecordedPod("bound", bound.pod, bound.node, root, None)
        for reserved in root.reservations.values():
            yield RecordedPod("reserved", reserved.pod, reserved.node, root, None)
        losses = (root.last_loss,) if root.last_loss is not None else ()
        for lost in (*root.replacement_holds.values(), *root.lost_with_node.values(), *losses):
            yield RecordedPod("lost", lost.pod, lost.node, root, None)
    for preemption in state.preemptions.values():
        for victim in preemption.victims.values():
            yield RecordedPod("victim", victim.pod, victim.node, None, preemption)
        if preemption.kind == "Pod":
            yield RecordedPod("preemptor", preemption.gang, "", None, preemption)


RETIRED_MAX = 1_000  # ends of workloads that are searched
WAITING_PODS = (
    "Members without a reservation are not in the log: which of them waited is not known."
)


@dataclass(frozen=True)
class PastExplanations:
    """Answers questions about one object as the log had it at a time."""

    past: HistoricalState
    log: EventQueries  # finds what the state of that time does not have, such as deleted groups

    async def explain(
        self, name: WantedName, at: str, readers: Visibility = EVERYTHING
    ) -> Explanation:
        """Return the state of an object at a time or position, and why it was in it; see `ObjectReader`.

        Raises:
            NotFound: The log has nothing of that name; the message has similar names.
        """
        moment, state = await self.past.state_at(at, readers)
        log = self.log if readers.everything else visible_queries(self.log, readers)
        explanation = await _Moment(state, moment, log).explanation(name)
        return replace(
            explanation,
            answer=f"At {moment.time}, position {moment.position}: {explanation.answer}",
            limitations=(ORDINARY, WAITING_PODS),
            as_of=moment.time,
            position=moment.position,
            at=moment.requested,
        )


@dataclass(frozen=True)
class _Moment(ObjectReader):
    """The log as it was at a moment."""

    state: ReservationState
    moment: PointInTime
    log: EventQueries

    def _names(self) -> Iterator[ObjectName]:
        for root in self.state.gangs.values():
            yield _name(root)
            namespace = namespace_of(root.gang)
            yield from (ObjectName(g.kind, f"{namespace}/{g.name}") for g in root.groups)
        for tree in self.state.trees.values():
            yield ObjectName(tree.kind, tree.workload)
        for pod in recorded_pods(self.state):
            if not is_hidden(pod.pod):
                yield ObjectName("Pod", pod.pod)
            if pod.node:
                yield ObjectName("Node", pod.node)

    async def _details(self, subject: ObjectName, *, extras: bool = True) -> ObjectDetails:
        del extras
        if subject.kind == "Pod":
            return self._pod(subject)
        roots = [g for g in self.state.gangs.values() if _name(g) == subject]
        if roots:
            return self._gang(max(roots, key=lambda root: root.observed_us))
        namespace, _, name = subject.path.partition("/")
        details = next(
            self._gang(root)
            for root in self.state.gangs.values()
            if namespace_of(root.gang) == namespace
            for group in root.groups
            if (group.kind, group.name) == (subject.kind, name)
        )
        assert details.gang is not None
        line = next(g for g in details.gang.groups if (g.kind, g.name) == (subject.kind, name))
        domain = "".join(f" in {label_text(*label)}" for label in line.domain.items())
        members = f"with {line.bound} bound and {line.reserved} reserved members{domain}"
        return replace(details, link=f", {members}, was a child group of")

    def _gang(self, gang: GangState) -> ObjectDetails:
        state = self.state
        workloads = workloads_of_roots(state.trees.values())
        made_for = workloads.get(RootKey(gang.gang, gang.kind))
        status = gang_status(gang, made_for)
        finding = recorded_finding(gang, status, state.preemptions.get(gang.uid))
        if gang.uid not in state.capacity_holds:
            finding = with_unheld(finding, state, gang, None, state.at_us)
        return ObjectDetails(
            finding=finding,
            root=_name(gang),
            workload=made_for.workload if made_for is not None else "",
            gang=gang_at(gang, workloads),
        )

    def _pod(self, subject: ObjectName) -> ObjectDetails:
        roles: dict[str, RecordedPod] = {}
        for record in recorded_pods(self.state):
            if record.pod == subject.path:
                roles.setdefault(record.role, record)
        pod = roles[min(roles, key=_ROLES.index)]
        preemption = pod.preemption
        if pod.role == "bound" and "victim" in roles:
            preemption = roles["victim"].preemption
        by = spaced(preemption.preemptor) if preemption is not None else ""
        if pod.gang is None:
            return _outside(subject, pod, by)
        place = {
            "bound": f"ran on {pod.node}{f' and was to be evicted for {by}' if by else ''}",
            "reserved": f"had capacity reserved on {pod.node}",
            "lost": f"was lost on {pod.node}{_loss(pod.gang.last_loss, subject.path)}",
        }[pod.role]
        return replace(self._gang(pod.gang), link=f" {place}, a member of")

    def _node(self, subject: ObjectName) -> Explanation:
        pods = [pod for pod in recorded_pods(self.state) if pod.node == subject.path]
        roles = Counter(pod.role for pod in pods)
        gangs = {p.gang.uid: p.gang for p in pods if p.gang is not None and p.role != "lost"}
        words = [f"{roles['bound']} bound and {roles['reserved']} reserved members"]
        words.append(f"of {counted(len(gangs), 'gang')}")
        if roles["victim"]:
            words.append(f"and {counted(roles['victim'], 'victim')} of preemptions")
        return Explanation(
            kind="Node",
            name=subject.path,
            answer=f"{subject} had {' '.join(words)}",
            related=gangs_on_node(gangs.values()),
        )

    def _roots(self, tree: WorkloadTree) -> list[ObjectName]:
        namespace = namespace_of(tree.workload)
        names = {f"{namespace}/{parent or name}" for _, name, parent in root_groups(tree)}
        gangs = [gang for gang in self.state.gangs.values() if gang.gang in names]
        return [_name(gang) for gang in sorted(gangs, key=lambda gang: gang.gang)]

    def _without_groups(self, reason: str) -> tuple[str, tuple[str, ...]]:
        return f"had no groups in the log: {reason or 'no gang of it was recorded yet'}", ()

    async def _at_another_time(self, name: WantedName) -> Explanation | None:
        path, kind = name.path, name.kind
        explanation = None
        if kind in ("", *GROUP_KINDS):
            explanation = await self._other_root(path, kind)
        if explanation is None and kind in ("", "Pod"):
            placements = await self.log.placements(path)
            explanation = _other_placement(path, placements, self.moment)
        if explanation is None and kind not in ("Pod", "Node", *GROUP_KINDS):
            explanation = await self._retired(path, kind)
        if explanation is not None:
            return explanation
        node = NodeName(name.name)
        may_be_node = kind == "Node" or not (kind or name.given_namespace)
        if not may_be_node or not await self.log.has_node(node):
            return None
        return _absent("Node", node, f"Node {node} had no member, reservation or victim of a gang")

    def _not_found(self, name: WantedName) -> tuple[str, str]:
        at = f"at {self.moment.time}, position {self.moment.position}"
        return (
            f"{at}, the log had nothing that is called {name}",
            "ordinary pods, and groups that were never placed, are not in the log",
        )

    async def _other_root(self, path: str, kind: str) -> Explanation | None:
        position = self.moment.position
        lives = await self.log.incarnations(path)
        before = [life for life in lives if life.last_position <= position]
        after = [life for life in lives if life.first_position > position]
        life = before[-1] if before else after[0] if after else None
        if life is None:
            return None
        kinds = EventFilter(gang_uid=life.uid, types=("GangObserved", "GangAdmitted"), limit=1)
        first = next(iter(await self.log.events(kinds)), None)
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
        end = next(iter(await self.log.events(ends)), None)
        reason = end.data.reason if end is not None and isinstance(end.data, GangRemoved) else ""
        because = f" ({reason})" if reason else ""
        return _absent(
            kind,
            life.gang,
            f"{who} did not exist any more: it was removed at {_when(life.last_us, life.last_position)}{because}",
            f"`gang-extender explain {life.gang} --at {life.last_position - 1}` has its last state",
        )

    async def _retired(self, path: str, kind: str) -> Explanation | None:
        ends = EventFilter(types=("TreeRetired",), newest_first=True, limit=RETIRED_MAX)
        for event in await self.log.events(ends):
            data = event.data
            if (
                isinstance(data, TreeRetired)
                and data.workload == path
                and kind in ("", data.kind)
                and event.position <= self.moment.position
            ):
                return _absent(
                    data.kind,
                    path,
                    f"{data.kind} {path} had no groups any more: they were removed "
                    f"at {_when(event.at_us, event.position)} ({data.reason})",
                    f"`gang-extender explain {data.kind}/{path} --at {event.position - 1}` has its last state",
                )
        return None


def _name(gang: GangState) -> ObjectName:
    return ObjectName(gang.kind, gang.gang)


def _outside(subject: ObjectName, pod: RecordedPod, by: str) -> ObjectDetails:
    """Return what is known of a pod that no gang of the state has: a victim, or a preemptor outside of groups."""
    assert pod.preemption is not None
    if pod.role == "preemptor":
        text = f"waited for victims of its preemption: {victims_text(pod.preemption)}"
    else:
        text = f"ran on {pod.node} and was to be evicted for {by}"
    finding = Finding(str(subject), text, ())
    kind, name = pod.preemption.kind, pod.preemption.gang
    if pod.role == "preemptor" or is_hidden(name):
        return ObjectDetails(finding=finding)
    link = Related(kind=kind, name=name, relation="preemptor")
    return ObjectDetails(finding=finding, related=(link,))


def _loss(loss: MemberLoss | None, pod: str) -> str:
    if loss is None or loss.pod != pod:
        return ""
    return f" at {_when(loss.at_us, loss.position)} ({loss_text(loss)})"


def _other_placement(
    pod: str, placements: Sequence[PodPlacement], moment: PointInTime
) -> Explanation | None:
    """Explain a pod that the state does not have, from where it was before, or is later; None: nowhere.

    Args:
        pod: namespace/name.
        placements: All of it, newest first.
    """
    places = [place for place in placements if place.kind != "replacement"]
    if not places:
        return None
    before = [place for place in places if place.from_position <= moment.position]
    place = before[0] if before else places[-1]
    verb = "ran" if place.kind == "bound" else "had capacity reserved"
    leaf = f"PodGroup {pod.partition('/')[0]}/{place.pod_group}"
    of = f"as a member of {leaf}" if place.pod_group else f"for gang {place.gang}"
    since = _when(place.from_at_us, place.from_position)
    if not before:
        text = f"Pod {pod} was not in the log yet: it {verb} on {place.node} from {since}, {of}"
        return _absent("Pod", pod, text)
    end = _when(place.to_at_us or 0, place.to_position or 0)
    why = (
        f"evicted for {place.by_gang}"
        if place.by_gang
        else place.end_reason or place.end_type or ""
    )
    text = f"Pod {pod} was not there any more: it {verb} on {place.node} until {end}, {of}"
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
