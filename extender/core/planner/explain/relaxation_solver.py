"""Solve a request with some of its requirements dropped or changed, within a number of solves and a part of its budget.

Two changed trees that differ only in which of several interchangeable groups is changed have the same answer: one solve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from extender.core.model.ids import GroupKey, PodUid
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import Options, compile_request
from extender.core.planner.plan_types import (
    UNCHANGED,
    Changes,
    ConflictKind,
    ConflictPart,
    NodeRejection,
    PlanGroup,
    PlanRequest,
    RequirementChange,
    admissible,
    changed_tree,
    is_leaf,
    is_required,
    required_names,
    satisfied_by_bound,
    threshold,
    walk,
)
from extender.core.planner.solve.solver_pipeline import solve


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
        problem = compile_request(request, node_table, options)
        if problem.violations:
            return False
        if satisfied_by_bound(request.root):  # also where no node has the keys of its topology
            return True
        request = msgspec.structs.replace(request, budget=min(request.budget, self.nodes))
        end = solve(request, node_table, options=options, maximise=False, problem=problem)
        table_cost = 0 if node_table is self.node_table else node_table.size // NODES_PER_STEP
        self.nodes -= end.nodes + len(problem.groups) // GROUPS_PER_STEP + table_cost + 1
        return True if end.solution is not None else (False if end.proved else None)

    def fits_with(self, changes: Changes, options: Options | None = None) -> bool | None:
        """Return the answer of `fits` with other requirements of some groups; known answers cost nothing."""
        options = options or Options()
        form = (self.form(changes), options)
        if form in self._known:
            return self._known[form]
        if self.exhausted:  # it may be solved after a refill
            return None

        request = msgspec.structs.replace(
            self.request, root=changed_tree(self.request.root, changes)
        )
        answer = self._known[form] = self.fits(request, self.node_table, options)
        return answer

    def form(self, changes: Changes) -> int:
        """Return a number that is equal for changes that are the same but for names and order of groups."""
        return self._forms.number(changes)

    def without(self, dropped: set[PlacementRequirement]) -> bool | None:
        """Return whether the tree fits without some requirements; None when a limit was reached first."""
        kinds = {(r.kind, r.part) for r in dropped}
        options = Options(
            no_selectors=("selector", "") in kinds,
            no_volumes=("selector", "volumes") in kinds,
            no_rules=("selector", "podRules") in kinds,
            no_taints=("taint", "") in kinds,
            no_cordons=("taint", "cordons") in kinds,
            no_resources=("resources", "") in kinds,
            no_reservations=("reservation", "") in kinds,
            no_closed=("exclusive", "otherTrees") in kinds,
        )
        return self.fits_with(_changes(dropped), options)

    def most_alike(
        self, dropped: set[PlacementRequirement], part: list[PlacementRequirement]
    ) -> list[PlacementRequirement]:
        """Return the most of some requirements that are interchangeable when others are dropped."""
        forms = self._forms.changed(_changes(dropped))
        alike: dict[tuple[str, str, int], list[PlacementRequirement]] = {}
        for r in part:
            alike.setdefault((r.kind, r.part, forms.number(_changes([r]))), []).append(r)
        return max(alike.values(), key=len)


def _rejecting(rejected_nodes: tuple[NodeRejection, ...]) -> frozenset[PodUid]:
    """Return the pods for which nodes are rejected."""
    return frozenset(r.uid for r in rejected_nodes if r.uid is not None)


def _changes(dropped: Iterable[PlacementRequirement]) -> Changes:
    changes: dict[GroupKey, RequirementChange] = {}
    for r in dropped:
        before = changes.get(r.object, RequirementChange())
        if r.kind in {"minCount", "minGroupCount"}:
            changes[r.object] = msgspec.structs.replace(before, minimum=0)
        elif r.kind == "topology":
            changes[r.object] = msgspec.structs.replace(before, topology=())
        elif r.kind == "exclusive" and not r.part:
            changes[r.object] = msgspec.structs.replace(before, shares=True)
    return changes
