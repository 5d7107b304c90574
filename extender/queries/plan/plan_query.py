"""Answer plan queries: whether trees fit, and on which nodes (`plan`, `/v1/plan`).

Trees are planned in queue order on one view; each plan uses capacity before the next tree is planned. Members beyond a
minimum come after the minima of all trees of the same priority, as in the control loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from extender.core.admit.gang_sentences import plan_lines
from extender.core.admit.node_rejections import NodeRejections
from extender.core.admit.plan_request import (
    TreeParts,
    choices_when_refused,
    in_vain_text,
    is_candidate,
    lacking_texts,
    plan_request,
    request_anew,
    ruled_part,
    with_wider_domains,
)
from extender.core.admit.tree_warnings import collect_warnings, template_mismatches
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.model.cluster_view import (
    ClusterView,
    forest_of,
    with_pod,
    without_pods,
)
from extender.core.model.errors import BadInput, merged_by_object
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import counted, did_you_mean, join_names
from extender.core.model.pod_groups import (
    Forest,
    Group,
    Orphan,
    Tree,
    composite_key,
    foreign_gates,
    too_deep_text,
)
from extender.core.model.pods import ABSENT, RESOURCE_CLAIM, UNBOUND, Pod
from extender.core.model.visibility import EVERYTHING, Visibility, name_for, namespace_of
from extender.core.planner.explain.relaxations import evicting
from extender.core.planner.plan_types import (
    SEARCH_BUDGET,
    Plan,
    PlanRequest,
    Refusal,
    Relaxation,
    SearchEffort,
    Verdict,
    WhenEmpty,
    map_groups,
)
from extender.core.planner.planning import plan
from extender.core.planner.preempt.judgement import Judgement, judge
from extender.core.planner.preempt.victim_search import (
    PreemptionPlan,
    PreemptionVerdict,
    may_trigger_preemption,
    only_awaiting,
)
from extender.core.preempt.disruption_units import EvictableContext
from extender.core.preempt.preemption_planning import preemption_request
from extender.queries.plan.node_groups import NodeGroup, growth_text, growths
from extender.queries.plan.plan_dto import (
    BEST_TO_WORST,
    AnswerWord,
    AssignmentLine,
    GangVerdict,
    GroupLine,
    NodeGroupGrowth,
    PlanAnswer,
    PlannedVictimLine,
    SearchLine,
    VerdictWord,
)
from extender.queries.plan.plan_steps import (
    GroupOrigin,
    RefusedWorkload,
    StepLine,
    Steps,
    TreeStep,
    steps_in,
    tree_steps,
    with_largest_use,
)

LOOPS_AND_DEPTHS = frozenset({"B6", "B7"})  # their orphans wait for nothing


def group_lines(
    tree: Tree, placed: Mapping[str, int], origins: Mapping[GroupKey, GroupOrigin]
) -> tuple[GroupLine, ...]:
    """Return the groups of a tree, root first, children in their stored order; `placed`: how many pods would be placed, by the name of their leaf."""
    lines: dict[GroupKey, GroupLine] = {}
    for group in reversed(tree.groups):
        below = tree.children.get(group.key, ())
        pods = [pod for pod in tree.members.get(group.key, ()) if not pod.deleting]
        if group.key.kind == "PodGroup":
            total = len(pods)
            count = sum(pod.node is not None for pod in pods) + placed.get(group.key.name, 0)
        else:
            total = len(below)
            count = sum(
                lines[child.key].placed >= max(1, lines[child.key].minimum) for child in below
            )
        origin = origins.get(group.key)
        lines[group.key] = GroupLine(
            group=group.key.name,
            kind=group.key.kind,
            parent=group.parent or "",
            role=origin.role if origin is not None else "",
            minimum=0 if group.basic else group.minimum,
            total=total,
            placed=count,
        )
    return tuple(lines[group.key] for group in tree.groups)


def change_texts(
    changes: Iterable[Relaxation], origins: Mapping[GroupKey, GroupOrigin]
) -> Iterator[str]:
    """Yield what would help; a lower minimum of a group that follows its workload as what the workload asks for, first."""
    plain = []
    for change in changes:
        origin = origins.get(change.groups[0]) if change.minimum else None
        if origin is None:
            plain.append(change.text)
            continue
        before, behind = origin.lowered_by
        if before:
            text = f"{change.kind} {change.minimum}: {before}{change.minimum}{behind}"
            yield evicting(text, change.evicts)
    yield from plain


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """A plan query."""

    groups: frozenset[GroupKey] = frozenset()  # groups to plan
    pods: frozenset[PodUid] = frozenset()  # pods to plan
    all_pending: bool = False  # plan also pending trees of the cluster files
    budget: int = SEARCH_BUDGET  # search nodes per root
    preemption: bool = True  # pods of lower priority may be evicted
    # of the live cluster: plan the trees of `groups` as if none of their pods had a node
    anew: bool = False
    order: Mapping[GroupKey | PodUid, int] = {}  # file order, to break ties of priority and age
    state: ReservationState = EMPTY  # reservations; none for files
    moment: EvictableContext = EvictableContext()
    roots_max: int = 0  # more trees than that are refused; 0: any number
    origins: Mapping[GroupKey, GroupOrigin] = {}  # of groups that were made from workloads
    refused: tuple[RefusedWorkload, ...] = ()  # workloads that no tree can be made from
    node_groups: tuple[NodeGroup, ...] = ()  # that may grow
    keep_placed: bool = False  # pods that the query places are not evicted for later trees
    readers: Visibility = EVERYTHING  # what the caller sees of the cluster
    topology_keys: tuple[str, ...] = ()  # as for `NodeRowCache`


class _Unit(msgspec.Struct, frozen=True):
    """One item to plan: a tree (of a group or a lone pod), or pods and groups whose group is missing."""

    kind: str
    order: tuple[int, int, int, str]
    tree: Tree | None = None
    root: str = ""
    verdict: VerdictWord = "waiting"
    text: str = ""
    pods: tuple[str, ...] = ()


def answer_plan_query(view: ClusterView, question: PlanInput) -> PlanAnswer:
    """Return the answer to a plan query; plans in queue order."""
    verdicts, _ = plan_in_order(view, question, NodeRowCache(question.topology_keys))
    return PlanAnswer(verdict=worst_verdict(verdicts), gangs=verdicts)


def worst_verdict(verdicts: Iterable[GangVerdict]) -> AnswerWord:
    """Return the worst verdict; *nothing* if there is none."""
    return max(
        (verdict.verdict for verdict in verdicts), key=BEST_TO_WORST.index, default="nothing"
    )


def plan_in_order(
    view: ClusterView, question: PlanInput, rows: NodeRowCache
) -> tuple[tuple[GangVerdict, ...], ClusterView]:
    """Return the answers for the trees in queue order, and the cluster with the pods that they place."""
    verdicts: list[GangVerdict] = []
    partly: dict[int, Tree] = {}  # place in `verdicts` -> tree whose extra members come later
    units = sorted(_units(view, forest_of(view), question), key=lambda u: u.order)
    if question.roots_max and len(units) > question.roots_max:
        raise BadInput(
            f"wanted: {len(units)} root groups to plan, {question.roots_max} at most; name fewer"
        )
    last = {unit.order[0]: number for number, unit in enumerate(units) if unit.tree is not None}
    for number, unit in enumerate(units):
        if unit.tree is None:
            verdicts.append(
                GangVerdict(
                    gang=unit.root,
                    kind=unit.kind,
                    verdict=unit.verdict,
                    reasons=(unit.text,),
                    unplaced=unit.pods,
                )
            )
            continue
        steps = steps_in(unit.tree, question.origins) if question.origins else {}
        apart = _pods_apart(units, unit.tree, question)
        before = without_pods(view, apart)
        if steps and not unit.tree.problems:
            verdict, after = _planned_in_steps(before, unit.tree, rows, question, steps)
        else:
            planned = _planned(before, unit.tree, rows, question)
            verdict, after = planned.verdict, planned.view
            if (
                planned.extras
                and not apart
                and not verdict.victims
                and (partly or number < last[unit.order[0]])
            ):
                partly[number] = unit.tree
                verdict, after = _minimum_only(planned, unit.tree)
        view = _beside(view, after, unit.tree, apart, question) if apart else after
        verdicts.append(_with_tree(verdict, unit.tree, question))
        if number == last[unit.order[0]]:
            for place, tree in partly.items():
                # the minimum is placed again, so that its extra members are near it
                before = _unplaced(view, tree.pods)
                planned = _planned(before, tree, rows, question)
                if planned.verdict.verdict == "placed":
                    view = planned.view
                    verdicts[place] = _with_tree(planned.verdict, tree, question)
            partly.clear()
    verdicts += map(_refused_workload, question.refused)
    return tuple(verdicts), view


def _minimum_only(planned: _Planned, tree: Tree) -> tuple[GangVerdict, ClusterView]:
    """Return the answer for a tree without its extra members, and the cluster without them."""
    extras = [pod for pod in tree.pods if pod.uid in planned.extras]
    paths = {pod.path for pod in extras}
    verdict = planned.verdict
    verdict = replace(
        verdict,
        assignments=tuple(line for line in verdict.assignments if line.pod not in paths),
        unplaced=tuple(sorted((*verdict.unplaced, *paths))),
        wishes=(),  # they are those of all members
    )
    return verdict, _unplaced(planned.view, extras)


def _unplaced(view: ClusterView, pods: Iterable[Pod]) -> ClusterView:
    """Return the cluster with some pods as they were before they were placed; those that had a node keep it."""
    for pod in pods:
        view = with_pod(view, pod)
    return view


def _pods_apart(units: Sequence[_Unit], tree: Tree, question: PlanInput) -> frozenset[PodUid]:
    """Return the pods of the trees of one workload that never run beside one of them: their steps end, or start, before."""
    origin = question.origins.get(tree.root.key)
    if origin is None or not origin.apart:
        return frozenset()
    return frozenset(
        pod.uid
        for unit in units
        if unit.tree is not None
        and unit.tree.root.key.name in origin.apart
        and (other := question.origins.get(unit.tree.root.key)) is not None
        and other.workload == origin.workload
        and unit.tree.root.key.namespace == tree.root.key.namespace
        for pod in unit.tree.pods
    )


def _beside(
    view: ClusterView,
    after: ClusterView,
    tree: Tree,
    apart: Collection[PodUid],
    question: PlanInput,
) -> ClusterView:
    """Return the cluster after a tree was planned without those that it never runs beside; each node has the larger use."""
    mine = [pod.uid for pod in tree.pods if pod.uid in after.pods]
    pods = {uid: view.pods[uid] for uid in apart if uid in view.pods}
    pods |= {uid: after.pods[uid] for uid in mine}
    for pod in pods.values():
        after = with_pod(after, replace(pod, node=None))
    nodes = {uid: pod.node for uid, pod in pods.items() if pod.node is not None}
    return with_largest_use(after, [mine, [*apart]], nodes, static=question.keep_placed)


def _with_tree(verdict: GangVerdict, tree: Tree, question: PlanInput) -> GangVerdict:
    if tree.root.source == "pod":
        return verdict
    placed = Counter(line.group for line in verdict.assignments)
    origin = question.origins.get(tree.root.key)
    return replace(
        verdict,
        workload=origin.workload if origin is not None else "",
        groups=group_lines(tree, placed, question.origins),
    )


def _refused_workload(refused: RefusedWorkload) -> GangVerdict:
    return GangVerdict(
        gang=f"{refused.namespace}/{refused.name}",
        kind=refused.kind,
        verdict="invalid",
        reasons=(refused.text,),
        workload=refused.label,
    )


def plan_warnings(view: ClusterView, question: PlanInput, *, live: bool = False) -> tuple[str, ...]:
    """Return warnings about the trees of a plan query, in queue order; `live`: it is about the cluster of the service."""
    forest = forest_of(view)
    warnings: list[str] = []
    for tree in sorted(forest.trees.values(), key=lambda tree: _order(tree.root, question)):
        if is_requested_tree(tree, question):
            warnings += template_mismatches(view, tree).values()
            warnings += (text for texts in collect_warnings(view, tree).values() for text in texts)
    return tuple(dict.fromkeys((*warnings, *_claim_warnings(view, question, live=live))))


def _claim_warnings(view: ClusterView, question: PlanInput, *, live: bool) -> Iterable[str]:
    """Yield warnings about the pods of a query that use devices, or volumes of which no node is known yet."""
    pods = [view.pods[uid] for uid in question.pods if uid in view.pods]
    absent = "are not in the files, or their volumes"
    add = "; add the output of `kubectl get pv,pvc,sc -A -o yaml`"
    if live:
        absent, add = "are neither in the request nor in the cluster, or their volumes", ""
    for end, state, help_ in ((UNBOUND, "are not bound to a volume", ""), (ABSENT, absent, add)):
        waiting = {pod.uid: [t for t in pod.shape.unmodelled if t.endswith(end)] for pod in pods}
        names = {t.removesuffix(end) for texts in waiting.values() for t in texts}
        if names:
            few = join_names(sorted(name.rpartition(" ")[2] for name in names))
            count = counted(sum(map(bool, waiting.values())), "pod")
            yield (
                f"volume claims of {count} ({few}) {state}: which nodes their volumes can be used on is not known, so "
                f"kube-scheduler may find fewer nodes{help_}"
            )
    claims = {
        text.removeprefix(RESOURCE_CLAIM)
        for pod in pods
        for text in pod.shape.unmodelled
        if text.startswith(RESOURCE_CLAIM)
    }
    if claims:
        using = sum(any(t.startswith(RESOURCE_CLAIM) for t in pod.shape.unmodelled) for pod in pods)
        yield (
            f"{counted(using, 'pod')} with resource claims ({join_names(sorted(claims))}): their devices are not counted, so "
            "kube-scheduler may find fewer nodes"
        )


def _order(group: Group, question: PlanInput) -> tuple[int, int, int, str]:
    place = question.order.get(group.key, 0)
    return (-group.priority, group.created_us, place, group.key.path)


def _units(view: ClusterView, forest: Forest, question: PlanInput) -> Iterable[_Unit]:
    for tree in forest.trees.values():
        if is_requested_tree(tree, question):
            yield _Unit(tree.root.key.kind, _order(tree.root, question), tree=tree)
    yield from _orphan_units(view, forest, question)
    for leaf, pods in view.members.items():
        if not question.readers.sees(leaf.namespace):
            continue
        members = [pod for pod in pods.values() if pod.uid in question.pods or question.all_pending]
        if leaf not in view.groups and members:
            named = "1 pod names it" if len(members) == 1 else f"{len(members)} pods name it"
            meant = _meant(view, leaf, question.readers)
            yield _Unit(
                "PodGroup",
                (-members[0].priority, min(p.created_us for p in members), 0, leaf.path),
                root=leaf.path,
                text=f"{leaf} does not exist, {named}{meant}",
                pods=tuple(sorted(p.path for p in members if p.node is None)),
            )
    for pod in view.pods.values():
        requested = question.readers.sees(pod.namespace) and (
            pod.uid in question.pods or question.all_pending
        )
        if pod.group is None and pod.node is None and not pod.deleting and requested:
            yield _Unit(
                "Pod",
                (-pod.priority, pod.created_us, question.order.get(pod.uid, 0), pod.path),
                tree=_lone(pod),
            )


def _meant(view: ClusterView, missing: GroupKey, readers: Visibility) -> str:
    """Return which group may be meant in place of one that does not exist: in another namespace, or of a similar name."""
    alike = sorted(
        key for key in view.groups if key.kind == missing.kind and readers.sees(key.namespace)
    )
    elsewhere = [key for key in alike if key.name == missing.name]
    if elsewhere:
        return f"; {elsewhere[0]} is in another namespace, and a group and its members are in the same one"
    return did_you_mean(missing.name, (k.name for k in alike if k.namespace == missing.namespace))


def is_requested_tree(tree: Tree, question: PlanInput) -> bool:
    """Return whether a query plans a tree; not one that the caller does not see."""
    if not question.readers.sees(tree.root.key.namespace):
        return False
    if any(group.key in question.groups for group in tree.groups):
        return True
    pending = [pod for pod in tree.pods if pod.node is None and not pod.deleting]
    return any(pod.uid in question.pods for pod in pending) or (
        question.all_pending and bool(pending)
    )


def _orphan_units(view: ClusterView, forest: Forest, question: PlanInput) -> Iterable[_Unit]:
    """Yield one item per missing parent, with all orphans that wait for it."""
    by_problem: dict[tuple[str, str], list[Orphan]] = {}
    for key, orphan in forest.orphans.items():
        members: Iterable[PodUid] = view.members.get(key, ())
        if question.readers.sees(key.namespace) and (
            key in question.groups
            or question.all_pending
            or any(u in question.pods for u in members)
        ):
            name = orphan.group.parent or key.name
            problem = orphan.problem
            where = problem.message if problem.rule in LOOPS_AND_DEPTHS else name
            by_problem.setdefault((problem.rule, where), []).append(orphan)
    for (rule, _), orphans in by_problem.items():
        first = min(orphans, key=lambda o: o.group.key)
        namespace = first.group.key.namespace
        missing = first.group.key.name if rule in LOOPS_AND_DEPTHS else (first.group.parent or "")
        parent = composite_key(namespace, missing)
        pods = [p.path for o in orphans for p in view.members.get(o.group.key, {}).values()]
        yield _Unit(
            "CompositePodGroup",
            _order(first.group, question),
            root=f"{namespace}/{missing}",
            verdict="invalid" if rule in LOOPS_AND_DEPTHS else "waiting",
            text=first.problem.message
            + ("" if rule in LOOPS_AND_DEPTHS else _meant(view, parent, question.readers)),
            pods=tuple(sorted(pods)),
        )


def _lone(pod: Pod) -> Tree:
    key = GroupKey(pod.namespace, pod.name, "PodGroup")
    group = Group(
        key=key,
        uid=GangUid(pod.uid),
        priority=pod.priority,
        preemption_policy=pod.preemption_policy,
        created_us=pod.created_us,
        source="pod",
    )
    return Tree(root=group, groups=(group,), children={}, members={key: (pod,)})


class _Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer for a tree has beside the planner's verdict."""

    held: tuple[str, ...] = ()  # pods that are not members yet
    texts: tuple[str, ...] = ()
    victims: tuple[PlannedVictimLine, ...] = ()


def _members(count: int) -> str:
    return f"{count} member is" if count == 1 else f"{count} members are"


def _too_deep(view: ClusterView, root: GroupKey) -> str:
    """Return the text about a tree that is too deep, with all its levels; those below the first are in no tree."""
    below: dict[GroupKey, list[GroupKey]] = {}
    for group in view.groups.values():
        if group.parent is not None:
            parent = composite_key(group.key.namespace, group.parent)
            below.setdefault(parent, []).append(group.key)
    levels, level, deepest = 0, [root], root
    while level:
        levels, deepest = levels + 1, min(level)
        level = [key for parent in level for key in below.get(parent, ())]
    return too_deep_text(str(levels), deepest)


class _Planned(msgspec.Struct, frozen=True):
    """The answer for one tree, and the cluster with what it places."""

    verdict: GangVerdict
    view: ClusterView
    extras: tuple[PodUid, ...] = ()  # that it places beyond the minimum


def _widened(
    state: ReservationState, tree: Tree, request: PlanRequest, verdict: Verdict
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict with lost members in other domains where their group asks for that and they have no place in its own; and why."""
    if not isinstance(verdict, Refusal) or verdict.outcome != "impossible":
        return verdict, ()
    if "Widen" not in choices_when_refused(state, tree, request):
        return verdict, ()
    wider = plan(with_wider_domains(request, tree, proved=True))
    if not isinstance(wider, Plan) or not wider.assignments:
        return verdict, (in_vain_text("Widen", wider),)
    text = "no node of the domain takes the lost members (proved), so they go to the nearest other ones"
    return wider, (f"lostMembers Widen: {text}",)


def _given_up(
    view: ClusterView, tree: Tree, request: PlanRequest, verdict: Verdict, question: PlanInput
) -> Iterator[str]:
    """Yield what becomes of a gang that has no place for its lost members, where it asks to be placed anew then."""
    if not isinstance(verdict, Refusal) or verdict.outcome != "impossible":
        return
    choices = choices_when_refused(question.state, tree, request)
    if "GiveUp" not in choices or not question.preemption:
        return
    rows = NodeRowCache(question.topology_keys)
    whole = plan(request_anew(view, question.state, tree, rows=rows, budget=question.budget))
    if not isinstance(whole, Plan) or not whole.assignments:
        yield in_vain_text("GiveUp", whole)
        return
    text = "no node of the domain takes the lost members (proved), so all pods of the gang are evicted, and it is placed anew"
    yield f"lostMembers GiveUp: {text}: it fits as a whole without them"


def _kind(tree: Tree) -> str:
    return "Pod" if tree.root.source == "pod" else tree.root.key.kind


def _without_node(tree: Tree, placed: Collection[str] = ()) -> tuple[str, ...]:
    """Return the pods of a tree that have no node and were not placed, by their paths."""
    waiting = (p.path for p in tree.pods if p.node is None and not p.deleting)
    return tuple(sorted(path for path in waiting if path not in placed))


def _planned(view: ClusterView, tree: Tree, rows: NodeRowCache, question: PlanInput) -> _Planned:
    name, kind = tree.root.key.path, _kind(tree)
    if tree.problems:
        texts = tuple(
            _too_deep(view, tree.root.key) if problem.rule == "B7" else problem.message
            for problem in tree.problems
        )
        reasons = tuple(merged_by_object(texts))
        return _Planned(GangVerdict(gang=name, kind=kind, verdict="invalid", reasons=reasons), view)
    state, moment = question.state, question.moment
    part = TreeParts().of(tree, state.gangs.get(tree.root.uid))
    if question.origins:  # with them `change_texts` has what the workload asks for
        groups = map_groups(part.root, lambda group: replace(group, set_by=UNSET))
        part = replace(part, root=groups)
    request = plan_request(
        view,
        state,
        part,
        rows=rows,
        budget=question.budget,
        rejections=NodeRejections().holding(view, state, moment.now_us // 1000),
    )
    without_evictions = request
    nodes, table = request.nodes, rows.table(request.nodes)
    first = plan(replace(request, explain=False), node_table=table)
    if may_trigger_preemption(request, first):
        ruled = ruled_part(view, state, part, rows=rows)
        request = preemption_request(
            view, state, forest_of(view), tree, request, ruled=ruled, moment=moment
        )
        if not question.preemption:
            request = only_awaiting(request)
        verdict = first if request.nodes is nodes else None
        judged = judge(request, node_table=table.renewed(request.nodes), verdict=verdict)
    elif isinstance(first, Refusal):
        judged = judge(request, node_table=table)
    else:
        judged = Judgement(verdict=first)
    verdict, preemption = judged.verdict, judged.preemption
    gates = foreign_gates(tree)
    texts = (
        (f"pods held by scheduling gates {', '.join(gates)} are not members yet",) if gates else ()
    )
    texts += lacking_texts(tree.pods)
    root = state.gangs.get(tree.root.uid)
    if root is not None and root.reservations:
        texts += (f"{_members(len(root.reservations))} reserved already",)
    bound = sum(pod.node is not None for pod in tree.pods)
    if bound:
        texts += (f"{_members(bound)} bound already",)
    held = tuple(sorted(p.path for p in tree.pods if p.node is None and not is_candidate(p)))
    if isinstance(preemption, PreemptionPlan):
        view = without_pods(view, (pod.uid for unit in preemption.victims for pod in unit.pods))
        texts = (*_texts(preemption, question), *texts)
        notes = _Notes(held=held, texts=texts, victims=_victims(preemption, question.readers))
        return _placed(view, tree, preemption.plan, notes, preemption.search, question)
    if preemption is not None and judged.notes and question.preemption:
        texts = (*_texts(preemption, question), *texts)
    verdict, widened = _widened(state, tree, without_evictions, verdict)
    texts = (*widened, *_given_up(view, tree, without_evictions, verdict, question), *texts)
    if isinstance(verdict, Plan):
        notes = _Notes(held=held, texts=texts)
        return _placed(view, tree, verdict, notes, verdict.search, question)
    changes = change_texts(verdict.changes, question.origins)
    grown: tuple[NodeGroupGrowth, ...] = ()
    if question.node_groups and verdict.outcome == "impossible":
        grown = growths(view, request, question.node_groups)
    refused = GangVerdict(
        gang=name,
        kind=kind,
        verdict=verdict.outcome,
        unplaced=_without_node(tree),
        reasons=(*verdict.reasons, *texts),
        conflict=verdict.conflict,
        help=(*map(growth_text, grown), *changes),
        changes=verdict.changes,
        when_empty=verdict.when_empty,
        reasons_when_empty=verdict.reasons_when_empty,
        node_groups=grown,
        search=SearchLine(verdict.search.nodes, verdict.search.exhausted),
    )
    return _Planned(refused, view)


_STEP_ANSWERS: Final[Mapping[VerdictWord, str]] = {
    "waiting": "is not complete",
    "unknown": "is not known to fit",
    "impossible": "does not fit",
    "invalid": "is not valid",
}


def _planned_in_steps(
    view: ClusterView, tree: Tree, rows: NodeRowCache, question: PlanInput, steps: Steps
) -> tuple[GangVerdict, ClusterView]:
    """Plan each step of a tree by itself, against what is free when the earlier ones have ended.

    Returns:
        The answer of the worst step, or all that is placed; and the cluster afterwards, in which the tree has on each
        node the most that one of its steps uses there.
    """
    left = view
    planned: list[tuple[TreeStep, GangVerdict]] = []
    for step in tree_steps(tree, steps):
        before = without_pods(left, step.absent)
        answer = _planned(before, step.tree, rows, question)
        if answer.verdict.victims:  # they are gone for the steps that follow
            evicted = [uid for uid in before.pods if uid not in answer.view.pods]
            left = without_pods(left, evicted)
        planned.append((step, answer.verdict))
    lines = tuple(
        StepLine(step=step.name, after=step.after, verdict=verdict.verdict, groups=step.groups)
        for step, verdict in planned
    )
    titles = [
        f"step {number} of {len(planned)}, {step.name}"
        + (f", which starts when {step.after}" if step.after else "")
        for number, (step, _) in enumerate(planned, 1)
    ]
    verdicts = [verdict for _, verdict in planned]
    effort = SearchLine(
        sum(verdict.search.nodes for verdict in verdicts),
        all(verdict.search.exhausted for verdict in verdicts),
    )
    if any(verdict.verdict != "placed" for verdict in verdicts):
        refused = replace(
            _worst_step(planned, titles, steps), unplaced=_without_node(tree), steps=lines
        )
        return refused, view
    uids = {pod.path: pod.uid for pod in tree.pods}
    places: dict[str, AssignmentLine] = {}
    for (
        step,
        verdict,
    ) in planned:  # what runs in several steps has the node of the last one, if it has one there
        for pod in step.tree.pods:
            places.pop(pod.path, None)
        places |= {line.pod: line for line in verdict.assignments}
    after = with_largest_use(
        left,
        [{pod.uid for pod in step.tree.pods} for step, _ in planned],
        {uids[path]: NodeName(line.node) for path, line in places.items()},
        static=question.keep_placed,
    )
    reasons = dict.fromkeys(text for verdict in verdicts for text in verdict.reasons)
    # of what runs in several steps those of the last one, as its nodes
    wishes = {
        (wish.group, wish.kind, wish.key, wish.partner): wish
        for verdict in verdicts
        for wish in verdict.wishes
    }
    placed = replace(
        verdicts[-1],
        domains={name: domain for verdict in verdicts for name, domain in verdict.domains.items()},
        assignments=tuple(places[path] for path in sorted(places)),
        unplaced=_without_node(tree, places),
        victims=tuple(dict.fromkeys(unit for verdict in verdicts for unit in verdict.victims)),
        reasons=(*(f"{title}: fits" for title in titles), *reasons),
        search=effort,
        steps=lines,
        wishes=tuple(wishes.values()),
    )
    return placed, after


def _worst_step(
    planned: Sequence[tuple[TreeStep, GangVerdict]], titles: Sequence[str], steps: Steps
) -> GangVerdict:
    """Return the answer of the worst step, with the names of all that do not fit, and what would help all of them."""
    bad = [at for at, (_, verdict) in enumerate(planned) if verdict.verdict != "placed"]
    at = max(bad, key=lambda at: (BEST_TO_WORST.index(planned[at][1].verdict), -at))
    worst = planned[at][1]
    texts = {i: f"{titles[i]}: {_STEP_ANSWERS[planned[i][1].verdict]}" for i in (at, *bad)}
    first, *others = texts.values()
    pods = {i: {pod.uid for pod in planned[i][0].tree.pods} for i in bad}
    # what helps a step helps also those of which all pods run in it
    asking = [i for i in bad if not any(pods[i] < pods[j] for j in bad)]
    answers = [_without_made_minima(planned[i][1], steps) for i in asking]
    empty = max((planned[i][1] for i in bad), key=lambda v: _WHEN_EMPTY.index(v.when_empty))
    only = answers[0] if len(answers) == 1 else None
    return replace(
        worst,
        reasons=(first, *worst.reasons, *others),
        help=only.help
        if only is not None
        else tuple(
            f"for {titles[i].partition(', which')[0]}: {text}"
            for i, answer in zip(asking, answers, strict=True)
            for text in answer.help
        ),
        changes=only.changes if only is not None else (),
        node_groups=only.node_groups if only is not None else (),
        when_empty=empty.when_empty,
        reasons_when_empty=empty.reasons_when_empty,
        search=SearchLine(sum(v.search.nodes for _, v in planned), worst.search.exhausted),
    )


_WHEN_EMPTY: Final[tuple[WhenEmpty, ...]] = ("", "fits", "unknown", "never")  # best to worst


def _without_made_minima(answer: GangVerdict, steps: Steps) -> GangVerdict:
    """Return an answer without lower minima of the gangs that steps are planned as: no object has them."""
    lowered = [c for c in answer.changes if c.minimum and steps.keys() & set(c.groups)]
    texts = {change.text for change in lowered}
    return replace(
        answer,
        changes=tuple(change for change in answer.changes if change not in lowered),
        help=tuple(text for text in answer.help if text not in texts),
    )


def _texts(preemption: PreemptionVerdict, question: PlanInput) -> tuple[str, ...]:
    reduced = () if question.readers.everything else preemption.reduced
    texts = reduced or preemption.reasons
    if isinstance(preemption, PreemptionPlan) and preemption.cost.violations:
        forbidden = counted(preemption.cost.violations, "eviction")
        texts += (f"{forbidden} more than PodDisruptionBudgets allow (E-8)",)
    return texts


def _victims(preemption: PreemptionPlan, readers: Visibility) -> tuple[PlannedVictimLine, ...]:
    """Return the units that would be evicted; of one that the caller does not see kind, priority and number of pods."""
    return tuple(
        PlannedVictimLine(u.name, tuple(p.pod for p in u.pods))
        if readers.sees(namespace_of(u.name))
        else PlannedVictimLine(name_for(readers, u.name, priority=u.priority, pods=len(u.pods)), ())
        for u in preemption.victims
    )


_AFTER_EVICTIONS: Final = (
    "what wishes reach is the best with these evictions, which are chosen by their cost alone (E-9)"
)


def _placed(
    view: ClusterView,
    tree: Tree,
    verdict: Plan,
    notes: _Notes,
    search: SearchEffort,
    question: PlanInput,
) -> _Planned:
    for assignment in verdict.assignments:
        pod = view.pods[assignment.uid]
        stays = pod.static or question.keep_placed
        view = with_pod(view, replace(pod, node=assignment.node, static=stays))
    wishes, texts = plan_lines(verdict.wishes), notes.texts
    if notes.victims and any(
        w.kind != "rank" and w.value > (w.kind == "preferred") for w in wishes
    ):
        texts += (_AFTER_EVICTIONS,)
    placed = GangVerdict(
        gang=tree.root.key.path,
        kind=_kind(tree),
        verdict="placed",
        domains={p.group.name: dict(p.domain) for p in verdict.placements},
        assignments=assignment_lines(verdict),
        unplaced=tuple(sorted({*verdict.unplaced, *notes.held})),
        victims=notes.victims,
        reasons=(*verdict.reasons, *texts),
        search=SearchLine(search.nodes, search.exhausted),
        wishes=wishes,
    )
    return _Planned(placed, view, tuple(a.uid for a in verdict.assignments if a.extra))


def assignment_lines(verdict: Plan) -> tuple[AssignmentLine, ...]:
    """Return what a plan places, by the names of the pods."""
    lines = (AssignmentLine(a.pod, a.group.name, a.node) for a in verdict.assignments)
    return tuple(sorted(lines, key=lambda line: line.pod))
