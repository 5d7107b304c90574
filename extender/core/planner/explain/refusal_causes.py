"""Why a group that fits nowhere does not fit, and how much of it does: each cause is confirmed by a search without it.

A cause that is named alone is enough: without it the group fits. Where no single one is, a smallest set of them is named.
Each search has a small budget, and so have all searches for one refusal; a group for which it ends has its causes from
the upper bounds of the search, without one of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import or_

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from extender.core.model.message_formatting import counted, domain_text, join_names, label_text
from extender.core.model.pods import NodeSelector, PodShape, Toleration
from extender.core.planner.model.interpod_constraints import rule_text
from extender.core.planner.model.node_table import (
    CORDON,
    Ints,
    NodeTable,
    selected,
    tolerated,
    tolerates,
    without_selectors,
    without_volumes,
)
from extender.core.planner.model.problem import (
    CompiledGroup,
    LeftOut,
    Options,
    PlacementProblem,
    compile_request,
    open_nodes,
    shares_groups,
)
from extender.core.planner.model.upper_bounds import best_inside, capacity_of
from extender.core.planner.plan_types import (
    PlanExclusive,
    PlanGroup,
    PlanRequest,
    RequirementChange,
    domain_keys,
    group_name,
    is_slice,
    parts_word,
    walk,
)
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.solver_pipeline import Solved, size, solve

GROUP_BUDGET = 500  # search nodes of one search
REFUSAL_BUDGET = 1_500  # search nodes of all searches for the sentences of one refusal, a tenth of a second or so
ROOT_KEEPS = 3  # the sentence about the whole tree leaves this fraction of them to the others
JOINT_KEEPS = 2  # the search for what fits together leaves this fraction to the causes
# In the time of one search node ...
GROUPS_PER_STEP = 3  # ... so many groups are compiled,
PODS_PER_STEP = 300  # ... or their pods,
BOUNDS_PER_STEP = 12  # ... so many groups are bounded,
CELLS_PER_STEP = 1_000  # ... and kinds of pods are compared with so many nodes
NO_CAUSE = "no single requirement of its pods"
NOT_SEARCHED = "what keeps them out is not examined in a tree of this size"
SOME_OF = "some of "
TOGETHER = " together with "  # between causes that only suffice together
AXES_MAX = 16  # resources that are tried
NOT_OFFERED = 4  # rank of a resource that no node has on which the pods may run
OWN_TOPOLOGY = 5  # rank of the constraint that the sentence about the group has already


class Cause(msgspec.Struct, frozen=True):
    """A requirement that can be left out."""

    text: str
    left_out: LeftOut
    rank: int = 0  # the lower, the earlier it is named


class JointCount(msgspec.Struct, frozen=True):
    """The most that fits together: pods of a leaf, child groups of a composite; what bound members hold included."""

    holds: int
    domain: int  # of the level of the group; -1: nothing new fits, or not found
    exact: bool = True  # False: at most so many


class CausesBudget:
    """The search nodes that are left for the sentences of one refusal."""

    def __init__(self) -> None:
        self.left = REFUSAL_BUDGET

    @contextmanager
    def kept_for_others(self, part: int) -> Iterator[None]:
        """Keep a fraction of the search nodes that are left for what comes later."""
        kept = self.left // part
        self.left -= kept
        yield
        self.left = max(self.left, 0) + kept


class GroupCauses:
    """The searches for one group of a refused tree, with all below it."""

    def __init__(
        self,
        request: PlanRequest,
        problem: PlacementProblem,
        group: CompiledGroup,
        budget: CausesBudget,
    ) -> None:
        self._group = group
        self._budget = budget
        self._problem = problem
        path = [each.source for each in problem.above(group)][::-1]
        self._holders = [holder for holder in path if domain_keys(holder)]
        keys = dict.fromkeys(key for holder in self._holders for key in domain_keys(holder))
        root = msgspec.structs.replace(
            group.source, topology=tuple(keys), exclusive=_exclusive(problem, group)
        )
        self._request = msgspec.structs.replace(
            request, root=root, budget=min(request.budget, GROUP_BUDGET), explain=False
        )
        below = list(problem.below(group))
        self._kinds = problem.kinds_below(group)
        self._compiled: PlacementProblem | None = None  # the request without a change
        self._answers: dict[frozenset[str], bool | None] = {}  # by the texts of what is left out
        cells = len(self._kinds) * problem.node_table.size
        self._bounding = 1 + len(below) // BOUNDS_PER_STEP + cells // CELLS_PER_STEP
        pods = sum(len(inner.source.members) for inner in below)
        self._compiling = len(below) // GROUPS_PER_STEP + pods // PODS_PER_STEP

    def joint(self, most: int) -> JointCount | None:
        """Return how much fits together; None: not found within the budget; `most`: of a composite, a bound that needs no search."""
        with self._budget.kept_for_others(JOINT_KEEPS):
            return self._pods() if self._group.leaf else self._child_groups(most)

    def _pods(self) -> JointCount | None:
        least = max(self._group.bound, 1)
        solved = self._solve(self._with_minimum(least), maximise=True)
        if solved is None or not solved.proved:
            return None
        if solved.solution is None:
            return JointCount(self._group.bound, -1)
        return JointCount(size(solved.solution) + self._group.bound, self._domain(solved.solution))

    def _child_groups(self, most: int) -> JointCount:
        """Find the largest minimum that fits, whichever child groups it counts; the upper bound is tried first."""
        children = [self._problem.groups[i] for i in self._group.children]
        low = sum(child.holds for child in children)
        high = self._group.minimum - (not any(child.required for child in children))
        high = max(min(high, sum(child.alive for child in children), most), low)
        domain, middle = -1, high
        while low < high:
            solved = self._solve(self._with_minimum(middle), maximise=False)
            if solved is None or (solved.solution is None and not solved.proved):
                return JointCount(high, domain, exact=False)
            if solved.solution is None:
                high = middle - 1
            else:
                low, domain = middle, self._domain(solved.solution)
            middle = (low + high + 1) // 2
        return JointCount(low, domain)

    def _with_minimum(self, minimum: int) -> PlanRequest:
        root = msgspec.structs.replace(
            self._request.root, basic=False, minimum=minimum, required=UNSET
        )
        return msgspec.structs.replace(self._request, root=root)

    def _domain(self, solution: Solution) -> int:
        for by_kind in solution.values():
            for nodes in by_kind.values():
                for node in nodes:
                    return int(self._group.level.domain[node])
        return -1

    def named(self) -> str:
        """Return what is enough: "a, or b", where each may be several that only suffice together, "c together with d".

        "some of c, d": both together are enough, and whether both are needed was not found within the budget. Empty:
        nothing was found within the budget.
        """
        causes = sorted(self._possible(), key=lambda cause: cause.rank)
        others = [cause for cause in causes if cause.rank < OWN_TOPOLOGY]
        if alone := [cause for cause in others if self._fits_without([cause])]:
            offered = [cause for cause in alone if cause.rank < NOT_OFFERED]
            return ", or ".join(cause.text for cause in offered or alone)
        own = [[cause] for cause in causes[len(others) :] if self._fits_without([cause])]
        together = self._needed(others)
        if not own and not together:
            every = self._fits_without(causes)
            if not every:
                return "" if every is None else NO_CAUSE
            together = self._needed(causes)
        sets = [cause.text for [cause] in own]
        return ", or ".join([*sets, together] if together else sets)

    def _needed(self, causes: list[Cause]) -> str:
        """Return a smallest part of some causes that is enough, or an empty string if all of them are not."""
        if not self._fits_without(causes):
            return ""
        needed, is_smallest, before = list(causes), True, 0
        while len(needed) != before:  # a spread counts fewer nodes once taints are respected again
            before = len(needed)
            for cause in reversed(needed):
                rest = [other for other in needed if other is not cause]
                fits = self._fits_without(rest)
                is_smallest = is_smallest and fits is not None
                if fits:
                    needed = rest
        texts = [cause.text for cause in needed]
        return TOGETHER.join(texts) if is_smallest else SOME_OF + ", ".join(texts)

    def _fits_without(self, causes: Collection[Cause]) -> bool | None:
        """Return whether the group fits without some causes; None: not found within the budget. Each set is searched once."""
        left_out = frozenset(cause.text for cause in causes)
        if left_out not in self._answers:
            self._answers[left_out] = self._search_without(causes)
        return self._answers[left_out]

    def _search_without(self, causes: Collection[Cause]) -> bool | None:
        left_out = functools.reduce(or_, (cause.left_out for cause in causes), LeftOut())
        solved = self._solve(left_out.of(self._request), maximise=False, options=left_out.options)
        if solved is None or (solved.solution is None and not solved.proved):
            return None
        return solved.solution is not None

    def _solve(
        self, request: PlanRequest, *, maximise: bool, options: Options | None = None
    ) -> Solved | None:
        """Search, or return None where that cannot decide: the budget is spent, or bound members are in no common domain."""
        node_table: NodeTable = self._problem.node_table
        if self._compiled is None and request.root is self._request.root:
            if self._budget.left < self._compiling:
                return None
            self._budget.left -= self._compiling
            plain = msgspec.structs.replace(self._request, rejected_nodes=(), rules=())
            self._compiled = compile_request(plain, node_table)
        is_shared = self._compiled is not None and shares_groups(
            request, node_table, self._compiled
        )
        size_nodes = self._bounding + (0 if is_shared else self._compiling)
        if self._budget.left <= size_nodes:
            return None
        problem = compile_request(request, node_table, options, compiled=self._compiled)
        if problem.violations:
            self._budget.left -= size_nodes
            return None
        left = self._budget.left - size_nodes
        request = msgspec.structs.replace(request, budget=min(request.budget, left))
        solved = solve(request, node_table, maximise=maximise, problem=problem)
        self._budget.left -= size_nodes + solved.nodes
        return solved

    # --- what there is to leave out ------------------------------------------------------------------

    def _possible(self) -> Iterator[Cause]:
        """Yield what keeps pods of the group off nodes, and what keeps them together."""
        shapes = [self._request.shapes[self._problem.kinds[kind]] for kind in self._kinds]
        yield from self._of_nodes(shapes)
        texts = [rule_text(rule) for rule in self._request.rules]
        for text in dict.fromkeys(texts):
            same = frozenset(i for i, other in enumerate(texts) if other == text)
            yield Cause(text, LeftOut(rules=same))
        if any(shape.host_ports for shape in shapes):
            ports = sorted({f"{p.port}/{p.protocol}" for s in shapes for p in s.host_ports})
            word = "port" if len(ports) == 1 else "ports"
            yield Cause(f"host {word} {join_names(ports)}", _with_shapes(host_ports=()), rank=1)
        if claims := sorted({c for shape in shapes for c in shape.exclusive_claims}):
            text = f"claim {join_names(claims)} for one pod"
            yield Cause(text, _with_shapes(exclusive_claims=()), rank=1)
        if self._problem.node_table.reserved().any():
            left_out = LeftOut(Options(no_reservations=True))
            yield Cause("capacity reserved for other trees or for moves", left_out, rank=2)
        yield from self._of_resources(shapes)
        if any(not isinstance(g.exclusive, UnsetType) for g in walk(self._request.root)):
            sharing = {g.key: RequirementChange(shares=True) for g in walk(self._request.root)}
            yield Cause("exclusive domains", LeftOut(groups=sharing), rank=1)
        yield from self._of_topology()

    def _of_resources(self, shapes: list[PodShape]) -> Iterator[Cause]:
        resources = {r for shape in shapes for r, n in shape.requests if n > 0 and r != "pods"}
        nodes = self._problem.node_table.nodes
        allowed = np.any(self._problem.allowed[self._kinds], axis=0)
        for name in sorted(resources)[:AXES_MAX]:
            offered = any(name in node.allocatable for node in itertools.compress(nodes, allowed))
            rank = 3 if offered else NOT_OFFERED
            yield Cause(name, LeftOut(of_shapes=(_without_resource(name),)), rank=rank)
        yield Cause("pods", LeftOut(Options(no_pod_limit=True)), rank=3)

    def _of_topology(self) -> Iterator[Cause]:
        """Yield the topology constraints: those below the group level by level, its own and those above it each by itself."""
        root = self._request.root
        below: dict[tuple[int, tuple[str, ...]], list[PlanGroup]] = {}
        groups, depth = root.groups, 1
        while groups:
            for group in groups:
                if not set(domain_keys(group)) <= set(root.topology):
                    below.setdefault((depth, domain_keys(group)), []).append(group)
            groups, depth = tuple(child for group in groups for child in group.groups), depth + 1
        for (_, keys), constrained in below.items():
            name = group_name(constrained[0].key)
            if len(constrained) > 1:
                name = f"each of {len(constrained)} groups such as {name}"
            free = {group.key: RequirementChange(topology=()) for group in constrained}
            yield Cause(f"one {' and '.join(keys)} for {name}", LeftOut(groups=free))
        for holder in self._holders:
            others = {
                key for other in self._holders if other is not holder for key in domain_keys(other)
            }
            if dropped := {key for key in domain_keys(holder) if key not in others}:
                text = f"one {' and '.join(domain_keys(holder))} for {group_name(holder.key)}"
                change = RequirementChange(without=frozenset(dropped))
                yield Cause(text, LeftOut(groups={root.key: change}), rank=OWN_TOPOLOGY)

    def _of_nodes(self, shapes: list[PodShape]) -> Iterator[Cause]:
        node_table = self._problem.node_table
        keys = {
            taint.key
            for taints in node_table.taints()[1]
            for taint in taints
            if taint.effect != "PreferNoSchedule"
            and not all(tolerates(shape.tolerations, taint) for shape in shapes)
        }
        if keys:
            word = "taint" if len(keys) == 1 else "taints"
            text = f"untolerated {word} {join_names(sorted(keys))}"
            yield Cause(text, _tolerating(sorted(keys)))
        if node_table.cordoned().any():
            yield Cause("cordoned nodes", _tolerating([CORDON.key]))
        closed = self._request.closed
        if not isinstance(closed, UnsetType):
            text = f"exclusive groups of other trees in {join_names(closed_texts(closed))}"
            yield Cause(text, LeftOut(Options(no_closed=True)))
        own = [s for s in shapes if s.node_selector or any(not x.volume for x in s.selectors)]
        if own and not all(selected(node_table, shape).all() for shape in own):
            parts = [label_text(*label) for s in own for label in s.node_selector]
            parts += [text for s in own for x in s.selectors if not x.volume for text in _words(x)]
            text = f"node selector {join_names([*dict.fromkeys(parts)])}"
            yield Cause(text, LeftOut(of_shapes=(without_selectors,)))
        if any(x.volume for shape in shapes for x in shape.selectors):
            yield Cause(volume_text(shapes), LeftOut(of_shapes=(without_volumes,)))


def volume_text(shapes: Iterable[PodShape]) -> str:
    """Return where the volumes of pods are, in words."""
    parts = dict.fromkeys(
        text for s in shapes for x in s.selectors if x.volume for text in _words(x)
    )
    return f"volume that is only on nodes with {join_names([*parts])}"


def _tolerating(keys: list[str]) -> LeftOut:
    """Leave out taints, for the node filters and for spreads that honor taints alike."""
    more = tuple(Toleration(key=key, operator="Exists") for key in keys)

    def change(shape: PodShape) -> PodShape:
        return msgspec.structs.replace(shape, tolerations=(*shape.tolerations, *more))

    return LeftOut(of_shapes=(change,))


def _without_resource(name: str) -> Callable[[PodShape], PodShape]:
    def change(shape: PodShape) -> PodShape:
        rest = tuple((r, amount) for r, amount in shape.requests if r != name)
        return msgspec.structs.replace(shape, requests=rest)

    return change


def _with_shapes(**fields: object) -> LeftOut:
    """Leave out what some fields of all shapes require, by other values of them."""
    return LeftOut(of_shapes=(functools.partial(msgspec.structs.replace, **fields),))


def _exclusive(problem: PlacementProblem, group: CompiledGroup) -> PlanExclusive | UnsetType:
    """Return the nearest exclusive domain at or above a group; bound members of other groups count as taken."""
    holder = next((above for above in problem.above(group) if above.exclusive), None)
    if holder is None:
        return UNSET
    closed = problem.exclusive.closed.get(holder.index)
    taken = np.flatnonzero(closed).tolist() if closed is not None else []
    values = sorted({problem.exclusive.value(holder, domain) for domain in taken})
    return PlanExclusive(key=holder.exclusive, taken=tuple(values))


def closed_texts(closed: tuple[PlanExclusive, ...]) -> list[str]:
    """Return the domains that exclusive groups of other trees have, `net/rack=r1`."""
    return [label_text(domains.key, value) for domains in closed for value in domains.taken]


def _words(selector: NodeSelector) -> Iterator[str]:
    """Yield the requirements of a selector as people write them."""
    for term in selector.terms:
        for requirement in (*term.labels, *term.fields):
            match requirement.operator, requirement.values:
                case "In", (value,):
                    yield label_text(requirement.key, value)
                case "Exists" | "DoesNotExist", _:
                    yield f"{requirement.key} {requirement.operator}"
                case _:
                    values = ", ".join(requirement.values)
                    yield f"{requirement.key} {requirement.operator} ({values})"


# --- the reasons: which group fails, its best domain, and what is missing there

LINES_MAX = 8


@dataclass(slots=True)
class Shortfall:
    """The domain where a leaf comes closest to its minimum."""

    domain: int
    holds: int  # members it could have there, bound ones included
    # resources of which there is too little, each taken alone; empty: only together
    lacking: list[str]


def diagnose(request: PlanRequest, solved: Solved) -> tuple[str, ...]:
    """Return the reasons why a tree that is proved impossible does not fit; those of leaves first, they are the most specific."""
    reasons = _Reasons(request, solved)
    root = solved.problem.groups[0]
    if root.leaf:
        return tuple(reasons.of(root))
    last = reasons.of_tree(root)
    return (*itertools.islice(reasons.below(root), LINES_MAX - 1), last)


def name_of(group: CompiledGroup) -> str:
    """Return kind and path of a group."""
    return group_name(group.source.key)


def domain_phrase(group: CompiledGroup) -> str:
    """Return the words for the domain that all pods of a group must share, ` in one net/rack`, or an empty string."""
    return f" in one {' and '.join(group.level.keys)}" if group.level.keys else ""


def failing(solved: Solved) -> list[CompiledGroup]:
    """List the leaves that fit in no domain even alone."""
    return [
        g
        for g in solved.problem.groups
        if g.leaf and g.alive and not (solved.bounds.best[g.index] >= 0).any()
    ]


def shortfall(problem: PlacementProblem, leaf: CompiledGroup) -> Shortfall | None:
    """Find the domain in which a leaf comes closest to its minimum; None when it has no domain."""
    if not leaf.level.count:
        return None
    most = held_in(leaf, placeable(problem, leaf))
    if leaf.pinned >= 0:
        most[np.arange(leaf.level.count) != leaf.pinned] = -1
    if (closed := problem.exclusive.closed.get(leaf.index)) is not None:
        most[closed] = -1
    domain = int(np.argmax(most))
    return Shortfall(domain, int(most[domain]), _lacking(problem, leaf, domain))


def placeable(problem: PlacementProblem, leaf: CompiledGroup) -> dict[int, Ints]:
    """Return how many of the waiting members of each kind could have a place in each domain, each kind taken alone."""
    return {
        kind: np.minimum(capacity_of(problem, leaf, kind, problem.pods()), len(members))
        for kind, members in leaf.members.items()
    }


def held_in(leaf: CompiledGroup, by_kind: dict[int, Ints]) -> Ints:
    """Return how many members a leaf could have in each domain, bound ones included; `by_kind`: see `placeable`."""
    return sum(by_kind.values(), np.full(leaf.level.count, leaf.bound, dtype=np.int64))


def _lacking(problem: PlacementProblem, leaf: CompiledGroup, domain: int) -> list[str]:
    """List the resources of which the domain has too little for the minimum, each taken alone."""
    nodes = leaf.level.members(domain)
    lacking: list[str] = []
    for axis, name in enumerate(problem.axes):
        fits = leaf.bound
        for kind, members in leaf.members.items():
            ask = int(problem.requests[kind, axis])
            usable = nodes[problem.allowed[kind][nodes]]
            capacity = int((problem.free[usable, axis] // ask).sum()) if ask else len(members)
            fits += min(capacity, len(members))
        if fits < leaf.minimum:
            lacking.append(name)
    return lacking


class _Reasons:
    """The reasons of one refusal."""

    def __init__(self, request: PlanRequest, solved: Solved) -> None:
        self._request = request
        self._solved = solved
        self._budget = CausesBudget()

    def of_tree(self, root: CompiledGroup) -> str:
        """Return the reason of a composite root; called first, it may spend most of the budget."""
        with self._budget.kept_for_others(ROOT_KEEPS):
            return self.together(root)

    def of(self, group: CompiledGroup) -> Iterator[str]:
        """Yield the reasons why a group does not fit, those of the groups below it first."""
        if group.leaf:
            yield from self._leaf(group)
        else:
            yield from self.below(group)
            yield self.together(group)

    def below(self, group: CompiledGroup) -> Iterator[str]:
        """Yield the reasons of the child groups that fit nowhere, even one by one."""
        best = self._solved.bounds.best
        for child in self._children(group):
            if not child.holds and not (best[child.index] >= 0).any():
                yield from self.of(child)
                if is_slice(child.source.key):
                    break  # the others have the same reason

    def _leaf(self, leaf: CompiledGroup) -> Iterator[str]:
        """Yield the reason for a leaf that fits in no domain."""
        request, problem = self._request, self._solved.problem
        close = shortfall(problem, leaf)
        need = f"{name_of(leaf)} needs {counted(leaf.minimum, 'pod')}{domain_phrase(leaf)}"
        if close is None:
            yield f"{need}; no node has the label {' and '.join(leaf.level.keys)}"
            return
        closed = problem.exclusive.closed.get(leaf.index)
        if closed is not None and closed.all():
            yield f"{need}{_closed(problem, leaf)}"
            return
        barred = _barred(request, problem, leaf)
        causes = GroupCauses(request, problem, leaf, self._budget)
        if barred:
            # what bars all nodes need not be all that keeps the pods out
            more = causes.named() if problem.node_table.size else ""
            missing = (
                f" ({_missing(leaf.minimum - leaf.bound, exact=True)}: {more})"
                if TOGETHER in more
                else ""
            )
            yield f"{need}; {barred}{missing}"
            return
        joint = causes.joint(leaf.minimum)
        holds, domain = close.holds, close.domain
        if joint is not None:
            holds, domain = joint.holds, joint.domain if joint.domain >= 0 else close.domain
        most = "" if joint is not None else "at most "
        missing = _missing(leaf.minimum - holds, exact=joint is not None)
        reasons = causes.named() or ", ".join(close.lacking) or NOT_SEARCHED
        bound = f" ({leaf.bound} bound already)" if leaf.bound else ""
        yield (
            f"{need}; {_place(leaf, domain)} holds {most}{holds}{bound} ({missing}: {reasons})"
            f"{_closed(problem, leaf)}{_elsewhere(problem, leaf)}"
        )

    def together(self, group: CompiledGroup) -> str:
        """Return how many child groups of a composite fit together, and what keeps the others out."""
        problem = self._solved.problem
        children = self._children(group)
        total = len(group.children)
        need = f"{name_of(group)} needs {group.minimum} of its {counted(total, parts_word(group.source.key))}"
        if names := [child.source.key.name for child in children if child.required]:
            need += f", {join_names(names)} among them"
        need += domain_phrase(group)
        if not group.level.count:
            return f"{need}; no node has the label {' and '.join(group.level.keys)}"
        bounded, domain = self._best(group, children)
        causes = GroupCauses(self._request, problem, group, self._budget)
        joint = causes.joint(bounded) or JointCount(min(bounded, group.minimum), -1, exact=False)
        holds = joint.holds
        if joint.domain >= 0:
            domain = joint.domain
        most = "" if joint.exact else "at most "
        missing = _missing(group.minimum - holds, exact=joint.exact)
        reasons = causes.named() or ", ".join(self._short(group, domain)) or NOT_SEARCHED
        own = next((child for child in children if child.exclusive), group)
        return (
            f"{need}; {_place(group, domain)} holds {most}{holds} of them ({missing}: {reasons})"
            f"{_closed(problem, own)}"
        )

    def _children(self, group: CompiledGroup) -> list[CompiledGroup]:
        groups = self._solved.problem.groups
        return [groups[i] for i in group.children if groups[i].alive]

    def _best(self, group: CompiledGroup, children: list[CompiledGroup]) -> tuple[int, int]:
        """Return how many child groups the best domain has place for at most, and this domain."""
        problem, best = self._solved.problem, self._solved.bounds.best
        able = np.zeros(group.level.count, dtype=np.int64)
        for child in children:
            able += (best_inside(problem, child, group, best[child.index]) >= 0) | child.holds
        able = np.minimum(able, self._solved.bounds.together[group.index])
        if group.pinned >= 0:
            return int(able[group.pinned]), group.pinned
        first = int(np.argmax(able))
        return int(able[first]), first

    def _short(self, group: CompiledGroup, domain: int) -> list[str]:
        """List the resources of which a domain has too little for the fewest pods of a composite, each taken alone."""
        problem = self._solved.problem
        kinds = problem.kinds_below(group)
        if not kinds:
            return []
        nodes = group.level.members(domain)
        nodes = nodes[problem.allowed[kinds][:, nodes].any(axis=0)]
        least = problem.requests[kinds].min(axis=0)
        return [
            name
            for axis, name in enumerate(problem.axes)
            if least[axis]
            and int((problem.free[nodes, axis] // int(least[axis])).sum()) < group.least
        ]


def _missing(count: int, *, exact: bool) -> str:
    """Return the words for what is missing where a group comes closest; `exact` False: it may be more."""
    if count <= 0:
        return "not all together"
    return f"{count} missing" if exact else f"at least {count} missing"


def _place(group: CompiledGroup, domain: int) -> str:
    """Return the words for the domain that is meant."""
    if not group.level.keys:
        return "the cluster"
    where = "/".join(map(domain_text, group.level.keys, group.level.values[domain]))
    if group.pinned >= 0:
        return f"its bound members pin it to {where}, which"
    return f"the best, {where},"


def _closed(problem: PlacementProblem, group: CompiledGroup) -> str:
    """Return which domains of its exclusive key others have, and which are left to a group, or an empty string."""
    closed = problem.exclusive.closed.get(group.index)
    if closed is None or not closed.any():
        return ""
    values = {problem.exclusive.value(group, d): bool(shut) for d, shut in enumerate(closed)}
    taken = sorted(domain_text(group.exclusive, value) for value, shut in values.items() if shut)
    left = sorted(domain_text(group.exclusive, value) for value, shut in values.items() if not shut)
    verb = "is" if len(taken) == 1 else "are"
    return (
        f"; {len(taken)} of {counted(len(values), 'domain')} of {group.exclusive} {verb} taken "
        f"({join_names(taken)}); free: {join_names(left) if left else 'none'}"
    )


def _elsewhere(problem: PlacementProblem, leaf: CompiledGroup) -> str:
    """Return in which other domains a pinned leaf would have place as a whole, or an empty string."""
    if leaf.pinned < 0 or len(leaf.members) != 1:
        return ""
    (kind,) = leaf.members
    most = capacity_of(problem, leaf, kind, problem.pods())
    free = [
        "/".join(map(domain_text, leaf.level.keys, leaf.level.values[domain]))
        for domain in np.flatnonzero(most >= leaf.minimum).tolist()
        if domain != leaf.pinned
    ]
    if not free:
        return ""
    return f"; {join_names(free)} is free for all {leaf.minimum}, but none moves while a member is bound"


def _kept_out(nodes: int, cordoned: int) -> str:
    """Return what keeps a pod off nodes that match its selector; `cordoned`: those with a cordon and without an untolerated taint."""
    verb = "is" if cordoned == 1 else "are"
    if cordoned == nodes:
        return f"{_the_nodes(nodes)} it could run on {verb} cordoned"
    if cordoned:
        return (
            f"of {_the_nodes(nodes)} it could run on {cordoned} {verb} cordoned, and it does not tolerate the "
            "taints of the others"
        )
    return f"it does not tolerate the taints of {_the_nodes(nodes)} it could run on"


def _barred(request: PlanRequest, problem: PlacementProblem, leaf: CompiledGroup) -> str:
    """Return the static filter that rejects all nodes for all pods of a leaf, or an empty string."""
    if not leaf.members or any(problem.allowed[kind].any() for kind in leaf.members):
        return ""
    if not problem.node_table.size:
        return "there are no nodes"
    shape, opened = problem.shapes[min(leaf.members)], open_nodes(request, problem.node_table)
    matching = selected(problem.node_table, shape)
    if not matching.any() and selected(problem.node_table, without_volumes(shape)).any():
        return f"none of the {problem.node_table.size} nodes that it could run on has its {volume_text([shape])}"
    if not matching.any():
        return f"none of {_the_nodes(problem.node_table.size)} matches its node selector"
    kept = matching & tolerated(problem.node_table, shape)
    if kept.any() and opened is not None and not (kept & opened).any():
        count = _the_nodes(int(kept.sum()))
        return f"exclusive groups of other trees keep it off {count} it could run on"
    if not kept.any():
        cordoned = int((matching & tolerated(problem.node_table, shape, cordons=False)).sum())
        return _kept_out(int(matching.sum()), cordoned)
    mask = problem.rules.masks.get(problem.kinds[min(leaf.members)])
    if mask is not None and not (kept & mask).any():
        rules = " and ".join(rule.text for rule in shape.rules) or "rules of the pods there"
        keep = "keeps" if len(shape.rules) == 1 else "keep"
        return f"{rules} {keep} it off {_the_nodes(int(kept.sum()))} it could run on"
    return f"kube-scheduler refused {_the_nodes(int(kept.sum()))} it could run on"


def _the_nodes(count: int) -> str:
    return "the only node" if count == 1 else f"the {count} nodes"
