"""Pods as the planner sees them: what they ask for, where they may run, and which group they name.

A `PodShape` holds everything that decides on which nodes a pod fits; pods of equal shape are
interchangeable to the planner. Quantities are integers: CPU in millicores, memory and storage in
bytes, extended resources in units, and `pods` (one each) as a resource like the others.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from extender.core.ids import GroupKey, NodeName, PodUid

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Toleration(msgspec.Struct, frozen=True):
    """A toleration; empty `key` with Exists tolerates everything, empty `effect` every effect."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(msgspec.Struct, frozen=True):
    """One expression of a node selector term."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class SelectorTerm(msgspec.Struct, frozen=True):
    """Expressions that must all hold; a term without any matches no node (as in Kubernetes)."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()  # only metadata.name exists


class NodeSelector(msgspec.Struct, frozen=True):
    """Terms of which at least one must match."""

    terms: tuple[SelectorTerm, ...] = ()


class HostPort(msgspec.Struct, frozen=True, order=True):
    """A port of the node that a pod takes; `0.0.0.0` clashes with every address."""

    protocol: str
    port: int
    ip: str = "0.0.0.0"  # noqa: S104 -- Kubernetes' word for "any address", nothing is bound here


# How rules about other pods begin in `unmodelled`; the rest names the topology key.
NEEDS_PODS = "pod affinity over "
AVOIDS_PODS = "pod anti-affinity over "
SPREADS = "topology spread over "


class PodShape(msgspec.Struct, frozen=True):
    """Everything about a pod that decides where it fits."""

    requests: tuple[
        tuple[str, int], ...
    ] = ()  # sorted by resource name, zero requests left out, `pods` always 1
    node_selector: tuple[tuple[str, str], ...] = ()  # labels the node must have, sorted
    selectors: tuple[
        NodeSelector, ...
    ] = ()  # all must hold: required node affinity, and one per bound volume
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    exclusive_claims: tuple[
        str, ...
    ] = ()  # ReadWriteOncePod claims, namespace/name: one pod in the whole cluster
    unmodelled: tuple[
        str, ...
    ] = ()  # what the planner cannot see (unbound volumes, resource claims, inter-pod rules)

    @property
    def needs_pods(self) -> bool:
        """Say whether it may run only near certain other pods, which must come first."""
        return any(text.startswith(NEEDS_PODS) for text in self.unmodelled)

    @property
    def pod_rules(self) -> tuple[str, ...]:
        """Give the rules about other pods, in words."""
        return tuple(
            text for text in self.unmodelled if text.startswith((NEEDS_PODS, AVOIDS_PODS, SPREADS))
        )


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has not ended, as the informers last saw it."""

    uid: PodUid
    namespace: str
    name: str
    shape: PodShape
    group: GroupKey | None = None  # leaf group it names; the group may not exist
    labels: dict[str, str] = {}
    priority: int = 0
    scheduler_name: str = "default-scheduler"
    preemption_policy: str = "PreemptLowerPriority"
    created_us: int = 0
    node: NodeName | None = None  # spec.nodeName: bound
    nominated: NodeName | None = None  # status.nominatedNodeName
    gates: tuple[str, ...] = ()  # names of scheduling gates
    deleting: bool = False  # has a deletionTimestamp: not a member any more, still occupying room
    phase: str = "Pending"
    unschedulable: str = (
        ""  # message of PodScheduled=False, reason Unschedulable: kube-scheduler's words
    )
    resource_version: str = ""
    plan: str = ""  # annotation gang-extender.dev/plan: the admission under which it was bound
    pinned: NodeName | None = None  # required affinity on metadata.name (DaemonSets): always passes

    @property
    def path(self) -> str:
        """Give `namespace/name`."""
        return f"{self.namespace}/{self.name}"
