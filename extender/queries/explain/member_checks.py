"""The checks of one member, or of one child group, where they differ from those of its gang.

A member that is bound or has a reservation has checks of its own, also in a gang that waits. A member beyond the
minimum waits although its gang runs: whether it fits now is planned for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from extender.core.admit.plan_request import GATE, is_candidate
from extender.core.log.gang_phase import HOLDS_CAPACITY
from extender.core.log.reservation_state import GangState, Reservation, ReservationState
from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.message_formatting import counted, spaced
from extender.core.model.pod_groups import Tree
from extender.core.model.pods import Pod
from extender.queries.explain.explanation import Check, Outcome
from extender.queries.explain.gang_checks import (
    Finding,
    barrier_text,
    bind_failure_text,
    checks_until,
    not_examined,
)
from extender.queries.log.event_dto import rfc3339
from extender.queries.plan.plan_query import GangVerdict
from extender.queries.state.gang_status import GangStatus

NODES_MAX = 5  # rejected nodes that are named


def placed_checks(
    state: ReservationState,
    gang: GangState,
    pod: Pod,
    at_bind: Collection[PodUid] = (),
) -> tuple[tuple[Check, ...], tuple[str, ...]] | None:
    """Return the checks and reasons of a member that is bound or has a reservation; None: it has neither.

    Args:
        state: The reservation state.
        gang: Its gang.
        pod: The member.
        at_bind: The members that wait at the bind barrier; known to the leader only.
    """
    if pod.node is not None:
        return checks_until("bound", "yes", f"on {pod.node}"), ()
    reservation = gang.reservations.get(pod.uid)
    if reservation is None:
        return None
    if GATE in pod.gates:
        text = f"our gate {GATE} is still there; it is removed after the nomination"
        return checks_until("gates removed", "no", text), ()
    failure = tuple(_failure(gang, pod))
    if pod.uid in at_bind:
        text = f"it waits at bind for {reservation.node}"
        return checks_until("bound", "no", text), (*_barrier(gang, at_bind), *failure)
    text = f"capacity is reserved on {reservation.node}"
    checks = checks_until("accepted by kube-scheduler", "unknown", text)
    evidence = _evidence(state, gang, reservation, pod)
    return checks, (*evidence, *_barrier(gang, at_bind), *failure)


def _barrier(gang: GangState, at_bind: Collection[PodUid]) -> Iterable[str]:
    """Yield which members the others wait for at bind."""
    if text := barrier_text(gang, at_bind):
        yield text


def _failure(gang: GangState, pod: Pod) -> Iterable[str]:
    """Yield what kept the members from being bound last, if it is about this one."""
    failure = gang.bind_failure
    if failure is not None and (failure.missing or pod.path in failure.pods):
        yield bind_failure_text(failure)


def _evidence(
    state: ReservationState, gang: GangState, reservation: Reservation, pod: Pod
) -> Iterable[str]:
    """Yield what is known of kube-scheduler's attempts to place a member."""
    if pod.unschedulable:
        yield f"kube-scheduler: {pod.unschedulable}"
    if pod.nominated != reservation.node:
        yield f"it is not nominated on {reservation.node} yet"
    refused = [
        f"{key.node} until {rfc3339(rejection.until_ms * 1000)}"
        for key, rejection in state.rejections.items()
        if key.gang_uid == gang.uid and (key.uid == pod.uid or rejection.by_shape)
    ]
    if refused:
        yield f"kube-scheduler rejected nodes for it or for pods of its shape: {', '.join(sorted(refused)[:NODES_MAX])}"


def extra_members(
    gang: GangState | None, status: GangStatus | None, tree: Tree, leaf: GroupKey, pod: Pod | None
) -> tuple[Pod, ...]:
    """Return the members beyond the minimum that wait and that a question is about.

    Args:
        gang: The gang of the tree; None: the log does not have it.
        status: As it is shown.
        tree: The tree.
        leaf: The group of the question.
        pod: The member of the question; None: the question is about all of the leaf.

    Returns:
        None of them where the gang waits, or where a member of the leaf has a place.
    """
    if gang is None or status is None or gang.phase not in HOLDS_CAPACITY:
        return ()
    if status.state not in ("scheduled", "admitted") or tree.problems:
        return ()
    members = tree.members.get(leaf, ())
    waiting = [p for p in members if p.node is None and p.uid not in gang.reservations]
    if pod is not None:
        return (pod,) if any(p.uid == pod.uid for p in waiting) else ()
    alone = leaf == tree.root.key or len(waiting) < len(members)
    return () if alone else tuple(waiting)


def extra_finding(
    pod: Pod | None, leaf: GroupKey, pods: tuple[Pod, ...], verdict: GangVerdict, gang_answer: str
) -> Finding:
    """Return the finding about members beyond the minimum that wait.

    Args:
        pod: The member that the finding is about; None: it is about their group.
        leaf: Their group.
        pods: The members; not empty.
        verdict: The answer of a plan query about the tree.
        gang_answer: The answer about the gang.
    """
    subject = f"Pod {pod.path}" if pod is not None else spaced(leaf)
    role = "an extra member" if pod is not None else "a child group beyond the minimum"

    def waits(text: str) -> str:
        return f"waits, {role} that {text}; {gang_answer}"

    held = sorted({gate for pod in pods for gate in pod.gates if gate != GATE})
    if held and not any(map(is_candidate, pods)):
        text = f"is held by the scheduling gates {', '.join(held)}"
        return Finding(
            subject=subject,
            text=waits(text),
            checks=checks_until("members complete", "no", text),
            help=(f"remove the scheduling gates {', '.join(held)}; until then it is no member",),
        )
    names = {pod.path for pod in pods}
    placed = sum(line.pod in names for line in verdict.assignments)
    if placed and verdict.victims:
        units = ", ".join(spaced(victim.unit) for victim in verdict.victims)
        text = f"fits only when {units} {'is' if len(verdict.victims) == 1 else 'are'} evicted"
        checks = checks_until("fits now", "no", text)
        return Finding(subject=subject, text=waits(text), checks=not_examined(checks))
    if placed:
        text = f"fits now and is about to get {'its place' if placed == 1 else counted(placed, 'place')}"
        checks = checks_until("fits now", "yes", text)
        return Finding(subject=subject, text=waits(text), checks=not_examined(checks))
    prefix = f"{spaced(leaf)}: "
    mine = [text.removeprefix(prefix) for text in verdict.reasons if text.startswith(prefix)]
    first, *others = mine or verdict.reasons or ("no more fit",)
    outcome: Outcome = "unknown" if verdict.verdict == "unknown" else "no"
    text = f"may fit or not: {first}" if outcome == "unknown" else f"does not fit now: {first}"
    return Finding(
        subject=subject,
        text=waits(text),
        checks=not_examined(checks_until("fits now", outcome, first)),
        reasons=tuple(others),
        help=verdict.help,
    )
