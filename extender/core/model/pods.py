"""Pods as the planner sees them: their requests, where they may run, and which group they name.

A `PodShape` holds everything that decides on which nodes a pod fits; pods of equal shape are
interchangeable to the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from extender.core.model.ids import GroupKey, NodeName, PodUid

# Namespaces whose pods the service does not change, nor plan to evict: of Kubernetes, and its own.
EXEMPT_NAMESPACES: Final = (
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "gang-extender",
    "gang-extender-probe",
)

# Creation times, in microseconds since 1970, that objects of files get which have none: those of the year 2000. When
# such a pod began is not known.
FILLED_IN_US: Final = range(946_684_800_000_000, 978_307_200_000_000)
GATE: Final = "gang-extender.dev/admission"  # our scheduling gate
CHECKPOINT_ANNOTATION: Final = "gang-extender.dev/last-checkpoint"  # on pods: an RFC 3339 time
RUNS_FOR: Final = "gang-extender.dev/runs-for"  # on pods: how long it runs
MARKERS: Final = "gang-extender.dev/"  # start of the names of resources that are only markers

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


class NodeSelector(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Terms of which at least one must match."""

    terms: tuple[SelectorTerm, ...] = ()
    volume: bool = False  # where a volume of the pod is; else its required node affinity


class HostPort(msgspec.Struct, frozen=True, order=True, gc=False):
    """A port of the node that a pod uses; `0.0.0.0` conflicts with every address."""

    protocol: str
    port: int
    ip: str = "0.0.0.0"  # noqa: S104 -- Kubernetes' word for "any address", nothing is bound here


RESOURCE_CLAIM = "resource claim "
ONE_POD_VOLUME = "a volume that only one pod of a node can use"
ABSENT = " does not exist"  # end of the text about a claim or a volume that does not exist
UNBOUND = " is not bound to a volume"  # end of the text about a claim
# Start of the text about a rule; the topology key follows.
NEEDS_PODS = "pod affinity over "
AVOIDS_PODS = "pod anti-affinity over "
SPREADS = "topology spread over "
RuleKind = Literal["near", "apart", "spread"]
_RULE_WORDS: dict[RuleKind, str] = {"near": NEEDS_PODS, "apart": AVOIDS_PODS, "spread": SPREADS}


class AboutPods(msgspec.Struct, frozen=True, gc=False):
    """The pods that a rule selects; no namespaces: those of every namespace."""

    namespaces: tuple[str, ...] = ()  # sorted
    labels: tuple[NodeSelectorRequirement, ...] = ()  # all must hold; none: every pod

    def match(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod is selected.

        >>> AboutPods(("ns",), (NodeSelectorRequirement("app", "NotIn", ("a",)),)).match("ns", {})
        True
        """
        if self.namespaces and namespace not in self.namespaces:
            return False
        return all(_holds(r, labels) for r in self.labels)


class PodRule(msgspec.Struct, frozen=True, gc=False):
    """A required rule of a pod about other pods.

    `near`: pods that match every one of `about` must be in the node's domain of each key. `apart`: no
    matching pod may be in its domain. `spread`: with this pod its domain has at most `skew` matching
    pods more than the domain with the fewest.

    Source:
        Plugins InterPodAffinity and PodTopologySpread (whenUnsatisfiable: DoNotSchedule).
    """

    kind: RuleKind
    keys: tuple[str, ...]  # of node labels; `apart` and `spread` have one
    about: tuple[AboutPods, ...]  # `apart` and `spread` have one
    skew: int = 1
    least_domains: int = 1  # `spread`: with fewer domains the smallest number of pods counts as 0
    honors_affinity: bool = True  # `spread`: only nodes that the pod selects count
    honors_taints: bool = False  # `spread`: only nodes whose taints the pod tolerates count

    @property
    def text(self) -> str:
        """Return the rule as text.

        >>> PodRule("apart", ("zone",), (AboutPods(),)).text
        'pod anti-affinity over zone'
        """
        return _RULE_WORDS[self.kind] + " and ".join(self.keys)

    def match(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the rule selects a pod."""
        return all(about.match(namespace, labels) for about in self.about)


class NodePreference(msgspec.Struct, frozen=True, gc=False):
    """A preferred term of node affinity."""

    weight: int
    term: SelectorTerm


class PodPreference(msgspec.Struct, frozen=True, gc=False):
    """A rule about other pods that a node need not satisfy: preferred affinity or anti-affinity, spread with ScheduleAnyway."""

    rule: PodRule
    weight: int = 1  # above 0; of `spread` 1


class SoftRules(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a pod prefers; its tolerations decide about taints with PreferNoSchedule."""

    nodes: tuple[NodePreference, ...] = ()  # in the order of the pod
    pods: tuple[PodPreference, ...] = ()  # sorted
    unseen: tuple[str, ...] = ()  # texts of those that are not taken into account


def _holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Return whether an expression of a label selector holds: NotIn also holds where the label is missing."""
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


# ended: by itself, Succeeded or Failed. deleted: the API server has it no more, or it terminates without a stated reason
EndCause = Literal["preempted", "evicted", "node-lost", "rejected-by-kubelet", "ended", "deleted"]


class PodEnd(msgspec.Struct, frozen=True, gc=False):
    """How a pod ended, as the cluster reports it."""

    cause: EndCause
    message: str = ""  # reason of its status, and the message if there is one
    node: str = ""  # that it was bound to; empty: none, or the cluster does not have it any more


TAINTED = "DeletionByTaintManager"
SUCCEEDED = "Succeeded"  # phase of a pod whose containers have all succeeded
# Cause by reason: of the condition DisruptionTarget, or of the status of a pod that its kubelet terminated.
ENDED_BY: Mapping[str, EndCause] = {
    "PreemptionByScheduler": "preempted",
    "Preempting": "preempted",  # by a kubelet, for a critical pod
    "EvictionByEvictionAPI": "evicted",
    TAINTED: "evicted",  # or node-lost: the taints of the node distinguish the two
    "DeletionByDeviceTaintManager": "evicted",
    "TerminationByKubelet": "evicted",
    "Evicted": "evicted",
    "DeletionByPodGC": "node-lost",
}


def is_extended(resource: str) -> bool:
    """Return whether a resource is one of devices: its name has a slash, and it is no marker."""
    return "/" in resource and not resource.startswith(MARKERS)


class VolumeConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim of volumes, or all claims of one pod, restrict its nodes; all empty for a pod without claims."""

    selectors: tuple[NodeSelector, ...] = ()
    exclusive_claims: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()


NO_VOLUMES: Final = VolumeConstraints()


class PodShape(msgspec.Struct, frozen=True, gc=False):
    """All properties of a pod that decide on which nodes it fits."""

    # Sorted by resource name, without zeros: CPU in millicores, memory and storage in bytes, extended resources in units, and
    # `pods` as a resource like the others, always 1.
    requests: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()  # labels the node must have, sorted
    # all must hold: required node affinity, and one per bound volume
    selectors: tuple[NodeSelector, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    # ReadWriteOncePod claims, namespace/name: one pod in the whole cluster
    exclusive_claims: tuple[str, ...] = ()
    # what the planner has no data for (unbound volumes, resource claims, rules about namespaces)
    unmodelled: tuple[str, ...] = ()
    rules: tuple[PodRule, ...] = ()  # about other pods
    soft: SoftRules | UnsetType = UNSET  # preferences; unset without any

    @property
    def accelerators(self) -> int:
        """Return how many GPUs it uses; without a resource of this name the largest amount of an extended resource.

        Devices of resource claims are not counted.

        >>> PodShape(requests=(("cpu", 4000), ("nvidia.com/gpu", 8), ("rdma/hca", 16))).accelerators
        8
        """
        gpus = sum(n for name, n in self.requests if name.rpartition("/")[2] == "gpu")
        return gpus or max((n for name, n in self.requests if is_extended(name)), default=0)

    @property
    def has_pod_affinity(self) -> bool:
        """Return whether it has required pod affinity, so that other pods must be placed first."""
        return any(rule.kind == "near" for rule in self.rules) or any(
            text.startswith(NEEDS_PODS) for text in self.unmodelled
        )

    @property
    def pod_rules(self) -> tuple[str, ...]:
        """Return the texts of the rules about other pods that the planner does not always handle.

        It always handles anti-affinity, but not affinity and spread among members of several shapes.
        """
        unseen = (t for t in self.unmodelled if t.startswith(tuple(_RULE_WORDS.values())))
        return tuple(sorted({*unseen, *(r.text for r in self.rules if r.kind != "apart")}))

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the texts about claims and volumes that do not exist: preemption cannot help such a pod."""
        return tuple(text for text in self.unmodelled if text.endswith(ABSENT))

    @property
    def node_devices(self) -> frozenset[str]:
        """Return what it uses of a node that only kube-scheduler counts: devices of claims, exclusive disks."""
        words = {
            RESOURCE_CLAIM.strip() if t.startswith(RESOURCE_CLAIM) else t for t in self.unmodelled
        }
        return frozenset(words & {RESOURCE_CLAIM.strip(), ONE_POD_VOLUME})

    @property
    def commits(self) -> bool:
        """Return whether kube-scheduler binds volumes or allocates claims for it before it calls bind."""
        return any(t.endswith(UNBOUND) or t.startswith(RESOURCE_CLAIM) for t in self.unmodelled)

    @property
    def has_anti_affinity(self) -> bool:
        """Return whether it has required anti-affinity."""
        return any(rule.kind == "apart" for rule in self.rules)


class Pod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that has not ended, as the informers last saw it."""

    uid: PodUid
    namespace: str
    name: str
    shape: PodShape
    group: GroupKey | None = None  # leaf group it names; the group may not exist
    by_field: bool = False  # names it in spec.schedulingGroup, which kube-scheduler reads too
    labels: dict[str, str] = {}
    # those of workloads that it has, which are not read on pods
    tree_annotations: tuple[str, ...] = ()
    priority: int = 0
    priority_class: str = ""  # its name; empty: none
    scheduler_name: str = "default-scheduler"
    preemption_policy: str = "PreemptLowerPriority"
    created_us: int = 0
    node: NodeName | None = None  # spec.nodeName: bound
    # when it got its node, by the API server's clock (whole seconds); 0 without one
    assigned_us: int = 0
    # When it ends by itself, at the latest: by its activeDeadlineSeconds or the annotation gang-extender.dev/runs-for; 0: not known
    ends_us: int = 0
    checkpoint: str = ""  # annotation gang-extender.dev/last-checkpoint, as it is written
    nominated: NodeName | None = None  # status.nominatedNodeName
    gates: tuple[str, ...] = ()  # names of scheduling gates
    # has a deletionTimestamp: not a member any more, but still uses capacity
    deleting: bool = False
    deletes_us: int = 0  # its deletionTimestamp: when its grace period ends
    # reason of DisruptionTarget=True: PreemptionByScheduler, EvictionByEvictionAPI, ...
    disruption_target: str = ""
    phase: str = "Pending"
    # message of PodScheduled=False, reason Unschedulable, from kube-scheduler
    unschedulable: str = ""
    resource_version: str = ""
    plan: str = ""  # annotation gang-extender.dev/plan: the admission under which it was bound
    # run by its kubelet from a file: deleting its mirror pod in the API frees nothing
    static: bool = False
    pinned: NodeName | None = None  # required affinity on metadata.name (DaemonSets)
    controller: str = ""  # kind of its controlling owner, which makes it again; empty: none
    # Of a served cluster: why kube-scheduler refuses it on every node until another object changes, with what helps.
    waits_for: str = ""

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


# --- PodDisruptionBudgets


class PodDisruptionBudget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A budget with the status that its controller last wrote."""

    namespace: str
    name: str
    about: AboutPods | None = None  # pods of its namespace; None: it protects no pod
    allowed: int = 0  # status.disruptionsAllowed

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def protects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether this budget selects a pod.

        >>> budget = PodDisruptionBudget(namespace="ns", name="b", about=AboutPods(("ns",)))
        >>> budget.protects("ns", {}), budget.protects("other", {})
        (True, False)
        """
        return self.about is not None and self.about.match(namespace, labels)


class BudgetIndex:
    """The budgets of a view by namespace."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._of: dict[str, list[PodDisruptionBudget]] = {}
        for budget in sorted(budgets, key=lambda b: b.path):
            self._of.setdefault(budget.namespace, []).append(budget)

    def guarding(self, pod: Pod) -> list[PodDisruptionBudget]:
        """Return the budgets that select a pod, by name."""
        budgets = self._of.get(pod.namespace, ())
        return [budget for budget in budgets if budget.protects(pod.namespace, pod.labels)]
