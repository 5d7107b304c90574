"""Static filters: which nodes a pod may use, whatever is free there; and host ports as resource axes.

Every filter is exactly that of kube-scheduler (K70, K71). Free capacity is not read.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    HostPort,
    NodeSelector,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
    Toleration,
)
from extender.core.planner.model.node_table import Bools, Ints, NodeTable

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 -- "any address" in Kubernetes, not a socket
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_INT64 = 1 << 63


def may_run(node_table: NodeTable, shape: PodShape) -> Bools:
    """Return per node whether the static filters let a pod of this shape pass.

    Source:
        Plugins NodeUnschedulable, NodeAffinity, TaintToleration.
    """
    return selected(node_table, shape) & tolerated(node_table, shape)


def selected(node_table: NodeTable, shape: PodShape) -> Bools:
    """Return per node whether nodeSelector and every required selector hold."""
    mask = np.ones(node_table.size, dtype=np.bool_)
    for key, value in shape.node_selector:
        mask &= _requirement(
            node_table, NodeSelectorRequirement(key=key, operator="In", values=(value,))
        )
    for selector in shape.selectors:
        mask &= _selector(node_table, selector)
    return mask


def without_selectors(shape: PodShape) -> PodShape:
    """Return a shape without its node selector and its required node affinity."""
    volumes = tuple(selector for selector in shape.selectors if selector.volume)
    return msgspec.structs.replace(shape, node_selector=(), selectors=volumes)


def without_volumes(shape: PodShape) -> PodShape:
    """Return a shape that is not tied to the nodes of its volumes."""
    own = tuple(selector for selector in shape.selectors if not selector.volume)
    return msgspec.structs.replace(shape, selectors=own)


def tolerated(
    node_table: NodeTable, shape: PodShape, *, taints: bool = True, cordons: bool = True
) -> Bools:
    """Return per node whether its taints and its cordon are tolerated; each can be left out."""
    codes, lists = node_table.taints() if taints else (np.zeros(0, dtype=np.int64), [])
    good = [
        all(t.effect == "PreferNoSchedule" or tolerates(shape.tolerations, t) for t in node_taints)
        for node_taints in lists
    ]
    mask = (
        np.array(good, dtype=np.bool_)[codes] if lists else np.ones(node_table.size, dtype=np.bool_)
    )
    if cordons and not tolerates(shape.tolerations, CORDON):
        mask &= ~node_table.cordoned()
    return mask


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Return whether one of the tolerations matches, as Toleration.ToleratesTaint does."""
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


def avoided_taints(node_table: NodeTable, shape: PodShape) -> Ints:
    """Return per node the number of its taints with PreferNoSchedule that are not tolerated."""
    codes, lists = node_table.taints()
    counts = [
        sum(t.effect == "PreferNoSchedule" and not tolerates(shape.tolerations, t) for t in taints)
        for taints in lists
    ]
    return np.array(counts, dtype=np.int64)[codes]


def _selector(node_table: NodeTable, selector: NodeSelector) -> Bools:
    mask = np.zeros(node_table.size, dtype=np.bool_)
    for term in selector.terms:
        mask |= matches(node_table, term)
    return mask


def matches(node_table: NodeTable, term: SelectorTerm) -> Bools:
    """Return per node whether all expressions of a term hold; an empty one matches no node."""
    mask = np.full(node_table.size, bool(term.labels or term.fields), dtype=np.bool_)
    for requirement in term.labels:
        mask &= _requirement(node_table, requirement)
    for requirement in term.fields:
        mask &= _field(node_table, requirement)
    return mask


def _field(node_table: NodeTable, requirement: NodeSelectorRequirement) -> Bools:
    """Match a field requirement; only metadata.name with In or NotIn exists."""
    mask = np.zeros(node_table.size, dtype=np.bool_)
    if requirement.key != "metadata.name" or requirement.operator not in {"In", "NotIn"}:
        return mask
    for name in requirement.values:
        position = node_table.index.get(NodeName(name))
        if position is not None:
            mask[position] = True
    return mask if requirement.operator == "In" else ~mask


def _requirement(node_table: NodeTable, requirement: NodeSelectorRequirement) -> Bools:
    """Match a label requirement once per distinct value, and return the result per node."""
    codes, values = node_table.label(requirement.key)
    present, absent = _matches(requirement, values)
    table = np.array([*present, absent], dtype=np.bool_)  # code -1 picks the last entry
    return table[codes]


def _matches(requirement: NodeSelectorRequirement, values: list[str]) -> tuple[list[bool], bool]:
    """Return for each value, and for a node without the label, whether the requirement matches."""
    listed = set(requirement.values)
    match requirement.operator:
        case "In":
            return [v in listed for v in values], False
        case "NotIn":
            # without values the expression is invalid and its term matches nothing
            return [bool(listed) and v not in listed for v in values], bool(listed)
        case "Exists":
            return [True] * len(values), False
        case "DoesNotExist":
            return [False] * len(values), True
        case "Gt" | "Lt":
            limit = _int64(requirement.values[0]) if len(requirement.values) == 1 else None
            greater = requirement.operator == "Gt"
            return [_beyond(_int64(v), limit, greater=greater) for v in values], False


def _int64(text: str) -> int | None:
    """Read an integer as Go's ParseInt(base 10, 64) does; None where that fails."""
    if not _INTEGER.match(text):
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None


def _beyond(value: int | None, limit: int | None, *, greater: bool) -> bool:
    if value is None or limit is None:
        return False
    return value > limit if greater else value < limit


def port_axes(shapes: list[PodShape]) -> list[HostPort]:
    """List the axes for the host ports of some shapes, one per port and address.

    Each node has 1 of every axis. A port on any address requests the axis of every address, so that
    "w + c_i <= 1 for each address i" is equivalent to the pairwise check of kube-scheduler.
    """
    ports = {p for shape in shapes for p in shape.host_ports}
    any_address = {HostPort(protocol=p.protocol, port=p.port, ip=ANY_ADDRESS) for p in ports}
    return sorted(ports | any_address)


def port_request(shape: PodShape, axes: list[HostPort]) -> list[int]:
    """Return the request of a pod for each port axis: 0 or 1."""
    taken = [0] * len(axes)
    for port in shape.host_ports:
        for i, axis in enumerate(axes):
            same = (axis.protocol, axis.port) == (port.protocol, port.port)
            if same and port.ip in {axis.ip, ANY_ADDRESS}:
                taken[i] = 1
    return taken


def free_ports(node_table: NodeTable, axis: HostPort) -> Ints:
    """Return per node 1 if the axis is free, 0 if a port in use there conflicts with it."""
    capacity = np.ones(node_table.size, dtype=np.int64)
    for i, node in enumerate(() if node_table.is_empty else node_table.nodes):
        for port in node.host_ports:
            if (port.protocol, port.port) == (axis.protocol, axis.port) and (
                port.ip == axis.ip or ANY_ADDRESS in {port.ip, axis.ip}
            ):
                capacity[i] = 0
    return capacity
