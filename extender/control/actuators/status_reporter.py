"""Report on the objects why they are pending: conditions on groups, Kubernetes Events on members.

A gated member never reaches kube-scheduler, so its user sees no refusal from there; for one without gate
kube-scheduler does not ask again when the reason changes. A Kubernetes Event on the pod reaches both users
(`kubectl describe pod`). No conditions of pods are written: kube-scheduler would try the pod again (K25).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from immutables import Map

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue, retried
from extender.control.actuators.write_priority import PlacementPriority
from extender.control.log.leader import Leader
from extender.core.admit.gang_sentences import (
    Sentences,
    group_lines,
    invalid_text,
    missing_text,
    orphan_text,
    pending_sentences,
    short_text,
    waiting_text,
)
from extender.core.admit.native_gang_scheduling import has_its_condition_written, native_on
from extender.core.admit.plan_request import group_key_of
from extender.core.admit.tree_warnings import NodeLabels, collect_warnings, template_mismatches
from extender.core.log.reservation_state import (
    EMPTY,
    GangState,
    PendingPreemption,
    ReservationState,
)
from extender.core.model.cluster_view import ClusterView, changed_groups, pods_by_leaf
from extender.core.model.ids import GangUid, GroupKey, PodUid
from extender.core.model.message_formatting import counted, spaced
from extender.core.model.object_identity import changed_keys, same_objects
from extender.core.model.pod_groups import INVALID_CHAINS, PODS_DIFFER, Forest, Group, Orphan, Tree
from extender.core.model.pods import Pod
from extender.core.model.visibility import Visibility, readers_of
from extender.core.verbs.filter_and_prioritize import pending_reason, possible_pod_rules
from extender.ports.cluster_ports import Cluster, Condition, K8sEvent, PodRef
from extender.ports.log_ports import Clock
from extender.ports.written_names import EXPLAINED, MISMATCH, SCHEDULED
from extender.runtime.periodic import ObjectFaults

log = logging.getLogger(__name__)

NEVER_FITS = "NeverFits"  # not even when no other pod runs: waiting does not help
NOTICES_PER_TREE_MAX = 100  # pods of one leaf that get an Event per change of reason
MAKE_IT = "; create the group, again if it was deleted, or delete the pod"
NO_STALL_REASONS: Final[Mapping[GangUid, str]] = {}
# A short limit: there is one worker, so the back-off of an object whose writes fail delays all others.
RETRIES = RetryPolicy(first_s=0.5, max_s=0.5, after_failure="rest")
# When thousands of reasons change at once, the writer leaves time to the API server.
REST_PER_WRITE = 2
REST_MS_MAX = 100
# Members arrive and are bound one by one. So a condition is written this long after it first differs, with its newest value.
CONDITION_AFTER_S = 0.5
# Objects of a tree arrive one by one. So a reason is reported only when it has not changed for this long.
SETTLED_MS = 1_000


# Groups of one namespace whose conditions are compared in one run; the others wait for the next runs. Of a tree that breaks
# a rule only the first groups get the condition.
GROUPS_PER_RUN = 128
GROUPS_PER_TREE = 512
PRUNE_MIN = 1_000


class _Shares:
    """The shares that the namespaces have of one run."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()
        self.exceeded = False  # a namespace has more to report

    def take(self, namespace: str, groups: int) -> bool:
        """Return whether some groups of a namespace have their turn in this run; the first ones always have."""
        used = self._used[namespace]
        if used and used + groups > GROUPS_PER_RUN:
            self.exceeded = True
            return False
        self._used[namespace] = used + groups
        return True


class _ConditionJob(NamedTuple):
    """A condition that is to be written. Its value is read when it is written."""

    group: GroupKey
    uid: str
    type: str


class _Leaf(msgspec.Struct):
    """What was reported to the members of a leaf.

    An Event is repeated when its kind of reason differs, not when only numbers in its text do.
    """

    inputs: tuple[object, ...]  # of the reason: pods, tree, root, orphan, group
    reason: str  # of `pending_reason`, and whether the tree can ever be placed
    since_ms: int
    reported: dict[PodUid, str]
    settled: bool  # reported to all of them


class _Run(NamedTuple):
    """The inputs of a run. The next run examines only what differs from them."""

    view: ClusterView
    state: ReservationState
    forest: Forest
    stall_reasons: Mapping[GangUid, str]


class StatusReporter:
    """Brings conditions and Kubernetes Events up to date with the state."""

    def __init__(
        self, cluster: Cluster, leader: Leader, clock: Clock, *, show_names: bool = False
    ) -> None:
        self._show_names = show_names
        self._cluster = cluster
        self._leader = leader
        self._clock = clock
        self._placement = PlacementPriority(leader, clock)
        # Conditions wait for `CONDITION_AFTER_S` in it.
        self._jobs: WorkQueue[_ConditionJob | K8sEvent] = WorkQueue(
            "status reports",
            self._process,
            self._until_its_turn,
            workers=1,
            policy=RETRIES,
            lane_of=_namespace_of,
        )
        self.run = self._jobs.run  # a rejected write is repeated when its value changes
        self._leaves: dict[GroupKey, _Leaf] = {}
        self._unsettled: set[GroupKey] = set()  # leaves that wait for `SETTLED_MS`
        # Leaves none of whose members waited, while pods belong to gangs as in this map
        self._placed: set[GroupKey] = set()
        self._placed_by: Map[PodUid, GangUid] = Map()
        nothing = Forest(trees={}, root_of={}, orphans={}, populated={})
        self._last = _Run(ClusterView(generation=-1), EMPTY, nothing, {})
        self._trees: dict[GroupKey, Tree] = {}  # whose conditions are reported
        self._inputs: tuple[Any, ...] = (None,) * 10  # of the last run
        self._native = False  # kube-scheduler writes conditions of built-in groups
        self._all_settled = False  # no leaf waits for `SETTLED_MS`, and no group for its turn
        self._wrote: dict[_ConditionJob, Condition] = {}  # last written, or to be written when due
        self._orphans: dict[GroupKey, Orphan] = {}  # as they were last reported
        self._prune_at = PRUNE_MIN  # entries of `_wrote`
        self._labels = NodeLabels(ClusterView().nodes)
        self._faults: ObjectFaults[str] = ObjectFaults("status reports", clock.monotonic_ms)
        self._unwarned: set[GroupKey] = set()  # roots whose warnings were not collected
        self._warned: dict[GroupKey, Mapping[GroupKey, tuple[str, ...]]] = {}  # by root

    def sync(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        stall_reasons: Mapping[GangUid, str] = NO_STALL_REASONS,
    ) -> None:
        """Queue the conditions and Events that differ from those reported before.

        Args:
            stall_reasons: By root: why its victims are not deleted, that it waits for its first search, or what is held for it.
        """
        inputs = (
            forest, state.gangs, state.gang_of, state.preemptions, view.groups, view.members,
            view.blueprints, native_on(state.features), view.generation, dict(stall_reasons),
        )  # fmt: skip
        if (
            self._all_settled
            and same_objects(self._inputs[:-2], inputs[:-2])
            and self._inputs[-2:] == inputs[-2:]
        ):
            return
        self._inputs = inputs
        if native_on(state.features) != self._native:
            # conditions get another type
            self._native, self._trees, self._orphans = not self._native, {}, {}
        now = _Run(view, state, forest, dict(stall_reasons))
        changed_gangs = changed_keys(self._last.state.gangs, state.gangs)
        shares = _Shares()
        for tree in self._changed_trees(now, changed_gangs):
            if shares.take(tree.root.key.namespace, len(tree.groups)):
                report = functools.partial(self._report_tree, now, tree)
                self._faults.attempt(f"conditions of {tree.root.key}", report)
        self._warnings(view, forest)
        self._admissions(now, changed_gangs)
        reported = self._orphans.get
        due = [key for key, orphan in forest.orphans.items() if reported(key) is not orphan]
        for key in sorted(due, key=str):  # the map's order differs in each process
            if shares.take(key.namespace, 1):
                orphan = forest.orphans[key]
                report = functools.partial(self._report_orphan, orphan)
                if self._faults.attempt(f"condition of {key}", report):
                    self._orphans[key] = orphan
        self._pods(now, changed_gangs)
        self._last = now
        self._all_settled &= not shares.exceeded and not self._faults
        self._prune(view, forest)

    def _report_tree(self, now: _Run, tree: Tree) -> None:
        """Queue the conditions of one tree."""
        if tree.problems:
            self._broken(tree, self._trees.get(tree.root.key))
        else:
            uid = tree.root.uid
            root, preemption = now.state.gangs.get(uid), now.state.preemptions.get(uid)
            readers = readers_of(tree.root.key.namespace, show_names=self._show_names)
            stall_reason = now.stall_reasons.get(uid, "")
            for group in tree.groups:
                condition = _condition_of(tree, group, root, preemption, stall_reason, readers)
                self._condition(group, condition)
            self._templates(now.view, tree)
        self._trees[tree.root.key] = tree

    def _admissions(self, now: _Run, changed_gangs: set[GangUid]) -> None:
        """Queue an Event for each root whose wishes reached something else since the last run."""
        # this process has just begun: it may be reported already
        if self._last.view.generation < 0:
            return
        for uid in sorted(changed_gangs):
            root, before = now.state.gangs.get(uid), self._last.state.gangs.get(uid)
            if root is None or (before is not None and before.plan == root.plan):
                continue
            wishes = _wishes_text(root)
            tree = now.forest.trees.get(group_key_of(root))
            had = before is not None and _wishes_text(before) == wishes
            if tree is None or not wishes or had:
                continue
            placed = f"{counted(len(root.reservations) + len(root.bound), 'member')} placed"
            event = _group_event(tree.root, f"{placed}; {wishes}", "GangAdmitted")
            self._jobs.add(msgspec.structs.replace(event, warning=False))

    def _changed_trees(self, now: _Run, changed_gangs: set[GangUid]) -> Iterable[Tree]:
        """Return the trees whose conditions may differ from those that were reported."""
        last, reported, trees = self._last, self._trees, now.forest.trees
        if now.view.blueprints is not last.view.blueprints:
            reported.clear()
        due = {key: tree for key, tree in trees.items() if reported.get(key) is not tree}
        uids = changed_gangs | changed_keys(last.state.preemptions, now.state.preemptions)
        # those of which only one run has this reason
        uids |= {uid for uid, _ in now.stall_reasons.items() ^ last.stall_reasons.items()}
        gangs = {
            uid: root
            for uid in uids
            if (root := now.state.gangs.get(uid) or last.state.gangs.get(uid))
        }
        keys = {group_key_of(root) for root in gangs.values()}
        if undecided := uids - gangs.keys():  # the log has no event about them
            keys.update(key for key, tree in trees.items() if tree.root.uid in undecided)
        for key in sorted(keys & trees.keys(), key=str):
            reported.pop(key, None)
            due[key] = trees[key]
        return [due[key] for key in sorted(due, key=str)]

    def _prune(self, view: ClusterView, forest: Forest) -> None:
        """Drop what was reported about objects that do not exist any more, once this may be more than half of all."""
        if len(self._wrote) > self._prune_at:
            self._wrote = {k: c for k, c in self._wrote.items() if k.group in view.groups}
            self._prune_at = max(PRUNE_MIN, 2 * len(self._wrote))
        if len(self._trees) > PRUNE_MIN + 2 * len(forest.trees):
            self._trees = {k: tree for k, tree in self._trees.items() if k in forest.trees}
        if len(self._orphans) > PRUNE_MIN + 2 * len(forest.orphans):
            self._orphans = {k: o for k, o in self._orphans.items() if k in forest.orphans}

    def _report_orphan(self, orphan: Orphan) -> None:
        """Queue the condition of a group that belongs to no tree."""
        reason = "Invalid" if orphan.problem.rule in INVALID_CHAINS else "Unschedulable"
        self._condition(
            orphan.group, _refused(orphan.group, reason=reason, text=_orphan_answer(orphan))
        )

    def _broken(self, tree: Tree, before: object) -> None:
        """Queue conditions that report broken rules on the first groups of a tree; unchanged groups are skipped."""
        text = _problem_text(tree)
        only_pods = all(problem.rule == PODS_DIFFER for problem in tree.problems)
        reason = "SchedulerError" if only_pods else "Invalid"  # B9 and X7
        reported_ids: set[int] = set()
        if isinstance(before, Tree) and before.problems == tree.problems:
            reported_ids = {id(group) for group in before.groups[:GROUPS_PER_TREE]}
        for group in tree.groups[:GROUPS_PER_TREE]:
            if id(group) not in reported_ids:
                self._condition(group, _refused(group, reason=reason, text=text))

    def _condition(self, group: Group, desired: Condition | None) -> None:
        if desired is None or group.source == "pod":
            return
        for condition in _under_own_types(group, desired, native=self._native):
            self._queue_condition(group, condition)

    def _queue_condition(self, group: Group, desired: Condition) -> None:
        job = _ConditionJob(group.key, group.uid, desired.type)
        stored = {c[0]: c for c in group.conditions}.get(desired.type)
        reported = self._wrote.get(job)
        placed = "True" in (stored[1] if stored else "", reported.status if reported else "")
        if placed and desired.type == _type(group) and desired.status != "True":
            return  # True is terminal, only its message may change
        same = (desired.type, desired.status, desired.reason, desired.message)
        if reported == desired or (stored == same and job not in self._jobs):
            return
        self._wrote[job] = desired
        self._jobs.add_after(job, CONDITION_AFTER_S)

    def _templates(self, view: ClusterView, tree: Tree) -> None:
        """Queue warnings where a tree differs from its Workload (B11); it is scheduled nevertheless."""
        mismatches = template_mismatches(view, tree)
        for group in tree.groups:
            text = mismatches.get(group.key)
            is_stored = any(c[0] == MISMATCH and c[1] == "True" for c in group.conditions)
            if text is not None or is_stored:
                condition = Condition(
                    type=MISMATCH,
                    status="True" if text else "False",
                    reason="TemplateMismatch" if text else "TemplateMatches",
                    message=text or "the group is as its Workload has it",
                )
                self._condition(group, condition)

    def _warnings(self, view: ClusterView, forest: Forest) -> None:
        trees, looked_at = forest.populated, self._last.forest.populated
        if self._last.view.generation == view.generation:
            changed = changed_keys(looked_at, trees) | self._unwarned
        else:
            changed = {*looked_at, *trees}
            if self._labels.nodes is not view.nodes:
                self._labels = NodeLabels(view.nodes)
        before: dict[GroupKey, tuple[str, ...]] = {}
        for root_key in changed:
            before |= self._warned.get(root_key, {})
            if root_key not in trees:
                self._warned.pop(root_key, None)
        self._unwarned = set()
        for root_key in changed & trees.keys():
            warn = functools.partial(self._warn_of, view, trees[root_key], before)
            if not self._faults.attempt(f"warnings of {root_key}", warn):
                self._unwarned.add(root_key)

    def _warn_of(
        self, view: ClusterView, tree: Tree, before: Mapping[GroupKey, tuple[str, ...]]
    ) -> None:
        """Queue the warnings about one tree that none of the trees that changed had before."""
        now = collect_warnings(view, tree, self._labels)
        for key, texts in now.items():
            for text in texts:
                if text not in before.get(key, ()):
                    self._jobs.add(_group_event(view.groups[key], text))
        self._warned[tree.root.key] = now

    def _pods(self, run: _Run, changed_gangs: set[GangUid]) -> None:
        """Queue Events about the members that wait, where a reason has changed and lasts."""
        changed = pods_by_leaf(self._last.view, run.view)
        if self._placed_by is not run.state.gang_of:
            self._placed_by = run.state.gang_of
            self._placed.clear()
        for leaf in self._leaves_to_look_at(run, changed, changed_gangs):
            if leaf in self._placed:
                now = (pod for _, pod in changed.get(leaf, ()) if pod is not None)
                if not any(_waits(pod, run.state) for pod in now):
                    continue
            look = functools.partial(self._look_at_leaf, run, leaf)
            if not self._faults.attempt(f"members of {leaf}", look):
                self._placed.discard(leaf)
                self._unsettled.add(leaf)
        self._all_settled = not self._unsettled

    def _look_at_leaf(self, run: _Run, leaf: GroupKey) -> None:
        """Report to the members of one leaf, and keep what was reported."""
        reported = self._looked_leaf(run, leaf)
        self._placed.discard(leaf)
        if reported is not None:
            self._leaves[leaf] = reported
        else:
            self._leaves.pop(leaf, None)
            if leaf in run.view.members:
                self._placed.add(leaf)
        if reported is None or reported.settled:
            self._unsettled.discard(leaf)
        else:
            self._unsettled.add(leaf)

    def _leaves_to_look_at(
        self, now: _Run, changed: Mapping[GroupKey, object], changed_gangs: set[GangUid]
    ) -> Collection[GroupKey]:
        """Return the leaves whose reason may differ from that of the last run; `changed` are those with other pods."""
        last, forests = self._last, (self._last.forest, now.forest)
        roots = changed_keys(*(forest.trees for forest in forests))
        for uid in changed_gangs:
            roots.add(group_key_of(now.state.gangs.get(uid) or last.state.gangs[uid]))
        leaves = self._unsettled | changed.keys() | changed_groups(last.view, now.view)
        leaves |= changed_keys(*(forest.orphans for forest in forests))
        for forest in forests:
            for tree in map(forest.trees.get, roots):
                if tree is not None:
                    leaves.update(tree.members)
        return sorted(leaves, key=str)

    def _looked_leaf(self, run: _Run, leaf: GroupKey) -> _Leaf | None:
        """Report to the members of a leaf that wait, if it is time; return what was reported. None: none waits."""
        view, state, forest = run.view, run.state, run.forest
        members, now_ms = view.members.get(leaf), self._clock.monotonic_ms()
        if members is None:
            return None
        tree = forest.tree_of(leaf)
        root = state.gangs.get(tree.root.uid) if tree is not None else None
        before = self._leaves.get(leaf)
        inputs = (members, tree, root, forest.orphans.get(leaf), view.groups.get(leaf))
        if before is None:
            before = _Leaf((None,) * len(inputs), "", now_ms, {}, settled=False)
        elif before.settled and same_objects(before.inputs, inputs):
            return before
        waiting = sorted((p for p in members.values() if _waits(p, state)), key=lambda p: p.path)
        if not waiting:
            return None
        reason = pending_reason(state, forest, view, leaf)
        never = root is not None and _never_fits(root)
        reason = f"{reason}; {NEVER_FITS}" if never else reason
        since_ms = before.since_ms if before.reason == reason else now_ms
        settled = now_ms - since_ms >= SETTLED_MS
        reported = {p.uid: before.reported[p.uid] for p in waiting if p.uid in before.reported}
        if settled and (fresh := [pod for pod in waiting if reported.get(pod.uid) != reason]):
            text = _event_text(run, leaf, readers_of(leaf.namespace, show_names=self._show_names))
            for pod in fresh[:NOTICES_PER_TREE_MAX]:
                ref = PodRef.at(pod.path, pod.uid)
                self._jobs.add(K8sEvent.about(ref, text, reason="FailedScheduling", warning=True))
            reported |= {pod.uid: reason for pod in waiting}
        return _Leaf(inputs, reason, since_ms, reported, settled)

    def warn(self, group: Group, reason: str, text: str) -> None:
        """Queue an Event about a group that does not follow from the state."""
        self._jobs.add(_group_event(group, text, reason))

    async def _until_its_turn(self) -> None:
        """Wait for members that are being placed, then until this process may act: the write follows without another await."""
        await self._placement.give_way()
        await self._leader.until_may_act()

    async def _process(self, job: _ConditionJob | K8sEvent) -> Retry | None:
        begun_ms = self._clock.monotonic_ms()
        retry = await retried(self._write(job), log, "not reported")
        if retry is None and not self._jobs.empty():
            took_ms = self._clock.monotonic_ms() - begun_ms
            await asyncio.sleep(min(REST_PER_WRITE * took_ms, REST_MS_MAX) / 1000)
        return retry

    async def _write(self, job: _ConditionJob | K8sEvent) -> None:
        if isinstance(job, K8sEvent):
            await self._cluster.notice(job)
        elif (condition := self._wrote.get(job)) is not None and (
            job.group in self._cluster.view().groups
        ):
            await self._cluster.set_conditions(job.group, job.uid, [condition])


def _waits(pod: Pod, state: ReservationState) -> bool:
    """Return whether a member has neither a node nor a reservation."""
    return pod.node is None and not pod.deleting and pod.uid not in state.gang_of


def _namespace_of(job: _ConditionJob | K8sEvent) -> str:
    return job.namespace if isinstance(job, K8sEvent) else job.group.namespace


def _group_event(group: Group, text: str, reason: str = "Questionable") -> K8sEvent:
    return K8sEvent(
        kind=group.key.kind,
        namespace=group.key.namespace,
        name=group.key.name,
        uid=group.uid,
        reason=reason,
        message=text,
        warning=True,
    )


def _refused(group: Group, *, reason: str, text: str) -> Condition:
    return Condition(type=_type(group), status="False", reason=reason, message=text)


def _type(group: Group) -> str:
    return SCHEDULED[group.key.kind]


def _under_own_types(group: Group, desired: Condition, *, native: bool) -> tuple[Condition, ...]:
    """Return a condition under the types that only this service writes.

    A condition once written under our own type is kept up to date. The types of Kubernetes on built-in groups have
    only its own reasons: autoscalers look for `Unschedulable`.
    """
    if desired.type != _type(group):
        return (desired,)
    explained = msgspec.structs.replace(desired, type=EXPLAINED)
    if group.source == "builtin" and desired.reason == NEVER_FITS:
        desired = msgspec.structs.replace(desired, reason="Unschedulable")
    if native and has_its_condition_written(group):
        return (explained,)
    if any(stored[0] == EXPLAINED for stored in group.conditions):
        return (desired, explained)
    return (desired,)


def _condition_of(
    tree: Tree,
    group: Group,
    root: GangState | None,
    preemption: PendingPreemption | None,
    stall_reason: str,
    readers: Visibility,
) -> Condition | None:
    """Return the condition of a group of a valid tree, or None (X7)."""
    if root is None:
        return _noted_condition(tree, group, stall_reason)
    if root.phase == "scheduled":
        return _satisfied_condition(tree, group, root, readers)
    sentences = pending_sentences(tree, root, preemption, readers)
    if sentences is None:
        return None if root.reservations else _noted_condition(tree, group, stall_reason)
    if stall_reason:
        sentences = msgspec.structs.replace(sentences, reasons=(stall_reason, *sentences.reasons))
    # For autoscalers: another node may not help (H10).
    reason = "UnsupportedDependency" if possible_pod_rules(root, tree) else "Unschedulable"
    if _never_fits(root):
        reason = NEVER_FITS
    return _refused(group, reason=reason, text=sentences.message())


def _noted_condition(tree: Tree, group: Group, note: str) -> Condition | None:
    """Return the condition of a group of a tree without a decision that waits for its turn; None: it does not."""
    if not note:
        return None
    return _refused(
        group, reason="Unschedulable", text=f"{spaced(tree.root.key)} {waiting_text(note)}"
    )


def _never_fits(root: GangState) -> bool:
    return root.last_decision is not None and root.last_decision.when_empty == "never"


def _satisfied_condition(
    tree: Tree, group: Group, root: GangState, readers: Visibility
) -> Condition | None:
    below = (group, *tree.below(group.key))
    leaves = {leaf.key.name for leaf in below if leaf.key.kind == "PodGroup"}
    bound = sum(1 for member in root.bound.values() if member.group in leaves)
    if not bound:
        return None
    text = f"{counted(bound, 'member')} bound, the minimum of the tree is met"
    if wishes := _wishes_text(root, None if group.key == tree.root.key else group.key):
        text += f"; {wishes}"
    more = pending_sentences(tree, root, None, readers)
    if more is not None:
        text += f"; {more.message()}"
    return Condition(type=_type(group), status="True", reason="Scheduled", message=text)


def _wishes_text(root: GangState, group: GroupKey | None = None) -> str:
    """Return what the wishes of one group of a gang reached, or of all; empty: there are none."""
    if group is None:
        return short_text(group_lines(root.groups), named=len(root.groups) > 1)
    own = (r for r in root.groups if (r.kind, r.name) == (group.kind, group.name))
    return short_text(group_lines(own), named=False)


def _event_text(run: _Run, leaf: GroupKey, readers: Visibility) -> str:
    """Return the text of an Event on the waiting members of a leaf: what `explain` answers about it."""
    view, state, forest = run.view, run.state, run.forest
    if leaf not in view.groups:
        return f"{spaced(leaf)} {missing_text(len(view.members[leaf]))}{MAKE_IT}"
    if leaf in forest.orphans:
        return _orphan_answer(forest.orphans[leaf])
    tree = forest.tree_of(leaf)
    if tree is not None and tree.problems:
        return _problem_text(tree)
    root = state.gangs.get(tree.root.uid) if tree is not None else None
    if tree is None or root is None or tree.root.deleting or view.groups[leaf].deleting:
        return pending_reason(state, forest, view, leaf)
    sentences = pending_sentences(tree, root, state.preemptions.get(root.uid), readers)
    if sentences is None:
        return pending_reason(state, forest, view, leaf)
    rules = possible_pod_rules(root, tree)
    if rules:
        words = f"rules between pods may be the cause: {', '.join(rules)}"
        sentences = msgspec.structs.replace(sentences, reasons=(words, *sentences.reasons))
    return sentences.message()


def _orphan_answer(orphan: Orphan) -> str:
    key = orphan.group.key
    return f"{spaced(key)} {orphan_text(key, orphan.problem.message)}"


def _problem_text(tree: Tree) -> str:
    first, *others = (problem.message for problem in tree.problems)
    answer = f"{spaced(tree.root.key)} {invalid_text(first)}"
    return Sentences(answer=answer, reasons=tuple(others)).message()
