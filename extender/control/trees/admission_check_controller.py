"""Answer the AdmissionChecks of Kueue: would the tree of a workload be placed now, before its quota is used?

Kueue has reserved quota for the workload, and lets no pod run before the answer. *Ready*: the planner has a place for it,
beside what runs, what is reserved, and the workloads that got this answer before and are not placed yet. *Retry*: not
now; Kueue gives the quota back, and asks again. *Rejected*: never on these nodes, which is proved; Kueue deactivates it.

The leader alone answers. It remembers nothing that the cluster does not have: after a restart each check that is Pending
is decided again, and an answer has the resourceVersion of what it is about as a precondition. No event is recorded, since
an answer reserves nothing: what is placed in the end is decided as for every other tree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from extender.control.log.leader import Leader
from extender.core.model.errors import BadInput, ClusterUnavailable, RequestRejected, TooManyQueries
from extender.core.model.visibility import Visibility, readers_of
from extender.core.workloads.admission_checks import (
    CheckAnswer,
    QueuedWorkload,
    VerdictLine,
    answer_of,
    in_namespace,
    lines_of,
    objects_of,
    waits_for_owner,
    without_profile,
)
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.workload_object import TEMPLATES_KIND, WorkloadObject
from extender.ports.cluster_ports import Cluster
from extender.ports.workload_ports import AdmissionChecks, WorkloadView
from extender.runtime.periodic import Changes, ObjectFaults, PeriodicTask
from extender.settings import Settings

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0  # also without a change: an owner may be known only after its Workload
RETRY_S = 1.0
# Workloads that got *Ready* and are not placed yet, in one query; it plans 200 trees at most.
PLACING_MAX = 50
EXPECTED = (ClusterUnavailable, RequestRejected, TooManyQueries)
PLANNED_MAX = 50  # Workloads whose checks one query answers
AskPlanner = Callable[[bytes, Visibility], Awaitable[bytes]]


class _Reply(msgspec.Struct):
    gangs: tuple[VerdictLine, ...]


class _Asked(NamedTuple):
    queued: QueuedWorkload
    check: str
    objects: list[dict[str, Any]]  # what is planned for it


class AdmissionCheckController:
    """Answers the checks that name us, in the order in which Kueue reserved quota; those of a namespace in one plan query."""

    def __init__(
        self,
        cluster: Cluster,
        checks: AdmissionChecks,
        leader: Leader,
        ask_planner: AskPlanner,
        settings: Settings,
        node_groups: tuple[dict[str, Any], ...] = (),
    ) -> None:
        """Prepare.

        Args:
            ask_planner: Answers the body of a `POST /v1/plan` about the cluster, as its JSON.
            node_groups: Those of a cluster autoscaler, as a plan query has them: what fits with one more node waits.
        """
        self._cluster = cluster
        self._checks = checks
        self._leader = leader
        self._ask_planner = ask_planner
        self._settings = settings
        self._node_groups = node_groups
        # What was answered, by UID, until the informer shows it: the resourceVersion that the answer was about.
        self._answered: dict[str, tuple[str, CheckAnswer]] = {}
        self._at_once = PLANNED_MAX
        self._faults: ObjectFaults[str] = ObjectFaults("admission checks")
        self.run = PeriodicTask(
            name="admission_checks",
            work=self.look,
            every_s=LOOK_EVERY_S,
            retry_s=RETRY_S,
            condition=self._may_answer,
            changes=Changes(lambda: checks.view().revision, checks.changed),
            expected=(ClusterUnavailable,),
            failure="admission checks not answered",
        ).run

    def _may_answer(self) -> bool:
        reason = self._leader.recovery_reason or self._cluster.not_ready_reason()
        return self._leader.may_act() and not reason

    async def look(self) -> None:
        """Answer every check that is Pending."""
        view = self._checks.view()
        if not view.checks or "TreeProfile" not in view.synced or TEMPLATES_KIND in view.pending:
            return  # each tree would be without its profile, or the Workload that it names
        failures: list[Exception] = []
        for check in [check for check in view.checks.values() if not check.active]:
            with self._faults.alone(f"AdmissionCheck/{check.name}"):
                try:
                    await self._checks.activate_check(check)
                except EXPECTED as error:
                    failures.append(error)
        versions = {uid: queued.resource_version for uid, queued in view.queued.items()}
        self._answered = {
            uid: entry for uid, entry in self._answered.items() if versions.get(uid) == entry[0]
        }
        waiting: list[_Asked] = []
        by_age = sorted(view.queued.values(), key=lambda q: (q.reserved_at, q.namespace, q.name))
        for queued in by_age:
            if name := self._unanswered(queued, view):
                with self._faults.alone(_name(queued)):
                    try:
                        objects = self._objects(queued, view)
                        if objects is not None:
                            waiting.append(_Asked(queued, name, objects))
                    except ClusterUnavailable as error:  # the others do not wait for it
                        failures.append(error)
        while waiting and self._may_answer():  # many plans take longer than a lease
            namespace = waiting[0].queued.namespace
            batch = [each for each in waiting if each.queued.namespace == namespace]
            done = await self._answer(batch[: self._at_once], view, failures)
            waiting = [each for each in waiting if each not in done]
        if failures:
            raise ClusterUnavailable("; ".join(map(str, failures)))

    def _unanswered(self, queued: QueuedWorkload, view: WorkloadView) -> str:
        """Return our check of a Workload that is to be answered now; empty: there is none."""
        if queued.admitted or queued.uid in self._answered or self._faults.waits(_name(queued)):
            return ""
        # Another one is answered when the informer shows this answer.
        states = queued.states(view.checks)
        return next((check for check, state in states if state == "Pending"), "")

    def _objects(self, queued: QueuedWorkload, view: WorkloadView) -> list[dict[str, Any]] | None:
        """Return what is planned for a Workload; None: it waits for the informer of its owner's kind.

        Raises:
            ClusterUnavailable: A flavor of its quota is not read yet: without it other nodes would count.
        """
        trees = trees_of(queued, view)
        if not trees and waits_for_owner(queued, view.synced, view.pending):
            return None  # the informer of its kind is behind that of Kueue's Workloads
        named = {name for each in queued.assignments.values() for name in each.flavors.values()}
        if unread := sorted(named.difference(view.flavors)):
            text = f"ResourceFlavor/{unread[0]} of its quota is not read yet"
            raise ClusterUnavailable(f"{_name(queued)}: {text}")
        return objects_of(queued, trees, view.flavors, view.templates)

    async def _answer(
        self, batch: Sequence[_Asked], view: WorkloadView, failures: list[Exception]
    ) -> Sequence[_Asked]:
        """Plan Workloads of one namespace in one query, and write the answers; return those that this look is done with."""
        answers: Sequence[CheckAnswer] = ()
        part = f"{len(batch)} Workloads of namespace {batch[0].queued.namespace}"
        with self._faults.alone(part if len(batch) > 1 else _name(batch[0].queued)):
            try:
                answers = await self._answers(batch, view)
            except EXPECTED as error:
                failures.append(error)
                self._at_once = max(len(batch) // 2, 1)  # in case they take too long together
                return batch
        if not answers:  # because of one of them
            half = batch[: len(batch) // 2]
            return await self._answer(half, view, failures) if half else batch
        self._at_once = min(2 * self._at_once, PLANNED_MAX)
        for asked, answer in zip(batch, answers, strict=False):
            if not self._may_answer():
                break
            with self._faults.alone(_name(asked.queued)):
                try:
                    await self._write(asked, answer)
                except EXPECTED as error:
                    failures.append(error)
        return batch[: len(answers)]

    async def _write(self, asked: _Asked, answer: CheckAnswer) -> None:
        queued, retry_s = asked.queued, self._settings.admission_check_retry_s
        answer = replace(answer, retry_after_s=retry_s)
        await self._checks.answer_check(queued, asked.check, answer)
        self._answered[queued.uid] = (queued.resource_version, answer)
        subject = {"workload": f"{queued.namespace}/{queued.name}", "check": asked.check}
        data = subject | {"state": answer.state, "reason": answer.message}
        log.info("admission check answered", extra=data)

    async def _answers(self, batch: Sequence[_Asked], view: WorkloadView) -> Sequence[CheckAnswer]:
        """Return the answers to the first of some Workloads, planned in their order; none: ask for fewer."""
        without = [without_profile(each.objects, view.profiles) for each in batch]
        planned = [each for each, answer in zip(batch, without, strict=True) if answer is None]
        lines: Sequence[VerdictLine] = ()
        others = self._placing(batch, view) if planned else []
        while planned:
            objects = [*others, *(each.objects for each in planned)]
            try:
                lines = await self._planned(batch[0].queued.namespace, objects)
                break
            except BadInput as error:
                if len(batch) > 1:
                    return ()
                if not others:  # it may be mended, so it is not rejected for ever
                    return [CheckAnswer(state="Retry", message=f"cannot be planned: {error}")]
                # Fewer others, in case it is they that are too many for one query, or too long.
                others = others[: len(others) // 2]
        answers: list[CheckAnswer] = []
        for asked, answer in zip(batch, without, strict=True):
            mine = lines_of(asked.objects, lines)
            answers.append(answer or answer_of(mine))
            if answers[-1].state != "Ready" and any(line.verdict == "placed" for line in mine):
                break  # what was placed of it is free for the next ones
        return answers

    async def _planned(
        self, namespace: str, objects: Iterable[Sequence[dict[str, Any]]]
    ) -> Sequence[VerdictLine]:
        # A Workload of a user may be named by several trees.
        by_name = {_key(each): each for objects_of_one in objects for each in objects_of_one}
        body = {
            "workload": [*by_name.values()],
            "budget": self._settings.search_budget,
            "node_groups": self._node_groups,
        }
        readers = readers_of(namespace, show_names=self._settings.show_names_across_namespaces)
        reply = await self._ask_planner(msgspec.json.encode(body), readers)
        return msgspec.json.decode(reply, type=_Reply).gangs

    def _placing(self, batch: Sequence[_Asked], view: WorkloadView) -> list[list[dict[str, Any]]]:
        """Return what is planned before some Workloads: those that got *Ready* and are not placed yet, the newest first.

        Their capacity is not reserved, so it is that of the first who comes; but two of them never get it both.
        """
        # gangs that have nodes, or had them until they succeeded, by namespace and name of their root
        gangs = self._leader.committed.gangs.values()
        placed = frozenset(g.gang for g in gangs if g.reservations or g.bound or g.succeeded)
        asked = {each.queued.uid for each in batch}
        namespace = batch[0].queued.namespace
        others: list[list[dict[str, Any]]] = []
        for queued in sorted(view.queued.values(), key=lambda q: q.reserved_at, reverse=True):
            states = [state for _, state in queued.states(view.checks)]
            answered = self._answered.get(queued.uid)
            if answered is not None and answered[1].state == "Ready":
                states = ["Ready"]
            if queued.uid in asked or not states or set(states) != {"Ready"}:
                continue
            trees = trees_of(queued, view)
            waiting = [tree for tree in trees if not self._is_placed(tree, placed)]
            # Whether the pods of one without a tree have nodes is not known once Kueue has admitted it.
            if waiting or not (trees or queued.admitted):
                moved = replace(queued, namespace=namespace)
                objects = objects_of(moved, waiting, view.flavors, view.templates)
                others.append(in_namespace(objects, namespace, f"other-{queued.uid}"))
            if len(others) == PLACING_MAX:
                break
        return others

    def _is_placed(self, workload: WorkloadObject, placed: frozenset[str]) -> bool:
        """Return whether all trees that were made of a workload have nodes."""
        tree = self._leader.committed.trees.get(workload.uid)
        if tree is None or not tree.groups:
            return False
        roots = (group.name for group in tree.groups if not group.parent)
        return all(f"{workload.namespace}/{name}" in placed for name in roots)


def _name(queued: QueuedWorkload) -> str:
    return f"Workload/{queued.namespace}/{queued.name}"


def _key(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def trees_of(queued: QueuedWorkload, view: WorkloadView) -> list[WorkloadObject]:
    """Return what trees are made from: the owner of a Workload of Kueue, or what that owns (the JobSet of a TrainJob)."""
    owner = view.objects.get(queued.owner.uid) if queued.owner is not None else None
    if owner is None:
        return []
    if BY_KIND[owner.kind].parts is not None:
        return [owner]
    owned: Mapping[str, WorkloadObject] = view.owned.get(owner.uid, {})
    return [
        replace(each, annotations={**each.annotations, **owner.annotations})
        for each in owned.values()
        if BY_KIND[each.kind].parts is not None
    ]
