"""What a pod asks for and where it may run: from the object of the API to a `Pod` of the core.

Owns the arithmetic of pod requests, which has to give exactly what kube-scheduler computes, and the
list of things about a pod that the planner cannot see (`unmodelled`). Volumes need other objects;
`world` looks them up and hands the facts in.

The surprise: sums are made in nano-units and rounded once per pod, so ten containers of `100u` CPU
take 1 millicore, not 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.read.interpod_terms import pod_rules
from extender.cluster.read.object_decoding import bad, micros, node_selector
from extender.cluster.read.priority_classes import Priorities
from extender.cluster.types.common_types import Instant
from extender.core.model.errors import BadInput, BadQuantity
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import leaf_key
from extender.core.model.pods import (
    ENDED_BY,
    ONE_POD_VOLUME,
    RESOURCE_CLAIM,
    SUCCEEDED,
    HostPort,
    NodeSelector,
    Pod,
    PodEnd,
    PodShape,
    Toleration,
)
from extender.core.model.quantities import CPU, exact, rounded

MARKERS: Final = (
    frozenset(  # decide which extender is asked; kube-scheduler ignores them (ignoredByScheduler)
        {"gang-extender.dev/member", "gang-extender.dev/bind"}
    )
)
MIRROR: Final = "kubernetes.io/config.mirror"
GROUP_LABELS: Final = ("gang-extender.dev/pod-group", "scheduling.x-k8s.io/pod-group")
PLAN_ANNOTATION: Final = "gang-extender.dev/plan"
ENDED: Final = frozenset({"Succeeded", "Failed"})
RESIZE_PENDING: Final = "PodResizePending"
TEXT_MAX: Final = 512  # characters kept of what a pod says of its end

_Exact = dict[str, int]  # resource -> nano-units


class VolumeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the claims of one pod mean for its place; all empty for a pod without claims."""

    selectors: tuple[NodeSelector, ...] = ()
    exclusive_claims: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()


NO_VOLUMES: Final = VolumeFacts()


def ended(found: api.Pod) -> bool:
    """Say whether a pod has run to its end; then it takes no room and is in no view."""
    return found.status.phase in ENDED


def end_of(found: api.Pod) -> PodEnd:
    """Say how a pod ended that has ended: who made it, by DisruptionTarget or its status, or it did by itself.

    Source:
        pkg/kubelet: a pod that is not let in is Failed with a reason (OutOfcpu, NodeAffinity,
        UnexpectedAdmissionError, ...) and was never started; one that is evicted for want of resources is
        Failed with reason Evicted.
    """
    status = found.status
    doomed = reason_of_doom(found)
    if doomed in ENDED_BY:
        return PodEnd(ENDED_BY[doomed], doomed)
    if status.phase == SUCCEEDED:
        return PodEnd("ended", SUCCEEDED)
    words = ": ".join(filter(None, (status.reason, status.message)))[:TEXT_MAX]
    if status.phase != "Failed" or not status.reason:
        return PodEnd("ended", words or status.phase)
    if status.reason in ENDED_BY:
        return PodEnd(ENDED_BY[status.reason], words)
    started = status.container_statuses or status.init_container_statuses
    return PodEnd("ended" if started else "refused-by-kubelet", words)


def end_of_doomed(doomed: str) -> PodEnd:
    """Say how a pod ends that terminates; by the reason of its DisruptionTarget, or the empty string."""
    return PodEnd(ENDED_BY.get(doomed, "deleted"), doomed)


def reason_of_doom(found: api.Pod) -> str:
    """Give the reason of DisruptionTarget; empty where nobody is about to end the pod."""
    marks = (c for c in found.status.conditions if c.type == "DisruptionTarget")
    return next((c.reason for c in marks if c.status == "True"), "")


def pod_of(found: api.Pod, priorities: Priorities, volumes: VolumeFacts = NO_VOLUMES) -> Pod:
    """Convert a pod.

    Args:
        found: As stored.
        priorities: For a pod without a number, which only files have.
        volumes: What its claims mean.

    Raises:
        BadInput: A quantity, selector or toleration that no API server would have accepted.
    """
    spec, metadata = found.spec, found.metadata
    priority = priorities.resolve(spec.priority, spec.priority_class_name, spec.preemption_policy)
    return Pod(
        uid=PodUid(metadata.uid),
        namespace=metadata.namespace,
        name=metadata.name,
        shape=shape_of(found, volumes),
        group=group_named(found),
        by_field=bool(found.spec.scheduling_group.pod_group_name),
        labels=metadata.labels,
        priority=priority.value,
        scheduler_name=spec.scheduler_name or "default-scheduler",
        preemption_policy=priority.preemption_policy,
        created_us=micros(metadata.creation_timestamp),
        node=NodeName(spec.node_name) if spec.node_name else None,
        assigned_us=_assigned_us(found) if spec.node_name else 0,
        nominated=NodeName(found.status.nominated_node_name)
        if found.status.nominated_node_name
        else None,
        gates=tuple(gate.name for gate in spec.scheduling_gates),
        deleting=metadata.deletion_timestamp is not None,
        deletes_us=micros(metadata.deletion_timestamp),
        doomed=reason_of_doom(found),
        phase=found.status.phase or "Pending",
        unschedulable=next(
            (
                c.message
                for c in found.status.conditions
                if (c.type, c.status, c.reason) == ("PodScheduled", "False", "Unschedulable")
            ),
            "",
        ),
        resource_version=metadata.resource_version,
        plan=metadata.annotations.get(PLAN_ANNOTATION, ""),
        static=is_static(found),
        pinned=pinned_to(found),
    )


def _assigned_us(found: api.Pod) -> int:
    """Give when a pod got its node: what kube-apiserver notes at a Binding, else when it was made with one."""
    made_us = micros(found.metadata.creation_timestamp)
    for condition in found.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "True"):
            return max(made_us, _instant_us(found, condition.last_transition_time))
    return made_us


def _instant_us(found: api.Pod, written: str | None) -> int:
    try:
        return micros(msgspec.convert(written, Instant)) if written else 0
    except msgspec.ValidationError as error:
        text = f'"{written}" is no instant of RFC 3339'
        raise bad(found, "status.conditions[].lastTransitionTime", text) from error


def group_named(found: api.Pod) -> GroupKey | None:
    """Name the leaf of a pod: the field, our label, the label of the coscheduling plugin (DESIGN 7)."""
    name = found.spec.scheduling_group.pod_group_name
    labels = found.metadata.labels
    if not name and labels:
        name = next((labels[label] for label in GROUP_LABELS if labels.get(label)), "")
    return leaf_key(found.metadata.namespace, name) if name else None


def is_static(found: api.Pod) -> bool:
    """Say whether a pod is the mirror of one that a kubelet runs by itself.

    Source:
        kubernetes.io/docs/tasks/configure-pod-container/static-pod: the kubelet marks it with the annotation, and
        the node owns it. Neither preemption nor the Eviction API can end it.
    """
    owners = found.metadata.owner_references
    return MIRROR in found.metadata.annotations or any(o.kind == "Node" for o in owners)


def pinned_to(found: api.Pod) -> NodeName | None:
    """Name the only node that the required affinity allows by name, as DaemonSet pods have it."""
    required = found.spec.affinity.node_affinity.required
    if required is None or not required.node_selector_terms:
        return None
    names = set()
    for term in required.node_selector_terms:
        for field in term.match_fields:
            if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
                names.add(field.values[0])
                break
        else:
            return None
    return NodeName(names.pop()) if len(names) == 1 else None


def shape_of(found: api.Pod, volumes: VolumeFacts) -> PodShape:
    """Gather everything that decides on which nodes a pod fits.

    Raises:
        BadInput: As `pod_of`.
    """
    spec = found.spec
    selectors = volumes.selectors
    if spec.affinity.node_affinity.required is not None:
        try:
            own = node_selector(spec.affinity.node_affinity.required)
        except BadInput as fault:
            raise bad(found, "spec.affinity.nodeAffinity", str(fault)) from fault
        selectors = (own, *selectors)
    rules, unseen = pod_rules(found)
    return PodShape(
        requests=requests_of(found),
        node_selector=tuple(sorted(spec.node_selector.items())),
        selectors=selectors,
        tolerations=_tolerations(found),
        host_ports=_host_ports(found),
        exclusive_claims=volumes.exclusive_claims,
        unmodelled=tuple(sorted({*_unmodelled(spec), *volumes.unmodelled, *unseen})),
        rules=rules,
    )


def _tolerations(found: api.Pod) -> tuple[Toleration, ...]:
    """Convert tolerations, in a fixed order; the numeric operators of newer servers tolerate nothing yet."""
    read = set()
    for n, one in enumerate(found.spec.tolerations):
        operator = one.operator or "Equal"
        if operator in {"Exists", "Equal"}:
            exists = operator == "Exists"
            read.add((one.key, exists, one.value, one.effect))
        elif operator not in {"Gt", "Lt"}:
            text = f'"{operator}" is none of Exists, Equal, Gt, Lt'
            raise bad(found, f"spec.tolerations[{n}].operator", text)
    return tuple(
        Toleration(key=key, operator="Exists" if exists else "Equal", value=value, effect=effect)
        for key, exists, value, effect in sorted(read)
    )


def _host_ports(found: api.Pod) -> tuple[HostPort, ...]:
    """Collect the ports that the pod takes of its node; in the host's network all its ports are."""
    spec = found.spec
    ports = set()
    for container in (*spec.containers, *(c for c in spec.init_containers if _is_sidecar(c))):
        for port in container.ports:
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number > 0:
                ip = port.host_ip or HostPort("", 0).ip
                ports.add(HostPort(port.protocol or "TCP", number, ip))
    return tuple(sorted(ports)) if ports else ()


def _unmodelled(spec: api.PodSpec) -> Iterable[str]:
    """Name what about the pod itself the planner cannot see; the same words for equal pods."""
    for claim in spec.resource_claims:
        yield f"{RESOURCE_CLAIM}{claim.name}"
    for volume in spec.volumes:
        if (
            volume.iscsi
            or volume.rbd
            or volume.gce_persistent_disk
            or volume.aws_elastic_block_store
        ):
            yield ONE_POD_VOLUME


# --- requests


def requests_of(found: api.Pod) -> tuple[tuple[str, int], ...]:
    """Compute what a pod takes of a node.

    Containers and sidecars run together; each init container runs beside the sidecars started
    before it; the larger of the two counts, per resource. Requests of the pod as a whole replace
    cpu, memory and huge pages. The overhead comes on top. A resized pod counts with the largest of
    what it wants and what it has.

    Returns:
        By resource name, zeros and markers left out, `pods` always 1; CPU in millicores.

    Raises:
        BadInput: A quantity that is none, or a negative one.

    Source:
        PodRequests in component-helpers resource/helpers.go; NodeResourcesFit's computePodResourceRequest.
    """
    total = _of_containers(found)
    total |= _of_pod_level(found, total)
    _add(total, _read(found, "spec.overhead", found.spec.overhead))
    whole = {name: rounded(name, amount) for name, amount in total.items() if name not in MARKERS}
    whole["pods"] = 1
    return tuple(sorted((name, amount) for name, amount in whole.items() if amount))


def _of_containers(found: api.Pod) -> _Exact:
    status = found.status
    infeasible = any(
        c.type == RESIZE_PENDING and c.reason == "Infeasible" for c in status.conditions
    )
    given = {c.name: c for c in (*status.container_statuses, *status.init_container_statuses)}
    together: _Exact = {}
    for n, container in enumerate(found.spec.containers):
        wanted = _wanted(found, f"spec.containers[{n}]", container.resources)
        _add(together, _effective(found, wanted, given.get(container.name), infeasible=infeasible))
    sidecars: _Exact = {}
    at_start: _Exact = {}
    for n, container in enumerate(found.spec.init_containers):
        wanted = _wanted(found, f"spec.initContainers[{n}]", container.resources)
        if _is_sidecar(container):
            wanted = _effective(found, wanted, given.get(container.name), infeasible=infeasible)
            _add(together, wanted)
            _add(sidecars, wanted)
            _raise(at_start, sidecars)
        else:
            beside = dict(sidecars)
            _add(beside, wanted)
            _raise(at_start, beside)
    _raise(together, at_start)
    return together


def _of_pod_level(found: api.Pod, containers: _Exact) -> _Exact:
    """Give the requests that replace those of the containers."""
    needs = found.spec.resources
    if not needs.requests and not needs.limits:
        return {}
    wanted = _read(found, "spec.resources.requests", needs.requests)
    for name, amount in _read(found, "spec.resources.limits", needs.limits).items():
        if name not in containers:  # what containers ask for themselves counts before the limit
            wanted.setdefault(name, amount)
    if found.status.resources is not None:
        _raise(wanted, _read(found, "status.resources.requests", found.status.resources.requests))
        _raise(wanted, _read(found, "status.allocatedResources", found.status.allocated_resources))
    return {
        name: amount
        for name, amount in wanted.items()
        if name in {CPU, "memory"} or name.startswith("hugepages-")
    }


def _wanted(found: api.Pod, where: str, needs: api.ResourceNeeds) -> _Exact:
    """Read the requests of a container; a limit without a request is the request (API defaulting)."""
    wanted = _read(found, where, needs.requests, ".resources.requests")
    if len(needs.limits.keys() - wanted.keys()):
        limits = _read(found, where, needs.limits, ".resources.limits")
        wanted = limits | wanted
    return wanted


def _effective(
    found: api.Pod, wanted: _Exact, status: api.ContainerStatus | None, *, infeasible: bool
) -> _Exact:
    """Apply the rule of in-place resize: the most of wanted, given and allocated."""
    if status is None or status.resources is None:
        return wanted
    most = {} if infeasible else dict(wanted)
    where = f"status of container {status.name}"
    _raise(most, _read(found, where, status.resources.requests))
    _raise(most, _read(found, where, status.allocated_resources))
    return most


def _read(found: api.Pod, where: str, resources: api.Resources, more: str = "") -> _Exact:
    if not resources:
        return {}
    try:
        read = exact(resources)
    except BadQuantity as fault:
        raise bad(found, where + more, str(fault)) from fault
    for name, amount in read.items():
        if amount < 0:
            raise bad(found, where + more, f'{name}: "{resources[name]}" is negative')
    return read


def _is_sidecar(container: api.Container) -> bool:
    return container.restart_policy == "Always"


def _add(total: _Exact, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(most: _Exact, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > most.get(name, 0):
            most[name] = amount
