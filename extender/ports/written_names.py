"""Names of what the service writes to Kubernetes objects, for the code that writes and for the policies that confine it.

Owns no behaviour. The admission policies of `deploy/kubernetes` are rendered from these names
(`deploy/render/render_confinement.py`), so a write with a name that is not here is refused by kube-apiserver.
"""

from __future__ import annotations

from typing import Final

from extender.core.workloads.workload_object import PARENT_ANNOTATION

NAMESPACE: Final = "gang-extender"  # of deploy/; a pod reads its own
SERVICE_ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:gang-extender"
LOG_HEAD_CONFIGMAP: Final = "gang-extender-log"
REPORTER: Final = "gang-extender.dev/extender"  # reportingController of Events

EXEMPT_LABEL: Final = "gang-extender.dev/exempt"  # on namespaces, with the value "true"

# decide which extender is asked; kube-scheduler ignores them (ignoredByScheduler)
MEMBER_MARKER: Final = "gang-extender.dev/member"
BIND_MARKER: Final = "gang-extender.dev/bind"
PLAN_ANNOTATION: Final = "gang-extender.dev/plan"  # on bound members
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
PARENT_ANNOTATIONS: Final = (  # in the order of precedence (A.2, X3)
    PARENT_ANNOTATION,
    "scheduling.k8s.io/parent-compositepodgroup",
    "scheduling.k8s.io/parent-composite-podgroup",
)

# Conditions of pods: type and reason.
DISRUPTION_TARGET: Final = "DisruptionTarget"
PREEMPTED: Final = "PreemptionByScheduler"
POD_SCHEDULED: Final = "PodScheduled"
GATED: Final = "SchedulingGated"

# Conditions of groups.
MISMATCH: Final = "TemplateMismatch"
# Our own type, for built-in groups while kube-scheduler writes their usual condition.
EXPLAINED: Final = "PlacementExplained"
SCHEDULED: Final = {
    "PodGroup": "PodGroupInitiallyScheduled",
    "CompositePodGroup": "CompositePodGroupInitiallyScheduled",
}
GROUP_CONDITIONS: Final = (*SCHEDULED.values(), EXPLAINED, MISMATCH, DISRUPTION_TARGET)
