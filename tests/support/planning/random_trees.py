"""Random small requests for the property tests."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import assume
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    HostPort,
    NodeSelector,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
    Toleration,
)
from extender.core.planner.model.interpod_constraints import compile_rules
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    Evictable,
    NodeRejection,
    PlanBound,
    PlanBudget,
    PlanDomain,
    PlanExclusive,
    PlanGang,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanRule,
    PlanUnit,
    PlanVictim,
    walk,
)
from extender.core.planner.preempt.post_eviction_view import without

TOPOLOGIES = [(), (), (), ("zone",), ("rack",), ("rack",), ("zone", "rack"), ("rack", "zone")]


@st.composite
def shapes(draw) -> PodShape:
    requests = {"pods": 1, "gpu": draw(st.integers(0, 3))}
    if draw(st.booleans()):
        requests["cpu"] = draw(st.integers(1, 3))
    selectors: tuple[NodeSelector, ...] = ()
    if draw(st.integers(0, 5)) == 0:
        operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]))
        values = (draw(st.sampled_from(["1", "2", "x"])),)
        term = SelectorTerm(
            labels=(NodeSelectorRequirement(key="gen", operator=operator, values=values),)
        )
        name = NodeSelectorRequirement(key="metadata.name", operator="In", values=("n0", "n1"))
        terms = (term, SelectorTerm(fields=(name,)), SelectorTerm())[: draw(st.integers(1, 3))]
        selectors = (NodeSelector(terms=terms),)
    tolerations: tuple[Toleration, ...] = ()
    if draw(st.integers(0, 3)) == 0:
        tolerations = (
            draw(
                st.sampled_from(
                    [
                        Toleration(operator="Exists"),
                        Toleration(key="t", value="a"),
                        Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),
                        Toleration(key="t", operator="Exists", effect="NoExecute"),
                    ]
                )
            ),
        )
    ports: tuple[HostPort, ...] = ()
    if draw(st.integers(0, 5)) == 0:
        ports = (HostPort("TCP", 80, draw(st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"]))),)
    claims = ("ns/c",) if draw(st.integers(0, 11)) == 0 else ()
    return PodShape(
        requests=tuple(sorted((k, v) for k, v in requests.items() if v)),
        node_selector=(("gen", "1"),) if draw(st.integers(0, 9)) == 0 else (),
        selectors=selectors,
        tolerations=tolerations,
        host_ports=ports,
        exclusive_claims=claims,
    )


@st.composite
def nodes(draw, index: int) -> PlanNode:
    labels = {}
    for key, values in (("zone", "AB"), ("rack", "RST"), ("gen", ["1", "2", "x"])):
        if draw(st.integers(0, 9)):
            labels[key] = draw(st.sampled_from(list(values)))
    labels["host"] = f"n{index}"
    free = {
        "gpu": draw(st.integers(-1, 5)),
        "cpu": draw(st.integers(0, 6)),
        "pods": draw(st.integers(1, 4)),
    }
    taints: tuple[Taint, ...] = ()
    if draw(st.integers(0, 7)) == 0:
        effect = draw(st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]))
        taints = (Taint(key="t", value="a", effect=effect),)
    ports: tuple[HostPort, ...] = ()
    if draw(st.integers(0, 7)) == 0:
        ports = (HostPort("TCP", 80, draw(st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.3"]))),)
    allocatable = {"gpu": 6, "cpu": 6, "pods": 5}
    if draw(st.integers(0, 15)) == 0:
        del allocatable["gpu"]
    reserved = {}
    if draw(st.integers(0, 4)) == 0:
        used = {name: amount - free[name] for name, amount in allocatable.items()}
        reserved = {
            name: draw(st.integers(1, amount)) for name, amount in used.items() if amount > 0
        }
    return PlanNode(
        name=NodeName(f"n{index}"),
        labels=labels,
        taints=taints,
        unschedulable=draw(st.integers(0, 15)) == 0,
        allocatable=allocatable,
        free=free,
        host_ports=ports,
        reserved=reserved,
    )


@st.composite
def requests(draw, most_pods: int = 6) -> PlanRequest:
    fleet = tuple(draw(nodes(i)) for i in range(draw(st.integers(1, 5))))
    kinds = tuple(dict.fromkeys(draw(shapes()) for _ in range(draw(st.integers(1, 3)))))
    left = [draw(st.integers(1, most_pods))]
    names = iter(range(1000))

    def leaf(depth: int) -> PlanGroup:
        number = next(names)
        size = min(draw(st.integers(0, 4)), left[0])
        left[0] -= size
        one = draw(st.integers(0, len(kinds) - 1)) if draw(st.booleans()) else None
        bound = 0 if draw(st.integers(0, 4)) else draw(st.integers(1, 2))
        wish = draw(st.integers(0, 6)) == 0
        return PlanGroup(
            key=GroupKey(namespace="ns", name=f"g{number}", kind="PodGroup"),
            basic=draw(st.integers(0, 3)) == 0,
            minimum=max(
                1, min(draw(st.integers(1, 4)), size + bound + draw(st.integers(0, 3)) // 3)
            ),
            topology=draw(st.sampled_from(TOPOLOGIES)),
            members=tuple(
                PlanMember(
                    pod=f"ns/g{number}-{i}",
                    uid=PodUid(f"g{number}-{i}"),
                    shape=draw(st.integers(0, len(kinds) - 1)) if one is None else one,
                    prefer=fleet[draw(st.integers(0, len(fleet) - 1))].name if wish else None,
                )
                for i in range(size)
            ),
            bound=tuple(
                PlanBound(
                    pod=f"ns/g{number}-b{i}",
                    uid=PodUid(f"g{number}-b{i}"),
                    node=fleet[draw(st.integers(0, len(fleet) - 1))].name,
                )
                for i in range(bound)
            ),
        )

    def group(depth: int) -> PlanGroup:
        if depth == 0 or draw(st.integers(0, 2)) == 0:
            return leaf(depth)
        number = next(names)
        children = tuple(group(depth - 1) for _ in range(draw(st.integers(1, 3))))
        always: tuple[str, ...] = ()
        if draw(st.integers(0, 2)) == 0:
            always = tuple(child.key.name for child in children if draw(st.booleans()))
            always += ("no-such-child",) if draw(st.integers(0, 15)) == 0 else ()
        return PlanGroup(
            key=GroupKey(namespace="ns", name=f"g{number}", kind="CompositePodGroup"),
            basic=draw(st.integers(0, 3)) == 0,
            minimum=draw(st.integers(1, len(children))),
            required=always or UNSET,
            topology=draw(st.sampled_from(TOPOLOGIES)),
            groups=children,
        )

    root = group(draw(st.integers(0, 3)))
    rejections: tuple[NodeRejection, ...] = ()
    if draw(st.integers(0, 5)) == 0:
        rejections = (
            NodeRejection(node=fleet[0].name, shape=0),
            NodeRejection(node=fleet[-1].name, uid=PodUid("g0-0")),
        )
    in_use = ("ns/c",) if draw(st.integers(0, 15)) == 0 else ()
    return PlanRequest(
        root=root,
        nodes=fleet,
        shapes=kinds,
        rejected_nodes=rejections,
        claims_in_use=in_use,
        explain=False,
    )


@st.composite
def exclusive_requests(draw) -> PlanRequest:
    """Make a request some of whose groups share their domain with no other one."""
    return draw(exclusive(draw(requests())))


@st.composite
def exclusive(draw, request: PlanRequest) -> PlanRequest:
    """Give some groups of a request a domain alone, and other trees some domains."""

    def changed(group: PlanGroup) -> PlanGroup:
        groups = tuple(changed(child) for child in group.groups)
        own: PlanExclusive | UnsetType = UNSET
        if draw(st.integers(0, 3)):
            key = draw(st.sampled_from(["rack", "rack", "host", "zone"]))
            taken = draw(st.sampled_from([(), (), ("R",), ("A", "S"), ("n0", "n1"), ("no-such",)]))
            own = PlanExclusive(key=key, taken=taken)
        bound = group.bound if draw(st.integers(0, 2)) == 0 else ()
        return msgspec.structs.replace(group, groups=groups, exclusive=own, bound=bound)

    closed: tuple[PlanExclusive, ...] | UnsetType = UNSET
    if draw(st.integers(0, 2)) == 0:
        closed = (PlanExclusive(key="rack", taken=("S", "no-such")), PlanExclusive(key="host"))
    return msgspec.structs.replace(request, root=changed(request.root), closed=closed)


@st.composite
def rules(draw, request: PlanRequest) -> PlanRule:
    """Make a rule between pods of a request's shapes."""
    kind = draw(st.sampled_from(["near", "apart", "apart", "spread"]))
    key = draw(st.sampled_from(["host", "rack", "zone"]))
    some = st.sets(st.integers(0, len(request.shapes) - 1))
    shapes, about = draw(some), draw(some)
    if kind != "apart" or draw(st.booleans()):
        about = shapes = shapes or {0}  # mostly pods of one app mean each other
        if kind == "near" and draw(st.integers(0, 3)) == 0:
            about = draw(some)
    values = {"host": "n0 n1 n2", "rack": "R S T", "zone": "A B"}[key].split()
    counted = [n.name for n in request.nodes] if kind == "spread" else values
    there = {v: draw(st.integers(0, 2)) for v in counted} if draw(st.integers(0, 2)) == 0 else {}
    if kind == "apart" and there and draw(st.booleans()):
        shapes = set()
    return PlanRule(
        kind=kind,
        keys=(key,),
        shapes=tuple(sorted(shapes)),
        about=tuple(sorted(about)),
        there=(tuple(sorted((v, n) for v, n in there.items() if n)),),
        skew=draw(st.integers(1, 2)),
        least_domains=draw(st.sampled_from([1, 1, 1, 3])),
        honors_affinity=draw(st.integers(0, 3)) > 0,
        honors_taints=draw(st.integers(0, 3)) == 0,
    )


@st.composite
def ruled_requests(draw) -> PlanRequest:
    """Make a request with rules between pods that the planner models."""
    request = draw(requests(5))
    made = tuple(draw(rules(request)) for _ in range(draw(st.integers(1, 2))))
    request = msgspec.structs.replace(request, rules=made)
    assume(not compile_rules(request, NodeTable(request.nodes)).unjudged)
    return request


@st.composite
def changed_nodes(draw, nodes: tuple[PlanNode, ...]) -> tuple[PlanNode, ...]:
    """Change a few of the nodes, as pods and people do; the others stay the same objects."""
    rows = list(nodes)
    for _ in range(draw(st.integers(0, 3)) if rows else 0):
        place = draw(st.integers(0, len(rows) - 1))
        row = rows[place]
        change = draw(st.sampled_from(["less", "more", "label", "taint", "cordon", "gone", "port"]))
        if change == "gone":
            del rows[place]
            if not rows:
                break
            continue
        by = -1 if change == "less" else 1
        rows[place] = {
            "less": msgspec.structs.replace(row, free={k: v + by for k, v in row.free.items()}),
            "more": msgspec.structs.replace(row, free={k: v + by for k, v in row.free.items()}),
            "label": msgspec.structs.replace(row, labels={**row.labels, "rack": "r9"}),
            "taint": msgspec.structs.replace(row, taints=(Taint("t", "a"),)),
            "cordon": msgspec.structs.replace(row, unschedulable=not row.unschedulable),
            "port": msgspec.structs.replace(row, host_ports=(HostPort("TCP", 80, "0.0.0.0"),)),
        }[change]
    return tuple(rows)


# --- units that may go


@st.composite
def evictables(draw, request: PlanRequest, most_units: int = 6) -> Evictable:
    """Draw what runs beside a request: lone pods, whole groups, gangs with extras, reservations."""
    kinds = tuple(dict.fromkeys(draw(shapes()) for _ in range(draw(st.integers(1, 2)))))
    fleet = request.nodes
    number = iter(range(1000))
    budgets = tuple(
        PlanBudget(name=f"ns/b{i}", allowed=draw(st.integers(0, 2)))
        for i in range(draw(st.integers(0, 2)))
    )
    gangs: list[PlanGang] = []
    if draw(st.booleans()):
        gangs.append(PlanGang(name="CompositePodGroup/ns/c", minimum=draw(st.integers(1, 2))))
    for i in range(draw(st.integers(0, 2))):
        gangs.append(
            PlanGang(
                name=f"PodGroup/ns/l{i}",
                minimum=draw(st.integers(1, 2)),
                parent=0
                if gangs and gangs[0].minimum and not gangs[0].name.startswith("PodG")
                else -1,
                required=draw(st.integers(0, 2)) == 0,
                counts=draw(st.integers(0, 3)) > 0,
            )
        )
    leaves = [i for i, g in enumerate(gangs) if g.name.startswith("PodGroup")]

    def victim(*, running: bool = True) -> PlanVictim:
        gang = draw(st.sampled_from([-1, *leaves])) if running else -1
        if gang >= 0:
            gangs[gang] = msgspec.structs.replace(gangs[gang], running=gangs[gang].running + 1)
        name = f"v{next(number)}"
        return PlanVictim(
            pod=f"ns/{name}",
            uid=PodUid(name),
            node=draw(st.sampled_from(fleet)).name,
            shape=draw(st.integers(0, len(kinds) - 1)),
            since_us=draw(st.integers(0, 7)) * 30_000_000,
            budgets=tuple(
                i for i in range(len(budgets)) if running and draw(st.integers(0, 2)) == 0
            ),
            gang=gang,
        )

    units = []
    for _ in range(draw(st.integers(most_units // 2, most_units))):
        kind = draw(st.sampled_from(["pod", "pod", "group", "group", "reservation"]))
        size = 1 if kind == "pod" else draw(st.integers(1, 3))
        drawn = (victim(running=kind != "reservation") for _ in range(size))
        pods = tuple(sorted(drawn, key=lambda p: p.pod))
        name = f"Pod/{pods[0].pod}" if kind == "pod" else f"PodGroup/ns/{kind}{next(number)}"
        priority = draw(st.sampled_from([-1, 0, 1, 2, 3, 9]))
        may = draw(st.integers(0, 3)) > 0
        disruption_target = kind != "reservation" and draw(st.integers(0, 3)) == 0
        units.append(PlanUnit(name=name, uid=name, kind=kind, priority=priority, pods=pods,
                              may_preempt=may, disruption_target=disruption_target))  # fmt: skip
    going = tuple(victim() for _ in range(draw(st.integers(0, 3)) // 3))
    return numbered_by_use(
        Evictable(
            priority=5,
            units=tuple(sorted(units, key=lambda u: (u.kind, u.name))),
            shapes=kinds,
            gangs=tuple(gangs),
            budgets=budgets,
            going=going,
            now_min=draw(st.sampled_from([UNSET, 3])),
        )
    )


def numbered_by_use(source: Evictable) -> Evictable:
    """Number shapes in the order in which units and terminating pods need them, and leave the others out."""
    number: dict[int, int] = {}

    def again(pods: tuple[PlanVictim, ...]) -> tuple[PlanVictim, ...]:
        return tuple(
            msgspec.structs.replace(p, shape=number.setdefault(p.shape, len(number))) for p in pods
        )

    units = tuple(msgspec.structs.replace(u, pods=again(u.pods)) for u in source.units)
    going = again(source.going)
    shapes_ = tuple(source.shapes[i] for i in number)
    return msgspec.structs.replace(source, units=units, going=going, shapes=shapes_)


@st.composite
def crowded(draw, most_pods: int = 4, *, rules_: bool = False) -> PlanRequest:
    """Draw a request with units; what they take is missing from `free`, their ports and claims are in use."""
    request = draw(ruled_requests() if rules_ else requests(most_pods))
    full = {"gpu": 0, "cpu": 6, "pods": 5}
    nodes = tuple(
        msgspec.structs.replace(n, taints=(), free=full if draw(st.integers(0, 5)) else n.free)
        for n in request.nodes
    )
    plain = tuple(
        msgspec.structs.replace(s, node_selector=(), selectors=()) if draw(st.integers(0, 5)) else s
        for s in request.shapes
    )
    request = msgspec.structs.replace(
        request,
        nodes=nodes,
        shapes=plain,
        rejected_nodes=request.rejected_nodes[: draw(st.integers(0, 4)) // 4],
    )
    source = draw(evictables(request))
    pods = [p for u in source.units for p in u.pods] + list(source.going)
    claims = {c for p in pods for c in source.shapes[p.shape].exclusive_claims}
    asked = {c for s in request.shapes for c in s.exclusive_claims}
    rows = []
    for node in request.nodes:
        mine = [source.shapes[p.shape] for p in pods if p.node == node.name]
        ports = {port for shape in mine for port in shape.host_ports}
        rows.append(
            msgspec.structs.replace(node, host_ports=tuple(sorted({*node.host_ports, *ports})))
        )
    request = msgspec.structs.replace(
        request,
        nodes=tuple(rows),
        claims_in_use=tuple(sorted({*request.claims_in_use, *(claims & asked)})),
        evictable=source,
    )
    return draw(counted(request)) if rules_ else request


@st.composite
def held(draw, request: PlanRequest) -> PlanRequest:
    """Let exclusive domains that others have be held by pods that may go, if there are any."""
    source, labels = request.evictable, {n.name: n.labels for n in request.nodes}
    pods = [p for u in source.units for p in u.pods] + list(source.going)
    closed = [(None, d) for d in request.closed or ()]
    domains = []
    for group, exclusive_ in [*closed, *((g.key, g.exclusive) for g in walk(request.root))]:
        for value in exclusive_.taken if exclusive_ else ():
            inside = [p.uid for p in pods if labels[p.node].get(exclusive_.key) == value]
            if inside and draw(st.integers(0, 3)):
                domains.append(
                    PlanDomain(
                        group=group, key=exclusive_.key, value=value, pods=tuple(sorted(inside))
                    )
                )
    evictable = msgspec.structs.replace(source, domains=tuple(domains) or UNSET)
    return msgspec.structs.replace(request, evictable=evictable)


@st.composite
def counted(draw, request: PlanRequest) -> PlanRequest:
    """Let rules between pods count some of those that may go."""
    source, labels = request.evictable, {n.name: n.labels for n in request.nodes}
    made = [[Counter(dict(table)) for table in rule.there] for rule in request.rules]

    def seen(pod: PlanVictim, *, going: bool = False) -> PlanVictim:
        mine = []
        for i, rule in enumerate(request.rules):
            spread = rule.kind == "spread"
            if draw(st.integers(0, 1)) or (spread and going):
                continue
            mine.append(i)
            for table, key in zip(made[i], rule.keys, strict=True):
                value = pod.node if spread else labels[pod.node].get(key)
                table.update([] if value is None else [value])
        return msgspec.structs.replace(pod, rules=tuple(mine))

    units = tuple(
        msgspec.structs.replace(u, pods=tuple(seen(p) for p in u.pods)) for u in source.units
    )
    going = tuple(seen(p, going=True) for p in source.going)
    rules_ = tuple(
        msgspec.structs.replace(rule, there=tuple(tuple(sorted(t.items())) for t in tables))
        for rule, tables in zip(request.rules, made, strict=True)
    )
    source = msgspec.structs.replace(source, units=units, going=going)
    request = msgspec.structs.replace(request, rules=rules_, evictable=source)
    for one in (request, without(request, source.going)):
        assume(not compile_rules(one, NodeTable(one.nodes)).unjudged)
    return request
