"""Explain any object by its name: a group, a pod, a node, a workload, or a name that nothing has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from extender.core.admit.tree_warnings import NodeLabels, collect_warnings
from extender.core.capacity.hold_progress import HELD, hold_progress
from extender.core.fairness.wait_reasons import WaitReason
from extender.core.holds.hold_turns import HoldRefusal
from extender.core.log.reservation_state import GangState, Reservation, ReservationState
from extender.core.log.visible_state import visible_part
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import NotFound
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import amounts_text, counted, spaced
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Forest, Tree, build_forest, composite_key, leaf_key
from extender.core.model.pods import Pod
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of
from extender.core.planner.plan_types import SEARCH_BUDGET
from extender.core.workloads.workload_object import OFF, OTHER_SCHEDULERS, TREE_LABEL
from extender.ports.log_ports import Clock, StateSource
from extender.queries.explain.explanation import Check, Explanation, Related
from extender.queries.explain.gang_checks import (
    GROUP_HELP,
    Finding,
    checks_until,
    gang_finding,
    missing_group,
    orphan_finding,
    pausing_finding,
    planned_finding,
    which,
    with_bind_failure,
    with_unheld,
)
from extender.queries.explain.member_checks import (
    extra_finding,
    extra_members,
    placed_checks,
)
from extender.queries.explain.name_lookup import (
    GROUP_KINDS,
    ObjectName,
    WantedName,
    all_names,
    in_other_namespace,
    matches,
    similar_names,
)
from extender.queries.explain.name_search import NameSearch, search_names
from extender.queries.explain.past_explanation import turn_finding
from extender.queries.log.event_dto import rfc3339
from extender.queries.plan.node_groups import NodeGroupSpec
from extender.queries.plan.plan_query import BUDGET_MAX, GangVerdict, PlanReply
from extender.queries.plan.plan_service import ClusterSource, PlanResult
from extender.queries.state.gang_status import RootWorkload, gang_status
from extender.queries.state.live_node import live_node
from extender.queries.state.node_inventory import groups_below, groups_by_parent
from extender.queries.state.state_report import gang_at
from extender.queries.state.workload_trees import RootKey, root_groups, workloads_of_roots
from extender.runtime.cooperative_yield import Yielder

RELATED_MAX = 20  # members, or gangs of a node
WARNINGS_MAX = 3  # of one tree


@dataclass(frozen=True, slots=True)
class LiveProgress:
    """What the leader has in memory and the log does not have."""

    turns: Callable[
        [], Mapping[GangUid, WaitReason]
    ]  # why trees are not planned now, by the UID of the root
    at_bind: Callable[[], Collection[PodUid]]  # the members that wait at the bind barrier
    unheld: Callable[[], Mapping[GangUid, HoldRefusal]] = dict  # why no capacity is held for trees
    # when the pause of trees ends: until they are planned again, and until victims are searched for them again
    planned_again_us: Callable[[], Mapping[GangUid, int]] = dict
    victims_again_us: Callable[[], Mapping[GangUid, int]] = dict


NOT_LEADING = LiveProgress(turns=dict, at_bind=frozenset)


@dataclass(frozen=True, slots=True)
class _Now:
    """The cluster and the log as one explanation sees them."""

    view: ClusterView
    state: ReservationState  # all of it
    pace: Yielder
    readers: Visibility  # what the caller sees


class ExplainService:
    """Answers questions about one object as the cluster and the log are now.

    Args:
        cluster: The cluster.
        state: The reservation state.
        clock: For the time of the answer.
        plan: Answers plan queries, outside of the event loop.
        node_groups: Of the cluster autoscaler; empty: not known.
        budget: Search nodes that one of these queries may cost.
        live: What only the leader knows.
    """

    def __init__(
        self,
        cluster: ClusterSource,
        state: StateSource,
        clock: Clock,
        plan: Callable[[bytes, Visibility], Awaitable[PlanResult]],
        node_groups: tuple[NodeGroupSpec, ...] = (),
        budget: int = SEARCH_BUDGET,
        live: LiveProgress = NOT_LEADING,
    ) -> None:
        self._live = live
        self._cluster = cluster
        self._state = state
        self._clock = clock
        self._plan = plan
        self._node_groups = node_groups
        self._budget = min(budget, BUDGET_MAX)
        self._workloads: IdentityMemo[Mapping[RootKey, RootWorkload]] = IdentityMemo()
        self._labels: IdentityMemo[NodeLabels] = IdentityMemo()

    async def explain(self, wanted: WantedName, readers: Visibility = EVERYTHING) -> Explanation:
        """Return why an object is in its state, and what would help.

        Of several objects with the name, the first of `KINDS` is explained, and the others are in `related`. A name without
        a namespace that only one other namespace has is explained there.

        Args:
            wanted: The name.
            readers: What the caller sees.

        Raises:
            NotFound: Nothing has the name; the message has similar names.
            ClusterUnavailable: A plan is needed, and the view of the cluster is not current.
            TooManyQueries: A plan is needed, and too many plan queries wait already.
        """
        view, state, pace = self._cluster.view(), self._state.committed, Yielder()
        found = await matches(all_names(view, state, readers), wanted, pace)
        if not found:
            elsewhere = await in_other_namespace(all_names(view, state, readers), wanted, pace)
            if elsewhere is not None:
                found = await matches(all_names(view, state, readers), elsewhere, pace)
        if not found:
            near = await similar_names(all_names(view, state, readers), wanted, pace)
            raise NotFound(_not_found(wanted, near))
        subject, *others = found
        explanation = await self._of(_Now(view, state, pace, readers), subject)
        same = tuple(Related(kind=o.kind, name=o.path, relation="same name") for o in others)
        return msgspec.structs.replace(
            explanation,
            related=(*explanation.related, *same),
            as_of=rfc3339(self._clock.now_us()),
            position=state.position,
        )

    async def search(self, text: str, limit: int, readers: Visibility = EVERYTHING) -> NameSearch:
        """Return the objects whose names contain the words of a text, `limit` of them at most."""
        return await search_names(
            self._cluster.view(), self._state.committed, text, limit, Yielder(), readers
        )

    async def _of(self, now: _Now, subject: ObjectName) -> Explanation:
        if subject.kind == "Node":
            return _node(now, NodeName(subject.path))
        if subject.kind == "Pod":
            return await self._pod(now, subject)
        if subject.kind in GROUP_KINDS:
            return await self._group(now, subject, _key(subject))
        return await self._workload(now, subject)

    async def _pod(self, now: _Now, subject: ObjectName) -> Explanation:
        pod = await _pod_named(now.view, subject.path, now.pace)
        if pod.group is None:
            return _lone(pod, subject)
        about = await self._group(now, subject, pod.group, pod)
        if about.answer.startswith(f"{subject} "):  # it is about this member, not about its gang
            return about
        place = f"runs on {pod.node}, " if pod.node else ""
        root = (
            about.related[0]
            if about.related and about.related[0].relation == "root group"
            else None
        )
        of = f"{root.kind} {root.name}" if root is not None else spaced(pod.group)
        gone = "is being deleted; " if pod.deleting else ""
        return msgspec.structs.replace(
            about,
            answer=f"Pod {pod.path} {gone}{place or 'waits, '}a member of {which(of, about.answer)}",
        )

    async def _workload(self, now: _Now, subject: ObjectName) -> Explanation:
        namespace = subject.path.partition("/")[0]
        named = (subject.kind, subject.path)
        tree = next(t for t in now.state.trees.values() if (t.kind, t.workload) == named)
        roots = [
            _key(ObjectName(kind, f"{namespace}/{name}")) for kind, name, _ in root_groups(tree)
        ]
        if tree.outcome == "refused" or not roots:
            return Explanation(
                kind=subject.kind,
                name=subject.path,
                answer=f"{subject} has no groups: {tree.message or tree.reason or 'its tree is not made yet'}",
                state=tree.outcome,
                help=("correct the workload; docs/workloads.md has the reasons",),
            )
        about = await self._group(now, subject, roots[0])
        more = f" (the first of {len(roots)} root groups)" if len(roots) > 1 else ""
        links = tuple(
            Related(kind=root.kind, name=root.path, relation="root group") for root in roots[1:]
        )
        return msgspec.structs.replace(
            about, answer=f"{subject}{more}: {about.answer}", related=(*about.related, *links)
        )

    async def _group(
        self, now: _Now, subject: ObjectName, key: GroupKey, pod: Pod | None = None
    ) -> Explanation:
        """Explain a group of a tree, or a member of it; the answer about a member is mostly that about its gang."""
        view, state = now.view, now.state
        if key not in view.groups:
            return await _missing(now, subject, key)
        forest = await _forest_around(view, key, now.pace)
        if key in forest.orphans:
            return _explanation(subject, orphan_finding(forest.orphans[key]))
        tree = forest.trees[forest.root_of[key]]
        state = visible_part(state, tree.root.uid, now.readers)
        gang = state.gangs.get(tree.root.uid)
        trees = state.trees
        workloads = self._workloads.get(lambda: workloads_of_roots(trees.values()), same=(trees,))
        made_for = workloads.get(RootKey(tree.root.key.path, tree.root.key.kind))
        status = gang_status(gang, made_for) if gang is not None else None
        at_bind = self._live.at_bind()
        finding = gang_finding(view, state, tree, status, at_bind)
        conflict: tuple[str, ...] = ()
        turn = self._live.turns().get(tree.root.uid)
        if finding.plan_needed and turn is not None:
            finding = turn_finding(spaced(tree.root.key), turn, gang, status)
        elif finding.plan_needed:
            verdict = await self._planned(tree, now.readers)
            finding = planned_finding(
                spaced(tree.root.key), verdict, status, groups_known=bool(self._node_groups)
            )
            finding = self._pausing(finding, gang, tree, verdict)
            conflict = tuple(f"{spaced(c.object)}: {c.message}" for c in verdict.conflict)
        finding = _with_holds(finding, view, now.state, tree.root.uid)
        if tree.root.uid not in state.capacity_holds:
            unheld = self._live.unheld().get(tree.root.uid)
            finding = with_unheld(finding, state, gang, unheld, self._clock.now_us())
        finding = with_bind_failure(finding, gang)
        extra: tuple[Pod, ...] = ()
        if pod is not None or subject.kind in GROUP_KINDS:
            extra = extra_members(gang, status, tree, key, pod)
        if extra:
            verdict = await self._planned(tree, now.readers)
            finding = extra_finding(str(subject), key, extra, verdict, finding.answer)
        about = _explanation(subject, finding)
        own = None
        if gang is not None and pod is not None:
            own = placed_checks(state, gang, pod, at_bind)
        if own is not None:
            about = msgspec.structs.replace(about, checks=own[0], reasons=own[1])
        if key != tree.root.key and subject.kind in GROUP_KINDS and not extra:
            of = which(spaced(tree.root.key), about.answer)
            about = msgspec.structs.replace(about, answer=f"{spaced(key)} is a child group of {of}")
        if not tree.problems:
            about = msgspec.structs.replace(
                about, checks=self._with_warnings(view, tree, about.checks)
            )
        return msgspec.structs.replace(
            about,
            state=status.state if status is not None else "",
            conflict=conflict,
            related=_related(subject, tree, made_for.workload if made_for is not None else ""),
            gang=gang_at(gang, workloads) if gang is not None else None,
        )

    def _pausing(
        self, finding: Finding, gang: GangState | None, tree: Tree, verdict: GangVerdict
    ) -> Finding:
        """Return the finding about a planned tree, with the pause that one with a place waits for."""
        uid, evicts = tree.root.uid, bool(verdict.victims)
        again_us = self._live.planned_again_us().get(uid, 0)
        victims_us = self._live.victims_again_us().get(uid, 0) if evicts else 0
        if verdict.verdict != "placed" or max(again_us, victims_us) <= self._clock.now_us():
            return finding
        return pausing_finding(finding, gang, again_us, victims_us)

    def _with_warnings(
        self, view: ClusterView, tree: Tree, checks: tuple[Check, ...]
    ) -> tuple[Check, ...]:
        """Return the checks with the warnings about a tree that is valid."""
        labels = self._labels.get(lambda: NodeLabels(view.nodes), same=(view.nodes,))
        found = [text for texts in collect_warnings(view, tree, labels).values() for text in texts]
        if not found:
            return checks
        text = f"warning: {'; '.join(found[:WARNINGS_MAX])}"
        if len(found) > WARNINGS_MAX:
            text += f"; and {len(found) - WARNINGS_MAX} more"
        return tuple(
            msgspec.structs.replace(check, text=text)
            if check.check == "tree valid" and check.outcome == "yes"
            else check
            for check in checks
        )

    async def _planned(self, tree: Tree, readers: Visibility) -> GangVerdict:
        """Return the answer of a plan query about a tree, on the cluster as it is now."""
        key = tree.root.key
        question = {
            "groups": [f"{key.kind}/{key.path}"],
            "node_groups": self._node_groups,
            "budget": self._budget,
        }
        result = await self._plan(msgspec.json.encode(question), readers)
        reply = msgspec.json.decode(result.body, type=PlanReply)
        if not reply.gangs:
            raise NotFound(f"{spaced(key)}: the group was deleted meanwhile")
        return reply.gangs[0]


def _with_holds(
    finding: Finding, view: ClusterView, state: ReservationState, uid: GangUid
) -> Finding:
    """Return a finding with what is held for the gang, or against it, as the last decision has it."""
    hold, gang = state.capacity_holds.get(uid), state.gangs.get(uid)
    if hold is not None:
        text = f"{hold_progress(view, state, hold).sentence()}, at the latest until {rfc3339(hold.until_us)}"
        return msgspec.structs.replace(finding, answer=f"{finding.answer}; {text}")
    decision = gang.last_decision if gang is not None else None
    if decision is not None and HELD in decision.reasons and HELD not in finding.reasons:
        return msgspec.structs.replace(finding, reasons=(*finding.reasons, HELD))
    return finding


async def _missing(now: _Now, subject: ObjectName, key: GroupKey) -> Explanation:
    """Explain a group that the cluster does not have: pods name it, or the log still has it."""
    pods = len(now.view.members.get(key, ()))
    if pods:
        wanted = WantedName(key.kind, key.namespace, key.name, given_namespace=True)
        near = [
            str(one)
            for one in await similar_names(
                all_names(now.view, now.state, now.readers), wanted, now.pace
            )
            if one.kind == "PodGroup" and one.path != key.path
        ]
        return _explanation(subject, missing_group(key, pods, near))
    roots = [g for g in now.state.gangs.values() if (g.kind, g.gang) == (key.kind, key.path)]
    if roots:
        gang = max(roots, key=lambda root: root.observed_us)
        text = f"{spaced(key)} does not exist any more; the log has it as {gang_status(gang).state}"
    else:
        text = f"{spaced(key)} does not exist; it is being made for its workload, or was deleted"
    return _explanation(
        subject,
        Finding(
            answer=text,
            checks=checks_until("group exists", "no", text),
            help=(f"`gang-extender history {key.path}` shows what became of it",),
        ),
    )


def _explanation(subject: ObjectName, finding: Finding) -> Explanation:
    return Explanation(
        kind=subject.kind,
        name=subject.path,
        answer=finding.answer,
        checks=finding.checks,
        reasons=finding.reasons,
        help=finding.help,
    )


def _key(subject: ObjectName) -> GroupKey:
    namespace, _, name = subject.path.partition("/")
    key_of = leaf_key if subject.kind == "PodGroup" else composite_key
    return key_of(namespace, name)


async def _pod_named(view: ClusterView, path: str, pace: Yielder) -> Pod:
    for pod in view.pods.values():
        if pod.path == path:
            return pod
        await pace.yield_if_due()
    raise NotFound(f"Pod {path}: it was deleted meanwhile")


async def _forest_around(view: ClusterView, key: GroupKey, pace: Yielder) -> Forest:
    """Return the forest of the groups above and below one group: a part of `forest_of(view)`."""
    above = {key: view.groups[key]}
    here = view.groups[key]
    while here.parent is not None:
        parent = view.groups.get(composite_key(key.namespace, here.parent))
        if (
            parent is None or parent.key in above
        ):  # no root: a parent is missing, or the chain is a cycle
            break
        above[parent.key] = here = parent
        await pace.yield_if_due()
    children = await groups_by_parent(view, key.namespace, pace)
    groups = {group.key: group for group in groups_below(here, children)} | above
    members = {k: tuple(view.members[k].values()) for k in groups if k in view.members}
    return build_forest(groups, members, max_children=view.max_children)


def _related(subject: ObjectName, tree: Tree, workload: str) -> tuple[Related, ...]:
    found = []
    if subject != ObjectName(tree.root.key.kind, tree.root.key.path):
        root = tree.root.key
        found.append(Related(kind=root.kind, name=root.path, relation="root group"))
    if workload and workload != f"{subject.kind}/{subject.path}":
        kind, _, path = workload.partition("/")
        found.append(Related(kind=kind, name=path, relation="workload"))
    return tuple(found)


def _lone(pod: Pod, subject: ObjectName) -> Explanation:
    where = f"runs on {pod.node}" if pod.node else "waits"
    labelled = pod.labels.get(TREE_LABEL, OFF) != OFF
    if labelled and pod.scheduler_name not in OTHER_SCHEDULERS:
        return Explanation(
            kind="Pod",
            name=subject.path,
            answer=(
                f"Pod {pod.path} {where}; it lacks the group of its workload, so kube-scheduler places it alone"
            ),
            checks=checks_until(
                "group named",
                "no",
                f"it has the label {TREE_LABEL}, but no admission policy named its group",
            ),
            help=(
                "delete the pod: its controller creates it again, and the admission policy gang-extender-leaf names its "
                "group; the policy was not in use when the pod was created, or no rule of it fits the labels of the pod",
            ),
        )
    return Explanation(
        kind="Pod",
        name=subject.path,
        answer=f"Pod {pod.path} {where}; it names no group, so kube-scheduler places it alone",
        checks=checks_until("group named", "no", "neither the field nor the label is set"),
        help=(f"to place it with others, {GROUP_HELP}",),
    )


def _node(asked: _Now, name: NodeName) -> Explanation:
    view, state = asked.view, asked.state
    now = live_node(view, name, None)
    assert now is not None
    gangs: dict[GangUid, int] = {}
    here = view.on_node.get(name)
    pods: set[PodUid] = set(here) if here is not None else set()
    for uid in pods | set(state.reservations_on.get(name, ())):
        root = state.gang_of.get(uid)
        if root is not None:
            gangs[root] = gangs.get(root, 0) + 1
    roots = sorted((state.gangs[uid] for uid in gangs if uid in state.gangs), key=lambda g: g.gang)
    words = [f"{counted(now.pods, 'pod')} ({now.ordinary} outside of groups)"]
    words.append(f"{counted(len(roots), 'gang')} with members or reservations here")
    words.append(f"free: {_free_text(now.free, state.reservations_on.get(name), pods)}")
    if now.unschedulable:
        words.append("it is cordoned")
    if now.deleting:
        words.append("it is being deleted")
    help_ = (f"`kubectl uncordon {name}` lets new pods in",) if now.unschedulable else ()
    return Explanation(
        kind="Node",
        name=name,
        answer=f"Node {name}: {'; '.join(words)}",
        state="cordoned" if now.unschedulable else "ready",
        help=help_,
        related=tuple(
            Related(kind=root.kind, name=root.gang, relation="gang on this node")
            for root in [r for r in roots if asked.readers.sees(namespace_of(r.gang))][:RELATED_MAX]
        ),
    )


def _free_text(
    free: Mapping[str, int], held: Mapping[PodUid, Reservation] | None, here: Collection[PodUid]
) -> str:
    """Return what a node has left beside its pods and the reservations of pods that are not there yet."""
    left = dict(free)
    for uid, reservation in (held or {}).items():
        for resource, amount in reservation.requests.items() if uid not in here else ():
            left[resource] = left.get(resource, 0) - amount
    return amounts_text(left) or "nothing is known"


def _not_found(wanted: WantedName, near: list[ObjectName]) -> str:
    path = f"{wanted.namespace}/{wanted.name}"
    what = f"{wanted.kind} {path}" if wanted.kind else path
    text = f"nothing is called {what}: no group, pod, workload or node"
    if wanted.kind:
        text = f"{what} does not exist"
    if near:
        return f"{text}; did you mean {', '.join(str(one) for one in near)}?"
    return f"{text}; the log may have it: `gang-extender history {path}`"
