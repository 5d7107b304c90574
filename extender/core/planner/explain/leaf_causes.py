"""Why a leaf that fits nowhere does not fit, and how many of its pods do: each cause is confirmed by a search without it.

A cause that is named alone is enough: without it the leaf fits. Where no single one is, a smallest set of them is named.
Searches have a small budget; a leaf for which it ends has its causes from `shortfalls`, without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.model.pods import NodeSelector, PodShape
from extender.core.model.wording import join_names
from extender.core.planner.model.interpod_constraints import rule_text
from extender.core.planner.model.node_filters import (
    selected,
    tolerated,
    without_selectors,
    without_volumes,
)
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import (
    CompiledGroup,
    Options,
    PlacementProblem,
    compile_request,
)
from extender.core.planner.plan_types import PlanNode, PlanRequest
from extender.core.planner.solve.solver_pipeline import Solved, size, solve

LEAF_BUDGET = 500  # search nodes of one search
NO_CAUSE = "no single requirement of its pods"
AXES_MAX = 16  # resources that are tried
NOT_OFFERED = 4  # rank of a resource that no node has on which the pods may run

Change = Callable[[PlanRequest], PlanRequest]


class Cause(msgspec.Struct, frozen=True):
    """A requirement that can be left out."""

    text: str
    change: Change
    options: Options = Options()
    rank: int = 0  # the lower, the earlier it is named


class LeafCount(msgspec.Struct, frozen=True):
    """The most pods of a leaf that fit together, bound ones included."""

    holds: int
    domain: int  # of the level of the leaf; -1: none of its pods fits


class LeafCauses:
    """The searches for one leaf of a refused tree."""

    def __init__(
        self, request: PlanRequest, problem: PlacementProblem, leaf: CompiledGroup
    ) -> None:
        """Prepare the request for the leaf alone.

        Args:
            request: The refused request.
            problem: The same, compiled.
            leaf: A leaf that fits in no domain.
        """
        self._leaf = leaf
        self._problem = problem
        above, index = leaf.source.topology, leaf.parent
        while index >= 0:
            above = (*problem.groups[index].source.topology, *above)
            index = problem.groups[index].parent
        root = msgspec.structs.replace(leaf.source, topology=tuple(dict.fromkeys(above)))
        self._request = msgspec.structs.replace(
            request, root=root, budget=min(request.budget, LEAF_BUDGET), explain=False
        )

    def joint(self) -> LeafCount | None:
        """Return how many pods fit together; None: not found within the budget."""
        least = max(self._leaf.bound, 1)
        root = msgspec.structs.replace(self._request.root, basic=False, minimum=least)
        solved = self._solve(msgspec.structs.replace(self._request, root=root), maximise=True)
        if solved is None or not solved.proved:
            return None
        if solved.solution is None:
            return LeafCount(self._leaf.bound, -1)
        holds = size(solved.solution) + self._leaf.bound
        for by_kind in solved.solution.values():
            for nodes in by_kind.values():
                for node in nodes:
                    return LeafCount(holds, int(self._leaf.level.domain[node]))
        return LeafCount(holds, -1)

    def named(self) -> str:
        """Return "a, or b" for causes that are each enough, "a together with b" for those that only all are; empty: not found within the budget."""
        causes = sorted(self._possible(), key=lambda cause: cause.rank)
        alone = [cause for cause in causes if self._fits_without([cause])]
        if alone:
            offered = [cause for cause in alone if cause.rank < NOT_OFFERED]
            return ", or ".join(cause.text for cause in offered or alone)
        together = self._fits_without(causes)
        if not together:
            return "" if together is None else NO_CAUSE
        needed = list(causes)
        for cause in reversed(causes):
            rest = [other for other in needed if other is not cause]
            if self._fits_without(rest):
                needed = rest
        return " together with ".join(cause.text for cause in needed)

    def _fits_without(self, causes: Iterable[Cause]) -> bool | None:
        request = self._request
        options: dict[str, bool] = {}
        for cause in causes:
            request = cause.change(request)
            options |= {
                name: True for name in Options.__dataclass_fields__ if getattr(cause.options, name)
            }
        solved = self._solve(request, maximise=False, options=Options(**options))
        if solved is None or (solved.solution is None and not solved.proved):
            return None
        return solved.solution is not None

    def _solve(
        self, request: PlanRequest, *, maximise: bool, options: Options | None = None
    ) -> Solved | None:
        fleet: NodeTable = self._problem.fleet
        problem = compile_request(request, fleet, options)
        if problem.violations:
            return None
        return solve(request, fleet, maximise=maximise, problem=problem)

    # --- what there is to leave out ------------------------------------------------------------------

    def _possible(self) -> Iterator[Cause]:
        """Yield what keeps pods of the leaf off nodes."""
        shapes = [self._request.shapes[self._problem.kinds[kind]] for kind in self._leaf.members]
        yield from self._of_nodes(shapes)
        for text in dict.fromkeys(map(rule_text, self._request.rules)):
            yield Cause(text, _without_rule(text))
        if any(shape.host_ports for shape in shapes):
            ports = sorted({f"{p.port}/{p.protocol}" for s in shapes for p in s.host_ports})
            names = join_names(ports)
            word = "port" if len(ports) == 1 else "ports"
            yield Cause(f"host {word} {names}", _with_shapes(_without_ports), rank=1)
        if claims := sorted({c for shape in shapes for c in shape.exclusive_claims}):
            text = f"claim {join_names(claims)} for one pod"
            yield Cause(text, _with_shapes(_without_claims), rank=1)
        if any(node.reserved for node in self._request.nodes):
            text = "capacity reserved for other trees"
            yield Cause(text, _same, Options(no_reservations=True), rank=2)
        resources = {r for shape in shapes for r, n in shape.requests if n > 0 and r != "pods"}
        for name in sorted(resources)[:AXES_MAX]:
            offered = any(
                name in self._request.nodes[i].allocatable
                for kind in self._leaf.members
                for i in self._problem.allowed[kind].nonzero()[0].tolist()
            )
            rank = 3 if offered else NOT_OFFERED
            yield Cause(name, _with_shapes(_without_resource(name)), rank=rank)

    def _of_nodes(self, shapes: list[PodShape]) -> Iterator[Cause]:
        fleet = self._problem.fleet
        keys = {
            taint.key
            for taints in fleet.taints()[1]
            for taint in taints
            if taint.effect != "PreferNoSchedule"
            and not all(tolerated(_one(taint), shape)[0] for shape in shapes)
        }
        if keys:
            word = "taint" if len(keys) == 1 else "taints"
            text = f"{word} {join_names(sorted(keys))}, not tolerated"
            yield Cause(text, _same, Options(no_taints=True))
        if fleet.cordoned().any():
            yield Cause("cordoned nodes", _same, Options(no_cordons=True))
        own = [s for s in shapes if s.node_selector or any(not x.volume for x in s.selectors)]
        if own and not all(selected(fleet, shape).all() for shape in own):
            parts = [f"{key}={value}" for s in own for key, value in s.node_selector]
            parts += [text for s in own for x in s.selectors if not x.volume for text in _words(x)]
            yield Cause(
                f"node selector {join_names([*dict.fromkeys(parts)])}",
                _with_shapes(without_selectors),
            )
        reach = [x for shape in shapes for x in shape.selectors if x.volume]
        if reach:
            yield Cause(volume_text(shapes), _with_shapes(without_volumes))


def volume_text(shapes: Iterable[PodShape]) -> str:
    """Return where the volumes of pods are, in words."""
    parts = dict.fromkeys(
        text for s in shapes for x in s.selectors if x.volume for text in _words(x)
    )
    return f"volume that is only on nodes with {join_names([*parts])}"


def _without_ports(shape: PodShape) -> PodShape:
    return msgspec.structs.replace(shape, host_ports=())


def _without_claims(shape: PodShape) -> PodShape:
    return msgspec.structs.replace(shape, exclusive_claims=())


def _without_resource(name: str) -> Callable[[PodShape], PodShape]:
    def change(shape: PodShape) -> PodShape:
        rest = tuple((r, amount) for r, amount in shape.requests if r != name)
        return msgspec.structs.replace(shape, requests=rest)

    return change


def _with_shapes(change: Callable[[PodShape], PodShape]) -> Change:
    return lambda request: msgspec.structs.replace(
        request, shapes=tuple(map(change, request.shapes))
    )


def _without_rule(text: str) -> Change:
    def change(request: PlanRequest) -> PlanRequest:
        rules = (
            msgspec.structs.replace(rule, shapes=(), about=()) if rule_text(rule) == text else rule
            for rule in request.rules
        )
        return msgspec.structs.replace(request, rules=tuple(rules))

    return change


def _same(request: PlanRequest) -> PlanRequest:
    return request


def _one(taint: Taint) -> NodeTable:
    return NodeTable((PlanNode(name=NodeName("node"), taints=(taint,)),))


def _words(selector: NodeSelector) -> Iterator[str]:
    """Yield the requirements of a selector as people write them."""
    for term in selector.terms:
        for requirement in (*term.labels, *term.fields):
            match requirement.operator, requirement.values:
                case "In", (value,):
                    yield f"{requirement.key}={value}"
                case "Exists" | "DoesNotExist", _:
                    yield f"{requirement.key} {requirement.operator}"
                case _:
                    values = ", ".join(requirement.values)
                    yield f"{requirement.key} {requirement.operator} ({values})"
