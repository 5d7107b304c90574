"""The past of a cluster from its log: nodes, and gangs with their arrivals and run times, to be simulated again.

What the log has: when a gang was observed, its groups and pods in the input of its first admission or of a refusal before it,
the workload it was made from, when it ran, whether it ended by itself, and the nodes of each decision. What it does not have is a draw: how long a gang would run whose run was not
seen to its end. What it has nothing about is not simulated, and is counted in `Past.notes`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec
from immutables import Map
from msgspec import UNSET

from extender.cluster.manifests.manifest_entries import AnyEntry, Role, entries_in
from extender.cluster.manifests.yaml_reader import Document
from extender.core.log import events as ev
from extender.core.log.gang_phase import satisfied
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import BadInput
from extender.core.model.ids import GangUid, NodeName, PodUid, Position
from extender.core.model.message_formatting import counted
from extender.core.model.nodes import Node, SliceLevel
from extender.core.model.pods import PodShape
from extender.core.model.quantities import written_amounts
from extender.core.planner.codec.request_codec import Decoder
from extender.core.planner.plan_types import (
    DecisionInput,
    PlanGroup,
    PlanRequest,
    is_sliced,
    minimum_pods,
)
from extender.core.trees.tree_events import decode_request, replay_tree
from extender.core.workloads.tree_compiler import CompileRequest, GroupSpec
from extender.core.workloads.tree_policy import TreeProfile
from extender.ports.log_ports import DecisionInputs
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.plan.cluster_changes import further_nodes, without_nodes
from extender.simulation.controllers import GivenTree, Job

READ: Final = (
    ev.GangObserved, ev.GangAdmitted, ev.GangExtended, ev.GangUnschedulable, ev.PodBound, ev.GangScheduled, ev.GangGroupsChanged,
    ev.MemberTerminated, ev.GangRemoved, ev.TreeCompiled,
)  # fmt: skip
AT_ONCE: Final = 1_000  # events of a page
INPUTS_AT_ONCE: Final = 50
US: Final = 1_000_000
ENDS: Final = ("ended", "deleted")  # causes of a termination that the gang or its owner asked for
EXCLUSIVE, NEAR = "exclusive domains", "nearness of groups"  # which a compiled tree has


class PastGang(msgspec.Struct):
    """A gang of the log. Times in microseconds since the epoch; None: the log has none."""

    namespace: str
    name: str
    observed_us: int
    priority: int = 0
    # of the inputs that have its groups and pods, the best one last: of refusals, and of its first admission
    digests: list[str] = []
    is_admitted: bool = False
    began_us: int | None = None  # of its last run
    ended_us: int | None = None  # of this run, by itself or by its owner
    removed_us: int | None = None
    groups: tuple[ev.GroupRecord, ...] = ()  # as recorded last
    # members that the log has bound, and not terminated -> their leaf; empty: the root
    bound: dict[PodUid, str] = {}
    # digest of the input that has the workload whose group it is; empty: of none
    compiled: str = ""
    tree: GivenTree | None = None
    changed: GivenTree | None = None  # as another profile makes it; None: none does
    left_out: frozenset[str] = frozenset()  # what is not simulated of it

    def take(self, event: ev.RecordedEvent) -> None:
        """Take over an event of the gang."""
        data, at_us = event.data, event.at_us
        if isinstance(data, ev.PodBound):
            self.bound[data.uid] = data.group
        elif isinstance(data, ev.MemberTerminated):
            self.bound.pop(data.uid, None)
        elif isinstance(data, ev.GangAdmitted | ev.GangExtended | ev.GangGroupsChanged):
            self.groups = data.groups
        if isinstance(data, ev.GangAdmitted | ev.GangUnschedulable):
            if data.input_digest and not self.is_admitted:
                self.digests.append(data.input_digest)
                self.is_admitted = isinstance(data, ev.GangAdmitted)
        elif isinstance(data, ev.GangScheduled) or (
            isinstance(data, ev.PodBound) and self.is_admitted and self.began_us is None
        ):
            self.began_us, self.ended_us = at_us, None
        elif isinstance(data, ev.MemberTerminated) and self.began_us is not None:
            # with the last of its members; the others of a gang that gets smaller run on
            if data.cause in ENDS:
                self.ended_us = None if self.bound else at_us
            elif not self._has_minimum():
                self.began_us = None  # its run is lost
        elif isinstance(data, ev.GangRemoved):
            self.removed_us = at_us
            if self.began_us is not None and self.ended_us is None:
                self.ended_us = at_us

    def _has_minimum(self) -> bool:
        counts = Counter(leaf or self.groups[0].name for leaf in self.bound.values() if self.groups)
        return satisfied(self.groups, counts)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A span of the past.

    Attributes:
        nodes: Of the first decision in the span whose input is stored.
        gangs: That were not gone before the span, in the order of their arrival.
        since_us: Beginning, in microseconds since the epoch.
        until_us: End.
        notes: What the log does not have, one sentence each.
    """

    nodes: tuple[Node, ...]
    gangs: tuple[PastGang, ...]
    since_us: int
    until_us: int
    notes: tuple[str, ...]

    def jobs(self, seed: int, *, changed: bool = False) -> tuple[Job, ...]:
        """Return new jobs: what ran at the beginning arrives then, with the rest of its run.

        Args:
            changed: With the trees that other profiles make.
            seed: Of the run times that the log does not have. Each is drawn from those of gangs that ended after having run
                for at least as long; without any, the gang runs to the end.
        """
        known_s = sorted(
            (gang.ended_us - gang.began_us) / US
            for gang in self.gangs
            if gang.ended_us is not None and gang.began_us is not None
        )
        numbers: Counter[tuple[str, str]] = Counter()
        jobs = []
        for gang in self.gangs:
            chance = Random(f"{seed} {gang.namespace}/{gang.name} {gang.observed_us}")  # noqa: S311 -- durations
            number = numbers[gang.namespace, gang.name]
            numbers[gang.namespace, gang.name] += 1
            tree = gang.changed if changed and gang.changed is not None else gang.tree
            assert tree is not None, f"{gang.name} was left out"
            ran_s = max(0.0, (self.since_us - gang.began_us) / US) if gang.began_us else 0.0
            jobs.append(
                Job(
                    namespace=gang.namespace,
                    name=gang.name,
                    at_s=max(0.0, (gang.observed_us - self.since_us) / US),
                    runs_for_s=max(1.0, self._run_s(gang, known_s, chance) - ran_s),
                    tree=_renamed(tree, f"-again-{number}") if number else tree,
                )
            )
        return tuple(jobs)

    def _run_s(self, gang: PastGang, known_s: Sequence[float], chance: Random) -> float:
        if gang.began_us is not None and gang.ended_us is not None:
            return (gang.ended_us - gang.began_us) / US
        least_s = (self.until_us - gang.began_us) / US if gang.began_us is not None else 0.0
        longer = known_s[bisect_left(known_s, least_s) :]
        return chance.choice(longer) if longer else math.inf

    def cluster(self, without: Sequence[str] = (), further: Sequence[str] = ()) -> tuple[AnyEntry, ...]:  # fmt: skip
        """Return the nodes as entries, changed.

        Args:
            without: Names of nodes, or KEY=VALUE of a label.
            further: NxNODE: so many empty nodes like one.

        Raises:
            BadInput: There is no such node, or none is left.
        """
        view = ClusterView(nodes=Map({node.name: node for node in self.nodes}))
        more, _ = further_nodes(view, further)
        kept = without_nodes(view, ReservationState(), without, planned=lambda _: False).view
        nodes = [*kept.nodes.values(), *more]
        if not nodes:
            raise BadInput(f"without {', '.join(without)}: no node is left")
        documents = [
            Document(where=f"log: Node/{node.name}", value=_manifest(node))
            for node in sorted(nodes, key=lambda node: node.name)
        ]
        return entries_in(documents, Role.CLUSTER)


async def read_past(
    reader: EventQueries,
    inputs: DecisionInputs,
    since_us: int,
    until_us: int,
    profiles: Mapping[str, TreeProfile] | None = None,
) -> Past:
    """Return a span of the past.

    Args:
        since_us: Beginning, in microseconds since the epoch.
        until_us: End.
        profiles: That make other trees of the workloads that name them.

    Raises:
        BadInput: There is no gang in it, or no input of a decision; or no tree of it is made with one of the profiles.
        StoreUnavailable: The database does not answer.
    """
    gangs: dict[GangUid, PastGang] = {}
    compiled: dict[
        tuple[str, str], str
    ] = {}  # namespace and name of a root -> digest of its last input
    decided: dict[str, None] = {}  # digests of the inputs of decisions in the span, in their order
    selected = EventFilter(types=tuple(kind.__name__ for kind in READ), until_us=until_us, limit=AT_ONCE)  # fmt: skip
    more = True
    while more:
        page = await reader.page(selected)
        for event in page.events:
            if isinstance(event.data, ev.TreeCompiled):
                of_workload = event.data.workload.partition("/")[0]
                roots = (spec.name for spec in event.data.groups if not spec.parent)
                compiled |= dict.fromkeys(((of_workload, name) for name in roots), event.data.input_digest)  # fmt: skip
                continue
            gang = gangs.get(event.gang_uid)
            if gang is None:
                namespace, _, name = event.gang.partition("/")
                gang = gangs[event.gang_uid] = PastGang(namespace, name, event.at_us)
            if not gang.is_admitted:
                gang.compiled = compiled.get((gang.namespace, gang.name), "")
            if isinstance(event.data, ev.GangObserved | ev.GangAdmitted):
                gang.priority = event.data.priority
            gang.take(event)
            digest = getattr(event.data, "input_digest", "")
            if event.at_us >= since_us and digest:
                decided.setdefault(digest)
        more = page.more and bool(page.events)
        after = page.events[-1].position if page.events else Position(0)
        selected = msgspec.structs.replace(selected, after=after)
    inside = [
        gang
        for gang in gangs.values()
        if min(gang.ended_us or until_us, gang.removed_us or until_us) > since_us
    ]
    await _make_trees(inside, inputs)
    nodes = await _first_nodes(inputs, list(decided))
    if not nodes:
        problem = "no decision with a stored input" if inside else "no gang"
        raise BadInput(f"--since: the log has {problem} from this time on; give an earlier one")
    kept = sorted((g for g in inside if g.tree is not None), key=lambda g: (g.observed_us, g.name))
    changes = [note async for note in _change(kept, inputs, profiles)] if profiles else []
    return Past(
        nodes=nodes,
        gangs=tuple(kept),
        since_us=since_us,
        until_us=until_us,
        notes=(*changes, *_notes(kept, len(inside) - len(kept), since_us)),
    )


async def _make_trees(gangs: Sequence[PastGang], inputs: DecisionInputs) -> None:
    """Make the tree of each gang from the best of its inputs that is stored."""
    while gangs := [gang for gang in gangs if gang.tree is None and gang.digests]:
        decoder = Decoder()
        of_digest: dict[str, list[PastGang]] = {}
        for gang in gangs:
            of_digest.setdefault(gang.digests.pop(), []).append(gang)
        async for digest, stored in _stored(inputs, sorted(of_digest)):
            request = decoder.decode(stored.head, stored.parts)
            for gang in of_digest[digest]:
                gang.tree = _tree(request, gang.priority)
                gang.left_out = _not_simulated(request)


async def _change(
    gangs: Sequence[PastGang], inputs: DecisionInputs, profiles: Mapping[str, TreeProfile]
) -> AsyncIterator[str]:
    """Make the trees of gangs again, as their profile was and as it is in `profiles`; yield what became of them.

    Raises:
        BadInput: No gang is of a workload with such a profile.
    """
    named: Counter[str] = (
        Counter()
    )  # gangs by profile; of none: those without a stored input of a workload
    kept = 0
    compiled = {gang.compiled for gang in gangs} - {""}
    loaded = {d: decode_request(stored.head) async for d, stored in _stored(inputs, compiled)}
    for gang in gangs:
        request = loaded.get(gang.compiled)
        named[request.profile_name if request is not None else ""] += 1
        if request is None or request.profile_name not in profiles:
            continue
        profile = profiles[request.profile_name]
        assert gang.tree is not None, f"{gang.name} was left out"
        before = _compiled(gang.tree, request)
        after = _compiled(gang.tree, msgspec.structs.replace(request, profile=profile))
        if before is None or after is None:
            kept += 1
            continue
        gang.tree, gang.changed = before, after
        gang.left_out -= {EXCLUSIVE, NEAR}
    changed = sum(gang.changed is not None for gang in gangs)
    if not changed and not kept:
        names = ", ".join(sorted(named.keys() - {""})) or "none"
        raise BadInput(
            f"--profile: no gang of the log is of a workload with the TreeProfile {' or '.join(sorted(profiles))}; "
            f"the log has workloads with {names}"
        )
    differ = sum(gang.changed not in (None, gang.tree) for gang in gangs)
    yield f"{counted(changed, 'gang')} of {len(gangs)} made with --profile, {differ} of them as another tree"
    if kept:
        yield f"{counted(kept, 'gang')} with such a profile unchanged: the pods would be in other groups"
    if named[""]:
        yield f"{counted(named[''], 'gang')} unchanged: the log has no input of a workload for them"


def _compiled(tree: GivenTree, request: CompileRequest) -> GivenTree | None:
    """Return a tree with the groups that its workload gets; None: it gets none, or other leaves."""
    result = replay_tree(msgspec.structs.replace(request, existing=()), "")
    if not isinstance(result, ev.TreeCompiled):
        return None
    parents = {(spec.kind, spec.name): spec.parent for spec in result.groups}

    def root_of(spec: GroupSpec) -> str:
        name, parent = spec.name, spec.parent
        while parent:
            name, parent = parent, parents["CompositePodGroup", parent]
        return name

    leaves = {spec.name for spec in tree.groups if spec.kind == "PodGroup"}
    roots = {root_of(spec) for spec in result.groups if spec.name in leaves}
    groups = tuple(spec for spec in result.groups if root_of(spec) in roots)
    if {spec.name for spec in groups if spec.kind == "PodGroup"} != leaves:
        return None
    return msgspec.structs.replace(tree, groups=groups)


async def _first_nodes(inputs: DecisionInputs, digests: Sequence[str]) -> tuple[Node, ...]:
    """Return the nodes of the first of some inputs that is stored; none: none is."""
    async for _, stored in _stored(inputs, digests):
        return tuple(
            Node(
                name=node.name,
                labels=node.labels,
                taints=node.taints,
                unschedulable=node.unschedulable,
                allocatable=node.allocatable,
            )
            for node in Decoder().decode(stored.head, stored.parts).nodes
        )
    return ()


async def _stored(
    inputs: DecisionInputs, digests: Iterable[str]
) -> AsyncIterator[tuple[str, DecisionInput]]:
    """Yield the inputs that are stored, in the order of their digests."""
    ordered = list(digests)
    for first in range(0, len(ordered), INPUTS_AT_ONCE):
        some = ordered[first : first + INPUTS_AT_ONCE]
        loaded = await inputs.load_many(some)
        for digest in some:
            if digest in loaded:
                yield digest, loaded[digest]


def _notes(gangs: Sequence[PastGang], without_input: int, since_us: int) -> Iterator[str]:
    """Yield what the log does not have."""
    draws = sum(gang.began_us is None or gang.ended_us is None for gang in gangs)
    before = sum(gang.observed_us < since_us for gang in gangs)
    if draws:
        yield f"run times of {counted(draws, 'gang')} of {len(gangs)} are draws: they did not end by themselves in the log"
    if before:
        yield f"{counted(before, 'gang')} from before the beginning arrive at the beginning"
    if without_input:
        yield f"{counted(without_input, 'gang')} left out: no input of a decision about them is stored"
    left_out = Counter(reason for gang in gangs for reason in gang.left_out)
    for reason, count in sorted(left_out.items()):
        yield f"{counted(count, 'gang')} simulated without {reason}"
    yield "pods outside of gangs and failures of nodes are not simulated: the log does not have them"


def _walk(group: PlanGroup, parent: str = "") -> Iterator[tuple[PlanGroup, str]]:
    """Yield each group that has an object, and the name of its parent: a slice has none."""
    yield group, parent
    for child in group.groups if not is_sliced(group) else ():
        yield from _walk(child, group.key.name)


def _parts(group: PlanGroup) -> Iterator[PlanGroup]:
    """Yield the leaves of a PodGroup: itself, or the innermost of its slices."""
    if not group.groups:
        yield group
    for part in group.groups:
        yield from _parts(part)


def _pods(group: PlanGroup) -> int:
    return sum(len(part.members) + len(part.bound) for part in _parts(group))


def _levels(group: PlanGroup) -> tuple[SliceLevel, ...]:
    """Return the levels of the slices of a PodGroup; a size is that of the largest slice, up to a multiple of the next one."""
    levels: list[SliceLevel] = []
    parts = group.groups
    while parts:
        (key, *_) = parts[0].topology
        levels.append(SliceLevel(key, max(_pods(part) for part in parts)))
        parts = tuple(part for outer in parts for part in outer.groups)
    for at in range(len(levels) - 2, -1, -1):
        inner = levels[at + 1].size
        levels[at] = msgspec.structs.replace(
            levels[at], size=math.ceil(levels[at].size / inner) * inner
        )
    return tuple(levels)


def _tree(request: PlanRequest, priority: int) -> GivenTree:
    specs, members = [], []
    for group, parent in _walk(request.root):
        sliced = is_sliced(group)
        is_leaf = sliced or not group.groups
        specs.append(
            GroupSpec(
                kind="PodGroup" if is_leaf else "CompositePodGroup",
                name=group.key.name,
                parent=parent,
                basic=group.basic,
                minimum=minimum_pods(group) if sliced else group.minimum,
                required=() if is_leaf or group.required is UNSET else group.required,
                slices=_levels(group) if sliced else (),
                topology=group.topology[0] if group.topology else "",
                preferred=() if group.preferred is UNSET else group.preferred,
                balanced=group.balanced is not UNSET and group.balanced,
                disruption_mode=group.disruption_mode,
            )
        )
        for part in _parts(group) if is_leaf else ():
            members += [(group.key.name, _plain(request.shapes[m.shape])) for m in part.members]
            if part.bound and request.shapes:  # their shapes are not in the input
                members += [(group.key.name, _plain(request.shapes[0]))] * len(part.bound)
    return GivenTree(groups=tuple(specs), members=tuple(members), priority=priority)


def _plain(shape: PodShape) -> PodShape:
    """Return what is simulated of a shape."""
    selectors = tuple(selector for selector in shape.selectors if not selector.volume)[:1]
    return PodShape(shape.requests, shape.node_selector, selectors, shape.tolerations)


def _not_simulated(request: PlanRequest) -> frozenset[str]:
    groups, shapes = [group for group, _ in _walk(request.root)], request.shapes
    reasons = {
        EXCLUSIVE: any(group.exclusive is not UNSET for group in groups),
        NEAR: any(group.near is not UNSET for group in groups),
        "the shapes of pods that were bound at that decision": any(
            part.bound for group in groups for part in _parts(group)
        ),
        "volumes, claims, host ports and rules about other pods": any(
            shape.rules
            or shape.unmodelled
            or shape.host_ports
            or shape.exclusive_claims
            or any(selector.volume for selector in shape.selectors)
            for shape in shapes
        ),
    }
    return frozenset(reason for reason, is_so in reasons.items() if is_so)


def _renamed(tree: GivenTree, suffix: str) -> GivenTree:
    """Return a tree whose groups have other names: an earlier one of the same name may still be there."""
    groups = [
        msgspec.structs.replace(
            spec,
            name=spec.name + suffix,
            parent=spec.parent + suffix if spec.parent else "",
            required=tuple(name + suffix for name in spec.required),
        )
        for spec in tree.groups
    ]
    members = tuple((leaf + suffix, shape) for leaf, shape in tree.members)
    return msgspec.structs.replace(tree, groups=tuple(groups), members=members)


def _manifest(node: Node) -> dict[str, Any]:
    taints = [
        {name: text for name, text in msgspec.structs.asdict(taint).items() if text}
        for taint in node.taints
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NodeName(node.name), "labels": node.labels},
        "spec": {"taints": taints, "unschedulable": node.unschedulable},
        "status": {"allocatable": written_amounts(node.allocatable)},
    }
