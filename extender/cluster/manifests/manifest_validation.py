"""Validate groups, workloads and pods from files, as an API server would.

Owns rules E01 to E14 (docs/reference/groups.md) about a single object; rules between the groups of a tree are
checked at run time by `extender.core.model.pod_groups`. An API server with our CRDs (or the built-in kinds)
applies the same rules, so objects of informers need no validation here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from extender.cluster import types as api
from extender.core.log.control_plane_features import COMPOSITES_OF_1_37
from extender.core.model.dropped_fields import BUILTIN
from extender.core.model.errors import BadQuantity, several
from extender.core.model.message_formatting import did_you_mean
from extender.core.model.nodes import (
    NEAR_MAX,
    PREFERRED_MAX,
    UNBALANCED,
    SliceLevel,
    slices_problem,
)
from extender.core.model.quantities import NANO, Written, nanos
from extender.core.workloads.tree_policy import is_label_key, is_object_name

TEMPLATES_MAX: Final = 8
TOPOLOGY_MAX: Final = 1
CLAIMS_MAX: Final = 4
LEVELS_MAX: Final = 4
PRIORITY_MAX: Final = 1_000_000_000
_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES: Final = "hugepages-"
_RESTARTS: Final = ("Always", "Never", "OnFailure")
_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")
_HONORS: Final = ("Honor", "Ignore")
_EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_POLICIES: Final = {"", "PreemptLowerPriority", "Never"}
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

ALL_OF_BASIC: Final = "all is meant for a gang, and the policy is basic; Kubernetes 1.38 refuses it in built-in objects (E11)"


Templated = api.GroupSpec | api.Template


def check(obj: api.Readable) -> None:
    """Validate an object.

    Raises:
        BadInput: An API server would refuse it; names object, field and value of each violation.

    Source:
        E01 to E08, E10 to E12 and E14; of pods, pkg/apis/core/validation of Kubernetes 1.37.
    """
    if isinstance(obj, api.Workload):
        problems = _workload(obj)
    elif isinstance(obj, api.Group):
        problems = _common("spec", obj.spec, composite=isinstance(obj, api.CompositePodGroup))
    elif isinstance(obj, api.Pod):
        problems = _pod(obj.spec)
    else:
        return
    if violations := tuple(f"{obj.label}: {problem}" for problem in problems):
        raise several(violations)


def is_namespace(text: str) -> bool:
    """Return whether a text is a valid name of a namespace."""
    return _LABEL.fullmatch(text) is not None


def admission_warnings(obj: api.Readable) -> Iterator[str]:
    """Yield warnings about fields of a group that an API server would refuse but that do not affect planning.

    These are an invalid name or label key, and a missing reference to a Workload; of a Workload that a basic template
    is disrupted as a whole, which Kubernetes 1.37 accepts and 1.38 does not.

    Source:
        E11, E12 and E14.
    """
    if isinstance(obj, api.Workload) and not _since_1_38(obj):
        for path, template, _, _ in _templates(obj.spec):
            if _is_basic(template) and disrupts_all(template.disruption_mode):
                yield f"{obj.label}: {path}.disruptionMode: {ALL_OF_BASIC}"
    if not isinstance(obj, api.Group):
        return
    spec, refused = obj.spec, "an API server would refuse it"
    if not is_object_name(obj.metadata.name):
        yield f'{obj.label}: metadata.name: "{obj.metadata.name}" is not a valid name; {refused}'
    for field, key in _wrong_keys(spec):
        path = f"spec.schedulingConstraints.{field}"
        yield f'{obj.label}: {path}: "{key}" is not a valid label key; {refused}'
    old = spec.pod_group_template_ref
    parent = spec.parent_composite_pod_group_name
    if parent and spec.workload_ref is None and old is None:
        text = f'is required with parentCompositePodGroupName "{parent}"; {refused}'
        yield f"{obj.label}: spec.workloadRef: {text}"


def _since_1_38(workload: api.Workload) -> bool:
    """Return whether a Workload is one of Kubernetes 1.38 or later: it has composites, which 1.37 has in v1alpha3 alone."""
    version = workload.api_version
    builtin = version.startswith(f"{BUILTIN}/") and version != COMPOSITES_OF_1_37
    return builtin and bool(workload.spec.composite_pod_group_templates)


def _is_basic(template: api.Template) -> bool:
    policy = template.scheduling_policy
    return policy is not None and policy.basic is not None and policy.gang is None


def _wrong_keys(spec: Templated) -> Iterator[tuple[str, str]]:
    """Return the field of each constraint whose key is none of a label, with that key."""
    constraints = spec.scheduling_constraints
    topology = (*constraints.topology, *constraints.topology_constraints)
    keys = {
        "topology": [entry.key or entry.level or entry.topology_key for entry in topology],
        "preferred": constraints.preferred,
        "exclusive.key": [constraints.exclusive.key] if constraints.exclusive is not None else [],
        "near.key": [near.key for near in constraints.near],
        "slices.key": [entry.key for entry in constraints.slices],
    }
    return ((field, key) for field in keys for key in keys[field] if not is_label_key(key))


def _common(path: str, spec: Templated, *, composite: bool) -> Iterator[str]:
    """Yield the violations of rules that hold for templates and for groups."""
    constraints = spec.scheduling_constraints
    topology = (*constraints.topology, *constraints.topology_constraints)
    if composite:
        yield from _required(path, spec)
    yield from _too_many(f"{path}.schedulingConstraints.topology", topology, TOPOLOGY_MAX)
    preferred = f"{path}.schedulingConstraints.preferred"
    yield from _too_many(preferred, constraints.preferred, PREFERRED_MAX)
    for n, key in enumerate(constraints.preferred):
        if key in constraints.preferred[:n]:
            yield f'{preferred}: "{key}" is there twice; name each key once, the narrowest first'
    near = f"{path}.schedulingConstraints.near"
    yield from _too_many(near, constraints.near, NEAR_MAX)
    for n, entry in enumerate(constraints.near):
        if entry in constraints.near[:n]:
            yield f"{near}[{n}]: group {entry.group} and key {entry.key} are there twice; name each pair once"
    slices = f"{path}.schedulingConstraints.slices"
    levels = tuple(SliceLevel(entry.key, entry.size) for entry in constraints.slices)
    if levels and composite:
        yield f"{slices}: only a PodGroup has them; found {len(levels)}"
    elif problem := slices_problem(levels):
        yield f"{slices}: {problem}"
    if constraints.balanced and not constraints.preferred:
        yield f"{path}.schedulingConstraints.balanced: {UNBALANCED}"
    yield from _too_many(f"{path}.resourceClaims", spec.resource_claims, CLAIMS_MAX)
    yield from _references(path, spec.resource_claims)
    if composite and spec.resource_claims:
        yield f"{path}.resourceClaims: a composite cannot have claims"
    if spec.priority is not None and spec.priority > PRIORITY_MAX:
        yield f"{path}.priority: {spec.priority} is more than {PRIORITY_MAX}"
    if spec.preemption_policy not in _POLICIES:
        yield f'{path}.preemptionPolicy: "{spec.preemption_policy}" is none of PreemptLowerPriority, Never'


def _too_many(path: str, entries: Sequence[object], most: int) -> Iterator[str]:
    if len(entries) > most:
        yield f"{path}: too many entries: {len(entries)}, at most {most}"


# --- pods


def _pod(spec: api.PodSpec) -> Iterator[str]:
    """Yield the values that an API server refuses and that would be read as something else."""
    yield from _containers(spec)
    yield from _resources("spec.resources", spec.resources)
    yield from _pod_level(spec)
    yield from _spread(spec)
    yield from _tolerations(spec)
    yield from _affinity(spec.affinity)
    yield from _claims(spec)


def _claims(spec: api.PodSpec) -> Iterator[str]:
    """Yield claims that name nothing or two things, and containers that use one that the pod does not have."""
    yield from _references("spec", spec.resource_claims)
    names = [claim.name for claim in spec.resource_claims]
    for path, container in _all_containers(spec):
        for used in container.resources.claims:
            if used.name not in names:
                hint = did_you_mean(used.name, names) or "; add it there, or leave it out"
                text = f'"{used.name}" is no entry of spec.resourceClaims{hint}'
                yield f"{path}.resources.claims: {text}"


def _all_containers(spec: api.PodSpec) -> Iterator[tuple[str, api.Container]]:
    fields = {"containers": spec.containers, "initContainers": spec.init_containers}
    for field, containers in fields.items():
        yield from ((f"spec.{field}[{n}]", each) for n, each in enumerate(containers))


def _references(path: str, claims: Sequence[api.ClaimReference]) -> Iterator[str]:
    names = [claim.name for claim in claims]
    for n, claim in enumerate(claims):
        entry = f'{path}.resourceClaims[{n}]: "{claim.name}"'
        existing, template = claim.resource_claim_name, claim.resource_claim_template_name
        if not existing and not template:
            yield f"{entry} names no claim; set one of resourceClaimName, resourceClaimTemplateName"
        elif existing and template:
            both = f'resourceClaimName "{existing}" and resourceClaimTemplateName "{template}"'
            yield f"{entry} has {both}; remove one of the two"
        if claim.name in names[:n]:
            yield f"{entry} is there twice; give one of them another name"


def _containers(spec: api.PodSpec) -> Iterator[str]:
    for path, container in _all_containers(spec):
        yield from _resources(f"{path}.resources", container.resources)
        for field, name, _ in _named_amounts(container.resources):
            # one with a prefix is a device that a node may have
            if "/" not in name and name not in _RESOURCES and not name.startswith(_HUGE_PAGES):
                hint = did_you_mean(name, _RESOURCES) or "; a device has a prefix: nvidia.com/gpu"
                yield f"{path}.resources.{field}: {name}: there is no such resource{hint}"
        yield from _one_of(f"{path}.restartPolicy", container.restart_policy, _RESTARTS)
    names = [container.name for _, container in _all_containers(spec) if container.name]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f'spec.containers: the name "{name}" is used twice; give one of them another name'


def _spread(spec: api.PodSpec) -> Iterator[str]:
    for n, constraint in enumerate(spec.topology_spread_constraints):
        path = f"spec.topologySpreadConstraints[{n}]"
        when = constraint.when_unsatisfiable
        yield from _one_of(f"{path}.whenUnsatisfiable", when, _UNSATISFIABLE)
        yield from _one_of(f"{path}.nodeAffinityPolicy", constraint.node_affinity_policy, _HONORS)
        yield from _one_of(f"{path}.nodeTaintsPolicy", constraint.node_taints_policy, _HONORS)
        numbers = {"maxSkew": constraint.max_skew, "minDomains": constraint.min_domains}
        for name, number in numbers.items():
            if number is not None and number < 1:
                yield f"{path}.{name}: {number} is less than 1"
        if not constraint.topology_key:
            yield f"{path}.topologyKey: is missing"


def _tolerations(spec: api.PodSpec) -> Iterator[str]:
    for n, toleration in enumerate(spec.tolerations):
        path = f"spec.tolerations[{n}]"
        yield from _one_of(f"{path}.effect", toleration.effect, _EFFECTS)
        if toleration.operator == "Exists" and toleration.value:
            yield f'{path}.value: is "{toleration.value}"; with operator Exists leave it out'
        if not toleration.key and toleration.operator != "Exists":
            yield f"{path}.key: is missing; to tolerate every taint set operator Exists"


def _affinity(affinity: api.Affinity) -> Iterator[str]:
    required = affinity.node_affinity.required
    if required is not None and not required.node_selector_terms:
        path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        yield f"{path}.nodeSelectorTerms: is empty; add a term, or leave out the affinity"
    of_pods = {"podAffinity": affinity.pod_affinity, "podAntiAffinity": affinity.pod_anti_affinity}
    for field, rules in of_pods.items():
        for n, term in enumerate(rules.required):
            if not term.topology_key:
                path = f"spec.affinity.{field}.requiredDuringSchedulingIgnoredDuringExecution[{n}]"
                yield f"{path}.topologyKey: is missing"


def _one_of(path: str, value: str, allowed: Sequence[str]) -> Iterator[str]:
    if value and value not in allowed:
        yield f'{path}: "{value}" is none of {", ".join(allowed)}'


def _named_amounts(needs: api.ResourceNeeds) -> Iterator[tuple[str, str, Written]]:
    for field, resources in (("requests", needs.requests), ("limits", needs.limits)):
        yield from ((field, name, written) for name, written in resources.items())


def _pod_level(spec: api.PodSpec) -> Iterator[str]:
    """Yield what is wrong with the resources of a pod as a whole, which are not those of devices."""
    for field, name, _ in _named_amounts(spec.resources):
        if name not in ("cpu", "memory") and not name.startswith(_HUGE_PAGES):
            yield f"spec.resources.{field}: {name}: a pod has cpu, memory and huge pages here; move it to a container"
    for name, request in spec.resources.requests.items():
        needed = sum(_nanos(each.resources.requests.get(name, 0)) for each in spec.containers)
        if needed > _nanos(request):
            yield f'spec.resources.requests: {name}: "{request}" is less than its containers request together; raise it'


def _resources(path: str, needs: api.ResourceNeeds) -> Iterator[str]:
    for field, name, written in _named_amounts(needs):
        if _is_device(name) and _nanos(written) % NANO:
            yield f'{path}.{field}: {name}: "{written}" is not a whole number'
    for name, request in needs.requests.items():
        limit = needs.limits.get(name)
        if limit is None:
            if _never_shared(name):
                yield f'{path}.limits: {name}: is missing, and the request is "{request}"; of devices and huge pages both are set'
        elif _nanos(request) > _nanos(limit):
            yield f'{path}.requests: {name}: "{request}" is more than its limit, which is "{limit}"'
        elif _never_shared(name) and _nanos(request) < _nanos(limit):
            yield f'{path}.requests: {name}: "{request}" is not its limit, which is "{limit}"; of devices and huge pages both are the same'


def _is_device(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _never_shared(name: str) -> bool:
    """Return whether pods have their own of a resource, so that request and limit are equal (IsOvercommitAllowed)."""
    return _is_device(name) or name.startswith(_HUGE_PAGES)


def _nanos(written: str | float) -> int:
    """Return a quantity in nano-units; 0 for one that cannot be read, which is an error of its own."""
    try:
        return nanos(written)
    except BadQuantity:
        return 0


# --- workloads


def _workload(workload: api.Workload) -> Iterator[str]:
    spec = workload.spec
    leaves, composites = spec.pod_group_templates, spec.composite_pod_group_templates
    if bool(leaves) == bool(composites):
        both = "both" if leaves else "neither"
        yield f"spec: set exactly one of podGroupTemplates, compositePodGroupTemplates; found {both}"
    yield from _too_many("spec.podGroupTemplates", leaves, TEMPLATES_MAX)
    yield from _too_many("spec.compositePodGroupTemplates", composites, TEMPLATES_MAX)
    path_of: dict[str, str] = {}
    first: api.Template | None = None
    deepest = ("", 0)
    for path, template, composite, level in _templates(workload.spec):
        yield from _template(path, template, path_of, composite=composite)
        if _since_1_38(workload):
            yield from _refused_since_1_38(path, template, first or template)
        if workload.api_version.startswith(f"{BUILTIN}/"):
            yield from _not_built_in(f"{path}.schedulingConstraints", template)
        for field, key in _wrong_keys(template):
            yield f'{path}.schedulingConstraints.{field}: "{key}" is not a valid label key'
        deepest = max(deepest, (path, level), key=lambda place: place[1])
        first = first or template
        ours, theirs = _priority(template), _priority(first)
        if ours != theirs:
            both = f'"{first.name}" has {theirs}, "{template.name}" has {ours}'
            yield f"{path}: all templates share one priority and class: {both}"
    path, level = deepest
    if level > LEVELS_MAX:
        yield f"{path}: the template tree has {level} levels, at most {LEVELS_MAX} are allowed"


def _not_built_in(path: str, template: api.Template) -> Iterator[str]:
    """Yield constraints that only templates of gang-extender.dev have."""
    given = template.scheduling_constraints
    values = {
        "preferred": given.preferred and f"found {', '.join(given.preferred)}",
        "exclusive": given.exclusive and f"found key {given.exclusive.key}",
        "slices": given.slices and f"found key {given.slices[0].key}",
        "near": given.near and f"found group {given.near[0].group}",
        "lostMembers": given.lost_members != "Wait" and f"found {given.lost_members}",
    }
    for field, text in values.items():
        if text:
            yield f"{path}.{field}: only templates of gang-extender.dev have it; {text}"


def _refused_since_1_38(path: str, template: api.Template, first: api.Template) -> Iterator[str]:
    """Yield what kube-apiserver 1.38 refuses in a Workload with composites, and 1.37 does not."""
    if _is_basic(template) and disrupts_all(template.disruption_mode):
        yield f"{path}.disruptionMode: {ALL_OF_BASIC}"
    ours, theirs = template.preemption_policy, first.preemption_policy
    if ours != theirs:
        both = f'"{first.name}" has "{theirs}", "{template.name}" has "{ours}"'
        yield f"{path}.preemptionPolicy: all templates share one: {both}"
    if template.scheduling_policy is None or template.scheduling_policy.gang is None:
        return
    for child in (*template.pod_group_templates, *template.composite_pod_group_templates):
        if _is_basic(child):
            text = f'give "{child.name}" a gang policy, of which a minimum of 1 is enough'
            yield f'{path}.schedulingPolicy: child "{child.name}" is basic under "{template.name}", which is a gang; {text}'


def _priority(template: api.Template) -> str:
    number = "no priority" if template.priority is None else str(template.priority)
    return f'{number} and class "{template.priority_class_name}"'


def _templates(
    holder: api.WorkloadSpec | api.Template, path: str = "spec", level: int = 1
) -> Iterator[tuple[str, api.Template, bool, int]]:
    """Yield all templates below one: path, template, whether it is in a list of composites, level from 1."""
    for field, templates in (
        ("podGroupTemplates", holder.pod_group_templates),
        ("compositePodGroupTemplates", holder.composite_pod_group_templates),
    ):
        for n, template in enumerate(templates):
            template_path = f"{path}.{field}[{n}]"
            yield template_path, template, field[0] == "c", level
            yield from _templates(template, template_path, level + 1)


def _template(
    path: str, template: api.Template, path_of: dict[str, str], *, composite: bool
) -> Iterator[str]:
    leaves, composites = template.pod_group_templates, template.composite_pod_group_templates
    if not _LABEL.fullmatch(template.name):
        yield f'{path}.name: "{template.name}" is not a valid name'
    if template.name in path_of:
        yield f'{path}.name: template name "{template.name}" used twice: {path_of[template.name]}, {path}'
    path_of[template.name] = path
    yield from _too_many(f"{path}.podGroupTemplates", leaves, TEMPLATES_MAX)
    yield from _too_many(f"{path}.compositePodGroupTemplates", composites, TEMPLATES_MAX)
    if composite and not leaves and not composites:
        yield f'{path}: composite template "{template.name}" has no child template'
    if not composite and (leaves or composites):
        yield f'{path}: template "{template.name}" of a PodGroup has child templates'
    yield from _common(path, template, composite=composite)
    yield from _policy(path, template, composite=composite)
    if disrupts_all(template.disruption_mode):
        for child in (*leaves, *composites):
            if not disrupts_all(child.disruption_mode):
                text = f'is single under "{template.name}", which is disrupted as a whole (all)'
                yield f'{path}.disruptionMode: child "{child.name}" {text}'


def _required(path: str, spec: Templated) -> Iterator[str]:
    """Yield that a group names more children that always count than it counts."""
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    if gang is None:
        return
    names, least = gang.required_groups, gang.min_group_count or 0
    path += ".schedulingPolicy.gang.requiredGroups"
    if len(names) > least:
        yield f"{path}: {len(names)} names count towards minGroupCount, which is {least}; raise it"
    for name in names:
        if not is_object_name(name):
            yield f'{path}: "{name}" is not a valid name'


def _policy(path: str, template: api.Template, *, composite: bool) -> Iterator[str]:
    policy = template.scheduling_policy
    if policy is None or (policy.basic is None) == (policy.gang is None):
        yield f"{path}.schedulingPolicy: choose exactly one of basic, gang"
        return
    if policy.gang is not None:
        minimum = policy.gang.min_group_count if composite else policy.gang.min_count
        if minimum is None:
            field = "minGroupCount" if composite else "minCount"
            yield f"{path}.schedulingPolicy.gang.{field}: is required, at least 1"


def disrupts_all(mode: api.DisruptionMode | str | None) -> bool:
    """Return whether a disruption mode is `all`; unset and `Pod` (Kubernetes 1.36) mean `single`."""
    return mode == "PodGroup" or (isinstance(mode, api.DisruptionMode) and mode.all is not None)
