"""Random small clusters with claims on capacity, and what is true of a tree there by the table of docs/explanation/capacity-claims.md.

`ClaimedCluster` knows a cluster in numbers and computes by trying everything; it imports nothing of the planner and nothing of
`core/capacity`. `planned_input` returns the same cluster as the service has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import msgspec
from hypothesis import strategies as st
from immutables import Map

from extender.core.log.capacity_claim import CapacityClaim, ClaimKind
from extender.core.log.events import MoveRecord
from extender.core.log.moves_state import PendingMoves
from extender.core.log.reservation_state import (
    EMPTY,
    BoundMember,
    CapacityHold,
    GangState,
    PendingPreemption,
    ReservationState,
    Victim,
    claims_by_node,
    claims_of,
)
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from tests.support.service.fakes import check_state
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod, a_world

ZONE = "topology.kubernetes.io/zone"
TREE = "mine"
PRIORITY = 5
KINDS: tuple[ClaimKind, ...] = ("reservation", "preemption", "replacement", "hold", "move")


class RunningPod(msgspec.Struct, frozen=True):
    """A pod outside of all groups, or a member of the gang of a claim or of the tree."""

    name: str
    node: str
    size: int
    priority: int
    terminating: bool = False
    gang: str = ""


class Claim(msgspec.Struct, frozen=True):
    """Capacity that is kept for one pod of a gang."""

    kind: ClaimKind
    gang: str
    priority: int
    node: str
    size: int
    pod: str  # for which it is kept; of a replacement or a move: the member that is replaced
    awaited: tuple[str, ...] = ()  # of a preemption: pods that it waits for
    due: bool = False  # of a move: its member has left


class ClaimedCluster(msgspec.Struct, frozen=True):
    """A cluster in numbers: GPUs of nodes, of pods and of claims; and a gang that has no place yet."""

    nodes: dict[str, int]
    zones: dict[str, str]
    pods: tuple[RunningPod, ...]
    claims: tuple[Claim, ...]
    sizes: tuple[int, ...]  # of its pending pods
    minimum: int
    one_zone: bool = False
    may_preempt: bool = True

    # --- by the table of the document

    def kept(self, node: str, gone: Collection[str] = (), *, later: bool = False) -> int:
        """Return what the tree must leave free on a node beside the pods there.

        Args:
            gone: Pods that count as gone, and units whose claims are taken over.
            later: Whether pods that preemptors wait for count as gone for these alone: their claims are kept whole.
        """
        amounts = dict.fromkeys(KINDS, 0)
        preemptors: list[Claim] = []
        present = {pod.name: pod for pod in self.pods if pod.name not in gone}
        for claim in self.claims:
            if claim.node != node or unit_of(claim) in gone:
                continue
            own, equal = claim.gang == TREE, claim.priority >= PRIORITY
            match claim.kind:
                case "reservation" if not own:
                    amounts["reservation"] += claim.size
                case "replacement" if not own and equal and claim.pod not in present:
                    amounts["replacement"] += claim.size
                case "hold" if not own and equal:
                    amounts["hold"] += claim.size
                case "move" if equal and not (own and claim.due):
                    amounts["move"] += claim.size
                case "preemption" if not own:
                    preemptors.append(claim)
                    amounts["preemption"] += claim.size
        own_lost = sum(
            c.size for c in self.claims if (c.kind, c.gang, c.node) == ("replacement", TREE, node)
        )
        amounts["hold"] = max(amounts["hold"] - own_lost, 0)
        if not later:
            amounts["preemption"] -= _already_used(preemptors, present)
        return sum(amounts.values())

    def free(self, node: str, gone: Collection[str] = (), *, later: bool = False) -> int:
        """Return what the tree can use on a node."""
        used = sum(p.size for p in self.pods if p.node == node and p.name not in gone)
        return self.nodes[node] - used - self.kept(node, gone, later=later)

    def going(self) -> frozenset[str]:
        """Return the terminating pods whose capacity the tree may get."""
        held = {
            c.pod
            for c in self.claims
            if c.kind == "replacement" and c.gang != TREE and c.priority >= PRIORITY
        }
        return frozenset(p.name for p in self.pods if p.terminating and p.name not in held)

    def units(self) -> tuple[str, ...]:
        """Return what may be evicted or taken over: pods of lower priority, and capacity of pods that do not run yet."""
        if not self.may_preempt:
            return ()
        pods = [
            p.name
            for p in self.pods
            if not p.terminating and p.priority < PRIORITY and p.gang != TREE
        ]
        kinds = ("reservation", "preemption")
        taken = {
            unit_of(c)
            for c in self.claims
            if c.kind in kinds and c.priority < PRIORITY and c.gang != TREE
        }
        return (*pods, *sorted(taken))

    # --- by trying everything

    def places(self, free: dict[str, int]) -> int:
        """Return the most pods of the tree that are placed at once."""
        bound = [p for p in self.pods if p.gang == TREE and not p.terminating]
        zones = {self.zones[n] for n in free}
        if not self.one_zone:
            return _most(sorted(self.sizes), sorted(free.values()))
        if bound:
            zones &= (
                {self.zones[p.node] for p in bound}
                if len({self.zones[p.node] for p in bound}) == 1
                else set()
            )
        sets = (sorted(f for n, f in free.items() if self.zones[n] == zone) for zone in zones)
        return max((_most(sorted(self.sizes), some) for some in sets), default=0)

    def needs(self) -> int:
        """Return how many pods must be placed."""
        return self.minimum - sum(p.gang == TREE and not p.terminating for p in self.pods)

    def fits(self, gone: Collection[str] | None = None) -> bool:
        """Return whether it has a place now; `gone`: when these and the terminating pods are gone."""
        if gone is None:
            return self.places({n: self.free(n) for n in self.nodes}) >= self.needs()
        away = {*gone, *self.going()}
        return self.places({n: self.free(n, away, later=True) for n in self.nodes}) >= self.needs()

    def sets(self) -> Iterator[tuple[str, ...]]:
        """Yield every set of units, the smallest first."""
        units = self.units()
        for number in range(len(units) + 1):
            yield from itertools.combinations(units, number)

    def verdict(self) -> str:
        """Return placed, waiting, preempts or impossible."""
        if self.fits():
            return "placed"
        for units in self.sets():
            if self.fits(units):
                return "preempts" if units else "waiting"
        return "impossible"


def unit_of(claim: Claim) -> str:
    """Return the unit whose eviction takes a claim."""
    return f"PodGroup/default/{claim.gang}" if claim.kind in ("reservation", "preemption") else ""


def _already_used(claims: list[Claim], present: dict[str, RunningPod]) -> int:
    """Return how much of some claims is what pods still use that they wait for, where each pod counts for one claim.

    By the theorem of the minimum cut, over every set of claims.
    """
    cuts = []
    for number in range(len(claims) + 1):
        for inside in itertools.combinations(claims, number):
            awaited = {name for claim in inside for name in claim.awaited if name in present}
            outside = sum(claim.size for claim in claims if claim not in inside)
            cuts.append(outside + sum(present[name].size for name in awaited))
    return min(cuts)


def _most(sizes: list[int], free: list[int]) -> int:
    """Return how many pods fit on nodes, by trying every node for each."""
    if not sizes:
        return 0
    best = _most(sizes[1:], free)
    for place, amount in enumerate(free):
        if amount >= sizes[0] and amount not in free[:place]:
            left = [*free[:place], amount - sizes[0], *free[place + 1 :]]
            best = max(best, 1 + _most(sizes[1:], left))
    return best


# --- random clusters


@st.composite
def claimed_clusters(draw) -> ClaimedCluster:
    """Make a cluster of three to six nodes with a few pods and claims, in which the tree has little place."""
    count = draw(st.integers(3, 6))
    names = [f"n{i}" for i in range(count)]
    nodes = {n: draw(st.integers(1, 4)) for n in names}
    zones = {n: draw(st.sampled_from("ab")) for n in names}
    left = dict(nodes)
    pods: list[RunningPod] = []

    def run(
        name: str, priority: int, *, gang: str = "", terminating: bool | None = None
    ) -> RunningPod | None:
        size, node = draw(st.integers(1, 2)), draw(st.sampled_from(names))
        if left[node] < size:
            return None
        left[node] -= size
        leaves = draw(st.integers(0, 3)) == 0 if terminating is None else terminating
        pods.append(RunningPod(name, node, size, priority, leaves, gang))
        return pods[-1]

    for i in range(draw(st.integers(2, 8))):
        run(f"pod-{i}", draw(st.sampled_from([0, 3, 5, 9])))
    claims: list[Claim] = []
    is_moving = False
    for i in range(draw(st.integers(1, 3))):
        kind, priority = draw(st.sampled_from(KINDS)), draw(st.sampled_from([3, 5, 7]))
        own = kind in ("replacement", "hold", "move") and draw(st.integers(0, 3)) == 0
        gang = TREE if own else f"other-{i}"
        priority = PRIORITY if own else priority
        if any(c.gang == gang for c in claims) or (kind == "move" and is_moving):
            continue
        awaited: list[RunningPod] = []
        if kind == "preemption":
            awaited = [
                p
                for p in pods
                if not p.gang and (p.terminating or p.priority < min(priority, PRIORITY))
            ]
            awaited = [p for p in awaited if draw(st.booleans())]
        for j in range(draw(st.integers(1, 2)) if kind != "move" else 1):
            node, size, pod = draw(st.sampled_from(names)), draw(st.integers(1, 2)), f"{gang}-{j}"
            due = False
            if kind == "replacement" and draw(st.booleans()):
                lost = run(pod, priority, gang=gang, terminating=True)
                if lost is not None:
                    node, size = lost.node, lost.size
            if kind == "move":
                member = (
                    None
                    if draw(st.booleans())
                    else run(pod, priority, gang=gang, terminating=False)
                )
                due = member is None
                if member is not None:
                    size = member.size
                    if member.node == node:
                        continue
            free = left[node] + sum(p.size for p in awaited if p.node == node)
            is_lost_here = any(p.name == pod and p.node == node for p in pods)
            if free < size and not is_lost_here and kind != "hold":
                continue
            if kind == "hold" and nodes[node] < size:
                continue
            if not is_lost_here and kind != "hold" and not awaited:
                left[node] -= size
            claims.append(
                Claim(
                    kind,
                    gang,
                    priority,
                    node,
                    size,
                    pod,
                    tuple(p.name for p in awaited if p.node == node),
                    due,
                )
            )
            is_moving |= kind == "move"
        if gang == TREE and kind != "hold" and not any(p.name == f"{TREE}-runs" for p in pods):
            run(f"{TREE}-runs", PRIORITY, gang=TREE, terminating=False)
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    bound = sum(p.gang == TREE and not p.terminating for p in pods)
    minimum = max(draw(st.integers(1, len(sizes))), draw(st.integers(1, len(sizes)))) + bound
    return ClaimedCluster(
        nodes=nodes, zones=zones, pods=tuple(pods), claims=tuple(claims), sizes=sizes, minimum=minimum,
        one_zone=draw(st.integers(0, 3)) == 0, may_preempt=draw(st.integers(0, 3)) > 0,
    )  # fmt: skip


# --- the same as the service has it


def planned_input(cluster: ClaimedCluster) -> tuple[ClusterView, ReservationState]:
    """Return the view and the state of a cluster."""
    gangs = {claim.gang: claim.priority for claim in cluster.claims} | {TREE: PRIORITY}
    objects = [
        a_node(n, {ZONE: cluster.zones[n]}, **{GPU: size}) for n, size in cluster.nodes.items()
    ]
    for gang, priority in gangs.items():
        policy = {} if cluster.may_preempt or gang != TREE else {"preemptionPolicy": "Never"}
        minimum = cluster.minimum if gang == TREE else 1
        zone = ZONE if gang == TREE and cluster.one_zone else ""
        objects.append(
            a_group(
                gang, gang=minimum, priority=priority, topo=zone, metadata={"uid": gang}, **policy
            )
        )
    for pod in cluster.pods:
        metadata = {"uid": pod.name}
        if pod.terminating:
            metadata |= {
                "deletionTimestamp": "2026-01-02T00:00:00Z",
                "deletionGracePeriodSeconds": 30,
            }
        objects.append(
            a_pod(
                pod.name,
                pod.gang,
                node=pod.node,
                requests={GPU: pod.size},
                priority=pod.priority,
                metadata=metadata,
            )
        )
    pending = [(f"{TREE}-new-{i}", TREE, size) for i, size in enumerate(cluster.sizes)]
    pending += [
        (c.pod, c.gang, c.size)
        for c in cluster.claims
        if c.kind in ("reservation", "preemption", "hold") and c.gang != TREE
    ]
    for name, gang, size in {entry[0]: entry for entry in pending}.values():
        objects.append(
            a_pod(name, gang, requests={GPU: size}, priority=gangs[gang], metadata={"uid": name})
        )
    view = a_world(*objects).view
    claims = [
        CapacityClaim(
            kind=c.kind, plan=PlanId(f"plan-{c.gang}"), gang_uid=GangUid(c.gang), pod=f"default/{c.pod}", uid=PodUid(c.pod), group=c.gang,
            node=NodeName(c.node), requests={GPU: c.size}, priority=c.priority, at_us=0, until_us=10**18,
        )
        for c in cluster.claims
    ]  # fmt: skip

    def of(gang: str, kind: ClaimKind) -> list[CapacityClaim]:
        return [c for c in claims if c.kind == kind and c.gang_uid == gang]

    running = [p for p in cluster.pods if p.gang and not p.terminating]
    states = {}
    for gang, priority in gangs.items():
        bound = {
            PodUid(p.name): BoundMember(plan=PlanId("p"), pod=f"default/{p.name}", uid=PodUid(p.name), group=gang, node=NodeName(p.node), requests={GPU: p.size})
            for p in running if p.gang == gang
        }  # fmt: skip
        states[GangUid(gang)] = GangState(
            uid=GangUid(gang), gang=f"default/{gang}", kind="PodGroup", priority=priority, phase="scheduled" if bound else "observed",
            reservations=Map({c.uid: c for c in of(gang, "reservation")}), bound=Map(bound),
            replacement_holds=Map({c.uid: c for c in of(gang, "replacement")}),
        )  # fmt: skip
    preemptions = {
        GangUid(g): _preemption(cluster, g, of(g, "preemption"))
        for g in gangs
        if of(g, "preemption")
    }
    holds = {
        GangUid(g): CapacityHold(
            hold=PlanId("h"), gang_uid=GangUid(g), gang=f"default/{g}", kind="PodGroup", priority=gangs[g], position=Position(1), at_us=0,
            until_us=10**18, waiting_since_us=0, groups=(), pods=tuple(of(g, "hold")),
        )
        for g in gangs if of(g, "hold")
    }  # fmt: skip
    moves = next((_moves(cluster, c) for c in cluster.claims if c.kind == "move"), None)
    members = {p: uid for uid, gang in states.items() for p in (*gang.bound, *gang.reservations)}
    state = msgspec.structs.replace(
        EMPTY, gangs=Map(states), preemptions=Map(preemptions), capacity_holds=Map(holds), moves=moves, gang_of=Map(members),
        claims_on=claims_by_node(claims_of(states.values(), preemptions.values(), holds.values(), moves)),
    )  # fmt: skip
    check_state(state)
    return view, state


def _preemption(
    cluster: ClaimedCluster, gang: str, claims: list[CapacityClaim]
) -> PendingPreemption:
    of_gang = [c for c in cluster.claims if c.gang == gang]
    awaited = {name for c in of_gang for name in c.awaited}
    pods = [p for p in cluster.pods if p.name in awaited]
    victims = {
        PodUid(p.name): Victim(unit=f"Pod/default/{p.name}", pod=f"default/{p.name}", uid=PodUid(p.name), group="", node=NodeName(p.node))
        for p in pods if not p.terminating
    }  # fmt: skip
    on_node: dict[NodeName, list[CapacityClaim]] = {}
    for claim in claims:
        on_node.setdefault(claim.node, []).append(claim)
    return PendingPreemption(
        id=PlanId("x"), gang_uid=GangUid(gang), gang=f"default/{gang}", kind="PodGroup", priority=of_gang[0].priority,
        position=Position(1), epoch=Epoch(1), at_us=0, progress_us=0, units=tuple(v.unit for v in victims.values()),
        priorities=tuple(p.priority for p in pods if not p.terminating), victims=Map(victims),
        claims=Map({n: tuple(c) for n, c in on_node.items()}), already_terminating=frozenset(PodUid(p.name) for p in pods if p.terminating),
    )  # fmt: skip


def _moves(cluster: ClaimedCluster, claim: Claim) -> PendingMoves:
    source = next((p.node for p in cluster.pods if p.name == claim.pod), "away")
    record = MoveRecord(
        pod=f"default/{claim.pod}", uid=PodUid(claim.pod), group=claim.gang, gang=f"default/{claim.gang}", gang_uid=GangUid(claim.gang),
        source=NodeName(source), target=NodeName(claim.node), requests={GPU: claim.size}, priority=claim.priority,
    )  # fmt: skip
    return PendingMoves(
        id=PlanId("m"), question="q", by="", position=Position(1), at_us=0, moves=(record,), progress_us=0, lost_us=1 if claim.due else 0,
    )  # fmt: skip
