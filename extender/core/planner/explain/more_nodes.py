"""More empty nodes as a way out: how many, like which node, and in which domain; each is verified by the caller's search."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from extender.core.model.ids import NodeName
from extender.core.model.pods import AVOIDS_PODS
from extender.core.planner.explain.shortfalls import failing, held_in, placeable
from extender.core.planner.model.node_table import FIT_MAX, NodeTable
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.plan_types import PlanNode
from extender.core.planner.solve.solver_pipeline import Solved

NODES_ADDED_MAX = 64
LEAVES_MAX = 5  # for which more nodes are tried
DOMAINS_MAX = 2  # of one leaf, those with the smallest shortfall first
HOSTNAME = "kubernetes.io/hostname"
ONE_PER_NODE = ("host port ", AVOIDS_PODS)  # axes of which a node has one, whatever its capacity


class _NewNodes(msgspec.Struct, frozen=True):
    """Nodes that would make up for the shortfall of a leaf in a domain."""

    models: tuple[tuple[PlanNode, int], ...]  # an existing node, and how many more like it
    place: str  # of the domain; empty: anywhere


def more_nodes(solved: Solved, fits_with: Callable[[tuple[PlanNode, ...]], bool]) -> list[str]:
    """Return additional empty nodes with which the tree fits, as a text; an empty list if none were found.

    Nodes for one leaf in one domain are tried first, then for several leaves together, then twice as many for one.

    Args:
        solved: The proof that the tree does not fit.
        fits_with: Returns whether the tree fits with some more nodes.
    """
    problem = solved.problem
    own = _keys_of_one_node(problem.fleet, {key for g in problem.groups for key in g.level.keys})
    leaves = failing(solved) or [g for g in problem.groups if g.leaf and g.alive and g.least]
    offers = [list(_offers(problem, leaf, own)) for leaf in leaves[:LEAVES_MAX]]
    of_one = [[offer] for of_leaf in offers for offer in of_leaf]
    firsts = [of_leaf[0] for of_leaf in offers if of_leaf]
    together = [firsts[:count] for count in range(2, len(firsts) + 1)]
    for added in (*of_one, *together, *([offer, offer] for [offer] in of_one)):
        if text := _verified(added, own, fits_with):
            return [text]
    return []


def _verified(
    added: list[_NewNodes],
    own: frozenset[str],
    fits_with: Callable[[tuple[PlanNode, ...]], bool],
) -> str:
    """Return the text about new nodes if the tree fits with them, else an empty string."""
    counts: dict[tuple[NodeName, str], int] = {}
    nodes: dict[NodeName, PlanNode] = {}
    for new in added:
        for node, number in new.models:
            nodes[node.name] = node
            key = (node.name, new.place)
            counts[key] = counts.get(key, 0) + number
    if sum(counts.values()) > NODES_ADDED_MAX:
        return ""
    made: dict[NodeName, int] = {}
    for (name, _), number in counts.items():
        made[name] = made.get(name, 0) + number
    if not fits_with(
        tuple(_copy(nodes[n], i, own) for n, count in made.items() for i in range(count))
    ):
        return ""
    return " and ".join(
        f"{number} more empty {'node' if number == 1 else 'nodes'} like {name}"
        + (f" in {place}" if place else "")
        for (name, place), number in counts.items()
    )


def _offers(
    problem: PlacementProblem, leaf: CompiledGroup, own: frozenset[str]
) -> Iterator[_NewNodes]:
    """Yield nodes for the shortfall of a leaf, in the domains where it comes closest to its minimum."""
    if not leaf.level.count or not leaf.members:
        return
    here = placeable(problem, leaf)
    holds = held_in(leaf, here)
    domains = np.argsort(-holds, kind="stable").tolist()
    yielded = 0
    for domain in domains:
        if leaf.pinned >= 0 and domain != leaf.pinned:
            continue
        lacking = {k: len(m) - int(here[k][domain]) for k, m in leaf.members.items()}
        missing = max(leaf.minimum - int(holds[domain]), 1)
        values = zip(leaf.level.keys, leaf.level.values[domain], strict=True)
        place = "/".join(value for key, value in values if key not in own)
        nodes = leaf.level.members(domain).tolist()
        # as many pods as are missing, of the most frequent kinds; then all that have no place
        least = _models(problem, lacking, nodes, missing)
        all_members = _models(problem, lacking, nodes, leaf.size)
        if not least:
            continue
        yield _NewNodes(least, place)
        if all_members != least:
            yield _NewNodes(all_members, place)
        yielded += 1
        if yielded >= DOMAINS_MAX:
            return


def _models(
    problem: PlacementProblem, lacking: dict[int, int], nodes: list[int], most: int
) -> tuple[tuple[PlanNode, int], ...]:
    """Return the nodes that hold so many more pods: of each kind those that lack a place, the most frequent kind first."""
    models: list[tuple[PlanNode, int]] = []
    for kind, lacks in sorted(lacking.items(), key=lambda one: (-one[1], one[0])):
        found = _model_node(problem, kind, nodes)
        wanted = min(lacks, most)
        if found is None or (wanted <= 0 and models):
            continue
        node, each = found
        models.append((node, max(1, -(-wanted // each))))
        most -= max(wanted, 0)
    return tuple(models)


def _keys_of_one_node(fleet: NodeTable, keys: set[str]) -> frozenset[str]:
    """Return those of the keys whose value is the name of the node itself; a new node has one of its own."""
    names = {
        key
        for key in keys
        if all(node.labels[key] == node.name for node in fleet.nodes if key in node.labels)
    }
    return frozenset(names | {HOSTNAME})


def _model_node(
    problem: PlacementProblem, kind: int, nodes: list[int]
) -> tuple[PlanNode, int] | None:
    """Return the node that holds most pods of a kind while empty, and how many these are."""
    fleet, request, axes = problem.fleet, problem.requests[kind].tolist(), problem.axes
    allowed = problem.allowed[kind]
    best: tuple[PlanNode, int] | None = None
    for i in nodes:
        if not allowed[i]:
            continue
        offer = fleet.nodes[i].allocatable
        each = min(
            (
                1 if a.startswith(ONE_PER_NODE) else offer.get(a, 0) // r
                for a, r in zip(axes, request, strict=True)
                if r
            ),
            default=FIT_MAX,
        )
        if each and (best is None or each > best[1]):
            best = (fleet.nodes[i], each)
    return best


def _copy(node: PlanNode, number: int, own: frozenset[str]) -> PlanNode:
    """Return an empty node like another one; its labels `own` have its own name."""
    name = f"{node.name}+{number}"
    return msgspec.structs.replace(
        node,
        name=NodeName(name),
        labels={key: name if key in own else value for key, value in node.labels.items()},
        free=node.allocatable,
        host_ports=(),
        reserved=False,
    )
