"""Construction of plan requests from view, state and a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType

from extender.core.admit.interpod_rules import (
    InterpodRulePart,
    InterpodRules,
    closed_domains,
    with_taken,
)
from extender.core.capacity.capacity_claims import lost_members, nodes_of_replacements
from extender.core.capacity.free_capacity import NO_HOLDS, NodeRowCache
from extender.core.log.reservation_state import (
    EMPTY,
    BoundMember,
    GangState,
    RejectionKey,
    Reservation,
    ReservationState,
    claims_by_node,
)
from extender.core.log.state_projector import NO_CAPACITY
from extender.core.model.cluster_view import ClusterView, with_pod
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import counted
from extender.core.model.nodes import LostMembers, SliceLevel
from extender.core.model.object_identity import IdentityMemo, changed_keys
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.model.pods import GATE, Pod, PodShape
from extender.core.planner.plan_types import (
    RANK_STEP,
    NodeRejection,
    PlanBound,
    PlanExclusive,
    PlanGroup,
    PlanMember,
    PlanNear,
    PlanNode,
    PlanRequest,
    Refusal,
    Verdict,
    map_groups,
    object_key,
    satisfied_by_bound,
    walk,
    with_slices,
)
from extender.core.workloads.kinds.job_kind import INDEX_LABEL as COMPLETION_INDEX
from extender.core.workloads.kinds.jobset_kind import JOB_INDEX_LABEL, PER_REPLICATED_JOB
from extender.core.workloads.kinds.kubeflow_kinds import REPLICA_INDEX_LABEL
from extender.core.workloads.kinds.leaderworkerset_kind import WORKER_INDEX
from extender.core.workloads.kinds.plain_pods_kind import plain_uid
from extender.core.workloads.kinds.statefulset_kind import POD_INDEX
from extender.core.workloads.workload_object import LEAF_LABEL, MANAGED_BY, MIN_ANNOTATION

# --- lost members of a running gang of which no node of their domain is left: what `lostMembers` of their group asks for (D26)

# The proof comes first: the planner has refused the tree as impossible, and no node has gained capacity since. Then the required
# key of a group with `Widen` is a wish, and of a gang with `GiveUp` all pods are evicted, if the whole tree fits without them.

T = TypeVar("T")
_PROVED: Final = "impossible"  # outcome of the last decision


def choices_of(state: ReservationState, tree: Tree, request: PlanRequest) -> frozenset[LostMembers]:
    """Return what the groups of a running gang ask for whose lost members have no node in a domain that others fix.

    Args:
        state: The reservation state; its last decision about the tree is a refusal of the request.
        request: Its plan request, with the required keys.
    """
    root = state.gangs.get(tree.root.uid)
    if root is None or root.last_decision is None or root.last_decision.outcome != _PROVED:
        return frozenset()
    return choices_when_refused(state, tree, request)


def choices_when_refused(
    state: ReservationState, tree: Tree, request: PlanRequest
) -> frozenset[LostMembers]:
    """Return the same of a request that was just refused as impossible, whatever the last decision is.

    Args:
        state: Empty: nothing is known but the pods, and a gang of which some have a node runs.
        request: Its plan request, with the required keys.
    """
    asking = {
        g.key: g.constraints.lost_members
        for g in tree.groups
        if g.constraints.lost_members != "Wait"
    }
    root = state.gangs.get(tree.root.uid)
    if not asking or (root is None and state != EMPTY):
        return frozenset()
    if root is not None and (root.phase != "scheduled" or root.last_loss is None):
        return frozenset()
    if satisfied_by_bound(request.root):  # members beyond the minimum wait
        return frozenset()
    nodes = _Nodes(request)
    return frozenset(
        asking[object_key(group.key)]
        for group in walk(request.root)
        if object_key(group.key) in asking
        and any(below.members for below in walk(group))
        and nodes.one_domain(group)
    )


def with_wider_domains(request: PlanRequest, tree: Tree, *, proved: bool) -> PlanRequest:
    """Return a request in which the required key of groups with `Widen`, and of their slices, is a wish; the same object where it is none.

    It is one when this is proved necessary, and from then on: of a group whose bound members are in several domains.

    Args:
        request: With the required keys.
        proved: Whether it is proved that no node of their domain can take the lost members.
    """
    widened = {g.key for g in tree.groups if g.constraints.lost_members == "Widen"}
    if not widened:
        return request
    nodes = _Nodes(request)
    levels = request.levels or ()

    def change(group: PlanGroup) -> PlanGroup:
        if object_key(group.key) not in widened or not group.topology:
            return group
        if not (nodes.several_domains(group) or (proved and nodes.one_domain(group))):
            return group
        key = group.topology[-1]
        wider = group.preferred or (levels[levels.index(key) + 1 :] if key in levels else ())
        preferred = tuple(dict.fromkeys((key, *wider)))
        return msgspec.structs.replace(group, topology=(), preferred=preferred)

    root = map_groups(request.root, change)
    return request if root == request.root else msgspec.structs.replace(request, root=root)


def in_vain_text(choice: LostMembers, verdict: Verdict) -> str:
    """Return that a choice did not help lost members, as a reason why they wait.

    Args:
        choice: `Widen` or `GiveUp`.
        verdict: The answer of the planner; no plan that places any.
    """
    text = "the lost members have no place outside of the domain either"
    if choice == "GiveUp":
        text = "the whole gang has no other place without its own pods either, so it is not evicted"
    proved = isinstance(verdict, Refusal) and verdict.outcome == _PROVED
    return (
        f"lostMembers {choice} was tried in vain: {text} ({'proved' if proved else 'not proved'})"
    )


class _Nodes:
    """The domains that bound members are in."""

    def __init__(self, request: PlanRequest) -> None:
        bound = {pod.node for group in walk(request.root) for pod in group.bound}
        self._nodes: Mapping[NodeName, PlanNode] = {
            node.name: node for node in request.nodes if node.name in bound
        }

    def _values(self, group: PlanGroup) -> set[str | None]:
        """Return the values of the required key; None: of a node that is gone, or has no such label."""
        key = group.topology[-1]
        nodes = (self._nodes.get(pod.node) for below in walk(group) for pod in below.bound)
        return {node.labels.get(key) if node is not None else None for node in nodes}

    def several_domains(self, group: PlanGroup) -> bool:
        return len(self._values(group) - {None}) > 1

    def one_domain(self, group: PlanGroup) -> bool:
        """Return whether bound members fix the domain of a required key; where the node of one is not known, there is no proof about it."""
        values = self._values(group) if group.topology else set()
        return len(values) == 1 and None not in values


def vacated(
    view: ClusterView, state: ReservationState, trees: Iterable[Tree]
) -> tuple[ClusterView, ReservationState]:
    """Return the cluster and the state as if no pod of some trees had a node, and the log did not have them."""
    uids = set()
    for tree in trees:
        uids.add(tree.root.uid)
        for pod in tree.pods:
            if pod.node is not None and not pod.deleting:
                view = with_pod(view, msgspec.structs.replace(pod, node=None, nominated=None))

    def left(of_gang: Map[GangUid, T]) -> Map[GangUid, T]:
        return Map({uid: each for uid, each in of_gang.items() if uid not in uids})

    claims = (claim for on_node in state.claims_on.values() for claim in on_node.values())
    return view, msgspec.structs.replace(
        state,
        gangs=left(state.gangs),
        gang_of=Map({pod: uid for pod, uid in state.gang_of.items() if uid not in uids}),
        preemptions=left(state.preemptions),
        capacity_holds=left(state.capacity_holds),
        claims_on=claims_by_node(claim for claim in claims if claim.gang_uid not in uids),
    )


# --- the request

# Labels with the position of a pod in its leaf, the outer one first; the first row that all its pods have counts.
_RANK_LABELS: Final = (
    (WORKER_INDEX,),  # of a LeaderWorkerSet, whose leader has no other
    (JOB_INDEX_LABEL, COMPLETION_INDEX),  # of a JobSet
    (COMPLETION_INDEX,),
    (REPLICA_INDEX_LABEL,),  # of a PyTorchJob and its siblings, of an MPIJob
    (POD_INDEX,),  # of a StatefulSet
)
_INDEX_DIGITS: Final = 9
EMPTY_HINTS: Final[Mapping[PodUid, NodeName]] = {}


def is_candidate(pod: Pod, *, may_lack: bool = False) -> bool:
    """Return whether a pod may be planned: not assigned, not terminating, and nothing keeps kube-scheduler from trying it.

    That is a scheduling gate of others, or an object that the pod names and that does not exist.

    Args:
        may_lack: The answer about a pod that lacks such an object: it keeps its tree waiting until some of that is placed.
    """
    if pod.node is not None or pod.deleting:
        return False
    return may_lack if pod.waits_for else all(gate == GATE for gate in pod.gates)


def is_running(pod: Pod) -> bool:
    """Return whether a pod is assigned and not terminating (A.5)."""
    return pod.node is not None and not pod.deleting


class TreePart(msgspec.Struct, frozen=True, eq=False):
    """The part of a plan request that depends only on a tree and its own reservations."""

    tree: Tree
    root: PlanGroup
    shapes: tuple[PodShape, ...]
    claims: frozenset[str]  # exclusive claims of any of its pods
    slices: Mapping[GroupKey, tuple[SliceLevel, ...]]  # of its leaves that are cut into slices
    topology_keys: frozenset[str]  # of its groups


class _ReservationCheck(msgspec.Struct, frozen=True, eq=False):
    """Whether some pod of a tree waited for a reservation, and the tree and its reservations at that time."""

    tree: Tree
    held: Mapping[PodUid, Reservation]
    started: bool  # some of its pods were placed
    answer: bool


class TreeParts:
    """Cache of parts: a part is the same object as long as tree, reservations and hints are the same."""

    def __init__(self) -> None:
        self._kept: dict[GangUid, IdentityMemo[TreePart]] = {}
        self._checks: dict[GangUid, _ReservationCheck] = {}

    def wanting(self, tree: Tree, root: GangState | None) -> bool:
        """Return whether some pod of a tree waits for a reservation; its part need not be made for that.

        None does while a loss is predicted (`PredictedLosses`): its record ends the membership, and begins the hold that
        the next member uses.
        """
        held = root.reservations if root is not None else NO_HOLDS
        bound = root.bound if root is not None else {}
        if root is not None and any(uid in bound for uid in root.replacement_holds):
            return False
        started = bool(held or bound)
        kept = self._checks.get(tree.root.uid)
        if (
            kept is None
            or kept.started != started
            or kept.tree is not tree
            or kept.held is not held
        ):
            provided = (
                kept is not None
                and kept.started == started
                and not kept.answer
                and _all_provided(kept, tree, held, bound)
            )
            answer = not provided and any(_without_reservation(tree, held, may_lack=not started))
            kept = self._checks[tree.root.uid] = _ReservationCheck(tree, held, started, answer)
        return kept.answer

    def of(
        self, tree: Tree, root: GangState | None, hints: Mapping[PodUid, NodeName] = EMPTY_HINTS
    ) -> TreePart:
        """Return the part of a tree; `hints`: nodes to try first, by member."""
        held = root.reservations if root is not None else NO_HOLDS
        past = (
            (root.previous_nodes, root.replacement_holds)
            if root is not None
            else (NO_HOLDS, NO_HOLDS)
        )

        def part() -> TreePart:
            shapes: dict[PodShape, int] = {}  # each once, in order of first use
            constraints = {group.key: group.constraints for group in tree.groups}
            return TreePart(
                tree=tree,
                root=_plan_group(tree, tree.root, held, shapes, _wishes(tree, root, hints)),
                shapes=tuple(shapes),
                slices={key: each.slices for key, each in constraints.items() if each.slices},
                claims=frozenset(c for pod in tree.pods for c in pod.shape.exclusive_claims),
                topology_keys=frozenset(k for c in constraints.values() for k in c.topology_keys),
            )

        kept = self._kept.setdefault(tree.root.uid, IdentityMemo())
        return kept.get(part, same=(tree, held, *past), equal=hints)

    @property
    def count(self) -> int:
        """Return the number of trees that have been asked about and not removed."""
        return max(len(self._kept), len(self._checks))

    def keep(self, roots: Collection[GangUid]) -> None:
        """Remove all other trees from the cache."""
        self._kept = {uid: kept for uid, kept in self._kept.items() if uid in roots}
        self._checks = {uid: kept for uid, kept in self._checks.items() if uid in roots}


def _all_provided(
    before: _ReservationCheck,
    tree: Tree,
    held: Mapping[PodUid, Reservation],
    bound: Mapping[PodUid, BoundMember],
) -> bool:
    """Return whether certainly no candidate lacks a reservation, where none did before; looks at what changed."""
    then = before.tree
    if then.groups is not tree.groups:
        return False
    if any(uid not in held and uid not in bound for uid in changed_keys(before.held, held)):
        return False  # released
    for leaf, pods in tree.members.items():
        previous = then.members.get(leaf, ())
        if previous is not pods:
            previous_ids = set(map(id, previous))
            fresh = [pod for pod in pods if id(pod) not in previous_ids]
            may_lack = not before.started
            if any(is_candidate(p, may_lack=may_lack) and p.uid not in held for p in fresh):
                return False
    return True


def _without_reservation(
    tree: Tree, held: Mapping[PodUid, Reservation], *, may_lack: bool = False
) -> Iterator[Pod]:
    """Yield the candidates of a tree that have no reservation yet; `may_lack`: as of `is_candidate`."""
    for group in tree.groups:
        for pod in () if group.deleting else tree.members.get(group.key, ()):
            if is_candidate(pod, may_lack=may_lack) and pod.uid not in held:
                yield pod


def plan_request(
    view: ClusterView,
    state: ReservationState,
    part: TreePart,
    *,
    rows: NodeRowCache,
    budget: int,
    rejections: Collection[RejectionKey] = (),
    book: InterpodRules | None = None,
) -> PlanRequest:
    """Return the plan request of a tree; `budget`: in search nodes."""
    root = part.tree.root
    taken = rows.taken(view, state, priority=root.priority, gang_uid=root.uid)
    book = book or InterpodRules()
    ruled = ruled_part(view, state, part, rows=rows, book=book)
    holders = book.domains.holders(view, state, part.tree)
    tree_root = with_taken(ruled.root, holders)
    if part.slices:
        tree_root = _with_slices(view, tree_root, part.slices)

    def rejected_nodes() -> Iterator[NodeRejection]:
        for key in rejections:
            rejection, pod = state.rejections.get(key), view.pods.get(key.uid)
            if rejection is None or pod is None:
                continue
            if key.gang_uid == root.uid and key.node in view.nodes:
                shapes = enumerate(ruled.shapes if rejection.by_shape else ())
                alike = [NodeRejection(node=key.node, shape=n) for n, s in shapes if s == pod.shape]
                yield from alike or [NodeRejection(node=key.node, uid=key.uid)]

    request = PlanRequest(
        root=tree_root,
        closed=closed_domains(holders),
        nodes=rows.rows(view, taken),
        shapes=ruled.shapes,
        rules=ruled.rules,
        preferences=ruled.preferences or UNSET,
        rejected_nodes=tuple(
            sorted(rejected_nodes(), key=lambda v: (v.node, v.uid or "", v.shape or 0))
        ),
        claims_in_use=_claims_in_use(view, state, part.claims),
        budget=budget,
        levels=rows.levels(view, part.topology_keys) or UNSET,
    )
    return with_wider_domains(request, part.tree, proved=False)


def request_anew(
    view: ClusterView, state: ReservationState, tree: Tree, *, rows: NodeRowCache, budget: int
) -> PlanRequest:
    """Return the plan request of a tree as if none of its pods had a node, or had been refused one; `rows`: a new cache."""
    view, state = vacated(view, state, [tree])
    members = {
        key: tuple(view.pods[pod.uid] for pod in pods if not pod.deleting)
        for key, pods in tree.members.items()
    }
    part = TreeParts().of(msgspec.structs.replace(tree, members=members), None)
    return plan_request(view, state, part, rows=rows, budget=budget)


def _with_slices(
    view: ClusterView, group: PlanGroup, slices: Mapping[GroupKey, tuple[SliceLevel, ...]]
) -> PlanGroup:
    """Return a group in which leaves are cut into their slices."""

    def label(name: NodeName, key: str) -> str | None:
        node = view.nodes.get(name)
        return None if node is None else node.labels.get(key)

    children = tuple(_with_slices(view, child, slices) for child in group.groups)
    group = msgspec.structs.replace(group, groups=children) if children else group
    return with_slices(group, slices.get(group.key, ()), label)


def ruled_part(
    view: ClusterView,
    state: ReservationState,
    part: TreePart,
    *,
    rows: NodeRowCache,
    book: InterpodRules | None = None,
) -> InterpodRulePart:
    """Return the part of a tree with the rules between pods, as in `plan_request`."""
    root = part.tree.root
    taken = rows.taken(view, state, priority=root.priority, gang_uid=root.uid)
    return (book or InterpodRules()).of(
        view, state, part.tree, InterpodRulePart(part.root, part.shapes), taken
    )


def _wishes(
    tree: Tree, root: GangState | None, hints: Mapping[PodUid, NodeName]
) -> Mapping[PodUid, NodeName]:
    """Return the nodes that are tried first, by member.

    That is a node that kube-scheduler offered (`hints`); else the node of an earlier reservation that expired or was
    rejected, to which committed volumes and claims may bind the member (K35); else the node of a lost member.
    """
    if root is None or not (root.previous_nodes or root.replacement_holds):
        return hints
    wishes = {**root.previous_nodes, **hints}
    for leaf, lost in lost_members(root).items():
        newcomers = [
            pod
            for pod in tree.members.get(GroupKey(tree.root.key.namespace, leaf, "PodGroup"), ())
            if is_candidate(pod) and pod.uid not in wishes and pod.uid not in root.reservations
        ]
        wishes |= nodes_of_replacements(lost, newcomers)
    return wishes


def _plan_group(
    tree: Tree,
    group: Group,
    held: Mapping[PodUid, Reservation],
    shapes: dict[PodShape, int],
    wishes: Mapping[PodUid, NodeName],
) -> PlanGroup:
    members: list[PlanMember] = []
    bound: list[PlanBound] = []
    exclusive = group.constraints.exclusive
    ranks = _ranks([pod for pod in tree.members.get(group.key, ()) if not pod.deleting])
    for pod in tree.members.get(group.key, ()):
        node, rank = pod.node if is_running(pod) else None, ranks.get(pod.uid, UNSET)
        if waits := is_candidate(pod):
            # with a reservation it keeps its node and its capacity, as a bound member
            node = held[pod.uid].node if pod.uid in held else None
        if node is not None:
            bound.append(PlanBound(pod=pod.path, uid=pod.uid, node=node, rank=rank))
        elif waits and not group.deleting:
            shape = shapes.setdefault(pod.shape, len(shapes))
            prefer = wishes.get(pod.uid, pod.nominated)
            members.append(
                PlanMember(pod=pod.path, uid=pod.uid, shape=shape, prefer=prefer, rank=rank)
            )
    return PlanGroup(
        key=group.key,
        basic=group.basic,
        minimum=group.minimum,
        lacking=lacking_texts(tree.members.get(group.key, ())) or UNSET,
        required=group.required or UNSET,
        topology=group.constraints.topology,
        # without what is taken, see `with_taken`
        exclusive=PlanExclusive(key=exclusive.key) if exclusive is not None else UNSET,
        preferred=group.constraints.preferred or UNSET,
        balanced=group.constraints.balanced or UNSET,
        near=_plan_near(tree, group),
        set_by=_set_by(tree, group),
        members=tuple(members),
        bound=tuple(bound),
        groups=tuple(
            _plan_group(tree, child, held, shapes, wishes)
            for child in tree.children.get(group.key, ())
        ),
        disruption_mode=group.disruption_mode,
    )


def _set_by(tree: Tree, group: Group) -> str | UnsetType:
    """Return the annotation for the minimum of a group that was made from a workload, and from no template of a user's Workload.

    A leaf that is the root is all of its workload. The name of a composite has its role between those parts that are the name
    of the root. Empty: it is over several roles, for which there is none, its role is not in the name, or its pods are plain ones.
    """
    if group.managed_by != MANAGED_BY or group.template not in (None, group.key.name):
        return UNSET
    if group.key.kind == "PodGroup":
        plain = group.owner_uid == plain_uid(group.key.namespace, group.key.name)
        is_all = group.key == tree.root.key and not plain
        return f"annotation {MIN_ANNOTATION}: " if is_all else ""
    first, _, last = tree.root.key.name.rpartition("-")
    name = group.key.name
    between = name.startswith(f"{first}-") and name.endswith(f"-{last}")
    role = name[len(first) + 1 : -len(last) - 1] if between else ""
    return f"annotation {MIN_ANNOTATION}: {role}=" if role else ""


def _plan_near(tree: Tree, group: Group) -> tuple[PlanNear, ...] | UnsetType:
    """Return the wishes to be near groups that the tree has."""
    pairs = [(tree.partner(group, near), near.key) for near in group.constraints.near]
    return tuple(PlanNear(group=g.key, key=key) for g, key in pairs if g is not None) or UNSET


def _ranks(pods: Sequence[Pod]) -> Mapping[PodUid, int]:
    """Return the positions of the pods of a leaf, from the labels of their controllers; empty unless each has its own."""
    if not pods[1:]:
        return {}  # one pod has no neighbour
    for labels in _RANK_LABELS:
        if labels[-1] in pods[0].labels and (ranks := _ranks_by(labels, pods)):
            # of a leaf with several Jobs a pod keeps its position among all of them, also where one is left
            several = pods[0].labels.get(LEAF_LABEL) == PER_REPLICATED_JOB
            if not several and len({rank // RANK_STEP for rank in ranks}) == 1:
                ranks = [rank % RANK_STEP for rank in ranks]
            return {pod.uid: rank for pod, rank in zip(pods, ranks, strict=True)}
    return {}


def _ranks_by(labels: Sequence[str], pods: Sequence[Pod]) -> list[int]:
    """Return the position of each pod by these labels; empty unless each has its own."""
    ranks = [0] * len(pods)
    for label in labels:
        texts = [pod.labels.get(label, "") for pod in pods]
        if not all(map(str.isdecimal, texts)) or max(map(len, texts)) > _INDEX_DIGITS:
            return []
        ranks = [rank * RANK_STEP + int(text) for rank, text in zip(ranks, texts, strict=True)]
    return ranks if len({*ranks}) == len(ranks) else []


def rank_problem(members: Iterable[Pod]) -> str:
    """Return why the labels with the positions of the pods of a leaf give no order; empty: they give one, or no pod has any."""
    pods = [pod for pod in members if not pod.deleting]
    if not pods[1:] or _ranks(pods):
        return ""
    labels: tuple[str, ...] = ()
    for row in _RANK_LABELS:
        if not labels and all([pod for pod in pods if label in pod.labels] for label in row):
            labels = row
    if not labels:
        return ""
    first: dict[tuple[int, ...], Pod] = {}
    for pod in pods:
        texts = [pod.labels.get(label) for label in labels]
        for label, text in zip(labels, texts, strict=True):
            if text is None:
                return f"Pod {pod.path} has no label {label}, which other pods of the group have"
            if not text.isdecimal() or len(text) > _INDEX_DIGITS:
                return f'label {label} of Pod {pod.path} is "{text}", which is no number of at most {_INDEX_DIGITS} digits'
        other = first.setdefault(tuple(int(text or 0) for text in texts), pod)
        if other is not pod:
            both = " and ".join(
                f"{label} {text}" for label, text in zip(labels, texts, strict=True)
            )
            return f"Pods {other.path} and {pod.path} have the same {both}"
    return ""


def _claims_in_use(
    view: ClusterView, state: ReservationState, requested: frozenset[str]
) -> tuple[str, ...]:
    if not requested:
        return ()
    used = {claim for usage in view.usage.values() for claim in usage.claims}
    for uid in state.gang_of:
        pod = view.pods.get(uid)
        if pod is not None and pod.node is None:
            used.update(pod.shape.exclusive_claims)
    return tuple(sorted(requested & used))


def members_without_reservation(tree: Tree, root: GangState | None) -> tuple[Pod, ...]:
    """Return the candidates of a tree that have no reservation yet."""
    return tuple(_without_reservation(tree, root.reservations if root is not None else NO_HOLDS))


def is_refused(root: GangState | None) -> bool:
    """Return whether the last decision about a root is that there is no capacity for it."""
    decision = root.last_decision if root is not None else None
    return decision is not None and decision.outcome in NO_CAPACITY


def refused_members(state: ReservationState, forest: Forest) -> Iterator[Pod]:
    """Yield the gated members of refused trees: further nodes could help them."""
    for tree in forest.populated.values():
        root = state.gangs.get(tree.root.uid)
        if root is None or not is_refused(root) or tree.problems or tree.root.deleting:
            continue
        yield from (pod for pod in members_without_reservation(tree, root) if GATE in pod.gates)


def lacking_texts(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return what pods lack that are no members for that reason: of the first one, and of how many more."""
    texts = [pod.waits_for for pod in pods if pod.waits_for and not pod.deleting]
    more = (f"the same for {counted(len(texts) - 1, 'more pod')}",) if texts[1:] else ()
    return (*texts[:1], *more)


def group_key_of(root: GangState) -> GroupKey:
    """Return the key of the root group of a stream."""
    namespace, _, name = root.gang.partition("/")
    kind = "CompositePodGroup" if root.kind == "CompositePodGroup" else "PodGroup"
    return GroupKey(namespace, name, kind)  # type: ignore[arg-type]
