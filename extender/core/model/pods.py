"""Pods as the planner sees them: what they ask for, where they may run, and which group they name.

A `PodShape` holds everything that decides on which nodes a pod fits; pods of equal shape are
interchangeable to the planner. Quantities are integers: CPU in millicores, memory and storage in
bytes, extended resources in units, and `pods` (one each) as a resource like the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from extender.core.model.ids import GroupKey, NodeName, PodUid

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """A toleration; empty `key` with Exists tolerates everything, empty `effect` every effect."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(msgspec.Struct, frozen=True, gc=False):
    """One expression of a node selector term."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class SelectorTerm(msgspec.Struct, frozen=True, gc=False):
    """Expressions that must all hold; a term without any matches no node (as in Kubernetes)."""

    labels: tuple[NodeSelectorRequirement, ...] = ()
    fields: tuple[NodeSelectorRequirement, ...] = ()  # only metadata.name exists


class NodeSelector(msgspec.Struct, frozen=True, gc=False):
    """Terms of which at least one must match."""

    terms: tuple[SelectorTerm, ...] = ()


class HostPort(msgspec.Struct, frozen=True, order=True, gc=False):
    """A port of the node that a pod takes; `0.0.0.0` clashes with every address."""

    protocol: str
    port: int
    ip: str = "0.0.0.0"  # noqa: S104 -- Kubernetes' word for "any address", nothing is bound here


RESOURCE_CLAIM = "resource claim "
ONE_POD_VOLUME = "a volume that only one pod of a node can use"
ABSENT = " does not exist"  # ends what is told of a claim or a volume that is not there
UNBOUND = " is not bound to a volume"  # ends what is told of a claim
# How rules about other pods are told; the rest names the topology key.
NEEDS_PODS = "pod affinity over "
AVOIDS_PODS = "pod anti-affinity over "
SPREADS = "topology spread over "
RuleKind = Literal["near", "apart", "spread"]
_RULE_WORDS: dict[RuleKind, str] = {"near": NEEDS_PODS, "apart": AVOIDS_PODS, "spread": SPREADS}


class AboutPods(msgspec.Struct, frozen=True, gc=False):
    """Which other pods a rule is about; no namespaces: those of every namespace."""

    namespaces: tuple[str, ...] = ()  # sorted
    labels: tuple[NodeSelectorRequirement, ...] = ()  # all must hold; none: every pod

    def match(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Say whether a pod is meant.

        >>> AboutPods(("ns",), (NodeSelectorRequirement("app", "NotIn", ("a",)),)).match("ns", {})
        True
        """
        if self.namespaces and namespace not in self.namespaces:
            return False
        return all(_holds(r, labels) for r in self.labels)


class PodRule(msgspec.Struct, frozen=True, gc=False):
    """A required rule of a pod about other pods.

    `near`: pods that match every one of `about` must be in the node's domain of each key. `apart`: no
    pod that matches may be in its domain. `spread`: with this pod its domain has at most `skew` more
    pods that match than the domain with the fewest.

    Source:
        Plugins InterPodAffinity and PodTopologySpread (whenUnsatisfiable: DoNotSchedule).
    """

    kind: RuleKind
    keys: tuple[str, ...]  # of node labels; `apart` and `spread` have one
    about: tuple[AboutPods, ...]  # `apart` and `spread` have one
    skew: int = 1
    least_domains: int = 1  # `spread`: with fewer domains than that the fewest is taken to be 0
    honors_affinity: bool = True  # `spread`: only nodes count that the pod selects
    honors_taints: bool = False  # `spread`: only nodes count whose taints the pod tolerates

    @property
    def text(self) -> str:
        """Say it in words.

        >>> PodRule("apart", ("zone",), (AboutPods(),)).text
        'pod anti-affinity over zone'
        """
        return _RULE_WORDS[self.kind] + " and ".join(self.keys)

    def match(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Say whether a pod is one of those that the rule is about."""
        return all(about.match(namespace, labels) for about in self.about)


def _holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Evaluate an expression of a label selector: NotIn also holds where the label is missing."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case _:
            return value is None


# ended: by itself, Succeeded or Failed. deleted: the API server knows it no more, or nobody said why it terminates
EndCause = Literal["preempted", "evicted", "node-lost", "refused-by-kubelet", "ended", "deleted"]


class PodEnd(msgspec.Struct, frozen=True, gc=False):
    """How a pod ended, as the cluster tells it."""

    cause: EndCause
    text: str = ""  # what its status says: a reason, and a message where there is one


TAINTED = "DeletionByTaintManager"
# Who made a pod end, by the word that tells it: reasons of DisruptionTarget, and of the status of a pod that a kubelet ended.
SUCCEEDED = "Succeeded"  # phase of a pod that has done its work
ENDED_BY: Mapping[str, EndCause] = {
    "PreemptionByScheduler": "preempted",
    "Preempting": "preempted",  # a kubelet made room for a critical pod
    "EvictionByEvictionAPI": "evicted",
    TAINTED: "evicted",  # or its node is lost: that is in the taints of the node
    "DeletionByDeviceTaintManager": "evicted",
    "TerminationByKubelet": "evicted",
    "Evicted": "evicted",
    "DeletionByPodGC": "node-lost",
}


class PodShape(msgspec.Struct, frozen=True, gc=False):
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
    ] = ()  # what the planner cannot see (unbound volumes, resource claims, rules about namespaces)
    rules: tuple[PodRule, ...] = ()  # about other pods

    @property
    def needs_pods(self) -> bool:
        """Say whether it may run only near certain other pods, which must come first."""
        return any(rule.kind == "near" for rule in self.rules) or any(
            text.startswith(NEEDS_PODS) for text in self.unmodelled
        )

    @property
    def pod_rules(self) -> tuple[str, ...]:
        """Give the rules about other pods that are not planned for in every case, in words.

        Anti-affinity always is; affinity and spread among members of several shapes are not.
        """
        unseen = (t for t in self.unmodelled if t.startswith(tuple(_RULE_WORDS.values())))
        return tuple(sorted({*unseen, *(r.text for r in self.rules if r.kind != "apart")}))

    @property
    def lacking(self) -> tuple[str, ...]:
        """Name the claims and volumes that do not exist: until they do it fits nowhere, whoever goes."""
        return tuple(text for text in self.unmodelled if text.endswith(ABSENT))

    @property
    def uncounted(self) -> frozenset[str]:
        """Name what it uses of a node that nobody but kube-scheduler counts: devices of claims, exclusive disks."""
        words = {
            RESOURCE_CLAIM.strip() if t.startswith(RESOURCE_CLAIM) else t for t in self.unmodelled
        }
        return frozenset(words & {RESOURCE_CLAIM.strip(), ONE_POD_VOLUME})

    @property
    def commits(self) -> bool:
        """Say whether kube-scheduler binds or allocates something for it before it asks anybody to bind it."""
        return any(t.endswith(UNBOUND) or t.startswith(RESOURCE_CLAIM) for t in self.unmodelled)

    @property
    def keeps_off(self) -> bool:
        """Say whether it forbids other pods to come near it."""
        return any(rule.kind == "apart" for rule in self.rules)


class Pod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that has not ended, as the informers last saw it."""

    uid: PodUid
    namespace: str
    name: str
    shape: PodShape
    group: GroupKey | None = None  # leaf group it names; the group may not exist
    by_field: bool = False  # names it by spec.schedulingGroup, which kube-scheduler knows too
    labels: dict[str, str] = {}
    priority: int = 0
    scheduler_name: str = "default-scheduler"
    preemption_policy: str = "PreemptLowerPriority"
    created_us: int = 0
    node: NodeName | None = None  # spec.nodeName: bound
    assigned_us: int = (
        0  # when it got its node, by the API server's clock (whole seconds); 0 without one
    )
    nominated: NodeName | None = None  # status.nominatedNodeName
    gates: tuple[str, ...] = ()  # names of scheduling gates
    deleting: bool = False  # has a deletionTimestamp: not a member any more, still occupying room
    deletes_us: int = 0  # its deletionTimestamp: when its grace period ends
    doomed: str = (
        ""  # reason of DisruptionTarget=True: PreemptionByScheduler, EvictionByEvictionAPI, ...
    )
    phase: str = "Pending"
    unschedulable: str = (
        ""  # message of PodScheduled=False, reason Unschedulable: kube-scheduler's words
    )
    resource_version: str = ""
    plan: str = ""  # annotation gang-extender.dev/plan: the admission under which it was bound
    static: bool = (
        False  # run by its kubelet from a file: deleting what the API shows of it frees nothing
    )
    pinned: NodeName | None = None  # required affinity on metadata.name (DaemonSets): always passes

    @property
    def path(self) -> str:
        """Give `namespace/name`."""
        return f"{self.namespace}/{self.name}"
