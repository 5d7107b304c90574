"""Explain an object by its name: a group, a pod, a node or a workload, as it is now or as it was at a past moment.

An `ObjectReader` finds the names and what is known of each object; the answer is made of it in the same way for both. What is known of a
gang without planning is a `Finding`: the checks on its way to its nodes, and the sentence about the one that fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from extender.core.admit import gang_sentences
from extender.core.admit.gang_sentences import shown_texts
from extender.core.admit.native_gang_scheduling import bind_blockers
from extender.core.admit.plan_request import TreeParts, lacking_texts
from extender.core.admit.readmission_backoff import ReadmissionPause, WaitReason
from extender.core.holds.hold_planning import HoldRefusal
from extender.core.log.gang_phase import CAPACITY_TAKEN, TAKEN, capacity_was_taken
from extender.core.log.moves_state import PendingMoves
from extender.core.log.reservation_state import (
    BindFailure,
    GangState,
    LastDecision,
    ReservationState,
    WorkloadTree,
    no_hold_before_us,
)
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import NotFound
from extender.core.model.ids import GroupKey, PodUid, Position
from extender.core.model.message_formatting import (
    counted,
    duration_text,
    join_names,
    rfc3339,
    spaced,
)
from extender.core.model.pod_groups import Orphan, Tree
from extender.core.model.pods import GATE
from extender.core.model.visibility import namespace_of
from extender.core.planner.plan_types import (
    COMPLETE,
    GIVEN,
    TERMINATES,
    PlanGroup,
    admissible,
    waiting_reasons,
)
from extender.queries.explain.explanation import (
    CHECKS,
    BetterPlacement,
    Check,
    CheckName,
    Explanation,
    Outcome,
    Related,
)
from extender.queries.explain.name_lookup import (
    GROUP_KINDS,
    ObjectName,
    WantedName,
    matches,
    similar_kind,
    similar_names,
)
from extender.queries.plan.plan_dto import GangVerdict
from extender.queries.state.gang_status import SUSPENDED, GangStatus
from extender.queries.state.state_dto import GangAt
from extender.runtime.cooperative_yield import Yielder

GANGS_MAX: Final = 20  # gangs of a node that are named
GROUP_HELP = "name its group in spec.schedulingGroup.podGroupName, or in the label gang-extender.dev/pod-group"


# Checks of a gang that is not planned, because kube-scheduler would never bind it.
_NOT_PLANNED: Final[tuple[CheckName, ...]] = (
    "members complete",
    "fits an empty cluster",
    "fits now",
    "victims gone",
    "gates removed",
)


class Finding(msgspec.Struct, frozen=True):
    """The checks of a gang, and the sentence about the one that fails."""

    subject: str  # what the sentence is about: a group, or one member
    text: str  # the rest of the sentence
    checks: tuple[Check, ...]
    reasons: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    plan_needed: bool = False  # only a plan can show whether it fits

    @property
    def answer(self) -> str:
        """Return the sentence."""
        return f"{self.subject} {self.text}"

    @property
    def clause(self) -> str:
        """Return the sentence as a part of one about something else."""
        return f"{self.subject}, which {self.text}"

    def because(self, *reasons: str) -> Finding:
        """Return the finding with further reasons."""
        return replace(self, reasons=(*self.reasons, *reasons))


CORRECT: Final = "correct the workload; docs/workloads.md has the reasons"


def waits_at(reason: str) -> CheckName:
    """Return the check at which a tree waits: for members, for the capacity of terminating pods, or for its next look."""
    return "fits now" if TERMINATES in reason or reason == COMPLETE else "members complete"


def checks_until(name: CheckName, outcome: Outcome, text: str = "") -> tuple[Check, ...]:
    """Return all checks: those before `name` hold, those after it were not reached."""
    place = CHECKS.index(name)
    return tuple(
        Check(check=check, outcome="yes")
        if number < place
        else Check(check=check, outcome=outcome, text=text)
        if number == place
        else Check(check=check, outcome="not reached" if outcome != "yes" else "unknown")
        for number, check in enumerate(CHECKS)
    )


def missing_group(
    key: GroupKey, pods: int, similar: Iterable[str], refused: WorkloadTree | None = None
) -> Finding:
    """Return the finding about a group that pods name and that does not exist; `refused`: the tree of their workload."""
    text = gang_sentences.missing_text(pods)
    if refused is not None:
        return Finding(
            spaced(key),
            f"{text}: {refused.message}",
            checks_until("group exists", "no", refused.message),
            help=(CORRECT,),
        )
    near = tuple(similar)
    create = f"create {spaced(key)}, or correct the name in the pods"
    help_ = (f"did you mean {', '.join(near)}? Then correct the name in the pods", create)
    return Finding(
        spaced(key),
        text,
        checks_until("group exists", "no", f"{spaced(key)} {text}"),
        help=help_ if near else (create,),
    )


def orphan_finding(orphan: Orphan) -> Finding:
    """Return the finding about a group whose parent is missing or wrong."""
    text = orphan.problem.message
    return Finding(
        spaced(orphan.group.key),
        gang_sentences.orphan_text(orphan.group.key, text),
        checks_until("tree valid", "no", text),
        help=("create the parent group, or correct spec.parentCompositePodGroupName",),
    )


def gang_finding(
    view: ClusterView,
    state: ReservationState,
    tree: Tree,
    status: GangStatus | None,
    at_bind: Collection[PodUid] = (),
) -> Finding:
    """Return the finding about a tree, as far as it is known without planning.

    Args:
        status: As it is shown; None: the log does not have it yet.
        at_bind: The members that wait at the bind barrier; known to the leader only.
    """
    who = spaced(tree.root.key)
    gang = state.gangs.get(tree.root.uid)
    if tree.problems:
        texts = tuple(problem.message for problem in tree.problems)
        return Finding(
            who,
            gang_sentences.invalid_text(texts[0]),
            checks_until("tree valid", "no", texts[0]),
            reasons=texts[1:],
            help=("correct the groups or pods that the text names",),
        )
    if gang is not None and status is not None:
        if status.state in ("scheduled", "completed"):
            text = bound_text(gang, status)
            checks = checks_until("bound", "yes", text)
            words = f"runs: {text}"
            if status.state == "completed":
                words = "has ended: its members have succeeded"
            return Finding(who, words, checks)
        if gang.reservations:
            return _reserved(view, tree, gang, status, at_bind)
    blockers = bind_blockers(tree, state.features) if gang is None or not gang.bound else ()
    if blockers:
        checks = checks_until("accepted by kube-scheduler", "no", blockers[0])
        checks = with_outcome(checks, "unknown", *_NOT_PLANNED)
        text = gang_sentences.waiting_text(blockers[0])
        return Finding(who, text, checks, reasons=blockers[1:])
    part = TreeParts().of(tree, gang)
    if not admissible(part.root):
        return _incomplete(tree, part.root, status)
    preemption = state.preemptions.get(tree.root.uid)
    if preemption is not None and not preemption.ended:
        text = gang_sentences.victims_text(preemption)
        outcome: Outcome = "no" if preemption.victims else "unknown"
        checks = with_outcome(checks_until("victims gone", outcome, text), outcome, "fits now")
        words = f"waits for victims of its preemption: {text}"
        return Finding(who, words, checks)
    return Finding(who, "", (), plan_needed=True)


def bound_text(gang: GangState, status: GangStatus) -> str:
    """Return how much of the minimum of a gang is there, and how many members are bound."""
    return f"{status.present} of {counted(status.needed, 'pod')} of the minimum, {len(gang.bound)} bound"


def _incomplete(tree: Tree, root: PlanGroup, status: GangStatus | None) -> Finding:
    reasons = waiting_reasons(root)
    missing = "pods" if root.key.kind == "PodGroup" else "child groups and pods"
    lacking = next(iter(lacking_texts(tree.pods)), "")
    help_ = gang_sentences.gates_help(tree) or lacking
    help_ = help_ or f"create the missing {missing}, or lower the minimum of the group"
    if status is not None and status.state == SUSPENDED:
        help_ = "resume the workload (spec.suspend: false)"
    return Finding(
        spaced(tree.root.key),
        gang_sentences.waiting_text(reasons[0], lost_text(status)),
        checks_until("members complete", "no", reasons[0]),
        reasons=tuple(reasons[1:]),
        help=(help_,),
    )


def lost_text(status: GangStatus | None) -> str:
    """Return what happened to a gang that was bound, as the begin of a sentence; empty for others."""
    if status is None or status.state not in ("degraded", "preempted", "suspended"):
        return ""
    verb = "was" if status.state == "preempted" else "is"
    return f"{verb} {status.state}: {status.loss}; it "


def _reserved(
    view: ClusterView, tree: Tree, gang: GangState, status: GangStatus, at_bind: Collection[PodUid]
) -> Finding:
    who = spaced(tree.root.key)
    pods = [view.pods[uid] for uid in gang.reservations if uid in view.pods]
    gated = sorted(pod.path for pod in pods if GATE in pod.gates)
    bound = f"{len(gang.bound)} bound, {len(gang.reservations)} reserved"
    if gated:
        text = f"{counted(len(gated), 'pod')} still {'has' if len(gated) == 1 else 'have'} our gate, such as {gated[0]}"
        words = f"has its capacity reserved ({bound}): {text}"
        return Finding(who, words, checks_until("gates removed", "no", text))
    waiting = barrier_text(gang, at_bind)
    text = f"{bound}; {waiting or 'kube-scheduler places the members on their nodes'}"
    return Finding(
        who,
        f"has its capacity reserved: {text}",
        checks_until("accepted by kube-scheduler", "unknown", text),
        reasons=status.reasons,
        help=(
            "if it stays so, see the event FailedScheduling of its pods, and `gang-extender history`",
        ),
    )


def barrier_text(gang: GangState, at_bind: Collection[PodUid]) -> str:
    """Return which members kube-scheduler has not accepted while others wait for them at bind; empty: none waits."""
    others = sorted(
        reservation.pod for uid, reservation in gang.reservations.items() if uid not in at_bind
    )
    waiting = len(gang.reservations) - len(others)
    if not waiting or not others:
        return ""
    waits = "waits" if waiting == 1 else "wait"
    return f"{counted(waiting, 'member')} {waits} at bind for {join_names(others)}, which kube-scheduler has not accepted yet"


def with_bind_failure(finding: Finding, gang: GangState | None) -> Finding:
    """Return a finding about a gang that is not bound, with what kept its members from being bound last."""
    failure = gang.bind_failure if gang is not None else None
    if failure is None:
        return finding
    return finding.because(bind_failure_text(failure))


def with_moves(finding: Finding, moves: PendingMoves | None, gang: GangState | None) -> Finding:
    """Return a finding with what the moves that are under way do for a gang, or to members of it."""
    if moves is None or gang is None:
        return finding
    if moves.for_uid == gang.uid:
        text = f"running pods are moved for it: {moves.made} of {counted(len(moves.moves), 'move')} made"
        return finding.because(text)
    left = [move.pod for move in moves.moves[moves.made :] if move.gang_uid == gang.uid]
    if not left:
        return finding
    text = f"{counted(len(left), 'member')} of it {'is' if len(left) == 1 else 'are'} being moved"
    if moves.current.gang_uid == gang.uid:
        text += f"; {moves.sentence()}"
    return finding.because(text)


def bind_failure_text(failure: BindFailure) -> str:
    """Return when members were not bound, and why."""
    return f"{rfc3339(failure.at_us)}: {failure.sentence()}"


def with_unheld(
    finding: Finding,
    state: ReservationState,
    gang: GangState | None,
    refusal: HoldRefusal | None,
    now_us: int,
) -> Finding:
    """Return a finding about a gang without a hold, with the reason why no capacity is held for it, if it waits for some.

    Args:
        gang: The gang; None: the log does not have it yet.
        refusal: What the last search for a place to hold found; None: it is not known, or there was none.
    """
    if gang is None or not gang.refused_since_us or gang.reservations:
        return finding
    until_us = no_hold_before_us(state, gang)
    if until_us > now_us:
        unused = state.unused_holds[namespace_of(gang.gang)]
        text = (
            f"no capacity is held for it before {rfc3339(until_us)}: its namespace had holds of "
            f"{duration_text(unused.held_us // 1_000_000)} in all that no admission followed"
        )
        return finding.because(text)
    if refusal is None:
        return finding
    text = f"{refusal.reason} (searched at {rfc3339(refusal.at_us)})"
    help_ = (refusal.help,) if refusal.help else ()
    return replace(finding, reasons=(*finding.reasons, text), help=(*finding.help, *help_))


def planned_finding(
    who: str,
    verdict: GangVerdict,
    status: GangStatus | None,
    *,
    groups_known: bool = False,
    pause: str = "",
    lost_in_vain: tuple[str, ...] = (),
) -> Finding:
    """Return the finding about a complete tree, from a plan on the cluster as it is now.

    Args:
        who: The root, as sentences begin.
        status: As the gang is shown; None: the log does not have it yet.
        pause: The `pause_text` of a tree that has a place; empty: it is about to be admitted, or to preempt.
    """
    was = lost_text(status)
    if verdict.verdict == "placed" and not verdict.victims:
        checks = checks_until(
            "fits now",
            "yes",
            f"a place for {counted(len(verdict.assignments), 'pod')} was found now",
        )
        words = f"{was}fits now; {pause}" if pause else f"{was}fits now and is about to be admitted"
        return Finding(who, words, checks)
    if verdict.verdict == "placed":
        units = ", ".join(spaced(victim.unit) for victim in verdict.victims)
        text = f"only when {units} {'is' if len(verdict.victims) == 1 else 'are'} evicted"
        checks, words = (
            checks_until("fits now", "no", text),
            f"{was}does not fit now; it fits {text}{f'; {pause}' if pause else ''}",
        )
        return Finding(who, words, checks, reasons=verdict.reasons)
    if verdict.verdict == "waiting":
        first, *others = verdict.reasons or ("",)
        checks = checks_until(waits_at(first), "no", first)
        text = gang_sentences.waiting_text(first)
        return Finding(who, text, checks, reasons=tuple(others))
    finding = _refused(who, _decision(verdict), gang_sentences.NOW, was, unexamined="unknown")
    finding = replace(finding, reasons=tuple(dict.fromkeys((*finding.reasons, *lost_in_vain))))
    if groups_known and verdict.verdict == "impossible":
        finding = replace(finding, text=f"{finding.text}; {_grown(verdict)}")
    if verdict.verdict == "unknown" and verdict.when_empty != "never":
        help_ = (_unknown_help(verdict), *verdict.help)
        finding = replace(finding, help=help_)
    return finding


def _refused(
    who: str,
    decision: LastDecision,
    words: gang_sentences.RefusalWords,
    was: str = "",
    *,
    unexamined: Outcome,
) -> Finding:
    """Return the finding about a complete tree that has no plan.

    Args:
        who: The root, as sentences begin.
        was: What happened to the tree before, see `lost_text`.
        unexamined: The outcome of the check of an empty cluster, where no search for it was made.
    """
    reasons = decision.reasons
    name: CheckName = "fits now"
    outcome: Outcome = "unknown" if decision.outcome == "unknown" else "no"
    if decision.when_empty == "never":
        name, outcome = "fits an empty cluster", "no"
        reasons = decision.reasons_when_empty or reasons
    first, *others = reasons or (words.no_reason,)
    checks = checks_until(name, outcome, first)
    if decision.when_empty in ("", "unknown"):  # a search of its own, which may not have ended
        empty: Outcome = "unknown" if decision.when_empty else unexamined
        checks = with_outcome(checks, empty, "fits an empty cluster")
    text = gang_sentences.refused_text(who, decision, was, words)
    return Finding(who, text, checks, reasons=tuple(others), help=decision.help)


def held_refusal(who: str, decision: LastDecision) -> Finding:
    """Return the finding about a gang with an answer that held, from the log; `who`: the root, as sentences begin."""
    first, *others = decision.reasons or (gang_sentences.THEN.no_reason,)
    if decision.outcome == "invalid":
        text = f"was not valid and was not scheduled: {gang_sentences.about_it(who, first)}"
        checks = checks_until("tree valid", "no", first)
    elif decision.outcome == "waiting":
        text = gang_sentences.waiting_text(first, verb="waited")
        outcome: Outcome = "unknown" if first == COMPLETE else "no"  # not looked at
        checks = checks_until(waits_at(first), outcome, first)
        checks = with_outcome(checks, "not recorded", "fits an empty cluster")
    else:
        refused = _refused(who, decision, gang_sentences.THEN, unexamined="not recorded")
        text, checks, others = refused.text, refused.checks, [*refused.reasons]
    text += f" (refused at {rfc3339(decision.at_us)}, position {decision.position})"
    return Finding(who, text, checks, reasons=tuple(others), help=decision.help)


def turn_finding(
    who: str, turn: WaitReason, gang: GangState | None, status: GangStatus | None
) -> Finding:
    """Return the finding about a complete tree that waits to be recorded, to be searched, or for the end of a back-off.

    Its last refusal comes first; that it is planned again comes after it.

    Args:
        who: The root, as sentences begin.
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
        refused = held_refusal(who, decision)
        return Finding(
            who,
            f"{refused.text}; it {gang_sentences.waiting_text(turn.sentence())}",
            checks,
            reasons=refused.reasons,
            help=(*help_, *refused.help),
        )
    if gang is not None and capacity_was_taken(gang):
        text = f"{gang_sentences.waiting_text(TAKEN)}; it {gang_sentences.waiting_text(turn.sentence())}"
        return Finding(who, text, checks, help=help_)
    return Finding(
        who,
        gang_sentences.waiting_text(turn.sentence(), lost_text(status)),
        checks,
        # that members are missing is not so any more
        reasons=decision.reasons if decision is not None and decision.outcome != "waiting" else (),
        help=help_,
    )


def pause_text(gang: GangState | None, planned_again_us: int, victims_again_us: int) -> str:
    """Return what a tree that has a place waits for, and until when.

    Args:
        gang: Its state; None: the log does not have it yet.
        planned_again_us: When the pause before its next plan ends; 0: there is none.
        victims_again_us: When the pause before its next search for victims ends; 0: there is none, or it needs no victims.
    """
    if victims_again_us > planned_again_us:
        return f"the pause before its next search for victims ends at {rfc3339(victims_again_us)}"
    taken = gang is not None and capacity_was_taken(gang)
    cause = f"because {CAPACITY_TAKEN}" if taken else "after its last search"
    return f"it pauses {cause}, until {rfc3339(planned_again_us)}"


def not_examined(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return checks of which that of an empty cluster was not looked at."""
    return with_outcome(checks, "unknown", "fits an empty cluster")


def _unknown_help(verdict: GangVerdict) -> str:
    """Return what helps where no plan was found and none was ruled out."""
    if any(GIVEN in text for text in verdict.reasons):
        return "see the message of kube-scheduler on its pods; a rejected node is tried again when it changes, or after 5 minutes"
    return "raise GANG_EXTENDER_SEARCH_BUDGET"


def _grown(verdict: GangVerdict) -> str:
    """Return by how much a node group must grow for a tree to fit."""
    if not verdict.node_groups:
        return "no node group alone would make it fit"
    first = verdict.node_groups[0]
    return f"it would fit if node group {first.name} grew by {counted(first.nodes, 'node')}"


def with_outcome(
    checks: tuple[Check, ...], outcome: Outcome, *names: CheckName
) -> tuple[Check, ...]:
    """Return checks of which some have another outcome; those that were not reached stay so."""
    return tuple(
        replace(check, outcome=outcome)
        if check.check in names and check.outcome != "not reached"
        else check
        for check in checks
    )


def _decision(verdict: GangVerdict) -> LastDecision:
    """Return the answer of a plan query in the form in which the log would have it."""
    return LastDecision(
        outcome=verdict.verdict,
        reasons=verdict.reasons,
        position=Position(0),
        at_us=0,
        help=verdict.help,
        when_empty=verdict.when_empty,
        reasons_when_empty=verdict.reasons_when_empty,
    )


class ObjectDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader has of a group or a pod."""

    finding: Finding  # about the object, or about its gang
    # from the name of the object to that of its gang, such as " is a child group of"
    link: str = ""
    root: ObjectName | None = None  # the root group of its gang; None: it has none
    workload: str = ""  # Kind/namespace/name of that of its gang; empty: it has none
    gang: GangAt | None = None  # with its members; None: the log does not have it
    conflict: tuple[str, ...] = ()
    better: tuple[BetterPlacement, ...] = ()
    related: tuple[Related, ...] = ()  # besides root group and workload


class ObjectReader(ABC):
    """Reads the cluster and the log as they are now, or the log as it was at a past moment."""

    state: ReservationState

    async def explanation(self, name: WantedName) -> Explanation:
        """Return why an object is in its state, and what would help.

        Of several objects with the name, the first of `KINDS` is explained, and the others are in `related`. A name
        without a namespace that only one other namespace has is explained there.

        Raises:
            NotFound: Nothing has the name; the message has similar names.
        """
        pace = Yielder()
        subjects = await matches(self._names(), name, pace)
        if subjects:
            explanation = await self._explained(subjects[0])
            same = _links(subjects[1:], "same name")
            return replace(explanation, related=(*explanation.related, *same))
        if (elsewhen := await self._at_another_time(name)) is not None:
            return elsewhen
        text, hint = self._not_found(name)
        near = await similar_names(self._names(), name, pace)
        if near:
            hint = f"did you mean {', '.join(map(str, near))}?"
        elif not name.kind and name.given_namespace and (kind := similar_kind(name.namespace)):
            hint = f"did you mean {kind}/{name.name}? Else {hint}"
        raise NotFound(f"{text}; {hint}")

    async def _explained(self, subject: ObjectName) -> Explanation:
        if subject.kind == "Node":
            return self._node(subject)
        if subject.kind not in ("Pod", *GROUP_KINDS):
            return await self._workload(subject)
        details = await self._details(subject)
        finding = details.finding
        if not details.link or finding.subject == str(subject):
            return _explanation(subject, details, finding.answer)
        return _explanation(subject, details, f"{subject}{details.link} {finding.clause}")

    async def _workload(self, subject: ObjectName) -> Explanation:
        """Explain a workload by its first root group."""
        named = (subject.kind, subject.path)
        tree = next(t for t in self.state.trees.values() if (t.kind, t.workload) == named)
        roots = self._roots(tree)
        if tree.outcome == "refused" or not roots:
            none_needed = tree.outcome == "compiled" and not tree.groups
            reason = "it needs no pods as it is" if none_needed else tree.message or tree.reason
            text, help_ = self._without_groups(reason)
            if tree.outcome == "compiled":
                help_ = ()  # nothing is wrong with it
            return Explanation(
                kind=subject.kind,
                name=subject.path,
                answer=f"{subject} {text}",
                state=tree.outcome,
                help=help_,
            )
        details = await self._details(roots[0], extras=False)
        more = f" (the first of {len(roots)} root groups)" if len(roots) > 1 else ""
        details = replace(details, related=_links(roots[1:], "root group"))
        return _explanation(subject, details, f"{subject}{more}: {details.finding.answer}")

    @abstractmethod
    def _names(self) -> Iterable[ObjectName]:
        """Return the names of all objects that the caller sees; some may come more than once."""

    @abstractmethod
    async def _details(self, subject: ObjectName, *, extras: bool = True) -> ObjectDetails:
        """Return what is known of a group or a pod; `extras`: of members beyond the minimum that wait."""

    @abstractmethod
    def _node(self, subject: ObjectName) -> Explanation: ...

    @abstractmethod
    def _roots(self, tree: WorkloadTree) -> list[ObjectName]:
        """Return the root groups of a workload."""

    @abstractmethod
    def _without_groups(self, reason: str) -> tuple[str, tuple[str, ...]]:
        """Return the text about a workload without groups, and what would help; the reason may be empty."""

    @abstractmethod
    async def _at_another_time(self, name: WantedName) -> Explanation | None:
        """Return the explanation of an object that is known from before or after; None: it is not."""

    @abstractmethod
    def _not_found(self, name: WantedName) -> tuple[str, str]:
        """Return that nothing has a name, and what that may mean where no other name is similar."""


def _explanation(subject: ObjectName, details: ObjectDetails, answer: str) -> Explanation:
    """Return the explanation of an object by what is known of it, or of its gang."""
    finding = details.finding
    groups = details.gang.groups if details.gang is not None else []
    return Explanation(
        kind=subject.kind,
        name=subject.path,
        answer=answer,
        state=details.gang.state if details.gang is not None else "",
        checks=finding.checks,
        reasons=finding.reasons,
        conflict=details.conflict,
        help=finding.help,
        wishes=shown_texts(wish for group in groups for wish in group.wishes),
        better=details.better,
        related=(*_related(subject, details), *details.related),
        gang=details.gang,
    )


def _related(subject: ObjectName, details: ObjectDetails) -> Iterator[Related]:
    """Yield the root group and the workload of the gang of an object, without the object itself."""
    if details.root is not None and details.root != subject:
        yield from _links([details.root], "root group")
    if details.workload and details.workload != f"{subject.kind}/{subject.path}":
        kind, _, path = details.workload.partition("/")
        yield from _links([ObjectName(kind, path)], "workload")


def _links(names: Iterable[ObjectName], relation: str) -> tuple[Related, ...]:
    return tuple(Related(kind=name.kind, name=name.path, relation=relation) for name in names)


def gangs_on_node(gangs: Iterable[GangState]) -> tuple[Related, ...]:
    """Return the links to the gangs of a node, by name, `GANGS_MAX` at most."""
    names = (ObjectName(gang.kind, gang.gang) for gang in sorted(gangs, key=lambda g: g.gang))
    return _links(islice(names, GANGS_MAX), "gang on this node")
