"""Why a tree cannot be placed: a small set of requirements that conflict, and the cheapest changes with which the tree fits.

Every statement is checked by a solve: a requirement is in the conflict only if dropping it (and those
dropped before) could make the rest satisfiable, and a change is listed only after a solve found a
placement with it. Where bound members are in no common domain, the conflict is the constraint that they contradict.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import counted, domain_text, join_names
from extender.core.model.pods import PodRule, PodShape
from extender.core.planner.explain.additional_nodes import more_nodes, with_added
from extender.core.planner.explain.refusal_causes import closed_texts, diagnose, volume_text
from extender.core.planner.model.node_table import NodeTable, without_selectors, without_volumes
from extender.core.planner.model.problem import (
    NOTHING_NEW,
    LeftOut,
    Options,
    PlacementProblem,
    compile_request,
)
from extender.core.planner.plan_types import (
    UNCHANGED,
    Changes,
    Conflict,
    ConflictKind,
    ConflictPart,
    NodeRejection,
    PlanExclusive,
    PlanGroup,
    PlanNode,
    PlanRequest,
    PlanRule,
    Refusal,
    Relaxation,
    RequirementChange,
    admissible,
    changed_tree,
    domain_keys,
    group_name,
    is_leaf,
    is_required,
    is_slice,
    is_sliced,
    minimum_pods,
    object_key,
    present,
    required_names,
    satisfied_by_bound,
    slice_pods,
    threshold,
    walk,
    with_reserved_free,
)
from extender.core.planner.solve.solver_pipeline import Solved, solve

# --- solve a request with some of its requirements dropped or changed, within a number of solves and a part of its budget


class TreeForms:
    """Numbers for a tree and for changes of it: equal numbers mean that the trees are interchangeable.

    Waiting members count by their shapes, which is all that a search reads of most of them.
    """

    def __init__(
        self,
        root: PlanGroup,
        apart: frozenset[PodUid] = frozenset(),
        numbers: dict[tuple[object, ...], int] | None = None,
    ) -> None:
        """Number the tree.

        Args:
            apart: Members that count by themselves, because nodes are rejected for them.
            numbers: Of the trees that it is compared with; None: of no others.
        """
        self._apart = apart
        self._root = root
        self._groups = walk(root)
        self._position = {group.key: index for index, group in enumerate(self._groups)}
        self._parent = [-1] * len(self._groups)
        self._numbers = {} if numbers is None else numbers
        self._own: list[tuple[object, ...]] = [()] * len(self._groups)
        # by form of the children, and whether they are required
        self._below: list[Counter[tuple[int, bool]]] = [Counter() for _ in self._groups]
        self._required = [False] * len(self._groups)
        self._form: list[int] = [-1] * len(self._groups)
        for index in reversed(range(len(self._groups))):
            group = self._groups[index]
            shapes = sorted(
                Counter((m.shape, m.uid if m.uid in apart else "") for m in group.members).items()
            )
            bound = sorted(b.node for b in group.bound)
            self._own[index] = (is_leaf(group), tuple(shapes), tuple(bound))
            for child in group.groups:
                at = self._position[child.key]
                self._parent[at] = index
                self._required[at] = is_required(child, group)
                self._below[index][self._form[at], self._required[at]] += 1
            self._form[index] = self._of(index, group, self._below[index])

    def changed(self, changes: Changes) -> TreeForms:
        """Return the numbers for a changed tree."""
        return TreeForms(changed_tree(self._root, changes), self._apart, self._numbers)

    def number(self, changes: Changes) -> int:
        """Return the number of the tree with changed groups."""
        forms: dict[int, int] = {}
        below: dict[int, Counter[tuple[int, bool]]] = {}
        for index in self._touched(changes):
            group = changes.get(self._groups[index].key, UNCHANGED).of(self._groups[index])
            forms[index] = self._of(index, group, below.get(index, self._below[index]))
            parent = self._parent[index]
            if parent >= 0:
                counts = below.setdefault(parent, self._below[parent].copy())
                counts[self._form[index], self._required[index]] -= 1
                counts[forms[index], self._required[index]] += 1
        return forms.get(0, self._form[0])

    def _touched(self, changes: Changes) -> list[int]:
        """Return the positions of the changed groups and of all groups above them, children before parents."""
        touched: set[int] = set()
        for key in changes:
            index = self._position[key]
            while index >= 0 and index not in touched:
                touched.add(index)
                index = self._parent[index]
        return sorted(touched, reverse=True)

    def _of(self, index: int, group: PlanGroup, below: Counter[tuple[int, bool]]) -> int:
        counts: Counter[tuple[int, bool]] = Counter()
        for (form_of_child, required), count in below.items():
            counts[form_of_child, required and bool(required_names(group))] += count
        children = sorted((*key, count) for key, count in counts.items() if count)
        form = (threshold(group), group.topology, group.exclusive, self._own[index], *children)
        return self._numbers.setdefault(form, len(self._numbers))


SOLVES_MIN = 48  # some milliseconds each on 5,000 nodes
SOLVES_MAX = 512
SOLVES_WORK = 250_000  # solves x nodes x groups, between both limits
PART_OF_BUDGET = 8  # one solve may spend this fraction of the budget of the request
GROUPS_PER_STEP = 3  # groups that are compiled and bounded in the time of one search node
NODES_PER_STEP = 50  # nodes of another table whose columns are made in the time of one search node
TOTAL_PART = 5  # all solves for the conflict, or for the relaxations, may spend this fraction


# what is left out of nodes and pods where a requirement is dropped, by its kind and part
OPTIONS: Final = {
    ("selector", ""): Options(no_selectors=True),
    ("selector", "volumes"): Options(no_volumes=True),
    ("selector", "podRules"): Options(no_rules=True),
    ("taint", ""): Options(no_taints=True),
    ("taint", "cordons"): Options(no_cordons=True),
    ("resources", ""): Options(no_resources=True),
    ("reservation", ""): Options(no_reservations=True),
    ("exclusive", "otherTrees"): Options(no_closed=True),
}
# and of a group
CHANGES: Final = {
    "minCount": RequirementChange(minimum=0),
    "minGroupCount": RequirementChange(minimum=0),
    "exclusive": RequirementChange(shares=True),
    "topology": RequirementChange(topology=()),
}
OF_GROUPS: Final = tuple(CHANGES)
NOTHING_LEFT_OUT: Final = Options()


class PlacementRequirement(msgspec.Struct, frozen=True):
    """A requirement that can be dropped."""

    kind: ConflictKind
    object: GroupKey
    message: str
    part: ConflictPart = ""


class RequirementSolver:
    """Solves changed requests, within a number of solves and of search nodes."""

    def __init__(self, request: PlanRequest, node_table: NodeTable) -> None:
        self.request = msgspec.structs.replace(
            request, budget=max(request.budget // PART_OF_BUDGET, 1)
        )
        self.node_table = node_table
        self.left = 0
        self.nodes = 0
        self._groups = len(walk(request.root))
        self._known: dict[tuple[int, Options], bool | None] = {}
        self._forms = TreeForms(request.root, _rejecting(request.rejected_nodes))
        self._compiled: PlacementProblem | None = None  # without node rejections and rules
        self.refill(request.rejected_nodes)

    def refill(self, rejected_nodes: tuple[NodeRejection, ...]) -> None:
        """Reset both limits; from now on some node rejections hold."""
        if self.request.rejected_nodes != rejected_nodes:
            self.request = msgspec.structs.replace(self.request, rejected_nodes=rejected_nodes)
            self._known = {}
            self._forms = TreeForms(self.request.root, _rejecting(rejected_nodes))
        work = max(self.node_table.size * self._groups, 1)
        self.left = min(max(SOLVES_WORK // work, SOLVES_MIN), SOLVES_MAX)
        self.nodes = self.request.budget * PART_OF_BUDGET // TOTAL_PART

    @contextmanager
    def limited_to(self, part: int) -> Iterator[None]:
        """Keep all but a fraction of the search nodes that are left for later."""
        kept = self.nodes - self.nodes // part
        self.nodes -= kept
        yield
        self.nodes = max(self.nodes, 0) + kept

    @property
    def exhausted(self) -> bool:
        """Return whether a limit is reached."""
        return self.left <= 0 or self.nodes <= 0

    def fits(self, request: PlanRequest, node_table: NodeTable, options: Options) -> bool | None:
        """Return whether the minimum fits; None when a limit was reached first."""
        if self.exhausted:
            return None
        self.left -= 1
        if not admissible(request.root):
            return False
        problem = compile_request(request, node_table, options, compiled=self._compiled)
        if self._compiled is None and request.root is self.request.root:
            is_plain = not (request.rejected_nodes or request.rules)
            self._compiled = problem if is_plain and node_table is self.node_table else None
        if problem.violations:
            return False
        if satisfied_by_bound(request.root):  # also where no node has the keys of its topology
            return True
        request = msgspec.structs.replace(request, budget=min(request.budget, self.nodes))
        end = solve(request, node_table, options=options, maximise=False, problem=problem)
        table_cost = 0 if node_table is self.node_table else node_table.size // NODES_PER_STEP
        self.nodes -= end.nodes + len(problem.groups) // GROUPS_PER_STEP + table_cost + 1
        return True if end.solution is not None else (False if end.proved else None)

    def fits_with(self, changes: Changes, options: Options = NOTHING_LEFT_OUT) -> bool | None:
        """Return the answer of `fits` with other requirements of some groups; known answers cost nothing."""
        form = (self.form(changes), options)
        if form in self._known:
            return self._known[form]
        if self.exhausted:  # it may be solved after a refill
            return None
        changed = LeftOut(groups=changes).of(self.request)
        answer = self._known[form] = self.fits(changed, self.node_table, options)
        return answer

    def form(self, changes: Changes) -> int:
        """Return a number that is equal for changes that are the same but for names and order of groups."""
        return self._forms.number(changes)

    def without(self, dropped: set[PlacementRequirement]) -> bool | None:
        """Return whether the tree fits without some requirements; None when a limit was reached first."""
        left_out = _left_out(dropped)
        return self.fits_with(left_out.groups, left_out.options)

    def most_alike(
        self, dropped: set[PlacementRequirement], part: list[PlacementRequirement]
    ) -> list[PlacementRequirement]:
        """Return the most of some requirements that are interchangeable when others are dropped."""
        forms = self._forms.changed(_left_out(dropped).groups)
        alike: dict[tuple[str, str, int], list[PlacementRequirement]] = {}
        for r in part:
            alike.setdefault((r.kind, r.part, forms.number(_left_out([r]).groups)), []).append(r)
        return max(alike.values(), key=len)


def _rejecting(rejected_nodes: tuple[NodeRejection, ...]) -> frozenset[PodUid]:
    """Return the pods for which nodes are rejected."""
    return frozenset(r.uid for r in rejected_nodes if r.uid is not None)


def _left_out(dropped: Iterable[PlacementRequirement]) -> LeftOut:
    groups: dict[GroupKey, RequirementChange] = {}
    options = NOTHING_LEFT_OUT
    for r in dropped:
        if (r.kind, r.part) in OPTIONS:
            options |= OPTIONS[r.kind, r.part]
        else:
            groups[r.object] = groups.get(r.object, UNCHANGED) | CHANGES[r.kind]
    return LeftOut(options, groups)


# --- the conflict


def requirements_of(request: PlanRequest, node_table: NodeTable) -> list[PlacementRequirement]:
    """List what can be dropped, the least informative requirements first: these are dropped first."""
    groups = walk(request.root)
    shapes = [request.shapes[s] for s in sorted({m.shape for g in groups for m in g.members})]
    text = "pods fit the free capacity of their nodes"
    if any(s.host_ports for s in shapes):
        text += ", host ports included"
    if any(s.exclusive_claims for s in shapes):
        text += "; a ReadWriteOncePod claim is used by one pod"
    resources = PlacementRequirement("resources", request.root.key, text)
    return [*_of_nodes(request, node_table, shapes), *_of_groups(groups), resources]


def _of_nodes(
    request: PlanRequest, node_table: NodeTable, shapes: list[PodShape]
) -> Iterator[PlacementRequirement]:
    """Yield what keeps pods off nodes, apart from their capacity."""
    root = request.root.key
    if reserved := [n.name for n in request.nodes if n.reserved]:
        text = (
            f"capacity on {counted(len(reserved), 'node')} is reserved for other trees or for moves"
        )
        yield PlacementRequirement("reservation", root, text)
    if not isinstance(request.closed, UnsetType):
        text = f"exclusive groups of other trees have {join_names(closed_texts(request.closed))}"
        yield PlacementRequirement("exclusive", root, text, part="otherTrees")
    if taints := hard_taints(node_table):
        text = f"taints of nodes are respected: {join_names(taints)}"
        yield PlacementRequirement("taint", root, text)
    if cordoned := cordoned_nodes(node_table):
        text = f"cordoned nodes get no pods: {join_names([*cordoned])}"
        yield PlacementRequirement("taint", root, text, part="cordons")
    if request.rules:
        text = f"rules about other pods hold: {join_names(rule_texts(request.rules))}"
        yield PlacementRequirement("selector", root, text, part="podRules")
    if any(selector.volume for s in shapes for selector in s.selectors):
        text = f"pods run where their volumes are: {volume_text(shapes)}"
        yield PlacementRequirement("selector", root, text, part="volumes")
    if any(s.node_selector or without_volumes(s).selectors for s in shapes):
        text = "node selectors and required affinity hold"
        yield PlacementRequirement("selector", root, text)


def _of_groups(groups: list[PlanGroup]) -> Iterator[PlacementRequirement]:
    """Yield minima, exclusive domains and topology constraints."""
    for group in groups:
        if is_leaf(group):
            of = f" of {group_name(group.key)}" if is_slice(group.key) else ""
            text = f"at least {counted(threshold(group), 'pod')}{of} together{_incomplete(group)}"
            yield PlacementRequirement("minCount", group.key, text)
    for group in reversed(groups):
        if is_sliced(group):
            pods = counted(minimum_pods(group), "pod")
            text = f"at least {pods} together, in {counted(threshold(group), 'slice')}"
            yield PlacementRequirement("minCount", group.key, text + _incomplete(group))
        elif not is_leaf(group):
            text = f"at least {threshold(group)} of {counted(len(group.groups), 'child group')} together"
            if names := required_names(group):
                text += f", {join_names(names)} among them"
            yield PlacementRequirement("minGroupCount", group.key, text + _incomplete(group))
    for group in groups:
        if not isinstance(group.exclusive, UnsetType):
            yield PlacementRequirement("exclusive", group.key, exclusive_text(group.exclusive))
    for group in groups:
        if domain_keys(group):
            text = topology_text(group)
            bound = next((b for g in walk(group) for b in g.bound), None)
            if bound is not None:
                text += f"; {bound.pod} is bound to {bound.node}"
            yield PlacementRequirement("topology", group.key, text)


def topology_text(group: PlanGroup) -> str:
    """Return the topology constraint of a group, `all pods in one zone and rack`."""
    of = f" of {group_name(group.key)}" if is_slice(group.key) else ""
    return f"all pods{of} in one {' and '.join(domain_keys(group))}"


def exclusive_text(exclusive: PlanExclusive) -> str:
    """Return that a group shares its domain with no other one, and which domains others have."""
    text = f"no other group or tree in its {exclusive.key}"
    taken = [domain_text(exclusive.key, value) for value in exclusive.taken]
    return f"{text}; others have {join_names(taken)}" if taken else text


def hard_taints(node_table: NodeTable) -> list[str]:
    """Return the keys of all taints that keep pods off nodes, sorted."""
    lists = node_table.taints()[1]
    return sorted({t.key for taints in lists for t in taints if t.effect != "PreferNoSchedule"})


def cordoned_nodes(node_table: NodeTable) -> list[NodeName]:
    """Return the names of the nodes that are marked unschedulable, sorted."""
    return [node_table.nodes[i].name for i in np.flatnonzero(node_table.cordoned()).tolist()]


def rule_texts(rules: Iterable[PlanRule]) -> list[str]:
    """Return the rules between pods as texts, each once; those of pods that are there already are marked."""
    texts = (
        PodRule(r.kind, r.keys, ()).text + ("" if r.shapes else " of the pods there") for r in rules
    )
    return list(dict.fromkeys(texts))


def _incomplete(group: PlanGroup) -> str:
    """Return what an incomplete group has, or nothing."""
    if admissible(group):
        return ""
    return f"; {present(group)} {'present' if is_leaf(group) else 'ready'}"


def minimal_conflict(
    solver: RequirementSolver, requirements: list[PlacementRequirement]
) -> list[PlacementRequirement]:
    """Drop requirements as long as the rest still conflicts; halves first, so that many are dropped at once.

    If one of several interchangeable requirements is needed, all of them are: one solve settles them.
    """
    dropped: set[PlacementRequirement] = set()

    def filter_out(part: list[PlacementRequirement]) -> None:
        if not part or solver.exhausted:
            return
        if solver.without(dropped | set(part)) is False:
            dropped.update(part)
        elif len(part) > 1:
            alike = solver.most_alike(dropped, part) if part[0].kind in OF_GROUPS else []
            if len(alike) > 1 and solver.without({*dropped, alike[0]}):
                filter_out([r for r in part if r not in set(alike)])
                return
            half = len(part) // 2
            filter_out(part[:half])
            filter_out(part[half:])

    split = [r for r in requirements if r.kind in {"reservation", "taint", "selector"} or r.part]
    filter_out(split)
    for kind in (*OF_GROUPS, "resources"):
        filter_out([r for r in requirements if r.kind == kind and r not in split])
    return [r for r in requirements if r not in dropped]


# --- the changes

RELAXATIONS_MAX = 5
# fractions of the search nodes that are left, which more nodes and what is neither these nor a lower minimum may take
NODES_PART = 2
OTHERS_PART = 2
STATE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
REDUCED_MAX = 64  # taints, nodes or rules, of which those that are not needed are left out
Item = TypeVar("Item")


def relaxations(
    solver: RequirementSolver,
    solved: Solved,
    conflict: list[PlacementRequirement],
    rejected_nodes: tuple[NodeRejection, ...] = (),
) -> tuple[Relaxation, ...]:
    """Try the cheapest relaxations, and return those with which the tree fits.

    Args:
        solver: Solves the request without node rejections.
        conflict: Requirements that cannot hold together; what changes none of them does not help.
        rejected_nodes: Node rejections in spite of which a change must help.
    """
    solver.refill(rejected_nodes)

    def fits_with(new: tuple[PlanNode, ...]) -> bool | None:
        if solver.exhausted:
            return None
        node_table = solver.node_table.extended(new)
        request = msgspec.structs.replace(solver.request, nodes=node_table.nodes)
        return solver.fits(request, node_table, NOTHING_LEFT_OUT)

    with solver.limited_to(NODES_PART):
        nodes = more_nodes(solved, solver.request, {r.kind for r in conflict}, fits_with)
    with solver.limited_to(OTHERS_PART):
        others = [*itertools.islice(_others(solver, conflict), RELAXATIONS_MAX)]
    lower = _lower_minimum(solver, conflict)  # last: this takes the most solves
    candidates = [*lower[: RELAXATIONS_MAX - len(nodes)], *nodes, *others]
    return tuple(candidates[:RELAXATIONS_MAX])


def evicting(text: str, names: Sequence[str]) -> str:
    """Return what would help, with the units that are evicted then."""
    return f"{text}, and evicting {join_names(names)}" if names else text


def with_change(request: PlanRequest, change: Relaxation) -> PlanRequest:
    """Return a request with a change made; rules between pods keep their indexes."""
    replace = msgspec.structs.replace
    of_group = (
        RequirementChange(minimum=change.minimum) if change.minimum
        else RequirementChange(shares=True) if change.kind == "exclusive"
        else RequirementChange(topology=())
    )  # fmt: skip
    of_shapes = {"selector": (without_selectors,), "volumes": (without_volumes,)}
    left_out = LeftOut(
        groups=dict.fromkeys(change.groups, of_group),
        of_shapes=of_shapes.get(change.kind, ()),
        rules=frozenset(change.rules),
    )
    request, nodes = left_out.of(request), request.nodes
    match change.kind:
        case "exclusive" if not change.groups:
            return replace(request, closed=UNSET)
        case "nodes":
            nodes = with_added(nodes, change.added)
        case "reservation":
            of_node = (with_reserved_free(n) if n.name in change.nodes else n for n in nodes)
            nodes = tuple(of_node)
        case "taint":
            nodes = tuple(_more_open(nodes, {*change.taints}, {*change.nodes}))
        case _:
            pass
    return request if nodes is request.nodes else replace(request, nodes=nodes)


def _lower_minimum(
    solver: RequirementSolver, conflict: list[PlacementRequirement]
) -> list[Relaxation]:
    """Find, for one group at a time, the largest minimum with which the tree fits; of interchangeable groups for the first."""
    lowered: list[tuple[int, Relaxation]] = []
    tried: set[int] = set()
    groups = {group.key: group for group in walk(solver.request.root)}
    for r in sorted(conflict, key=lambda r: threshold(groups[r.object])):  # few solves first
        if r.kind not in {"minCount", "minGroupCount"} or len(lowered) >= RELAXATIONS_MAX:
            continue
        set_by = groups[r.object].set_by
        if set_by == "":
            continue
        form = solver.form({r.object: RequirementChange(minimum=0)})
        if form in tried:
            continue
        tried.add(form)
        now, step = threshold(groups[r.object]), slice_pods(groups[r.object])
        if is_slice(r.object) or not step:  # the sizes of slices are no minima
            continue
        if now <= 1 or not solver.fits_with({r.object: RequirementChange(minimum=1)}):
            continue
        best, low, high = 1, 2, now - 1
        while low <= high:
            middle = (low + high) // 2
            if solver.fits_with({r.object: RequirementChange(minimum=middle * step)}):
                best, low = middle, middle + 1
            else:
                high = middle - 1
        best, now = best * step, now * step
        text = f"{r.kind} {best} instead of {now} at {r.object.kind} {r.object.path}"
        if set_by is not UNSET:
            text = f"{r.kind} {best}: {set_by}{best} on its workload"
        change = Relaxation(kind=r.kind, text=text, groups=(r.object,), minimum=best)
        lowered.append((now - best, change))
    return [change for _, change in sorted(lowered, key=lambda pair: (pair[0], pair[1].text))]


def _others(
    solver: RequirementSolver, conflict: list[PlacementRequirement]
) -> Iterator[Relaxation]:
    """Yield what helps beside lower minima and more nodes, in the order of the conflict."""
    tried: set[int] = set()  # of interchangeable groups only the first may drop its constraint
    request = solver.request
    groups = {group.key: group for group in walk(request.root)}

    def without_rules(dropped: list[int]) -> Relaxation:
        rules = (request.rules[i] for i in dropped)
        text = f"drop the rules about other pods: {join_names(rule_texts(rules))}"
        return Relaxation(kind="podRules", text=text, rules=tuple(dropped))

    if exclusive := [groups[r.object] for r in conflict if r.kind == "exclusive" and not r.part]:
        yield from _sharing(solver, exclusive)
    for requirement in conflict:
        change: Relaxation | None = None  # to be tried
        match requirement.kind, requirement.part:
            case "reservation", _:
                names = [node.name for node in request.nodes if node.reserved]
                yield from _reduced(solver, names, _unreserved)
            case "exclusive", "otherTrees":
                text = f"exclusive groups of other trees leave {join_names(closed_texts(request.closed or ()))}"
                change = Relaxation(kind="exclusive", text=text)
            case "selector", "podRules":
                yield from _reduced(solver, [*range(len(request.rules))], without_rules)
            case "selector", "volumes":
                text = f"a volume that other nodes can use, instead of the {volume_text(request.shapes)}"
                change = Relaxation(kind="volumes", text=text)
            case "selector", _:
                text = "drop the node selectors and required affinity"
                change = Relaxation(kind="selector", text=text)
            case "topology", _:
                dropped = _with_other_slices(groups, [groups[requirement.object]])
                form = solver.form({g.key: RequirementChange(topology=()) for g in dropped})
                helping = without_topology(solver, dropped) if form not in tried else None
                tried.add(form)
                yield from [helping] if helping is not None else []
            case "taint", _ if requirement == next(r for r in conflict if r.kind == "taint"):
                yield from _without_taints(solver, {r.part for r in conflict if r.kind == "taint"})
            case _:
                pass
        if change is not None and _helps(solver, change):
            yield change


def _unreserved(nodes: list[NodeName]) -> Relaxation:
    text = f"the capacity reserved for other trees or for moves on {join_names(nodes)} becomes free"
    return Relaxation(kind="reservation", text=text, nodes=tuple(nodes))


def without_topology(solver: RequirementSolver, groups: list[PlanGroup]) -> Relaxation | None:
    """Return that the topology constraints of some groups are dropped, if the tree fits then; of slices those of all alike."""
    groups = _with_other_slices({g.key: g for g in walk(solver.request.root)}, groups)
    changes = {group.key: RequirementChange(topology=()) for group in groups}
    if solver.fits_with(changes) is not True:
        return None
    names = dict.fromkeys(
        f"{'the slices by ' if is_slice(g.key) else ''}{' and '.join(domain_keys(g))} at "
        f"{g.key.kind} {object_key(g.key).path}"
        for g in groups
    )
    return Relaxation(
        kind="topology",
        text=f"drop {' and '.join(names)}",
        groups=tuple(group.key for group in groups),
    )


def _with_other_slices(
    every: Mapping[GroupKey, PlanGroup], groups: Iterable[PlanGroup]
) -> list[PlanGroup]:
    """Return some groups, with all slices of the same PodGroup by the same key."""
    chosen = {(object_key(g.key), g.topology) if is_slice(g.key) else g.key: None for g in groups}
    return [
        g
        for g in every.values()
        if g.key in chosen or (is_slice(g.key) and (object_key(g.key), g.topology) in chosen)
    ]


def _sharing(solver: RequirementSolver, groups: list[PlanGroup]) -> Iterator[Relaxation]:
    """Yield the groups that may be in domains which others have, as few as are needed; each stays in one domain."""

    def fits_when_sharing(some: list[PlanGroup]) -> bool:
        changes = {group.key: RequirementChange(shares=True) for group in some}
        return solver.fits_with(changes) is True

    if needed := _needed(groups, fits_when_sharing):
        names = [f"{g.key.kind} {g.key.path}" for g in needed]
        key = next(g.exclusive.key for g in needed if g.exclusive is not UNSET)
        yield Relaxation(
            kind="exclusive",
            text=f"let {join_names(names)} share a {key} with others",
            groups=tuple(g.key for g in needed),
        )


def _helps(solver: RequirementSolver, change: Relaxation) -> bool:
    """Return whether the tree fits with a change."""
    request, table = with_change(solver.request, change), solver.node_table
    if request.nodes is not solver.request.nodes:
        table = table.renewed(request.nodes)
    return solver.fits(request, table, NOTHING_LEFT_OUT) is True


def _reduced(
    solver: RequirementSolver, items: list[Item], change_of: Callable[[list[Item]], Relaxation]
) -> Iterator[Relaxation]:
    """Yield the change of as few of some items as are needed; nothing if that of all does not help."""
    if needed := _needed(items, lambda some: _helps(solver, change_of(some))):
        yield change_of(needed)


def _without_taints(solver: RequirementSolver, parts: set[str]) -> Iterator[Relaxation]:
    """Yield the taints to tolerate, and the nodes to uncordon: each alone where one is enough, else both together.

    Args:
        parts: `""` and `cordons`, those that are in the conflict.
    """
    taints, nodes = hard_taints(solver.node_table), cordoned_nodes(solver.node_table)

    def change(keys: list[str], names: list[NodeName]) -> Relaxation:
        texts = [_tolerate_text(keys), f"uncordon {join_names(names)}" if names else ""]
        text = ", and ".join(filter(None, texts))
        return Relaxation(kind="taint", text=text, taints=tuple(keys), nodes=tuple(names))

    helps_alone = False
    for alone in itertools.chain(
        _reduced(solver, taints if "" in parts else [], lambda keys: change(keys, [])),
        _reduced(solver, nodes if "cordons" in parts else [], lambda names: change([], names)),
    ):
        helps_alone = True
        yield alone
    if not helps_alone and _helps(solver, change(taints, nodes)):
        keys = _needed(taints, lambda some: _helps(solver, change(some, nodes)))
        yield change(keys, _needed(nodes, lambda some: _helps(solver, change(keys, some))))


def _tolerate_text(keys: list[str]) -> str:
    """Return which taints to tolerate; those by which Kubernetes shows the state of nodes are not to be tolerated."""
    states = [key for key in keys if key.startswith(STATE_TAINTS)]
    own = [key for key in keys if key not in states]
    texts = [f"tolerate the {_taints_text(own)}"] if own else []
    texts += [f"nodes leave the state of the {_taints_text(states)}"] if states else []
    return ", and ".join(texts)


def _taints_text(keys: list[str]) -> str:
    return f"{'taint' if len(keys) == 1 else 'taints'} {join_names(keys)}"


def _more_open(
    nodes: tuple[PlanNode, ...], tolerated: set[str], uncordoned: set[str]
) -> Iterator[PlanNode]:
    """Yield nodes without some taints and cordons; the others stay the same objects."""
    for node in nodes:
        taints = tuple(t for t in node.taints if t.key not in tolerated)
        cordoned = node.unschedulable and node.name not in uncordoned
        if (taints, cordoned) == (node.taints, node.unschedulable):
            yield node
        else:
            yield msgspec.structs.replace(node, taints=taints, unschedulable=cordoned)


def _needed(items: list[Item], fits_with: Callable[[list[Item]], bool]) -> list[Item]:
    """Return a part of some items with which the tree fits, without those that are not needed; none if all do not help.

    Halves are left out first, so that few of many are found with few solves.
    """
    if not items or not fits_with(items):
        return []
    kept = list(items)

    def leave_out(part: list[Item]) -> None:
        nonlocal kept
        rest = [item for item in kept if item not in part]
        if rest and fits_with(rest):
            kept = rest
        elif len(part) > 1:
            half = len(part) // 2
            leave_out(part[:half])
            leave_out(part[half:])

    if 1 < len(items) <= REDUCED_MAX:
        half = (len(items) + 1) // 2
        leave_out(items[half:])
        leave_out(items[:half])
    return kept


def explain(
    refusal: Refusal,
    request: PlanRequest,
    node_table: NodeTable,
    solved: Solved,
    rejected_nodes: tuple[NodeRejection, ...] = (),
) -> Refusal:
    """Return the refusal of a tree that is proved impossible with the reasons, the conflict, and what would make it fit.

    Args:
        rejected_nodes: Node rejections in spite of which a change must make the tree fit.
    """
    solver = RequirementSolver(request, node_table)
    rest = minimal_conflict(solver, requirements_of(request, node_table))
    conflict = tuple(
        Conflict(kind=r.kind, object=str(object_key(r.object)), message=r.message, part=r.part)
        for r in rest
    )
    changes = relaxations(solver, solved, rest, rejected_nodes)
    reasons = diagnose(request, solved)
    return msgspec.structs.replace(refusal, reasons=reasons, conflict=conflict, changes=changes)


def explain_contradiction(
    refusal: Refusal, request: PlanRequest, node_table: NodeTable, problem: PlacementProblem
) -> Refusal:
    """Return the refusal of a tree whose bound members are in no common domain, with its explanation.

    The conflict is the topology constraint of the first group whose bound members contradict it, with these members and their
    domains; what would help is to drop the contradicted constraints, if the tree fits then.
    """
    refusal = msgspec.structs.replace(refusal, reasons=tuple(problem.violations))
    if not request.explain:
        return refusal
    groups = [group for group in walk(request.root) if group.key in set(problem.violated)]
    group = next(group for group in groups if group.key == problem.violated[0])
    bound = refusal.reasons[0].removeprefix(f"{group_name(group.key)}: ")
    text = f"{topology_text(group)}, but {bound.removesuffix(NOTHING_NEW)}"
    conflict = Conflict(kind="topology", object=str(object_key(group.key)), message=text)
    change = without_topology(RequirementSolver(request, node_table), groups)
    changes = () if change is None else (change,)
    return msgspec.structs.replace(refusal, conflict=(conflict,), changes=changes)
