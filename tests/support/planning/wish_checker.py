"""Checks what a plan claims about wishes, against every placement of as many pods, and about ranks against every order of them.

Imports nothing of the planner but its types. Exponential: some 6 pods on 6 nodes. Requests without rules between pods, ports,
claims and node rejections; pods of one leaf and shape are interchangeable but for their ranks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from msgspec import UNSET

from extender.core.planner.plan_types import (
    SEARCH_BUDGET,
    Plan,
    PlanGroup,
    PlanNear,
    PlanRequest,
)
from tests.support.planning.plan_checker import (
    _exclusive_keys,
    _holds,
    _leaves,
    _object,
    _walk,
    is_closed,
    shared_domains,
)
from tests.support.planning.static_filters_checker import passes

Seats = Counter  # (key of a leaf, index of a node) -> new pods


def wish_faults(request: PlanRequest, plan: Plan, *, complete: bool = True) -> list[str]:
    """Return what is wrong about the wishes of a plan that places as many pods as possible, or all but the extra ones.

    The latter is silent about groups that wait for extra members.

    Args:
        complete: Whether the plan was made with the complete search; without it a smaller smallest share is no fault by itself.
    """
    silent = bool(request.extras_later)
    index = {node.name: i for i, node in enumerate(request.nodes)}
    leaf_of = {m.uid: leaf.key for leaf in _leaves(request.root) for m in leaf.members}
    seats: Seats = Counter((leaf_of[a.uid], index[a.node]) for a in plan.assignments)
    outcomes = {w.group: w for w in plan.wishes if w.kind == "preferred"}
    bad: list[str] = []
    for group in _walk(request.root):
        used, missing = _nodes(request, group, seats)
        on_nodes = {key for node in request.nodes for key in node.labels}
        keys = [key for key in group.preferred or () if key in on_nodes]
        if not keys or not used | missing:
            if group.key in outcomes:
                bad.append(f"{group.key}: an outcome without pods or wish")
            continue
        if silent and group.key not in outcomes:
            continue
        outcome = outcomes[group.key]
        got = {v.key: v.value for v in outcome.values}
        real = {key: domains(request, group, seats, key) for key in keys}
        if got != real:
            bad.append(f"{group.key}: values {got}, not {real}")
        pods = sum(seats[leaf.key, n] for leaf in _leaves(group) for n in index.values())
        if outcome.pods != pods + sum(len(leaf.bound) for leaf in _leaves(group)):
            bad.append(f"{group.key}: {outcome.pods} pods")
        if any(v.best > v.value for v in outcome.values):
            bad.append(f"{group.key}: better than the best")
    bad += _balance_faults(request, plan, seats)
    bad += _near_faults(request, plan, seats)
    bad += _rank_faults(request, plan)
    return bad or _not_best(request, plan, seats, complete and request.budget >= SEARCH_BUDGET)


def shares(request: PlanRequest, group: PlanGroup, seats: Seats, key: str) -> list[int]:
    """Return how many pods of a group are in each domain of a key that has some, those on nodes outside of the cluster apart."""
    pods = Counter(d for d in _pods(request, group, seats, key) if d is not None)
    return sorted(pods.values())


def _balance_faults(request: PlanRequest, plan: Plan, seats: Seats) -> list[str]:
    """Return what is wrong about the values of balance: one outcome for each balanced group in several domains."""
    got = [
        (w.group, v.key, v.value, v.best <= v.value)
        for w in plan.wishes
        if w.kind == "balanced"
        for v in w.values
    ]
    real = []
    on_nodes = {key for node in request.nodes for key in node.labels}
    for group in _walk(request.root):
        if not group.balanced or group.preferred[0] not in on_nodes:
            continue
        key = group.preferred[0]
        amounts = shares(request, group, seats, key)
        if len(amounts) > 1:
            equal = len(_pods(request, group, seats, key)) // domains(request, group, seats, key)
            real.append((group.key, key, equal - amounts[0], True))
    same = _claims_agree(request, got, real)
    return [] if same else [f"balanced {got}, not {real}"]


def _claims_agree(request: PlanRequest, claimed: list, real: list) -> bool:
    """Return whether the claims are those that are true: all of them, where extra members are not left for later."""
    if request.extras_later:
        return Counter(claimed) <= Counter(real)
    return Counter(claimed) == Counter(real)


def _near_faults(request: PlanRequest, plan: Plan, seats: Seats) -> list[str]:
    """Return what is wrong about the values of nearness: one outcome for each wish of which both groups have pods."""
    got = [
        (w.group, w.partner, v.key, v.value, v.best <= v.value)
        for w in plan.wishes
        if w.kind == "near"
        for v in w.values
    ]
    real = [
        (group.key, near.group, near.key, apart(request, group, partner, seats, near.key), True)
        for group, partner, near in nearness(request)
        if _pods(request, group, seats, near.key)
        and _pods(request, partner, seats, near.key)
        and any(near.key in node.labels for node in request.nodes)
    ]
    return [] if _claims_agree(request, got, real) else [f"near {got}, not {real}"]


def _rank_faults(request: PlanRequest, plan: Plan) -> list[str]:
    """Return what is wrong about the changes of domain along the ranks of each leaf; slices have one order.

    An order is claimed of the seats that a leaf has. Without slices, and with few members, it is also the best of all.
    """
    bad: list[str] = []
    nodes = {node.name: node for node in request.nodes}
    node_of = {a.uid: a.node for a in plan.assignments}
    outcomes = {w.group: w for w in plan.wishes if w.kind == "rank"}
    parts: dict = {}
    for leaf, keys in _with_keys(request.root, tuple(request.levels or ())):
        parts.setdefault(_object(leaf.key), []).append((leaf, keys))
    for key, leaves in parts.items():
        waiting = [m for leaf, _ in leaves for m in leaf.members]
        placed = [m for m in waiting if m.uid in node_of]
        if not placed or any(m.rank is UNSET for m in waiting):
            if key in outcomes:
                bad.append(f"{key}: an outcome without ranks")
            continue
        # the narrowest key has the most domains; one that no node has is none
        counts = {
            k: len({n.labels[k] for n in request.nodes if k in n.labels}) for k in leaves[0][1]
        }
        widest = sorted(filter(counts.get, counts), key=lambda k: (counts[k], k))
        bound = [(b.rank, nodes[b.node]) for leaf, _ in leaves for b in leaf.bound if b.rank is not UNSET and b.node in nodes]  # fmt: skip

        def changes(seats: dict, placed=placed, bound=bound, widest=widest) -> tuple[int, ...]:
            order = sorted([*bound, *((m.rank, nodes[seats[m.uid]]) for m in placed)], key=lambda row: row[0])  # fmt: skip
            return tuple(
                sum(
                    a.name != b.name and (k not in a.labels or a.labels[k] != b.labels.get(k))
                    for (_, a), (_, b) in itertools.pairwise(order)
                )
                for k in widest
            )

        reached = changes(node_of)
        values = outcomes[key].values if key in outcomes else ()
        claimed = {v.key: (v.value, v.best) for v in values}
        real = dict(zip(widest, reached, strict=True))
        bad += [f"{key}: rank {claimed} of {real}" for k, (v, _) in claimed.items() if v != real[k]]
        if key in outcomes or not request.extras_later:
            bad += [f"{key}: no outcome by {k}" for k, v in real.items() if v and k not in claimed]
        every = [changes(seats) for seats in _orders([leaf for leaf, _ in leaves], node_of)]
        for k, fewest in zip(widest, zip(*every, strict=True), strict=False):
            if k in claimed and claimed[k][1] > min(fewest):
                bad.append(f"{key}: {claimed[k][1]} changes of {k} claimed, possible {min(fewest)}")
        if len(leaves) == 1 and min(every) < reached:
            bad.append(f"{key}: changes {reached}, possible {min(every)}")
    return bad


def _with_keys(group: PlanGroup, above: tuple[str, ...]) -> Iterator[tuple[PlanGroup, tuple]]:
    """Yield each leaf with the keys by which its neighbours shall be near: those of the cluster and of the groups above."""
    keys = (*above, *group.topology, *(group.preferred or ()))
    if not group.groups:
        yield group, tuple(dict.fromkeys(keys))
    for child in group.groups:
        yield from _with_keys(child, keys)


def _orders(leaves: list[PlanGroup], node_of: dict) -> Iterator[dict]:
    """Yield every order of the members of some leaves on the nodes that they have; each keeps the node that it preferred and has."""
    pools = []
    for leaf in leaves:
        rows: dict = {}
        for m in leaf.members:
            if m.uid in node_of and m.prefer != node_of[m.uid]:
                rows.setdefault(m.shape, []).append(m)
        pools += rows.values()
    options = [
        [dict(zip((m.uid for m in pool), order, strict=True)) for order in set(itertools.permutations(node_of[m.uid] for m in pool))]
        for pool in pools
    ]  # fmt: skip
    for chosen in itertools.product(*options):
        yield node_of | {uid: n for each in chosen for uid, n in each.items()}


def _not_best(request: PlanRequest, plan: Plan, seats: Seats, complete: bool) -> list[str]:
    """Compare criterion by criterion, the first that differs decides."""
    rivals = list(placements(request, len(plan.assignments)))
    if seats not in rivals:
        return ["the plan is no legal placement"]
    best = {
        (w.group, v.key): v.best for w in plan.wishes if w.kind == "preferred" for v in w.values
    }
    for unit in units(request):
        keys = unit[0].preferred

        def whole(option: Seats, position: int, unit=unit, keys=keys) -> int:
            return -sum(
                any(domains(request, g, option, key) == 1 for key in keys[: position + 1])
                for g in unit
            )

        def count(option: Seats, key: str, unit=unit) -> int:
            return sum(domains(request, g, option, key) for g in unit)

        # a group without pods has no outcome, and is in one domain
        proved = all(
            best.get((g.key, key), 1) == domains(request, g, seats, key)
            for g in unit
            for key in keys
        )
        criteria = [(f"whole {k}", lambda o, p=p, w=whole: w(o, p)) for p, k in enumerate(keys)]
        criteria += [(f"count {k}", lambda o, k=k, c=count: c(o, k)) for k in keys]
        for name, criterion in criteria:
            mine = criterion(seats)
            optimum = min(criterion(rival) for rival in rivals)
            where = f"{[g.key.name for g in unit]} {name}: {mine}, possible is {optimum}"
            if name.startswith("count"):
                key = name.removeprefix("count ")
                bound = sum(best.get((g.key, key), 1) for g in unit)
                if bound > optimum:
                    return [f"{where}, claimed is {bound}"]
            if optimum < mine:
                return [f"{where}, and it is claimed to be the best"] if proved else []
            rivals = [rival for rival in rivals if criterion(rival) == mine]
        if not proved:
            return []
        if unit[0].balanced:
            balance = {w.group: w.values[0] for w in plan.wishes if w.kind == "balanced"}

            def smallest(option: Seats, unit=unit, key=keys[0]) -> int:
                apart_ones = [g for g in unit if domains(request, g, option, key) > 1]
                return sum(
                    shares(request, g, option, key)[0]
                    - sum(len(leaf.members) + len(leaf.bound) for leaf in _leaves(g))
                    for g in apart_ones
                    if shares(request, g, option, key)
                )

            mine, optimum = smallest(seats), max(smallest(rival) for rival in rivals)
            proved = all(v.best == v.value for g in unit if (v := balance.get(g.key)) is not None)
            if optimum > mine:

                def below_equal(option: Seats, unit=unit, key=keys[0]) -> int:
                    amounts = [shares(request, g, option, key) for g in unit]
                    return sum(sum(each) // len(each) - each[0] for each in amounts if each)

                # what a plan states is below an equal share of the pods that the group has; a search that
                # is not complete may end before the placement that gives it more pods, of which no more are missing
                fewest = min(map(below_equal, rivals))
                if proved and (complete or fewest < below_equal(seats)):
                    return [f"balanced {[g.key.name for g in unit]}: {mine}, possible {optimum}"]
                return []
            if not proved:
                return []
            rivals = [rival for rival in rivals if smallest(rival) == mine]
    near_best = {
        (w.group, w.partner, v.key): v.best
        for w in plan.wishes
        if w.kind == "near"
        for v in w.values
    }
    for group, partner, near in nearness(request):
        mine = apart(request, group, partner, seats, near.key)
        optimum = min(apart(request, group, partner, rival, near.key) for rival in rivals)
        claimed = near_best.get((group.key, near.group, near.key), 0)
        if claimed > optimum or (optimum < mine and claimed == mine):
            return [f"near {group.key.name} {near}: {mine}, possible {optimum}, claimed {claimed}"]
        if optimum < mine:
            return []
        rivals = [r for r in rivals if apart(request, group, partner, r, near.key) == mine]
    return []


def nearness(request: PlanRequest) -> list[tuple[PlanGroup, PlanGroup, PlanNear]]:
    """Return each wish to be near with both groups, by depth and stored order."""
    rows: list[tuple[int, PlanGroup]] = []

    def walk(group: PlanGroup, depth: int) -> None:
        rows.append((depth, group))
        for child in group.groups:
            walk(child, depth + 1)

    walk(request.root, 0)
    groups = {group.key: group for _, group in rows}
    return [
        (group, groups[near.group], near)
        for depth in range(len(rows))
        for d, group in rows
        if d == depth
        for near in group.near or ()
    ]


def _pods(request: PlanRequest, group: PlanGroup, seats: Seats, key: str) -> list[object]:
    """Return for each pod of a group the domain it is in: a value, or the node without the label; of nodes outside, None."""
    index = {node.name: i for i, node in enumerate(request.nodes)}
    nodes = [index.get(b.node) for leaf in _leaves(group) for b in leaf.bound]
    keys = {leaf.key for leaf in _leaves(group)}
    nodes += [n for (leaf, n), pods in seats.items() if leaf in keys for _ in range(pods)]
    return [
        None if n is None else ("value", request.nodes[n].labels[key]) if key in request.nodes[n].labels else n
        for n in nodes
    ]  # fmt: skip


def apart(
    request: PlanRequest, group: PlanGroup, partner: PlanGroup, seats: Seats, key: str
) -> int:
    """Return the pairs of pods, one of each group, in different domains."""
    return sum(
        a is None or a != b
        for a in _pods(request, group, seats, key)
        for b in _pods(request, partner, seats, key)
    )


def units(request: PlanRequest) -> list[list[PlanGroup]]:
    """Return the groups with wishes by depth and stored order, interchangeable leaves together."""
    rows: list[tuple[int, PlanGroup | None, PlanGroup]] = []

    def walk(group: PlanGroup, depth: int, parent: PlanGroup | None) -> None:
        rows.append((depth, parent, group))
        for child in group.groups:
            walk(child, depth + 1, group)

    walk(request.root, 0, None)
    units: list[tuple[object, list[PlanGroup]]] = []
    near = {each.key for a, b, _ in nearness(request) for each in (a, b)}
    for depth in range(max(d for d, _, _ in rows) + 1):
        for d, parent, group in rows:
            if d != depth or group.preferred is UNSET:
                continue
            alike = (
                parent and parent.key, group.basic, group.minimum, group.topology, group.preferred, group.balanced, group.exclusive,
                tuple(sorted(Counter(m.shape for m in group.members).items())),
                parent and group.key.name in (parent.required or ()),
            )  # fmt: skip
            alone = bool(group.groups) or bool(group.bound) or group.key in near
            unit = next((u for key, u in units if key == alike), None)
            if unit is not None and not alone:
                unit.append(group)
            else:
                units.append((group.key if alone else alike, [group]))
    return [unit for _, unit in units]


def domains(request: PlanRequest, group: PlanGroup, seats: Seats, key: str) -> int:
    """Return in how many domains of a key the pods of a group are."""
    used, missing = _nodes(request, group, seats)
    values = [request.nodes[n].labels.get(key) for n in used]
    without = sum(value is None for value in values) + len(missing)
    labelled = len({value for value in values if value is not None})
    return max(labelled + without, 2 if without else 1)


def _nodes(request: PlanRequest, group: PlanGroup, seats: Seats) -> tuple[set[int], set[str]]:
    index = {node.name: i for i, node in enumerate(request.nodes)}
    leaves = _leaves(group)
    keys = {leaf.key for leaf in leaves}
    bound = {b.node for leaf in leaves for b in leaf.bound}
    used = {n for (key, n), pods in seats.items() if pods and key in keys}
    return used | {index[b] for b in bound if b in index}, {b for b in bound if b not in index}


def placements(request: PlanRequest, total: int) -> Iterator[Seats]:
    """Yield every legal placement of exactly so many pods."""
    leaves = _leaves(request.root)
    rows = [
        (leaf, shape, number)
        for leaf in leaves
        for shape, number in sorted(Counter(m.shape for m in leaf.members).items())
    ]
    free = [
        {r: n.free.get(r, 0) if r in n.allocatable else 0 for r in ("gpu", "pods")}
        for n in request.nodes
    ]
    seats: Seats = Counter()
    places = [(row, n) for row in range(len(rows)) for n in range(len(request.nodes))]
    left = [number for _, _, number in rows]

    def step(at: int, missing: int) -> Iterator[Seats]:
        if missing == 0:
            if _legal(request, seats):
                yield +seats
            return
        if at == len(places):
            return
        row, n = places[at]
        leaf, shape, _ = rows[row]
        ask = {**dict(request.shapes[shape].requests), "pods": 1}
        node = request.nodes[n]
        may = passes(request.shapes[shape], node) and not is_closed(request, node)
        most = min(left[row], missing) if may else 0
        for amount in range(most + 1):
            if any(free[n][r] < ask[r] * amount for r in ask if ask[r]):
                break
            for r, each in ask.items():
                free[n][r] -= each * amount
            left[row] -= amount
            seats[leaf.key, n] += amount
            yield from step(at + 1, missing - amount)
            seats[leaf.key, n] -= amount
            left[row] += amount
            for r, each in ask.items():
                free[n][r] += each * amount

    return step(0, total)


def _legal(request: PlanRequest, seats: Seats) -> bool:
    new: Counter = Counter()
    for (key, _), pods in seats.items():
        new[key] += pods
    if not _holds(request.root, new):
        return False
    for group in _walk(request.root):
        if any(new[leaf.key] for leaf in _leaves(group)) and not _holds(group, new):
            return False
        used, missing = _nodes(request, group, seats)
        for key in (*group.topology, *_exclusive_keys(group)):
            values = {request.nodes[n].labels.get(key) for n in used}
            if len(values) > 1 or None in values or missing:
                return False
    fresh: dict = {leaf.key: [] for leaf in _leaves(request.root)}
    for (key, n), pods in seats.items():
        fresh[key] += [request.nodes[n].name] * (pods > 0)
    return not shared_domains(request, fresh)
