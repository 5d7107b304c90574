"""Nodes, priority classes and runtime classes, which have no namespace."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from extender.cluster.types.common_types import KubernetesObject, Part, Priority, Resources
from extender.cluster.types.pod_types import PodToleration
from extender.core.model.pods import TaintEffect


class NodeTaint(Part, frozen=True, kw_only=True):
    """A taint as stored."""

    key: str
    value: str = ""
    effect: TaintEffect


class NodeSpec(Part, frozen=True, kw_only=True):
    """The spec of a node."""

    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class NodeStatus(Part, frozen=True, kw_only=True):
    """The status of a node, reported by the kubelet."""

    capacity: Resources = field(default_factory=dict)
    allocatable: Resources = field(default_factory=dict)


class Node(KubernetesObject, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PriorityClass(KubernetesObject, frozen=True, kw_only=True):
    """A named priority."""

    value: Priority = 0
    global_default: bool = False
    preemption_policy: Literal["PreemptLowerPriority", "Never"] = "PreemptLowerPriority"


class LimitRangeItem(Part, frozen=True, kw_only=True):
    """Bounds of a namespace for each container, pod or claim, and what containers have where they set nothing."""

    type: str = ""
    default: Resources = field(default_factory=dict)
    default_request: Resources = field(default_factory=dict)
    min: Resources = field(default_factory=dict)
    max: Resources = field(default_factory=dict)
    max_limit_request_ratio: Resources = field(default_factory=dict)


class LimitRangeSpec(Part, frozen=True, kw_only=True):
    """The spec of a LimitRange."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(KubernetesObject, frozen=True, kw_only=True):
    """Defaults and bounds of the containers of a namespace; admission adds and checks them."""

    spec: LimitRangeSpec = LimitRangeSpec()


class RuntimeOverhead(Part, frozen=True, kw_only=True):
    """What a pod of a runtime class needs besides its containers."""

    pod_fixed: Resources = field(default_factory=dict)


class RuntimeScheduling(Part, frozen=True, kw_only=True):
    """The nodes that have the runtime."""

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[PodToleration, ...] = ()


class RuntimeClass(KubernetesObject, frozen=True, kw_only=True):
    """A container runtime; admission adds what it has to each pod that names it."""

    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None
