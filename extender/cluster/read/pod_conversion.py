"""Convert a pod of the API to a `Pod` of the core: its requests, where it may run, and the budgets for its disruption.

Owns the arithmetic of pod requests, which must equal that of kube-scheduler, and the list of the pod's
constraints that the planner does not model (`unmodelled`). Volumes depend on other objects;
`object_store` looks them up and passes them in.

Note: requests are summed in nano-units and rounded once per pod, so ten containers of `100u` CPU
request 1 millicore, not 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.read.object_decoding import bad, micros, node_selector, selector_term
from extender.cluster.read.priority_classes import Priorities
from extender.core.model import pods as core
from extender.core.model.errors import BadInput, BadQuantity
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import duration_s
from extender.core.model.pod_groups import leaf_key
from extender.core.model.quantities import CPU, exact, rounded
from extender.core.workloads.workload_object import GROUP_LABELS, tree_annotations
from extender.ports.written_names import (
    BIND_MARKER,
    DISRUPTION_TARGET,
    MEMBER_MARKER,
    PLAN_ANNOTATION,
)

MARKERS: Final = frozenset({MEMBER_MARKER, BIND_MARKER})
MIRROR: Final = "kubernetes.io/config.mirror"
ENDED: Final = frozenset({"Succeeded", "Failed"})
RESIZE_PENDING: Final = "PodResizePending"
TEXT_MAX: Final = 512  # characters kept of a pod's reason and message when it ended

_Exact = dict[str, int]  # resource -> nano-units
_encode = msgspec.msgpack.Encoder().encode


def ended(pod: api.Pod) -> bool:
    """Return whether a pod has ended; such a pod uses no capacity and is in no view."""
    return pod.status.phase in ENDED


def end_of(pod: api.Pod) -> core.PodEnd:
    """Return how a pod ended that has ended, by its condition DisruptionTarget, else by its status.

    Source:
        pkg/kubelet: a pod that the kubelet does not admit is Failed with a reason (OutOfcpu, NodeAffinity,
        UnexpectedAdmissionError, ...) and was never started; one that is evicted under node pressure is
        Failed with reason Evicted.
    """
    status, node = pod.status, pod.spec.node_name
    disruption = disruption_reason(pod)
    if disruption in core.ENDED_BY:
        return core.PodEnd(core.ENDED_BY[disruption], disruption, node)
    if status.phase == core.SUCCEEDED:
        return core.PodEnd("ended", core.SUCCEEDED, node)
    words = ": ".join(filter(None, (status.reason, status.message)))[:TEXT_MAX]
    if status.phase != "Failed" or not status.reason:
        return core.PodEnd("ended", words or status.phase, node)
    if status.reason in core.ENDED_BY:
        return core.PodEnd(core.ENDED_BY[status.reason], words, node)
    started = status.container_statuses or status.init_container_statuses
    return core.PodEnd("ended" if started else "rejected-by-kubelet", words, node)


def end_of_terminating(reason: str, node: str) -> core.PodEnd:
    """Return how a terminating pod ends.

    Args:
        reason: That of its condition DisruptionTarget; empty without one.
        node: That it is bound to; empty: none.
    """
    return core.PodEnd(core.ENDED_BY.get(reason, "deleted"), reason, node)


def disruption_reason(pod: api.Pod) -> str:
    """Return the reason of the condition DisruptionTarget, or an empty string without the condition."""
    marks = (c for c in pod.status.conditions if c.type == DISRUPTION_TARGET)
    return next((c.reason for c in marks if c.status == "True"), "")


def pod_of(
    pod: api.Pod,
    priorities: Priorities,
    volumes: core.VolumeConstraints = core.NO_VOLUMES,
    shape: core.PodShape | None = None,
) -> core.Pod:
    """Return the pod of the core.

    Args:
        shape: What `shape_of` returns, if it is known.

    Raises:
        BadInput: A quantity, selector or toleration is invalid; an API server would have refused it.
    """
    spec, metadata = pod.spec, pod.metadata
    priority = priorities.resolve(spec.priority, spec.priority_class_name, spec.preemption_policy)
    return core.Pod(
        uid=PodUid(metadata.uid),
        namespace=metadata.namespace,
        name=metadata.name,
        shape=shape if shape is not None else shape_of(pod, volumes),
        group=group_named(pod),
        by_field=bool(pod.spec.scheduling_group.pod_group_name),
        labels=metadata.labels,
        tree_annotations=tree_annotations(metadata.annotations),
        priority=priority.value,
        priority_class=spec.priority_class_name,
        scheduler_name=spec.scheduler_name or "default-scheduler",
        preemption_policy=priority.preemption_policy,
        created_us=micros(metadata.creation_timestamp),
        node=NodeName(spec.node_name) if spec.node_name else None,
        assigned_us=_assigned_us(pod) if spec.node_name else 0,
        ends_us=_ends_us(pod) if spec.node_name else 0,
        checkpoint=metadata.annotations.get(core.CHECKPOINT_ANNOTATION, ""),
        nominated=NodeName(nominated) if (nominated := pod.status.nominated_node_name) else None,
        gates=tuple(gate.name for gate in spec.scheduling_gates),
        deleting=metadata.deletion_timestamp is not None,
        deletes_us=micros(metadata.deletion_timestamp),
        disruption_target=disruption_reason(pod),
        phase=pod.status.phase or "Pending",
        unschedulable=next(
            (
                c.message
                for c in pod.status.conditions
                if (c.type, c.status, c.reason) == ("PodScheduled", "False", "Unschedulable")
            ),
            "",
        ),
        resource_version=metadata.resource_version,
        plan=metadata.annotations.get(PLAN_ANNOTATION, ""),
        static=is_static(pod),
        pinned=pinned_to(pod),
        controller=intern(next((o.kind for o in metadata.owner_references if o.controller), "")),
    )


def _assigned_us(pod: api.Pod) -> int:
    """Return when a pod got its node: the time of PodScheduled, else its creation."""
    created_us = micros(pod.metadata.creation_timestamp)
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "True"):
            return max(created_us, _instant_us(pod, condition.last_transition_time))
    return created_us


def _ends_us(pod: api.Pod) -> int:
    """Return when a pod with a node ends by itself, at the latest; 0: not known. Of a range of durations the longest counts."""
    runs_for = pod.metadata.annotations.get(core.RUNS_FOR, "").rpartition("-")[2]
    limits_s = (pod.spec.active_deadline_seconds, duration_s(runs_for) if runs_for else None)
    least_s = min((seconds for seconds in limits_s if seconds), default=0)
    begin_us = _assigned_us(pod)
    is_known = least_s and begin_us not in core.FILLED_IN_US
    return begin_us + least_s * 1_000_000 if is_known else 0


def _instant_us(pod: api.Pod, written: str | None) -> int:
    try:
        return micros(msgspec.convert(written, api.Instant)) if written else 0
    except msgspec.ValidationError as error:
        text = f'"{written}" is not an RFC 3339 time'
        raise bad(pod, "status.conditions[].lastTransitionTime", text) from error


def group_named(pod: api.Pod) -> GroupKey | None:
    """Return the leaf of a pod: by the field, else our label, else the coscheduling plugin's label (A.1)."""
    name = pod.spec.scheduling_group.pod_group_name
    labels = pod.metadata.labels
    if not name and labels:
        name = next((labels[label] for label in GROUP_LABELS if labels.get(label)), "")
    return leaf_key(pod.metadata.namespace, name) if name else None


def is_static(pod: api.Pod) -> bool:
    """Return whether a pod is the mirror pod of a static pod.

    Source:
        kubernetes.io/docs/tasks/configure-pod-container/static-pod: the kubelet marks it with the annotation, and
        the node owns it. Neither preemption nor the Eviction API can end it.
    """
    owners = pod.metadata.owner_references
    return MIRROR in pod.metadata.annotations or any(o.kind == "Node" for o in owners)


def pinned_to(pod: api.Pod) -> NodeName | None:
    """Return the only node that the required affinity allows by name (as for DaemonSet pods), or None."""
    required = pod.spec.affinity.node_affinity.required
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


def shape_key(pod: api.Pod) -> bytes | None:
    """Return a key that only pods with an equal `shape_of` have, or None where that depends on more than the spec.

    Pods that are stamped out of one template have one key until their containers start, and another one then.
    """
    spec, status = pod.spec, pod.status
    affinity = spec.affinity
    beyond = (
        any(map(_decides_where, spec.volumes))
        or spec.topology_spread_constraints
        or affinity.pod_affinity.required
        or affinity.pod_affinity.preferred
        or affinity.pod_anti_affinity.required
        or affinity.pod_anti_affinity.preferred
        or any(c.type == RESIZE_PENDING for c in status.conditions)
    )
    if beyond:
        return None
    return _encode(
        (
            spec.containers,
            spec.init_containers,
            spec.resources,
            spec.overhead,
            spec.host_network,
            spec.node_selector,
            affinity.node_affinity,
            spec.tolerations,
            spec.resource_claims,
            status.container_statuses,
            status.init_container_statuses,
            status.resources,
            status.allocated_resources,
        )
    )


def _decides_where(volume: api.Volume) -> bool:
    """Return whether a volume may decide where its pod runs; that of a service account's token, which nearly every pod has, does not."""
    return volume != api.Volume(name=volume.name)


def shape_of(pod: api.Pod, volumes: core.VolumeConstraints) -> core.PodShape:
    """Return everything that decides on which nodes a pod fits."""
    spec = pod.spec
    selectors = volumes.selectors
    if spec.affinity.node_affinity.required is not None:
        try:
            own = node_selector(spec.affinity.node_affinity.required)
        except BadInput as fault:
            raise bad(pod, "spec.affinity.nodeAffinity", str(fault)) from fault
        selectors = (own, *selectors)
    rules, unmodelled = pod_rules(pod)
    return core.PodShape(
        requests=requests_of(pod),
        node_selector=tuple(sorted(spec.node_selector.items())),
        selectors=selectors,
        tolerations=_tolerations(pod),
        host_ports=_host_ports(pod),
        exclusive_claims=volumes.exclusive_claims,
        unmodelled=tuple(sorted({*_unmodelled(spec), *volumes.unmodelled, *unmodelled})),
        rules=rules,
        soft=_soft(pod),
    )


def _soft(pod: api.Pod) -> core.SoftRules | UnsetType:
    """Return what a pod prefers; a term that cannot be read is named, and makes no pod unreadable."""
    nodes: list[core.NodePreference] = []
    pods, unseen = pod_preferences(pod)
    for n, preferred in enumerate(pod.spec.affinity.node_affinity.preferred):
        try:
            term = selector_term(f"[{n}].preference", preferred.preference)
        except BadInput as fault:
            unseen = (*unseen, f"preferred node affinity {fault}")
            continue
        if preferred.weight and term != core.SelectorTerm():  # an empty term matches no node
            nodes.append(core.NodePreference(preferred.weight, term))
    return core.SoftRules(tuple(nodes), pods, unseen) if nodes or pods or unseen else UNSET


def _tolerations(pod: api.Pod) -> tuple[core.Toleration, ...]:
    """Return the tolerations in a fixed order, without those with numeric operators, which are not modelled."""
    read = set()
    for n, toleration in enumerate(pod.spec.tolerations):
        operator = toleration.operator or "Equal"
        if operator in {"Exists", "Equal"}:
            exists = operator == "Exists"
            read.add((toleration.key, exists, toleration.value, toleration.effect))
        elif operator not in {"Gt", "Lt"}:
            text = f'"{operator}" is none of Exists, Equal, Gt, Lt'
            raise bad(pod, f"spec.tolerations[{n}].operator", text)
    return tuple(
        core.Toleration(key, "Exists" if exists else "Equal", value, effect)
        for key, exists, value, effect in sorted(read)
    )


def _host_ports(pod: api.Pod) -> tuple[core.HostPort, ...]:
    """Return the ports that the pod occupies on its node; with hostNetwork these are all its ports."""
    spec = pod.spec
    ports = set()
    for container in (*spec.containers, *(c for c in spec.init_containers if _is_sidecar(c))):
        for port in container.ports:
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number > 0:
                ip = port.host_ip or core.HostPort("", 0).ip
                ports.add(core.HostPort(port.protocol or "TCP", number, ip))
    return tuple(sorted(ports)) if ports else ()


def _unmodelled(spec: api.PodSpec) -> Iterable[str]:
    """Yield the constraints of the pod's spec that the planner does not model; equal pods give equal texts."""
    for claim in spec.resource_claims:
        yield f"{core.RESOURCE_CLAIM}{claim.name}"
    for volume in spec.volumes:
        disk = volume.gce_persistent_disk or volume.aws_elastic_block_store
        if volume.iscsi or volume.rbd or disk:
            yield core.ONE_POD_VOLUME


# --- requests


def requests_of(pod: api.Pod) -> tuple[tuple[str, int], ...]:
    """Return the resources that a pod requests of a node.

    Containers and sidecars run together; each init container runs beside the sidecars started
    before it; the larger of the two sums counts, per resource. Pod-level requests replace
    cpu, memory and huge pages. The overhead is added. A pod in resize counts with the maximum of
    its desired and its actual requests.

    Returns:
        By resource name, without zeros and markers, `pods` always 1; CPU in millicores.

    Source:
        PodRequests in component-helpers resource/helpers.go; NodeResourcesFit's computePodResourceRequest.
    """
    total = _of_containers(pod)
    total |= _of_pod_level(pod, total)
    _add(total, _read(pod, "spec.overhead", pod.spec.overhead))
    whole = {name: rounded(name, amount) for name, amount in total.items() if name not in MARKERS}
    whole["pods"] = 1
    return tuple(sorted((name, amount) for name, amount in whole.items() if amount))


def _of_containers(pod: api.Pod) -> _Exact:
    status = pod.status
    infeasible = any(
        c.type == RESIZE_PENDING and c.reason == "Infeasible" for c in status.conditions
    )
    given = {c.name: c for c in (*status.container_statuses, *status.init_container_statuses)}
    together: _Exact = {}
    for n, container in enumerate(pod.spec.containers):
        requests = _container_requests(pod, f"spec.containers[{n}]", container.resources)
        _add(together, _effective(pod, requests, given.get(container.name), infeasible=infeasible))
    sidecars: _Exact = {}
    at_start: _Exact = {}
    for n, container in enumerate(pod.spec.init_containers):
        requests = _container_requests(pod, f"spec.initContainers[{n}]", container.resources)
        if _is_sidecar(container):
            requests = _effective(pod, requests, given.get(container.name), infeasible=infeasible)
            _add(together, requests)
            _add(sidecars, requests)
            _raise(at_start, sidecars)
        else:
            beside = dict(sidecars)
            _add(beside, requests)
            _raise(at_start, beside)
    _raise(together, at_start)
    return together


def _of_pod_level(pod: api.Pod, containers: _Exact) -> _Exact:
    """Return the pod-level requests, which replace those of the containers."""
    needs = pod.spec.resources
    if not needs.requests and not needs.limits:
        return {}
    requests = _read(pod, "spec.resources.requests", needs.requests)
    for name, amount in _read(pod, "spec.resources.limits", needs.limits).items():
        # requests of containers take precedence over the pod-level limit
        if name not in containers:
            requests.setdefault(name, amount)
    if pod.status.resources is not None:
        _raise(requests, _read(pod, "status.resources.requests", pod.status.resources.requests))
        _raise(requests, _read(pod, "status.allocatedResources", pod.status.allocated_resources))
    return {
        name: amount
        for name, amount in requests.items()
        if name in {CPU, "memory"} or name.startswith("hugepages-")
    }


def _container_requests(pod: api.Pod, where: str, needs: api.ResourceNeeds) -> _Exact:
    """Return the requests of a container; a limit without a request is the request (API defaulting)."""
    requests = _read(pod, where, needs.requests, ".resources.requests")
    if len(needs.limits.keys() - requests.keys()):
        limits = _read(pod, where, needs.limits, ".resources.limits")
        requests = limits | requests
    return requests


def _effective(
    pod: api.Pod, desired: _Exact, status: api.ContainerStatus | None, *, infeasible: bool
) -> _Exact:
    """Return the maximum of desired, actual and allocated requests (in-place resize)."""
    if status is None or status.resources is None:
        return desired
    most = {} if infeasible else dict(desired)
    where = f"status of container {status.name}"
    _raise(most, _read(pod, where, status.resources.requests))
    _raise(most, _read(pod, where, status.allocated_resources))
    return most


def _read(pod: api.Pod, where: str, resources: api.Resources, more: str = "") -> _Exact:
    if not resources:
        return {}
    try:
        read = exact(resources)
    except BadQuantity as fault:
        raise bad(pod, where + more, str(fault)) from fault
    for name, amount in read.items():
        if amount < 0:
            raise bad(pod, where + more, f'{name}: "{resources[name]}" is negative')
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


_NO_POD = core.NodeSelectorRequirement("", "In")  # without values it holds for no label


def pod_rules(pod: api.Pod) -> tuple[tuple[core.PodRule, ...], tuple[str, ...]]:
    """Return the rules of a pod.

    Returns:
        The rules, sorted; and the texts of those that are not modelled, sorted.
    """
    affinity, rules = pod.spec.affinity, set[core.PodRule]()
    unmodelled = set[str]()
    for term in affinity.pod_anti_affinity.required:
        about = _about(pod, term)
        if about is None:
            unmodelled.add(f"{core.AVOIDS_PODS}{term.topology_key}")
        else:
            rules.add(core.PodRule("apart", (term.topology_key,), (about,)))
    if terms := affinity.pod_affinity.required:
        every = tuple(about for term in terms if (about := _about(pod, term)) is not None)
        if len(every) < len(terms):
            unmodelled.update(f"{core.NEEDS_PODS}{term.topology_key}" for term in terms)
        else:
            rules.add(core.PodRule("near", tuple(term.topology_key for term in terms), every))
    rules.update(_spread(pod, anyway=False))
    return tuple(sorted(rules, key=repr)), tuple(sorted(unmodelled))


def pod_preferences(pod: api.Pod) -> tuple[tuple[core.PodPreference, ...], tuple[str, ...]]:
    """Return the rules about other pods that a pod prefers, sorted; and the texts of those that are not modelled, sorted."""
    affinity, unseen = pod.spec.affinity, set[str]()
    preferred = [core.PodPreference(rule) for rule in _spread(pod, anyway=True)]
    both: tuple[tuple[core.RuleKind, tuple[api.WeightedPodAffinityTerm, ...]], ...] = (
        ("near", affinity.pod_affinity.preferred),
        ("apart", affinity.pod_anti_affinity.preferred),
    )
    for kind, terms in both:
        for weighted in terms:
            term = weighted.pod_affinity_term
            about = _about(pod, term)
            rule = core.PodRule(kind, (term.topology_key,), () if about is None else (about,))
            if about is None:
                unseen.add(f"preferred {rule.text} of namespaces that a label selects")
            elif weighted.weight:
                preferred.append(core.PodPreference(rule, weighted.weight))
    return tuple(sorted(preferred, key=repr)), tuple(sorted(unseen))


def _spread(pod: api.Pod, *, anyway: bool) -> Iterator[core.PodRule]:
    for constraint in pod.spec.topology_spread_constraints:
        if (constraint.when_unsatisfiable == "ScheduleAnyway") != anyway:
            continue
        own = _of_keys(pod.metadata.labels, constraint.match_label_keys, "In")
        labels = (*label_requirements(constraint.label_selector), *own)
        yield core.PodRule(
            kind="spread",
            keys=(constraint.topology_key,),
            about=(core.AboutPods((pod.metadata.namespace,), labels),),
            skew=constraint.max_skew,
            least_domains=constraint.min_domains or 1,
            honors_affinity=constraint.node_affinity_policy != "Ignore",
            honors_taints=constraint.node_taints_policy == "Honor",
        )


def _about(pod: api.Pod, term: api.PodAffinityTerm) -> core.AboutPods | None:
    """Return the pods that a term selects; None if it selects namespaces by label."""
    selector = term.namespace_selector
    if selector is not None and (selector.match_labels or selector.match_expressions):
        return None
    own = tuple(sorted(set(term.namespaces))) or (pod.metadata.namespace,)
    namespaces = () if selector is not None else own
    pod_labels = pod.metadata.labels
    labels = (
        *label_requirements(term.label_selector),
        *_of_keys(pod_labels, term.match_label_keys, "In"),
        *_of_keys(pod_labels, term.mismatch_label_keys, "NotIn"),
    )
    return core.AboutPods(namespaces, tuple(dict.fromkeys(labels)))


def label_requirements(
    selector: api.LabelSelector | None,
) -> tuple[core.NodeSelectorRequirement, ...]:
    """Return the requirements of a selector; None selects no pod, an empty one every pod."""
    if selector is None:
        return (_NO_POD,)
    requirement, labels = core.NodeSelectorRequirement, sorted(selector.match_labels.items())
    more = (requirement(r.key, r.operator, r.values) for r in selector.match_expressions)
    return (*(requirement(key, "In", (value,)) for key, value in labels), *more)


def _of_keys(
    labels: Mapping[str, str], keys: tuple[str, ...], operator: core.Operator
) -> tuple[core.NodeSelectorRequirement, ...]:
    """Return requirements with the pod's own values, as the API server does; keys without a label are skipped."""
    return tuple(
        core.NodeSelectorRequirement(k, operator, (labels[k],)) for k in keys if k in labels
    )


_PERCENT: Final = re.compile(r"([0-9]{1,3})%")


def budget_of(budget: api.PodDisruptionBudget) -> core.PodDisruptionBudget:
    """Return the budget of the core; without a status it allows no disruption.

    Source:
        policy/v1: a missing selector matches no pod, an empty one every pod of the namespace.
    """
    namespace, name = budget.key
    selector = budget.spec.selector
    for n, expression in enumerate(selector.match_expressions if selector is not None else ()):
        wants_values = expression.operator in {"In", "NotIn"}
        if expression.operator in {"Gt", "Lt"} or wants_values != bool(expression.values):
            text = f"{expression.key} {expression.operator} {list(expression.values)}: is not a valid expression"
            raise bad(budget, f"spec.selector.matchExpressions[{n}]", text)
    about = None
    if selector is not None:
        about = core.AboutPods((namespace,), label_requirements(selector))
    allowed = max(budget.status.disruptions_allowed or 0, 0)
    return core.PodDisruptionBudget(namespace=namespace, name=name, about=about, allowed=allowed)


def with_status(
    written: api.PodDisruptionBudget, pods: Iterable[api.Pod]
) -> api.PodDisruptionBudget:
    """Return the budget with the number of allowed disruptions in its status, computed if it was not set.

    Args:
        pods: All pods of the files; one that has a node and has not ended counts as healthy.

    Source:
        The disruption controller, with the number of existing pods as the expected count.
    """
    if written.status.disruptions_allowed is not None:
        return written
    budget = budget_of(written)
    running = (pod for pod in pods if not ended(pod))
    mine = [p for p in running if budget.protects(p.metadata.namespace, p.metadata.labels)]
    healthy = sum(1 for p in mine if p.spec.node_name and p.metadata.deletion_timestamp is None)
    most, least = written.spec.max_unavailable, written.spec.min_available
    number, desired_healthy = len(mine), 0
    if most is not None:
        desired_healthy = number - _scaled(written, "maxUnavailable", most, number)
    elif least is not None:
        desired_healthy = _scaled(written, "minAvailable", least, number)
    allowed = max(healthy - max(desired_healthy, 0), 0)
    status = replace(written.status, disruptions_allowed=allowed)
    return replace(written, status=status)


def _scaled(budget: api.PodDisruptionBudget, field: str, bound: int | str, of: int) -> int:
    """Return a number, or a percentage of `of`, rounded up."""
    if isinstance(bound, int):
        return bound
    match = _PERCENT.fullmatch(bound)
    if match is None:
        raise bad(budget, f"spec.{field}", f'"{bound}" is neither a number nor a percentage')
    return -(-int(match[1]) * of // 100)
