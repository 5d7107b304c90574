"""Requests that a policy of deploy/kubernetes refuses, and the objects that they are about.

Every request is a dry run: it passes through admission and changes nothing, so one table serves with and without the
policies. Without them kube-apiserver accepts each (that is the finding), with them the named policy refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from extender.cluster.write.group_writer import manifest
from extender.core.model.ids import GroupKind
from extender.core.workloads.tree_compiler import GroupSpec
from extender.ports.workload_ports import GroupManifest
from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import BIND, GATE, MEMBER, a_namespace, a_node, a_pod

EXEMPT = "exempt-by-label"
LABEL = "gang-extender.dev/pod-group"
ALIAS = "scheduling.x-k8s.io/pod-group"
PARENT = "gang-extender.dev/parent"
TREE = "gang-extender.dev/tree"
MANAGED = "app.kubernetes.io/managed-by"
FINALIZER = "gang-extender.dev/group-protection"
OTHER_GATE = {"name": "example.com/quota"}
MARKERS = (MEMBER, BIND)
PODS = "/api/v1/namespaces/default/pods"
SYSTEM = "/api/v1/namespaces/kube-system/pods"
OURS = "/apis/gang-extender.dev/v1alpha1/namespaces/default"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
BUILTIN = {"1.36": "v1alpha2", "1.37": "v1beta1"}  # version of scheduling.k8s.io
COMPOSITES = {"1.37": "v1alpha3"}  # version of the built-in CompositePodGroup, where it is served
OWNER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "name": "job",
    "uid": "00000000-0000-4000-8000-000000000001",
    "controller": True,
    "blockOwnerDeletion": False,
}
A_TOLERATION = {"key": "example.com/any", "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Attempt:
    """One request; `method` is a kind of patch, or POST or DELETE."""

    name: str
    policy: str
    method: str
    path: str
    body: Any
    user: str = "extender"

    async def send(self, api: Api) -> str:
        """Send it as a dry run; return the refusal of kube-apiserver, or an empty string."""
        try:
            if self.method == "POST":
                await api.post(self.path, self.body, dryRun="All")
            elif self.method == "DELETE":
                await api.delete(self.path, {"dryRun": ["All"], **self.body})
            else:
                await api.patch(self.path, self.body, self.method, dryRun="All")
        except ApiError as refusal:
            return str(refusal)
        return ""


def confined(what: str) -> str:
    """Return the name of a policy for the account of the extender."""
    return f"gang-extender-confined-{what}"


def a_group(kind: str = "PodGroup", name: str = "user", **more: Any) -> Object:
    """Make a group of our kinds; `more` is merged into its metadata, `spec` into its spec."""
    minimum = {"minCount": 2} if kind == "PodGroup" else {"minGroupCount": 1}
    spec: Object = {"schedulingPolicy": {"gang": minimum}}
    if kind == "CompositePodGroup":
        spec["workloadRef"] = {"workloadName": "w", "templateName": "t"}
    spec |= more.pop("spec", {})
    return {
        "apiVersion": "gang-extender.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", **more},
        "spec": spec,
    }


def a_made_group(
    kind: GroupKind, name: str, minimum: int = 1, profile: str = "default"
) -> GroupManifest:
    """Make a group as the service makes it for a workload."""
    return GroupManifest(
        namespace="default",
        spec=GroupSpec(kind=kind, name=name, minimum=minimum),
        template_of="w",
        profile=profile,
        owner_api_version=str(OWNER["apiVersion"]),
        owner_kind=str(OWNER["kind"]),
        owner_name=str(OWNER["name"]),
        owner_uid=str(OWNER["uid"]),
    )


def made_by_us(**more: Any) -> Mapping[str, Any]:
    """Return the metadata of a group that the extender made for a workload."""
    labels = {MANAGED: "gang-extender-trees", TREE: "default"}
    return {"labels": labels, "ownerReferences": [OWNER], **more}


def objects(minor: str) -> Iterator[Object]:
    """Make what the requests are about, in the order in which it is created."""
    exempt = a_namespace(EXEMPT)
    exempt["metadata"]["labels"] = {"gang-extender.dev/exempt": "true"}
    yield exempt
    yield a_node("n1", labels={"topology.kubernetes.io/zone": "a"})
    member = {"labels": {LABEL: "g"}, "finalizers": ["example.com/kept"]}
    yield a_pod(
        "held", metadata=member, markers=MARKERS, schedulingGates=[{"name": GATE}, OTHER_GATE]
    )
    yield a_pod("free", metadata={"labels": {"app": "a"}})
    yield a_pod("running", nodeName="n1", terminationGracePeriodSeconds=30)
    yield a_pod("critical", priorityClassName="system-cluster-critical")
    yield a_pod("critical", namespace="kube-system", schedulingGates=[{"name": GATE}])
    yield a_pod("plain", namespace="kube-system")
    yield a_pod("plain", namespace=EXEMPT)
    yield a_group(finalizers=["example.com/kept"], annotations={"example.com/a": "b"})
    yield manifest(a_made_group("PodGroup", "made"))
    yield a_group("CompositePodGroup", name="composite")
    yield manifest(a_made_group("CompositePodGroup", "made-composite"))
    builtin = a_group(name="builtin", annotations={"example.com/a": "b"})
    yield builtin | {"apiVersion": f"scheduling.k8s.io/{BUILTIN[minor]}"}
    if minor in COMPOSITES:
        composite = a_group("CompositePodGroup", name="builtin-composite")
        yield composite | {"apiVersion": f"scheduling.k8s.io/{COMPOSITES[minor]}"}
    yield an_event("of-another", "example.com/other")
    yield an_event("of-ours", "gang-extender.dev/extender")


def an_event(name: str, reporter: str) -> Object:
    """Make an Event about a pod."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-11-24T12:00:00.000000Z",
        "reportingController": reporter,
        "reportingInstance": "e2e",
        "action": "Scheduling",
        "reason": "Tested",
        "type": "Normal",
        "note": "text",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "held"},
    }


def a_condition(kind: str, status: str = "True", reason: str = "Forged") -> Object:
    """Make a condition of a pod or a group."""
    since = "2026-11-24T12:00:00Z"
    message = {"reason": reason, "message": "text"}
    return {"type": kind, "status": status, "lastTransitionTime": since, **message}


def attempts(minor: str) -> Iterator[Attempt]:
    """Yield all requests."""
    yield from _by_users()
    yield from _at_pods()
    yield from _at_pod_status()
    yield from _at_evictions()
    yield from _at_bindings()
    yield from _at_groups()
    yield from _at_builtin_groups(minor)
    yield from _at_others()
    yield from _over_limits(minor)


def _by_users() -> Iterator[Attempt]:
    policy = "gang-extender-gate"
    remove = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
    yield Attempt(
        "a user removes our gate", policy, "strategic", f"{PODS}/held", remove, "developer"
    )
    yield Attempt("an administrator does", policy, "strategic", f"{PODS}/held", remove, "admin")
    every = {"spec": {"schedulingGates": None}}
    yield Attempt("all gates", policy, "merge", f"{PODS}/held", every, "developer")
    policy = "gang-extender-group-label"
    for where in ("", "/status"):
        for value in ("h", None):
            name = f"label of a group to {value} by pods{where}"
            body = {"metadata": {"labels": {LABEL: value}}}
            yield Attempt(name, policy, "merge", f"{PODS}/held{where}", body, "admin")
    body = {"metadata": {"labels": {ALIAS: "g"}}}
    yield Attempt("a label is added", policy, "merge", f"{PODS}/free/status", body, "admin")
    binding = a_binding("free", labels={LABEL: "g"})
    yield Attempt("by a Binding", policy, "POST", f"{PODS}/free/binding", binding, "admin")
    legacy = "/api/v1/namespaces/default/bindings"
    yield Attempt("by the old Binding", policy, "POST", legacy, binding, "admin")


def _at_pods() -> Iterator[Attempt]:
    policy = confined("pods")
    changes: dict[str, Object] = {
        "image": {"spec": {"containers": [{"name": "main", "image": "evil.invalid/x"}]}},
        "toleration": {"spec": {"tolerations": [A_TOLERATION]}},
        "deadline": {"spec": {"activeDeadlineSeconds": 1}},
        "label": {"metadata": {"labels": {"app": "stolen"}}},
        "annotation": {"metadata": {"annotations": {"example.com/a": "b"}}},
        "finalizers": {"metadata": {"finalizers": ["example.com/mine"]}},
        "finalizer taken off": {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/kept"]}},
        "owner": {"metadata": {"ownerReferences": [OWNER]}},
        "gate of another": {"spec": {"schedulingGates": [{"$patch": "delete", "name": OTHER_GATE["name"]}]}},
        "selector": {"spec": {"nodeSelector": {"example.com/a": "b"}}},
    }  # fmt: skip
    for what, body in changes.items():
        yield Attempt(f"pod: {what}", policy, "strategic", f"{PODS}/held", body)
    image = changes["image"]
    yield Attempt("ordinary pod: image", policy, "strategic", f"{PODS}/free", image)
    remove = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
    name = "gate in kube-system"
    yield Attempt(name, policy, "strategic", f"{SYSTEM}/critical", remove)


def _at_pod_status() -> Iterator[Attempt]:
    policy = confined("pod-status")
    changes: dict[str, Object] = {
        "phase": {"status": {"phase": "Failed"}},
        "address": {"status": {"podIPs": [{"ip": "10.0.0.1"}], "podIP": "10.0.0.1"}},
        "scheduled": {"status": {"conditions": [a_condition("PodScheduled", "True")]}},
        "ready": {"status": {"conditions": [a_condition("Ready")]}},
        "reason of a disruption": {"status": {"conditions": [a_condition("DisruptionTarget")]}},
        "condition removed": {"status": {"conditions": [{"$patch": "delete", "type": "PodScheduled"}]}},
        "label": {"metadata": {"labels": {"app": "stolen"}}},
        "annotation": {"metadata": {"annotations": {"example.com/a": "b"}}},
        "finalizers": {"metadata": {"finalizers": ["example.com/mine"]}},
    }  # fmt: skip
    for what, body in changes.items():
        yield Attempt(f"status: {what}", policy, "strategic", f"{PODS}/held/status", body)
    nominated = {"status": {"nominatedNodeName": "n1"}}
    for where in (SYSTEM, f"/api/v1/namespaces/{EXEMPT}/pods"):
        path = f"{where}/plain/status"
        yield Attempt(f"nomination of {where}", policy, "strategic", path, nominated)


def _at_evictions() -> Iterator[Attempt]:
    policy = confined("evictions")
    exempt = f"/api/v1/namespaces/{EXEMPT}/pods/plain"
    yield Attempt("deletion in kube-system", policy, "DELETE", f"{SYSTEM}/plain", {})
    yield Attempt("deletion in an exempt namespace", policy, "DELETE", exempt, {})
    yield Attempt("deletion of a system class", policy, "DELETE", f"{PODS}/critical", {})
    at_once = {"gracePeriodSeconds": 0}
    yield Attempt("deletion by force", policy, "DELETE", f"{PODS}/running", at_once)
    for where, namespace, options in (
        (SYSTEM, "kube-system", {}),
        (PODS, "default", at_once),
    ):
        name = "plain" if namespace == "kube-system" else "running"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"dryRun": ["All"], **options},
        }
        path = f"{where}/{name}/eviction"
        yield Attempt(f"eviction in {namespace} with {options}", policy, "POST", path, body)


def a_binding(name: str, namespace: str = "default", **metadata: Any) -> Object:
    """Make a Binding to node n1."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


def _at_bindings() -> Iterator[Attempt]:
    policy, path = confined("bindings"), f"{PODS}/free/binding"
    body = a_binding("free", labels={"app": "stolen"})
    yield Attempt("label by a Binding", policy, "POST", path, body)
    body = a_binding("free", annotations={"example.com/a": "b"})
    yield Attempt("annotation by a Binding", policy, "POST", path, body)
    body = a_binding("plain", "kube-system")
    yield Attempt("binding in kube-system", policy, "POST", f"{SYSTEM}/plain/binding", body)


def _at_groups() -> Iterator[Attempt]:
    policy = confined("groups")
    user, made = f"{OURS}/podgroups/user", f"{OURS}/podgroups/made"
    minimum = {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    changes: dict[str, Object] = {
        "minimum": minimum,
        "label": {"metadata": {"labels": {"app": "stolen"}}},
        "label of ours": {"metadata": {"labels": {MANAGED: "gang-extender-trees"}}},
        "annotation": {"metadata": {"annotations": {PARENT: "composite"}}},
        "finalizer taken off": {"metadata": {"finalizers": [FINALIZER]}},
        "finalizer added": {"metadata": {"finalizers": ["example.com/kept", "example.com/b"]}},
        "owner": {"metadata": {"ownerReferences": [OWNER]}},
    }
    for what, body in changes.items():
        yield Attempt(f"group of a user: {what}", policy, "merge", user, body)
    body = {"spec": {"schedulingPolicy": {"gang": {"minGroupCount": 7}}}}
    path = f"{OURS}/compositepodgroups/composite"
    yield Attempt("composite of a user: minimum", policy, "merge", path, body)
    yield Attempt("group of a user: deleted", policy, "DELETE", user, {})
    for what, body in {
        "owner": {"metadata": {"ownerReferences": None}},
        "label": {"metadata": {"labels": {MANAGED: None}}},
        "annotation": changes["annotation"],
    }.items():
        yield Attempt(f"group of ours: {what}", policy, "merge", made, body)
    for what, more in {
        "without labels": {"ownerReferences": [OWNER]},
        "without a controller": made_by_us(ownerReferences=[OWNER | {"controller": False}]),
        "with a finalizer": made_by_us(finalizers=["example.com/a"]),
        "with an annotation": made_by_us(annotations={PARENT: "composite"}),
    }.items():
        body = a_group(name="new", **more)
        yield Attempt(f"group created {what}", policy, "POST", f"{OURS}/podgroups", body)
    body = a_group("CompositePodGroup", "new", **made_by_us(ownerReferences=[]))
    path = f"{OURS}/compositepodgroups"  # a PodGroup of plain pods has no owner
    yield Attempt("composite created without an owner", policy, "POST", path, body)


def _at_builtin_groups(minor: str) -> Iterator[Attempt]:
    path = f"/apis/scheduling.k8s.io/{BUILTIN[minor]}/namespaces/default/podgroups/builtin"
    changes: dict[str, Object] = {
        "label": {"metadata": {"labels": {"app": "stolen"}}},
        "another annotation": {"metadata": {"annotations": {"example.com/b": "b"}}},
        "annotation changed": {"metadata": {"annotations": {"example.com/a": "c"}}},
        "finalizers": {"metadata": {"finalizers": ["example.com/mine"]}},
    }
    if minor != "1.36":  # there it is immutable
        changes["minimum"] = {"spec": {"schedulingPolicy": {"gang": {"minCount": 7}}}}
    for what, body in changes.items():
        yield Attempt(f"built-in group: {what}", confined("adoption"), "merge", path, body)
    for where in (path, f"{OURS}/podgroups/user"):
        for what, conditions in {"condition": [a_condition("Forged")]}.items():
            body = {"status": {"conditions": conditions}}
            name = f"status of {where}: {what}"
            yield Attempt(name, confined("group-status"), "merge", f"{where}/status", body)


def _at_others() -> Iterator[Attempt]:
    policy = confined("events")
    forged = an_event("forged", "kubelet")
    yield Attempt("Event of another reporter", policy, "POST", EVENTS, forged)
    body: Object = {"series": {"count": 9, "lastObservedTime": "2026-11-24T12:00:00.000000Z"}}
    yield Attempt("Event of another changed", policy, "merge", f"{EVENTS}/of-another", body)
    body = {"metadata": {"labels": {"a": "b"}}}
    yield Attempt("label of an Event of ours", policy, "merge", f"{EVENTS}/of-ours", body)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt2"}}
    path = "/api/v1/namespaces/gang-extender/configmaps"
    yield Attempt("another ConfigMap", confined("configmaps"), "POST", path, body)


def _over_limits(minor: str) -> Iterator[Attempt]:
    policy = "gang-extender-group-limits"
    builtin = f"scheduling.k8s.io/{BUILTIN[minor]}"
    for version in ("gang-extender.dev/v1alpha1", builtin):
        path = f"/apis/{version}/namespaces/default/podgroups"
        for what, more in {
            "minCount": {"spec": {"schedulingPolicy": {"gang": {"minCount": 2**31 - 1}}}},
            "annotations": {"annotations": {"example.com/a": "x" * 200_000}},
            "parent elsewhere": {"annotations": {PARENT: "other/composite"}},
        }.items():
            body = a_group(name="new", **more) | {"apiVersion": version}
            yield Attempt(f"{version}: {what}", policy, "POST", path, body, "developer")
        body = {"metadata": {"annotations": {PARENT: "other/composite"}}}
        name = "user" if version.startswith("gang") else "builtin"
        what = f"{version}: parent elsewhere, later"
        yield Attempt(what, policy, "merge", f"{path}/{name}", body, "developer")
    # Kubernetes itself refuses a system class of a built-in group outside of kube-system
    body = a_group(name="new", spec={"priorityClassName": "system-cluster-critical"})
    yield Attempt("system class", policy, "POST", f"{OURS}/podgroups", body, "developer")
    body = {"spec": {"schedulingPolicy": {"gang": {"minCount": 10_001}}}}
    yield Attempt("minCount, later", policy, "merge", f"{OURS}/podgroups/user", body, "developer")
    spec = {"schedulingPolicy": {"gang": {"minGroupCount": 513}}}
    body = a_group("CompositePodGroup", name="new", spec=spec)
    yield Attempt("minGroupCount", policy, "POST", f"{OURS}/compositepodgroups", body, "developer")
