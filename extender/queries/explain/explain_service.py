"""Explain any object by its name as it is now, from the cluster, the log and what only the leader knows."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from immutables import Map
from msgspec.structs import replace

from extender.core.admit.gang_sentences import WishLine, anew_text, group_lines
from extender.core.admit.interpod_rules import ExclusiveDomains
from extender.core.admit.plan_request import is_candidate, lacking_texts
from extender.core.admit.tree_warnings import NodeLabels, collect_warnings
from extender.core.holds.hold_planning import HELD, HELD_FOR_MOVES, hold_progress_text
from extender.core.log.gang_phase import HOLDS_CAPACITY
from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
    WorkloadTree,
    reservations_on,
)
from extender.core.log.visible_state import visible_gang, visible_preemption
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import ClusterUnavailable, NotFound, TooManyQueries
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import amounts_text, counted, rfc3339, spaced
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Forest, Tree, build_forest, composite_key, leaf_key
from extender.core.model.pods import GATE, Pod
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of
from extender.core.planner.plan_types import SEARCH_BUDGET
from extender.core.preempt.disruption_units import checkpoint_warnings
from extender.core.workloads.kind_table import kind_of_pod
from extender.core.workloads.workload_object import OFF, OTHER_SCHEDULERS, TREE_LABEL
from extender.ports.live_progress import LiveProgress
from extender.ports.log_ports import Clock, StateSource
from extender.queries.explain.explanation import BetterPlacement, Check, Explanation, Outcome
from extender.queries.explain.name_lookup import (
    NameSearch,
    ObjectName,
    WantedName,
    all_names,
    search_names,
    similar_names,
)
from extender.queries.explain.object_explanation import (
    CORRECT,
    GROUP_HELP,
    Finding,
    ObjectDetails,
    ObjectReader,
    barrier_text,
    bind_failure_text,
    checks_until,
    gang_finding,
    gangs_on_node,
    missing_group,
    not_examined,
    orphan_finding,
    pause_text,
    planned_finding,
    turn_finding,
    with_bind_failure,
    with_moves,
    with_unheld,
)
from extender.queries.plan.node_groups import NodeGroup
from extender.queries.plan.plan_dto import BUDGET_MAX, GangVerdict, PlanAnswer
from extender.queries.plan.plan_query import PlanInput
from extender.queries.plan.plan_service import ClusterSource
from extender.queries.state.gang_status import (
    GangStatus,
    RootKey,
    RootWorkload,
    gang_at,
    gang_status,
    root_groups,
    status_before_the_log,
    workloads_of_roots,
)
from extender.queries.state.node_inventory import groups_below, groups_by_parent, live_node
from extender.runtime.cooperative_yield import Yielder

WARNINGS_MAX = 3  # of one tree
NODES_MAX = 5  # rejected nodes that are named


@dataclass(frozen=True, slots=True)
class ExplainService:
    """Answers questions about one object as the cluster and the log are now."""

    cluster: ClusterSource
    state: StateSource
    clock: Clock  # for the time of the answer
    # answers plan queries about the cluster, outside of the event loop
    plan: Callable[[PlanInput], Awaitable[PlanAnswer]]
    node_groups: tuple[NodeGroup, ...] = ()  # of the cluster autoscaler; empty: not known
    budget: int = SEARCH_BUDGET  # search nodes that one of these queries may cost
    live: Callable[[], LiveProgress] = LiveProgress
    # the members that wait at the bind barrier
    at_bind: Callable[[], Collection[PodUid]] = frozenset
    workloads: IdentityMemo[Mapping[RootKey, RootWorkload]] = field(default_factory=IdentityMemo)
    labels: IdentityMemo[NodeLabels] = field(default_factory=IdentityMemo)

    async def explain(self, name: WantedName, readers: Visibility = EVERYTHING) -> Explanation:
        """Return why an object is in its state, and what would help; see `ObjectReader`.

        Raises:
            NotFound: Nothing has the name; the message has similar names.
            ClusterUnavailable: A plan is needed, and the view of the cluster is not current.
            TooManyQueries: A plan is needed, and too many plan queries wait already.
        """
        now = _Now(self, readers)
        explanation = await now.explanation(name)
        as_of = rfc3339(self.clock.now_us())
        return replace(explanation, as_of=as_of, position=now.state.position)

    async def search(self, text: str, limit: int, readers: Visibility = EVERYTHING) -> NameSearch:
        """Return the objects whose names contain the words of a text, `limit` of them at most."""
        return await search_names(
            self.cluster.view(), self.state.committed, text, limit, Yielder(), readers
        )


class _Now(ObjectReader):
    """The cluster and the log as one explanation sees them."""

    def __init__(self, service: ExplainService, readers: Visibility) -> None:
        self.state = service.state.committed
        self._view = service.cluster.view()
        self._live = copy.copy(service.live())  # as it is now, also after waits for the planner
        self._at_bind = service.at_bind()
        self._service = service
        self._readers = readers
        self._pace = Yielder()

    def _names(self) -> Iterator[ObjectName]:
        return all_names(self._view, self.state, self._readers)

    async def _details(self, subject: ObjectName, *, extras: bool = True) -> ObjectDetails:
        if subject.kind != "Pod":
            return await self._gang(_key(subject), extras=extras)
        pod = await _pod_named(self._view, subject.path, self._pace)
        place = f"runs on {pod.node}" if pod.node else "waits"
        if pod.group is None:
            return ObjectDetails(finding=_lone(pod, place))
        deleted = "is being deleted; " if pod.deleting else ""
        details = await self._gang(pod.group, pod, extras=extras)
        return replace(details, link=f" {deleted}{place}, a member of")

    def _node(self, subject: ObjectName) -> Explanation:
        name, view, state = NodeName(subject.path), self._view, self.state
        node = live_node(view, name, None)
        assert node is not None
        pods: set[PodUid] = set(view.on_node.get(name, ()))
        reserved = reservations_on(state, name)
        uids = {state.gang_of[uid] for uid in pods | set(reserved) if uid in state.gang_of}
        gangs = [state.gangs[uid] for uid in uids if uid in state.gangs]
        words = [f"{counted(node.pods, 'pod')} ({node.ordinary} outside of groups)"]
        words.append(f"{counted(len(gangs), 'gang')} with members or reservations here")
        words.append(f"free: {_free_text(node.free, reserved, pods)}")
        if node.unschedulable:
            words.append("it is cordoned")
        if node.deleting:
            words.append("it is being deleted")
        return Explanation(
            kind="Node",
            name=name,
            answer=f"Node {name}: {'; '.join(words)}",
            state="cordoned" if node.unschedulable else "ready",
            help=(f"`kubectl uncordon {name}` lets new pods in",) if node.unschedulable else (),
            related=gangs_on_node(g for g in gangs if self._readers.sees(namespace_of(g.gang))),
        )

    def _roots(self, tree: WorkloadTree) -> list[ObjectName]:
        namespace = namespace_of(tree.workload)
        return [ObjectName(kind, f"{namespace}/{name}") for kind, name, _ in root_groups(tree)]

    def _without_groups(self, reason: str) -> tuple[str, tuple[str, ...]]:
        words = f"has no groups: {reason or 'its tree is not made yet'}"
        return words, (CORRECT,)

    async def _at_another_time(self, name: WantedName) -> None:
        """Return None: only the present is known."""

    def _not_found(self, name: WantedName) -> tuple[str, str]:
        text = f"nothing is called {name}: no group, pod, workload or node"
        if name.kind:
            text = f"{name} does not exist"
        command = f"history {name.path}"
        if name.kind == "Node":
            command = f"events --node {name.name}"
        elif name.kind == "Pod":  # history is of root groups
            command = f"explain Pod/{name.path} --at TIME"
        return text, f"the log may have it: `gang-extender {command}`"

    async def _gang(self, key: GroupKey, pod: Pod | None = None, *, extras: bool) -> ObjectDetails:
        """Return what is known of the gang of a group; with a pod, of one of its members."""
        view, state, live = self._view, self.state, self._live
        if key not in view.groups:
            return ObjectDetails(finding=await self._missing(key))
        forest = await _forest_around(view, key, self._pace)
        if key in forest.orphans:
            return ObjectDetails(finding=orphan_finding(forest.orphans[key]))
        tree = forest.trees[forest.root_of[key]]
        root, who = tree.root, spaced(tree.root.key)
        state = _visible_part(state, root.uid, self._readers)
        gang, trees = state.gangs.get(root.uid), state.trees
        workloads = self._service.workloads.get(
            lambda: workloads_of_roots(trees.values()), same=(trees,)
        )
        made_for = workloads.get(RootKey(root.key.path, root.key.kind))
        before = status_before_the_log(made_for)
        status = gang_status(gang, made_for) if gang is not None else before
        at_bind = self._at_bind
        finding = gang_finding(view, state, tree, status, at_bind)
        conflict: tuple[str, ...] = ()
        turns = (live.paused, live.limited, live.searches)
        turn = next((waits[root.uid] for waits in turns if root.uid in waits), None)
        if finding.plan_needed and turn is not None:
            finding = turn_finding(who, turn, gang, status)
        elif finding.plan_needed:
            verdict = await self._planned(tree)
            finding = planned_finding(
                who,
                verdict,
                status,
                groups_known=bool(self._service.node_groups),
                pause=self._pause(gang, tree, verdict),
                lost_in_vain=live.lost_in_vain.get(root.uid, ()),
            )
            conflict = tuple(f"{spaced(c.object)}: {c.message}" for c in verdict.conflict)
        domains = ExclusiveDomains().sentences(view, self.state, tree, self._readers)
        finding = finding.because(*domains)
        finding = _with_holds(finding, view, self.state, root.uid)
        if root.uid not in state.capacity_holds:
            unheld = live.unheld.get(root.uid)
            finding = with_unheld(finding, state, gang, unheld, self._service.clock.now_us())
        finding = with_moves(with_bind_failure(finding, gang), state.moves, gang)
        if extras and (extra := extra_members(gang, status, tree, key, pod)):
            verdict = await self._planned(tree)
            finding = extra_finding(pod, key, extra, verdict, finding.answer)
        if gang is not None and pod is not None:
            own = placed_checks(state, gang, pod, at_bind)
            if own is not None:
                finding = replace(finding, checks=own[0], reasons=own[1])
        if not tree.problems:
            checks = self._with_warnings(tree, finding.checks)
            finding = replace(finding, checks=checks)
        better: tuple[BetterPlacement, ...] = ()
        if gang is not None and pod is None and not finding.plan_needed and not tree.problems:
            better = await self._better(tree, gang)
        return ObjectDetails(
            finding=finding,
            better=better,
            link=" is a child group of" if key != root.key else "",
            root=ObjectName(root.key.kind, root.key.path),
            workload=made_for.workload if made_for is not None else "",
            gang=gang_at(gang, workloads) if gang is not None else None,
            conflict=conflict,
        )

    async def _missing(self, key: GroupKey) -> Finding:
        """Return the finding about a group that the cluster does not have: pods name it, or the log still has it."""
        pods = len(self._view.members.get(key, ()))
        if pods:
            name = WantedName(key.kind, key.namespace, key.name, given_namespace=True)
            near = await similar_names(self._names(), name, self._pace)
            groups = [str(n) for n in near if n.kind == "PodGroup" and n.path != key.path]
            return missing_group(key, pods, groups, self._refused(key))
        roots = [g for g in self.state.gangs.values() if (g.kind, g.gang) == (key.kind, key.path)]
        text = "does not exist; it is being made for its workload, or was deleted"
        if roots:
            gang = max(roots, key=lambda root: root.observed_us)
            text = f"does not exist any more; the log has it as {gang_status(gang).state}"
        return Finding(
            spaced(key),
            text,
            checks_until("group exists", "no", f"{spaced(key)} {text}"),
            help=(f"`gang-extender history {key.path}` shows what became of it",),
        )

    def _refused(self, key: GroupKey) -> WorkloadTree | None:
        """Return the tree of the workload of the pods that name a group, if it was refused."""
        pod = next(iter(self._view.members[key].values()))
        kind = kind_of_pod(pod.labels)
        if kind is None:
            return None
        named = (kind.kind, f"{key.namespace}/{kind.name_in(pod.labels)}", "refused")
        trees = self.state.trees.values()
        return next((t for t in trees if (t.kind, t.workload, t.outcome) == named), None)

    def _pause(self, gang: GangState | None, tree: Tree, verdict: GangVerdict) -> str:
        """Return what a tree with a place waits for before it is admitted, or preempts; empty: nothing."""
        live, uid = self._live, tree.root.uid
        again_us = live.planned_again_us.get(uid, 0)
        victims_us = live.victims_again_us.get(uid, 0) if verdict.victims else 0
        if verdict.verdict != "placed" or max(again_us, victims_us) <= self._service.clock.now_us():
            return ""
        return pause_text(gang, again_us, victims_us)

    def _with_warnings(self, tree: Tree, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """Return the checks with the warnings about a tree that is valid."""
        view = self._view
        labels = self._service.labels.get(lambda: NodeLabels(view.nodes), same=(view.nodes,))
        warnings = [*chain.from_iterable(collect_warnings(view, tree, labels).values())]
        warnings += checkpoint_warnings(tree.pods, self._service.clock.now_us())
        if not warnings:
            return checks
        text = f"warning: {'; '.join(warnings[:WARNINGS_MAX])}"
        if len(warnings) > WARNINGS_MAX:
            text += f"; and {len(warnings) - WARNINGS_MAX} more"
        return tuple(
            replace(check, text=text)
            if check.check == "tree valid" and check.outcome == "yes"
            else check
            for check in checks
        )

    async def _better(self, tree: Tree, gang: GangState) -> tuple[BetterPlacement, ...]:
        """Return what would be nearer to the preferred levels of a gang if all of its pods were placed now."""
        placed = len(gang.reservations) + len(gang.bound)
        wishes = group_lines(gang.groups)
        apart = [wish for wish in wishes if wish.kind == "preferred" and wish.value > 1]
        if not placed or not apart:
            return ()
        try:
            verdict = await self._planned(tree, anew=True)
        except (TooManyQueries, ClusterUnavailable) as error:
            text = f"whether fewer domains are possible now is not known: {error}"
            return tuple(_better(wish, 0, (), text) for wish in apart)
        if len(verdict.assignments) < placed:
            return ()
        return tuple(_nearer_placements(self._view, tree, apart, verdict))

    async def _planned(self, tree: Tree, *, anew: bool = False) -> GangVerdict:
        """Return the answer of a plan query about a tree, on the cluster as it is now; `anew`: as if no pod had a node."""
        key = tree.root.key
        query = PlanInput(
            groups=frozenset({key}),
            node_groups=self._service.node_groups,
            budget=min(self._service.budget, BUDGET_MAX),
            readers=self._readers,
            anew=anew,
            preemption=not anew,
        )
        answer = await self._service.plan(query)
        if not answer.gangs:
            raise NotFound(f"{spaced(key)}: the group was deleted meanwhile")
        return answer.gangs[0]


def _visible_part(state: ReservationState, uid: GangUid, readers: Visibility) -> ReservationState:
    """Return a state in which one gang, which readers see, and its preemption are as they see them.

    It costs the same for any number of gangs; the other gangs and preemptions are not in it.
    """
    if readers.everything:
        return state
    gang, preemption = state.gangs.get(uid), state.preemptions.get(uid)
    shown = visible_preemption(preemption, readers) if preemption is not None else None
    return replace(
        state,
        gangs=Map({} if gang is None else {uid: visible_gang(gang, readers)}),
        preemptions=Map({} if shown is None else {uid: shown}),
        capacity_holds=Map({u: hold for u, hold in state.capacity_holds.items() if u == uid}),
    )


def placed_checks(
    state: ReservationState, gang: GangState, pod: Pod, at_bind: Collection[PodUid] = ()
) -> tuple[tuple[Check, ...], tuple[str, ...]] | None:
    """Return the checks and reasons of a member that is bound or has a reservation; None: it has neither.

    Args:
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
    failure = gang.bind_failure
    about_it = failure is not None and (not failure.node or pod.path in failure.pods)
    texts = (
        barrier_text(gang, at_bind),  # which members the others wait for
        bind_failure_text(failure) if failure is not None and about_it else "",
    )
    reasons = tuple(text for text in texts if text)
    if pod.uid in at_bind:
        text = f"it waits at bind for {reservation.node}"
        return checks_until("bound", "no", text), reasons
    text = f"capacity is reserved on {reservation.node}"
    checks = checks_until("accepted by kube-scheduler", "unknown", text)
    return checks, (*_evidence(state, gang, reservation, pod), *reasons)


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
    """Return the finding about members beyond the minimum that wait; `pod`: the member that the finding is about; None: it is about their group."""
    subject = f"Pod {pod.path}" if pod is not None else spaced(leaf)
    role = "an extra member" if pod is not None else "a child group beyond the minimum"

    def waits(text: str) -> str:
        return f"waits, {role} that {text}; {gang_answer}"

    lacking = lacking_texts(pods)
    if lacking and not any(map(is_candidate, pods)):
        text, *help_ = lacking[0].split(": ", 1)
        checks = checks_until("members complete", "no", text)
        text = f"is no member yet, because {text}"
        return Finding(subject, waits(text), checks, help=tuple(help_))
    held = sorted({gate for pod in pods for gate in pod.gates if gate != GATE})
    if held and not any(map(is_candidate, pods)):
        text = f"is held by the scheduling gates {', '.join(held)}"
        return Finding(
            subject,
            waits(text),
            checks_until("members complete", "no", text),
            help=(f"remove the scheduling gates {', '.join(held)}; until then it is no member",),
        )
    names = {pod.path for pod in pods}
    placed = sum(line.pod in names for line in verdict.assignments)
    if placed and verdict.victims:
        units = ", ".join(spaced(victim.unit) for victim in verdict.victims)
        text = f"fits only when {units} {'is' if len(verdict.victims) == 1 else 'are'} evicted"
        checks = checks_until("fits now", "no", text)
        return Finding(subject, waits(text), not_examined(checks))
    if placed:
        text = f"fits now and is about to get {'its place' if placed == 1 else counted(placed, 'place')}"
        checks = checks_until("fits now", "yes", text)
        return Finding(subject, waits(text), not_examined(checks))
    prefix = f"{spaced(leaf)}: "
    mine = [text.removeprefix(prefix) for text in verdict.reasons if text.startswith(prefix)]
    first, *others = mine or verdict.reasons or ("no more fit",)
    outcome: Outcome = "unknown" if verdict.verdict == "unknown" else "no"
    text = f"may fit or not: {first}" if outcome == "unknown" else f"does not fit now: {first}"
    return Finding(
        subject,
        waits(text),
        not_examined(checks_until("fits now", outcome, first)),
        reasons=tuple(others),
        help=verdict.help,
    )


def _nearer_placements(
    view: ClusterView, tree: Tree, apart: Iterable[WishLine], verdict: GangVerdict
) -> Iterator[BetterPlacement]:
    """Yield the wishes that a placement of the whole tree now comes nearer to, with the domains of their groups there."""
    now = {(wish.kind, wish.group, wish.key): wish.value for wish in verdict.wishes}
    for wish in apart:
        possible = now.get((wish.kind, wish.group, wish.key), wish.value)
        if not 0 < possible < wish.value:
            continue
        leaves = _leaves_of(tree, wish.group)
        nodes = {NodeName(place.node) for place in verdict.assignments if place.group in leaves}
        labels = (view.nodes[node].labels for node in nodes if node in view.nodes)
        domains = tuple(sorted({value[wish.key] for value in labels if wish.key in value}))
        yield _better(wish, possible, domains, anew_text(wish, possible, domains))


def _better(wish: WishLine, possible: int, domains: tuple[str, ...], text: str) -> BetterPlacement:
    return BetterPlacement(
        group=wish.group,
        key=wish.key,
        value=wish.value,
        possible=possible,
        domains=domains,
        text=text,
    )


def _leaves_of(tree: Tree, name: str) -> set[str]:
    """Return the names of the leaves of a group, of itself where it is one."""
    keys = [group.key for group in tree.groups if group.key.name == name]
    leaves = set()
    while keys:
        key = keys.pop()
        keys += [child.key for child in tree.children.get(key, ())]
        if key.kind == "PodGroup":
            leaves.add(key.name)
    return leaves


def _with_holds(
    finding: Finding, view: ClusterView, state: ReservationState, uid: GangUid
) -> Finding:
    """Return a finding with what is held for the gang, or against it, as the last decision has it."""
    hold, gang = state.capacity_holds.get(uid), state.gangs.get(uid)
    if hold is not None:
        text = (
            f"{hold_progress_text(view, state, hold)}, at the latest until {rfc3339(hold.until_us)}"
        )
        return replace(finding, text=f"{finding.text}; {text}")
    decision = gang.last_decision if gang is not None else None
    reasons = decision.reasons if decision is not None else ()
    for text in (HELD, HELD_FOR_MOVES):
        if text in reasons and text not in finding.reasons:
            return finding.because(text)
    return finding


def _key(group: ObjectName) -> GroupKey:
    namespace, _, name = group.path.partition("/")
    key_of = leaf_key if group.kind == "PodGroup" else composite_key
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
    top = view.groups[key]
    while top.parent is not None:
        parent = view.groups.get(composite_key(key.namespace, top.parent))
        # no root: a parent is missing, or the chain is a cycle
        if parent is None or parent.key in above:
            break
        above[parent.key] = top = parent
        await pace.yield_if_due()
    children = await groups_by_parent(view, key.namespace, pace)
    groups = {group.key: group for group in groups_below(top, children)} | above
    members = {k: tuple(view.members[k].values()) for k in groups if k in view.members}
    return build_forest(groups, members, max_children=view.max_children)


def _lone(pod: Pod, place: str) -> Finding:
    subject = f"Pod {pod.path}"
    labelled = pod.labels.get(TREE_LABEL, OFF) != OFF
    if labelled and pod.scheduler_name not in OTHER_SCHEDULERS:
        return Finding(
            subject,
            f"{place}; it lacks the group of its workload, so kube-scheduler places it alone",
            checks_until(
                "group named",
                "no",
                f"it has the label {TREE_LABEL}, but no admission policy named its group",
            ),
            help=(
                "delete the pod: its controller creates it again, and the admission policy gang-extender-leaf names its "
                "group; the policy was not in use when the pod was created, or no rule of it fits the labels of the pod",
            ),
        )
    return Finding(
        subject,
        f"{place}; it names no group, so kube-scheduler places it alone",
        checks_until("group named", "no", "neither the field nor the label is set"),
        help=(f"to place it with others, {GROUP_HELP}",),
    )


def _free_text(
    free: Mapping[str, int], reserved: Mapping[PodUid, Reservation], pods: Collection[PodUid]
) -> str:
    """Return what a node has left beside its pods and the reservations of pods that are not there yet."""
    left = dict(free)
    for uid, reservation in reserved.items():
        if uid not in pods:
            add_amounts(left, reservation.requests, -1)
    return amounts_text(left) or "nothing is known"
