"""DisaggregatedSet: a root gang over the roles per revision; below it the replicas of each role.

Source: disaggregatedset.x-k8s.io/v1 of sigs.k8s.io/lws v0.9.0. It makes a LeaderWorkerSet per role and revision; those
are parts of its tree. A rollout raises the replicas of a new revision role by role, all from the first step on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Required

from extender.core.workloads.kinds import leaderworkerset_kind as lws
from extender.core.workloads.name_rules import LabelValue, joined_name, split_name
from extender.core.workloads.tree_parts import Composite, LeafUse, Observed
from extender.core.workloads.tree_policy import TreePolicy, TreeRefusal
from extender.core.workloads.workload_kind import (
    METADATA_FIELDS,
    Notice,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    number,
    only_whole,
    scheduling_block,
)
from extender.core.workloads.workload_object import WorkloadObject

PREFIX = "disaggregatedset.x-k8s.io"
NAME_LABEL = f"{PREFIX}/name"
ROLE_LABEL = f"{PREFIX}/role"
REVISION_LABEL = f"{PREFIX}/revision"
_ROLE_NAME = r"[a-z0-9](?:[-a-z0-9]*?[a-z0-9])?"
_ENDS = (
    re.compile(rf".*{lws.TAIL}"),
    re.compile(rf".*?{lws.TAIL}"),  # a revision of digits, with a subgroup behind it
)
_TAIL = re.compile(rf"-(?P<set>[a-z0-9]+)-(?P<role>{_ROLE_NAME}){lws.TAIL}")

Role = Mapping[str, Any]


def _parts(workload: WorkloadObject, _policy: TreePolicy, observed: Observed) -> WorkloadParts:
    roles = {str(role["name"]): role for role in workload.spec.get("roles") or ()}

    def replica_of(name: str, labels: Mapping[str, str]) -> lws.Replica | None:
        if labels.keys() >= {REVISION_LABEL, ROLE_LABEL}:
            return _labelled_replica(workload.name, name, labels)
        return lws.split_replica(_TAIL, workload.name, name)

    def desired(replica: lws.Replica) -> int:
        return _replicas(roles[replica.role]) if replica.role in roles else 0

    below: dict[str, dict[str, list[lws.Replica]]] = {}
    for replica in lws.observed_replicas(observed, replica_of, desired):
        of_role = below.setdefault(replica.set_revision, {})
        of_role.setdefault(replica.role, []).append(replica)
    roots = tuple(
        _root(workload, revision, of_role, roles, observed) for revision, of_role in below.items()
    )
    return WorkloadParts(roots=roots, notices=tuple(_notices(workload, roles)))


def _labelled_replica(workload: str, name: str, labels: Mapping[str, str]) -> lws.Replica | None:
    """Return the replica of a leaf whose pods have revision and role as labels; a long role leaves no more than its end in the name."""
    for pattern in _ENDS:
        end = pattern.fullmatch(name)
        if end is not None:
            index, revision = int(end["index"]), end["revision"]
            replica = lws.Replica(labels[REVISION_LABEL], labels[ROLE_LABEL], index, revision)
            if replica.namer(workload)(name[end.end("revision") :]) == name:
                return replica
    return None


def _root(
    workload: WorkloadObject,
    revision: str,
    replicas: Mapping[str, list[lws.Replica]],
    roles: Mapping[str, Role],
    observed: Observed,
) -> Composite:
    """Return the tree of a revision; a role without pods is there too, so that the gang has its size from the start."""
    names, minimum, required = _roles_of(workload, revision, replicas, roles, observed)
    children = []
    for name in names:
        role = roles.get(name) or {}
        leaves = tuple(
            lws.replica_part(
                workload, role.get("spec") or {}, _annotations(role), replica.namer(workload.name)
            )
            for replica in replicas.get(name, ())
        )
        children.append(
            Composite(
                name=_role_group(workload, revision, name),
                role=name,
                children=leaves,
                minimum=1,
                most=max(len(leaves), _replicas(role) if name in roles else 0),
                one_by_one=True,
            )
        )
    root = joined_name(workload.name, f"-{revision}")
    return Composite(
        name=root, role="", children=tuple(children), minimum=minimum, required=required
    )


def _annotations(role: Role) -> Mapping[str, str]:
    return (role.get("metadata") or {}).get("annotations") or {}


def _role_group(workload: WorkloadObject, revision: str, role: str) -> str:
    return joined_name(workload.name, f"-{revision}-{role}")


def _roles_of(
    workload: WorkloadObject,
    revision: str,
    replicas: Mapping[str, list[lws.Replica]],
    roles: Mapping[str, Role],
    observed: Observed,
) -> tuple[list[str], int, tuple[str, ...]]:
    """Return the roles of a revision, how many of them its gang has, and the groups of these.

    The object has the roles of the newest revision; an older one keeps the number that its root was made with. A role
    that is scaled up from zero later is no part of the gang, and does not stand in for one that is.
    """
    now = [name for name, role in roles.items() if _replicas(role) > 0]
    now += sorted(set(replicas) - set(now))
    root = joined_name(workload.name, f"-{revision}")
    composites = [group for group in observed.existing if group.kind == "CompositePodGroup"]
    roots = (group for group in composites if group.name == root and not group.basic)
    root_group = next(roots, None)
    if root_group is None or root_group.minimum == len(now):
        return now, len(now), tuple(_role_group(workload, revision, name) for name in now)
    pattern = re.compile(rf"-{re.escape(revision)}-(?P<role>{_ROLE_NAME})")
    matches = (split_name(pattern, workload.name, group.name) for group in composites)
    then = {match["role"] for match in matches if match is not None}
    required = root_group.required
    if not required and len(then) == root_group.minimum:  # made before groups named them
        required = tuple(_role_group(workload, revision, name) for name in sorted(then))
    return sorted(then | set(replicas)), root_group.minimum, required


def _replicas(role: Role) -> int:
    return number(role.get("spec") or {}, "replicas", 1)


def _notices(workload: WorkloadObject, roles: Mapping[str, Role]) -> Iterable[Notice]:
    for name, role in roles.items():
        if (role.get("spec") or {}).get("startupPolicy") == "LeaderReady":
            text = lws.starts_leader_first(workload, f" (role {name})")
            yield Notice(reason="SequencedStart", message=text)


def _planned_uses(workload: WorkloadObject) -> tuple[LeafUse, ...]:
    return tuple(
        LeafUse(
            name=joined_name(workload.name, f"-{lws.PLANNED}-{role['name']}-{index}-{lws.PLANNED}"),
            pods=1,
            labels={REVISION_LABEL: lws.PLANNED, ROLE_LABEL: str(role["name"])},
        )
        for role in workload.spec.get("roles") or ()
        for index in range(_replicas(role))
    )


def _refusals(workload: WorkloadObject) -> Iterable[TreeRefusal]:
    for index, role in enumerate(workload.spec.get("roles") or ()):
        place, spec = f"spec.roles[{index}].", role.get("spec") or {}
        yield from lws.replica_refusals(workload, place, _annotations(role), spec)
    yield from only_whole(workload)


def _kept_out(workload: WorkloadObject) -> str:
    for role in workload.spec.get("roles") or ():
        if reason := lws.replica_kept_out(role.get("spec") or {}):
            return f"role {role.get('name')}: {reason}"
    return scheduling_block(workload)


DISAGGREGATEDSET = WorkloadKind(
    kind="DisaggregatedSet",
    group="disaggregatedset.x-k8s.io",
    versions=("v1",),
    plural="disaggregatedsets",
    spec_type=fields_type(
        "DisaggregatedSetSpec",
        {
            "roles": [
                {"name": Required[str], "metadata": METADATA_FIELDS, "spec": lws.SPEC_FIELDS}
            ],
            "scheduling": dict[str, Any],
        },
    ),
    name_rules=lws.replica_rules(
        LabelValue(key=NAME_LABEL),
        "-",
        LabelValue(key=REVISION_LABEL),
        "-",
        LabelValue(key=ROLE_LABEL),
    ),
    name_label=NAME_LABEL,
    pod_labels=lws.pod_labels,
    template_paths=(
        "spec.roles[].spec.leaderWorkerTemplate.leaderTemplate",
        "spec.roles[].spec.leaderWorkerTemplate.workerTemplate",
    ),
    leaf_label=lws.leaf_label,
    leaf_label_cel=lws.LEAF_LABEL_CEL,
    parts=_parts,
    planned_uses=_planned_uses,
    refusals=_refusals,
    kept_out=_kept_out,
)
