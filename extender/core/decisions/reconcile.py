"""Turn what the cluster shows into facts: bound, lost, deleted, overtaken, completed.

Observations only: nothing here plans. A tree of which nothing is bound yet loses all its
reservations when one of its minimum goes (it is planned again as a whole); a tree that has started
loses only what is gone (DESIGN 9.6: a started gang is completed, not stopped). Gone is also what
kube-scheduler will not let onto its node any more: cordoned, tainted, relabelled, smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from extender.core.decisions.requests import group_key_of, is_running
from extender.core.events import (
    AnyFact,
    Draft,
    DriftFound,
    GangSatisfied,
    GroupRecord,
    LossCause,
    MemberLost,
    NodeTopologyChanged,
    PodBound,
    ReleasedPod,
    ReleaseReason,
    ReservationReleased,
    RootCompleted,
    RootObserved,
)
from extender.core.groups import Forest, Tree, kind_of
from extender.core.ids import GroupKey, NodeName, PlanId, PodUid, RootUid
from extender.core.nodes import Node
from extender.core.planner.capacity import Fleet
from extender.core.planner.filters import may_run, selected
from extender.core.planner.placement import PlanNode
from extender.core.pods import Pod, PodShape
from extender.core.state import BoundMember, Reservation, ReservationState, RootState, satisfied
from extender.core.view import NOTHING, ClusterView

NO_PLAN = PlanId("")
NAMED_MAX = 5  # pods named in a text; the fact lists all of them


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What the service knows beside view and state."""

    actor: str
    cause: str
    started: frozenset[RootUid] = (
        frozenset()
    )  # barriers of these roots are releasing or have released
    binding: frozenset[PodUid] = frozenset()  # their Binding was sent, and may be seen any moment
    expired: frozenset[RootUid] = frozenset()  # reservations older than their time to live


def decide_reconcile(
    view: ClusterView, state: ReservationState, forest: Forest, now: Circumstances
) -> list[Draft]:
    """Give the facts that bring the log up to what the view shows; nothing when they agree."""
    overtaken = overtaken_pods(view, state)
    drafts: list[Draft] = []
    for root in state.roots.values():
        tree = forest.trees.get(group_key_of(root))
        broken = tree is not None and bool(tree.problems)
        drafts += _root_drafts(view, root, overtaken, now, broken=broken)
    for tree in forest.trees.values():
        drafts += _bound_outside(view, state, tree, now)
    return drafts


def _draft(root: RootState, fact: AnyFact, now: Circumstances) -> Draft:
    return Draft(root_uid=root.uid, root=root.root, fact=fact, actor=now.actor, cause=now.cause)


def _root_drafts(
    view: ClusterView,
    root: RootState,
    overtaken: Collection[PodUid],
    now: Circumstances,
    *,
    broken: bool,
) -> list[Draft]:
    group = view.groups.get(group_key_of(root))
    if group is None or group.uid != root.uid:
        facts: list[AnyFact] = []
        if root.held:
            facts.append(
                _release(root.held.values(), "deleted", f"{group_key_of(root)} was deleted")
            )
        facts.append(RootCompleted(why="the root group was deleted"))
        return [_draft(root, fact, now) for fact in facts]
    facts = [*_relabelled(view, root), *_settled(view, root)]
    bound_here = {f.uid: f.node for f in facts if isinstance(f, PodBound)}
    lost = [_lost(view, m) for m in root.bound.values() if _is_lost(view, m.uid, m.node)]
    facts += lost
    facts += _given_back(view, root, overtaken, bound_here, now, broken=broken)
    counts = _counts(view, root, facts)
    if root.phase == "admitted" and satisfied(root.groups, counts):
        facts.append(GangSatisfied(plan=root.plan or NO_PLAN, bound=sum(counts.values())))
    return [_draft(root, fact, now) for fact in facts]


def _relabelled(view: ClusterView, root: RootState) -> list[AnyFact]:
    """Record nodes of this tree whose topology labels are not those of the admission (D11, D14)."""
    facts: list[AnyFact] = []
    used = {r.node for r in root.held.values()} | {m.node for m in root.bound.values()}
    for name in sorted(used & set(root.topology)) if root.topology else ():
        node, before = view.nodes.get(name), root.topology[name]
        if node is None:
            continue
        after = {key: node.labels.get(key, "") for key in before}
        if after != before:
            facts.append(
                NodeTopologyChanged(
                    node=name,
                    before={key: value for key, value in before.items() if value},
                    after={key: value for key, value in after.items() if value},
                )
            )
    return facts


def _changed_groups(view: ClusterView, root: RootState) -> Mapping[str, str]:
    """Say by leaf what happened to a group below the root since the admission: deleted or recreated (B5)."""
    namespace = group_key_of(root).namespace
    changed: dict[tuple[str, str], str] = {}
    for record in root.groups[1:]:
        group = view.groups.get(GroupKey(namespace, record.name, kind_of(record.kind)))
        if record.uid and (group is None or group.uid != record.uid):
            how = "was deleted" if group is None else "was deleted and made again"
            changed[record.kind, record.name] = f"{record.kind} {namespace}/{record.name} {how}"
    if not changed:
        return {}
    texts = {}
    for leaf, way in _ways(root.groups).items():
        found = [changed[g.kind, g.name] for g in way if (g.kind, g.name) in changed]
        if found:
            texts[leaf] = found[0]
    return texts


def _ways(groups: tuple[GroupRecord, ...]) -> Mapping[str, tuple[GroupRecord, ...]]:
    """Give the groups from the root down to each leaf, by the name of the leaf."""
    composites = {g.name: g for g in groups if g.kind == "CompositePodGroup"}
    ways = {}
    for leaf in groups:
        if leaf.kind == "PodGroup":
            way = [leaf]
            while way[0].parent in composites:
                way.insert(0, composites[way[0].parent])
            ways[leaf.name] = tuple(way)
    return ways


def _settled(view: ClusterView, root: RootState) -> list[AnyFact]:
    facts: list[AnyFact] = []
    for reservation in root.held.values():
        pod = view.pods.get(reservation.uid)
        if pod is None or pod.node is None:
            continue
        facts.append(
            PodBound(
                plan=reservation.plan,
                pod=reservation.pod,
                uid=reservation.uid,
                node=pod.node,
                group=reservation.group,
            )
        )
        if pod.node != reservation.node:
            text = f"bound to {pod.node}, its room was reserved on {reservation.node}"
            facts.append(DriftFound(kind="bound-elsewhere", object=f"Pod/{pod.path}", text=text))
    return facts


def _is_lost(view: ClusterView, uid: PodUid, node: NodeName) -> bool:
    pod = view.pods.get(uid)
    return pod is None or pod.deleting or node not in view.nodes


def _lost(view: ClusterView, member: BoundMember) -> MemberLost:
    pod = view.pods.get(member.uid)
    cause: LossCause = "gone" if pod is None else "deleted"
    if member.node not in view.nodes:
        cause = "node-lost"
    return MemberLost(pod=member.pod, uid=member.uid, node=member.node, cause=cause)


def _counts(view: ClusterView, root: RootState, facts: Iterable[AnyFact]) -> Mapping[str, int]:
    """Count bound members per leaf as they will be after `facts`; who is bound and lost already does not count."""
    counts: dict[str, int] = {}
    for member in root.bound.values():
        counts[member.group] = counts.get(member.group, 0) + 1
    for fact in facts:
        if isinstance(fact, PodBound) and not _is_lost(view, fact.uid, fact.node):
            counts[fact.group] = counts.get(fact.group, 0) + 1
        elif isinstance(fact, MemberLost):
            group = root.bound[fact.uid].group
            counts[group] -= 1
    return counts


def _release(
    reservations: Iterable[Reservation], why: ReleaseReason, text: str
) -> ReservationReleased:
    held = sorted(reservations, key=lambda r: r.pod)
    return ReservationReleased(
        plan=held[0].plan,
        why=why,
        pods=tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in held),
        text=text,
    )


def _given_back(
    view: ClusterView,
    root: RootState,
    overtaken: Collection[PodUid],
    bound_here: Mapping[PodUid, NodeName],
    now: Circumstances,
    *,
    broken: bool,
) -> list[AnyFact]:
    """Release what cannot be redeemed any more; a whole tree in one fact, so that no crash can halve it."""
    on_its_way = {uid for uid in now.binding if _waits(view, uid)}
    open_ones = {
        uid: r for uid, r in root.held.items() if uid not in bound_here and uid not in on_its_way
    }
    if not open_ones:
        return []
    running = [*((u, m.node) for u, m in root.bound.items()), *bound_here.items()]
    started = root.uid in now.started or any(not _is_lost(view, u, n) for u, n in running)
    if root.uid in now.expired and not started:
        return [_release(open_ones.values(), "expired", "nobody redeemed the reservation in time")]
    if broken and not started:
        return [_release(open_ones.values(), "invalid", "the tree breaks a rule now")]
    changed = _changed_groups(view, root)
    if changed and not started:
        text = "; ".join(sorted(set(changed.values())))
        return [_release(open_ones.values(), "deleted", f"{text}: the tree begins anew")]
    gone = _gone(view, root, open_ones, overtaken, changed)
    if not gone:
        return []
    names = {r.uid for found in gone.values() for r, _ in found}
    rest = [r for uid, r in open_ones.items() if uid not in names]
    counts: dict[str, int] = {}
    for reservation in rest:
        counts[reservation.group] = counts.get(reservation.group, 0) + 1
    if started or not rest or satisfied(root.groups, counts):
        return [
            _release([r for r, _ in found], why, _release_text(found))
            for why, found in sorted(gone.items())
        ]
    whys = sorted(gone)
    words = "; ".join(_release_text(gone[why]) for why in whys)
    text = f"the minimum of the tree no longer holds: {words}"
    return [_release(open_ones.values(), whys[0], text)]


def _gone(
    view: ClusterView,
    root: RootState,
    open_ones: Mapping[PodUid, Reservation],
    overtaken: Collection[PodUid],
    changed: Mapping[str, str],
) -> Mapping[ReleaseReason, list[tuple[Reservation, str]]]:
    """Find the reservations that nobody can redeem, each with what happened to it."""
    unfit = unfit_pods(view, root, open_ones)
    found: dict[ReleaseReason, list[tuple[Reservation, str]]] = {}
    for uid, reservation in open_ones.items():
        why = _why_gone(view, reservation, overtaken)
        if why is None and reservation.group in changed:
            why = ("deleted", f"{changed[reservation.group]}:")
        if why is None and uid in unfit:
            why = ("node-lost", unfit[uid])
        if why is not None:
            found.setdefault(why[0], []).append((reservation, why[1]))
    return found


def _why_gone(
    view: ClusterView, reservation: Reservation, overtaken: Collection[PodUid]
) -> tuple[ReleaseReason, str] | None:
    pod = view.pods.get(reservation.uid)
    if pod is None or pod.deleting:
        return "deleted", "deleted before it was bound:"
    node = view.nodes.get(reservation.node)
    if node is None or node.deleting:
        return "node-lost", f"node {reservation.node} is gone:"
    if reservation.uid not in overtaken:
        return None
    if any(node.allocatable.get(k, 0) < v for k, v in reservation.requests.items()):
        return "node-lost", f"node {node.name} offers less than was reserved on it:"
    return "superseded", "other pods took the room of"


def _release_text(found: list[tuple[Reservation, str]]) -> str:
    """Name some of the pods by what happened to them."""
    by_words: dict[str, list[str]] = {}
    for reservation, words in sorted(found, key=lambda f: f[0].pod)[:NAMED_MAX]:
        by_words.setdefault(words, []).append(reservation.pod)
    text = "; ".join(f"{words} {', '.join(pods)}" for words, pods in by_words.items())
    return text + (" and more" if len(found) > NAMED_MAX else "")


def unfit_pods(
    view: ClusterView, root: RootState, reservations: Mapping[PodUid, Reservation]
) -> Mapping[PodUid, str]:
    """Find reservations on nodes that would not take their pod any more, whatever is free there.

    By the planner's own static filters, and by the domains of the admission; with the reason.
    """
    domains = {
        leaf: {key: value for group in way for key, value in group.domain.items()}
        for leaf, way in _ways(root.groups).items()
    }
    unfit: dict[PodUid, str] = {}
    doubtful: dict[PodShape, list[tuple[PodUid, Node]]] = {}
    for uid, reservation in reservations.items():
        pod, node = view.pods.get(uid), view.nodes.get(reservation.node)
        if pod is None or node is None:
            continue
        for key, value in domains.get(reservation.group, {}).items():
            if node.labels.get(key) != value:
                unfit[uid] = f"node {node.name} is not in {key}={value} any more:"
        shape = pod.shape
        if node.unschedulable or node.taints or shape.node_selector or shape.selectors:
            doubtful.setdefault(shape, []).append((uid, node))
    for shape, pairs in doubtful.items():
        fleet = Fleet(tuple(_bare_row(node) for _, node in pairs))
        passes, chosen = may_run(fleet, shape), selected(fleet, shape)
        for i, (uid, node) in enumerate(pairs):
            if not passes[i]:
                unfit[uid] = f"node {node.name} {_unfit_words(node, chosen=bool(chosen[i]))}:"
    return unfit


def _bare_row(node: Node) -> PlanNode:
    return PlanNode(
        name=node.name,
        labels=node.labels,
        taints=node.taints,
        unschedulable=node.unschedulable,
        allocatable=node.allocatable,
    )


def _unfit_words(node: Node, *, chosen: bool) -> str:
    if not chosen:
        return "is not one that the pod selects any more"
    if node.unschedulable:
        return "was cordoned"
    return "has a taint that the pod does not tolerate"


def overtaken_pods(view: ClusterView, state: ReservationState) -> frozenset[PodUid]:
    """Find reservations whose room is gone: assigned pods and reservations exceed the node.

    The lowest priorities give way first, then the youngest, until the rest fits.
    """
    overtaken: set[PodUid] = set()
    for name, held in state.held_on.items():
        node = view.nodes.get(name)
        if node is None:
            continue
        free = dict(node.allocatable)
        for resource, amount in view.usage.get(name, NOTHING).requests.items():
            free[resource] = free.get(resource, 0) - amount
        waiting = [r for r in held.values() if _waits(view, r.uid)]
        for reservation in sorted(waiting, key=lambda r: (-r.priority, r.at_us, r.pod)):
            if all(free.get(k, 0) >= v for k, v in reservation.requests.items()):
                for resource, amount in reservation.requests.items():
                    free[resource] -= amount
            else:
                overtaken.add(reservation.uid)
    return frozenset(overtaken)


def _waits(view: ClusterView, uid: PodUid) -> bool:
    """Say whether a pod still needs its reservation: not assigned, and not on its way out."""
    pod = view.pods.get(uid)
    return pod is not None and pod.node is None and not pod.deleting


def _bound_outside(
    view: ClusterView, state: ReservationState, tree: Tree, now: Circumstances
) -> list[Draft]:
    """Record members that run without a reservation of ours; one whose node is gone runs no more."""
    root = state.roots.get(tree.root.uid)
    drafts: list[Draft] = []
    for leaf, pods in tree.members.items():
        for pod in pods:
            if not is_running(pod) or pod.node not in view.nodes or _known(root, pod):
                continue
            drafts += [_tree_draft(tree, fact, now) for fact in _outside_facts(leaf.name, pod)]
    if drafts and root is None:
        observed = RootObserved(
            kind=tree.root.key.kind,
            priority=tree.root.priority,
            groups=len(tree.groups),
            members=len(tree.pods),
        )
        drafts.insert(0, _tree_draft(tree, observed, now))
    return drafts


def _tree_draft(tree: Tree, fact: AnyFact, now: Circumstances) -> Draft:
    return Draft(
        root_uid=tree.root.uid,
        root=tree.root.key.path,
        fact=fact,
        actor=now.actor,
        cause=now.cause,
    )


def _known(root: RootState | None, pod: Pod) -> bool:
    return root is not None and (pod.uid in root.held or pod.uid in root.bound)


def _outside_facts(leaf: str, pod: Pod) -> list[AnyFact]:
    assert pod.node is not None
    node = NodeName(pod.node)
    bound = PodBound(plan=PlanId(pod.plan), pod=pod.path, uid=pod.uid, node=node, group=leaf)
    text = f"runs on {node} without a reservation in the log"
    drift = DriftFound(kind="bound-outside-admission", object=f"Pod/{pod.path}", text=text)
    return [bound, drift]
