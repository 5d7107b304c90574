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
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from extender.control.log.leader import Leader
from extender.core.model.errors import (
    BadInput,
    ClusterUnavailable,
    RequestRejected,
    TooManyQueries,
)
from extender.core.model.visibility import Visibility, readers_of
from extender.core.workloads.admission_checks import (
    CheckAnswer,
    QueuedWorkload,
    VerdictLine,
    answer_of,
    in_namespace,
    objects_of,
    waits_for_owner,
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
AskPlanner = Callable[[bytes, Visibility], Awaitable[bytes]]


class _Reply(msgspec.Struct):
    """The fields of the reply to a plan query that are read."""

    gangs: tuple[VerdictLine, ...]


class AdmissionCheckController:
    """Answers the checks that name us, one after the other, in the order in which Kueue reserved quota."""

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
            cluster: What must be known before anything is answered.
            checks: The checks and their Workloads.
            leader: Whether this process answers, and what is placed already.
            ask_planner: Answers the body of a `POST /v1/plan` about the cluster, as its JSON.
            settings: How long until Kueue asks again, and the effort of a search.
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
        self._faults: ObjectFaults[str] = ObjectFaults("admission checks")

    async def run(self) -> None:
        """Answer until cancelled."""
        await PeriodicTask(
            name="admission_checks",
            work=self.look,
            every_s=LOOK_EVERY_S,
            retry_s=RETRY_S,
            condition=self._may_answer,
            changes=Changes(lambda: self._checks.view().revision, self._checks.changed),
            expected=(ClusterUnavailable,),
            failure="admission checks not answered",
        ).run()

    def _may_answer(self) -> bool:
        leader = self._leader
        ready = leader.may_act() and not leader.recovery_reason
        return ready and not self._cluster.not_ready_reason()

    async def look(self) -> None:
        """Answer every check that is Pending.

        Raises:
            ClusterUnavailable: An answer was not found or not written; the next call decides it again.
        """
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
        self._answered = {
            uid: entry
            for uid, entry in self._answered.items()
            if uid in view.queued and view.queued[uid].resource_version == entry[0]
        }
        for queued in sorted(
            view.queued.values(), key=lambda q: (q.reserved_at, q.namespace, q.name)
        ):
            if not self._may_answer():  # the plans of many Workloads take longer than a lease
                break
            name = f"Workload/{queued.namespace}/{queued.name}"
            pending = [check for check, state in queued.states(view.checks) if state == "Pending"]
            if (
                queued.admitted
                or queued.uid in self._answered
                or not pending
                or self._faults.waits(name)
            ):
                continue
            with self._faults.alone(name):
                try:
                    await self._decide(queued, pending[0], view)
                except EXPECTED as error:  # the others do not wait for it
                    failures.append(error)
        if failures:
            raise ClusterUnavailable("; ".join(map(str, failures)))

    async def _decide(self, queued: QueuedWorkload, check: str, view: WorkloadView) -> None:
        """Plan one Workload, and write the answer into a check; another one is answered when the informer shows this answer."""
        trees = trees_of(queued, view)
        if not trees and waits_for_owner(queued, view.synced, view.pending):
            return  # the informer of its kind is behind that of Kueue's Workloads
        named = {name for each in queued.assignments.values() for name in each.flavors.values()}
        if unread := sorted(named.difference(view.flavors)):  # without it other nodes would count
            raise ClusterUnavailable(
                f"Workload/{queued.namespace}/{queued.name}: ResourceFlavor/{unread[0]} of its quota is not read yet"
            )
        mine = objects_of(queued, trees, view.flavors, view.templates)
        answer = CheckAnswer(state="Ready", message="has no pods")
        others = self._placing(queued, view) if mine else []
        while mine:
            try:
                answer = await self._planned(queued, others, mine)
                break
            except BadInput as error:
                # Fewer others, in case it is they that are too many for one query, or too long.
                if not others:  # it may be mended, so it is not rejected for ever
                    answer = CheckAnswer(state="Retry", message=f"cannot be planned: {error}")
                    break
                others = others[: len(others) // 2]
        answer = msgspec.structs.replace(
            answer, retry_after_s=self._settings.admission_check_retry_s
        )
        await self._checks.answer_check(queued, check, answer)
        self._answered[queued.uid] = (queued.resource_version, answer)
        log.info(
            "admission check answered",
            extra={
                "workload": f"{queued.namespace}/{queued.name}",
                "check": check,
                "state": answer.state,
                "reason": answer.message,
            },
        )

    async def _planned(
        self,
        queued: QueuedWorkload,
        others: list[list[dict[str, Any]]],
        mine: list[dict[str, Any]],
    ) -> CheckAnswer:
        body = {
            "workload": [*(each for objects in others for each in objects), *mine],
            "budget": self._settings.search_budget,
            "node_groups": self._node_groups,
        }
        readers = readers_of(
            queued.namespace, show_names=self._settings.show_names_across_namespaces
        )
        reply = await self._ask_planner(msgspec.json.encode(body), readers)
        return answer_of(mine, msgspec.json.decode(reply, type=_Reply).gangs)

    def _placing(self, asked: QueuedWorkload, view: WorkloadView) -> list[list[dict[str, Any]]]:
        """Return what is planned before a Workload: those that got *Ready* and are not placed yet, the newest first.

        Their capacity is not reserved, so it is that of the first who comes; but two of them never get it both.
        """
        placed = self._placed_roots()
        others: list[list[dict[str, Any]]] = []
        for queued in sorted(view.queued.values(), key=lambda q: q.reserved_at, reverse=True):
            states = [state for _, state in queued.states(view.checks)]
            answered = self._answered.get(queued.uid)
            if answered is not None and answered[1].state == "Ready":
                states = ["Ready"]
            if queued.uid == asked.uid or not states or set(states) != {"Ready"}:
                continue
            trees = trees_of(queued, view)
            waiting = [tree for tree in trees if not self._is_placed(tree, placed)]
            # Whether the pods of one without a tree have nodes is not known once Kueue has admitted it.
            if waiting or not (trees or queued.admitted):
                moved = msgspec.structs.replace(queued, namespace=asked.namespace)
                objects = objects_of(moved, waiting, view.flavors, view.templates)
                others.append(in_namespace(objects, asked.namespace, f"other-{queued.uid}"))
            if len(others) == PLACING_MAX:
                break
        return others

    def _placed_roots(self) -> frozenset[str]:
        """Return the gangs that have nodes, or had them until they succeeded, by namespace and name of their root."""
        gangs = self._leader.committed.gangs.values()
        return frozenset(
            gang.gang for gang in gangs if gang.reservations or gang.bound or gang.succeeded
        )

    def _is_placed(self, workload: WorkloadObject, placed: frozenset[str]) -> bool:
        """Return whether all trees that were made of a workload have nodes."""
        tree = self._leader.committed.trees.get(workload.uid)
        if tree is None or not tree.groups:
            return False
        roots = (group.name for group in tree.groups if not group.parent)
        return all(f"{workload.namespace}/{name}" in placed for name in roots)


def trees_of(queued: QueuedWorkload, view: WorkloadView) -> list[WorkloadObject]:
    """Return what trees are made from: the owner of a Workload of Kueue, or what that owns (the JobSet of a TrainJob)."""
    owner = view.objects.get(queued.owner.uid) if queued.owner is not None else None
    if owner is None:
        return []
    if BY_KIND[owner.kind].parts is not None:
        return [owner]
    owned: Mapping[str, WorkloadObject] = view.owned.get(owner.uid, {})
    return [
        msgspec.structs.replace(each, annotations={**each.annotations, **owner.annotations})
        for each in owned.values()
        if BY_KIND[each.kind].parts is not None
    ]
