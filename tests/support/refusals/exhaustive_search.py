"""Whether the minimum of a tree fits when some of its requirements are dropped, by trying every placement.

Imports nothing of the planner but its types. Exponential: some 6 pods on 10 nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from extender.core.planner.plan_types import PlanGroup, PlanNode, PlanRequest
from tests.support.planning.interpod_checker import broken_rules
from tests.support.planning.plan_checker import clash, is_closed, shared_domains
from tests.support.planning.static_filters_checker import passes

replace = msgspec.structs.replace
# Its kind, and Kind/namespace/name of its group; the kinds below have none.
Requirement = tuple[str, str]
OF_THE_TREE = (
    "reservation",
    "taint",
    "cordon",
    "selector",
    "volumes",
    "rules",
    "otherTrees",
    "resources",
)


def walk(group: PlanGroup) -> Iterator[PlanGroup]:
    """Yield a group and all below it, parents first."""
    yield group
    for child in group.groups:
        yield from walk(child)


def is_leaf(group: PlanGroup) -> bool:
    """Return whether a group has pods."""
    return group.key.kind == "PodGroup"


def minimum_kind(group: PlanGroup) -> str:
    """Return the kind of the requirement for the minimum of a group."""
    return "minCount" if is_leaf(group) else "minGroupCount"


def all_requirements(request: PlanRequest) -> frozenset[Requirement]:
    """Return everything that can be dropped."""
    groups = list(walk(request.root))
    return frozenset(
        [(kind, "") for kind in OF_THE_TREE]
        + [(minimum_kind(g), str(g.key)) for g in groups]
        + [(kind, str(g.key)) for g in groups for kind in ("topology", "exclusive")]
    )


def domain_keys(group: PlanGroup) -> tuple[str, ...]:
    """Return the keys of which a group is in one domain."""
    own = (group.exclusive.key,) if group.exclusive else ()
    return (*group.topology, *(key for key in own if key not in group.topology))


def fits(request: PlanRequest, dropped: frozenset[Requirement] = frozenset()) -> bool:
    """Return whether the minimum of a tree has a place when some requirements do not have to hold.

    Bound members, and which pods and nodes exist, are never dropped; node rejections hold.
    """
    return _Search(request, dropped).found()


class _Search:
    """One exhaustive search."""

    def __init__(self, request: PlanRequest, dropped: frozenset[Requirement]) -> None:
        self.request = request
        self.dropped = dropped
        self.kinds = {kind for kind, of in dropped if not of}
        self.leaves = [g for g in walk(request.root) if is_leaf(g)]
        self.above = dict(self._chains(request.root, ()))
        self.rules = () if "rules" in self.kinds else request.rules
        # without these rules one pod more never helps, so a leaf has none or as many as it needs
        self.exact = not any(rule.kind != "apart" for rule in self.rules)
        self.alone = replace(request, rules=self.rules)
        self.apart = replace(request, rules=tuple(r for r in self.rules if r.kind == "apart"))
        self.strict = replace(request, root=self._strict(request.root))
        self.exclusive = any(g.exclusive for g in walk(self.strict.root))
        self.where: dict = {leaf.key: [] for leaf in self.leaves}
        self.capacity = [self._capacity(node) for node in request.nodes]
        self.ports = [list(node.host_ports) for node in request.nodes]
        self.claims = Counter(request.claims_in_use)
        self.new: Counter = Counter()
        self.domains: dict = {}
        self.used = Counter()  # pods per node
        self.seats: list = []
        self.slots = [(leaf, pods) for leaf in self.leaves for pods in self._classes(leaf)]
        self.twins = _twins(request.nodes)

    def _strict(self, group: PlanGroup) -> PlanGroup:
        """Return a group and those below it with the exclusive domains that are not dropped."""
        groups = tuple(map(self._strict, group.groups))
        kinds = ("topology", "exclusive")
        shares = any((kind, str(group.key)) in self.dropped for kind in kinds)
        return replace(group, groups=groups, exclusive=UNSET if shares else group.exclusive)

    def _chains(self, group: PlanGroup, above: tuple[PlanGroup, ...]):
        chain = (*above, group)
        yield group.key, [g for g in chain if domain_keys(g) and ("topology", str(g.key)) not in self.dropped]  # fmt: skip
        for child in group.groups:
            yield from self._chains(child, chain)

    def _capacity(self, node: PlanNode) -> dict[str, int]:
        reserved = node.reserved if "reservation" in self.kinds else {}
        return {r: node.free.get(r, 0) + reserved.get(r, 0) for r in node.allocatable}

    def _classes(self, leaf: PlanGroup) -> list[list[int]]:
        """Return, for each class of interchangeable members of a leaf, the nodes that its pods may use, once per pod."""
        may: dict[tuple, list] = {}
        for member in leaf.members:
            nodes = tuple(n for n, node in enumerate(self.request.nodes) if self._may(member, node))
            may.setdefault((member.shape, nodes), []).append(member)
        return [[key[0], list(key[1]), len(pods)] for key, pods in may.items()]

    def _may(self, member, node: PlanNode) -> bool:
        changed = node
        if "taint" in self.kinds:
            changed = replace(changed, taints=())
        if "cordon" in self.kinds:
            changed = replace(changed, unschedulable=False)
        shape = self.request.shapes[member.shape]
        if "selector" in self.kinds:
            volumes = tuple(s for s in shape.selectors if s.volume)
            shape = replace(shape, node_selector=(), selectors=volumes)
        if "volumes" in self.kinds:
            shape = replace(shape, selectors=tuple(s for s in shape.selectors if not s.volume))
        if "otherTrees" not in self.kinds and is_closed(self.request, node):
            return False
        return passes(shape, changed) and not any(
            v.node == node.name and (v.uid == member.uid or (v.uid is None and v.shape == member.shape))
            for v in self.request.rejected_nodes
        )  # fmt: skip

    def found(self) -> bool:
        """Return whether some placement is legal."""
        nodes = {n.name: n for n in self.request.nodes}
        for leaf in self.leaves:
            for bound in leaf.bound:
                for group in self.above[leaf.key]:
                    labels = nodes[bound.node].labels if bound.node in nodes else {}
                    value = tuple(labels.get(key) for key in domain_keys(group))
                    if None in value or self.domains.setdefault(group.key, value) != value:
                        return False
        self.domains = {key: [value, 1] for key, value in self.domains.items()}
        return self._leaf(0)

    def _least(self, group: PlanGroup) -> int:
        if (minimum_kind(group), str(group.key)) in self.dropped:
            return 0
        return 1 if group.basic else group.minimum

    def _holds(self, group: PlanGroup) -> bool:
        if is_leaf(group):
            return self.new[group.key] + len(group.bound) >= self._least(group)
        held = {child.key: self._holds(child) for child in group.groups}
        least = self._least(group)
        always = (group.required or ()) if least and not group.basic else ()
        return sum(held.values()) >= least and all(
            any(key.name == name for key in held)
            and all(ok for key, ok in held.items() if key.name == name)
            for name in always
        )

    def _legal(self) -> bool:
        for group in walk(self.request.root):
            below = any(self.new[leaf.key] for leaf in walk(group))
            if (below or group is self.request.root) and not self._holds(group):
                return False
        if self.exclusive and shared_domains(self.strict, self.where):
            return False
        return not self.rules or not broken_rules(self.alone, self.seats)

    def _leaf(self, number: int) -> bool:
        """Try every number of pods of a leaf, and go on to the next."""
        if number == len(self.leaves):
            return self._legal()
        leaf = self.leaves[number]
        need = max(0, self._least(leaf) - len(leaf.bound))
        counts = {0, need} if self.exact else {0, *range(need, len(leaf.members) + 1)}
        classes = [pods for of, pods in self.slots if of is leaf]
        return any(
            self._class(number, classes, 0, count)
            for count in sorted(counts)
            if count <= len(leaf.members)
        )

    def _class(self, number: int, classes: list, at: int, left: int) -> bool:
        """Divide the pods of a leaf among its classes."""
        if at == len(classes):
            return left == 0 and self._leaf(number + 1)
        later = sum(size for _, _, size in classes[at + 1 :])
        size = classes[at][2]
        return any(
            self._seat(number, classes, at, left - count, count, 0)
            for count in range(max(0, left - later), min(size, left) + 1)
        )

    def _seat(self, number: int, classes: list, at: int, left: int, count: int, first: int) -> bool:
        """Give nodes to `count` pods of one class, in ascending order."""
        if count == 0:
            return self._class(number, classes, at + 1, left)
        shape, nodes, _ = classes[at]
        leaf = self.leaves[number]
        for position in range(first, len(nodes)):
            node = nodes[position]
            if self.twins[node] is not None and not self.used[self.twins[node]]:
                continue  # the node before it is the same, and empty
            undo = self._take(leaf, shape, node)
            if undo is None:
                continue
            good = self._seat(number, classes, at, left, count - 1, position)
            undo()
            if good:
                return True
        return False

    def _take(self, leaf: PlanGroup, number: int, node: int):
        """Place a pod; return how to undo it, or None if the node has no place for it."""
        shape, there = self.request.shapes[number], self.request.nodes[node]
        ask = {**{r: q for r, q in shape.requests if q > 0}, "pods": 1}
        scarce = "resources" not in self.kinds
        if scarce and (
            any(self.capacity[node].get(r, 0) < q for r, q in ask.items())
            or any(clash(p, q) for p in shape.host_ports for q in self.ports[node])
            or any(self.claims[c] for c in shape.exclusive_claims)
        ):
            return None
        groups = self.above[leaf.key]
        values = [(g.key, tuple(there.labels.get(k) for k in domain_keys(g))) for g in groups]
        if any(None in v or self.domains.get(k, (v, 0))[0] != v for k, v in values):
            return None
        self.seats.append((number, there))
        if self.apart.rules and broken_rules(self.apart, self.seats):
            self.seats.pop()
            return None
        ports = len(self.ports[node])
        if scarce:
            for r, q in ask.items():
                self.capacity[node][r] -= q
            self.ports[node].extend(shape.host_ports)
            self.claims.update(shape.exclusive_claims)
        for key, value in values:
            self.domains.setdefault(key, [value, 0])[1] += 1
        self.new[leaf.key] += 1
        self.where[leaf.key].append(there.name)
        self.used[node] += 1

        def undo() -> None:
            self.seats.pop()
            self.where[leaf.key].pop()
            self.new[leaf.key] -= 1
            self.used[node] -= 1
            for key, _ in values:
                self.domains[key][1] -= 1
                if not self.domains[key][1]:
                    del self.domains[key]
            if scarce:
                for r, q in ask.items():
                    self.capacity[node][r] += q
                del self.ports[node][ports:]
                self.claims.subtract(shape.exclusive_claims)

        return undo


def _twins(nodes: tuple[PlanNode, ...]) -> list[int | None]:
    """Return for each copy of a node (`like+number`) the copy before it, which differs in nothing that matters."""
    index = {node.name: i for i, node in enumerate(nodes)}
    before = []
    for node in nodes:
        like, plus, number = str(node.name).rpartition("+")
        before.append(index.get(f"{like}+{int(number) - 1}") if plus else None)  # type: ignore[call-overload]
    return before
