"""Render what the service may do to make trees: a ClusterRole per kind of workload, and one for its own groups.

    python -m deploy.render.render_tree_roles > deploy/kubernetes/workloads/rbac.yaml

A test compares the file with the output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deploy.render.render_tree_policies import KIND_LABEL
from extender.core.workloads.kind_table import OBJECT_KINDS
from extender.core.workloads.workload_kind import WorkloadKind

HEADER = """\
# Generated from extender/core/workloads/kind_table.py; do not edit:
#   python -m deploy.render.render_tree_roles > deploy/kubernetes/workloads/rbac.yaml
#
# What the extender may do to make trees from workloads, beside ../rbac.yaml: each rule with its reason. Every kind has a
# role of its own: kubectl apply -l 'gang-extender.dev/kind in (groups, Job, JobSet)' -f <this file>
"""
_GROUPS = """\
  # The groups of the trees: server-side apply is a patch that creates what is not there; a tree that is not needed any
  # more is deleted. Their owner references do not block the deletion of a workload, so no finalizers are written.
  - apiGroups: [gang-extender.dev]
    resources: [podgroups, compositepodgroups]
    verbs: [create, patch, delete]
  # How trees are made; operators write them.
  - apiGroups: [gang-extender.dev]
    resources: [treeprofiles]
    verbs: [list, watch]
  # The templates that the annotation gang-extender.dev/workload names.
  - apiGroups: [gang-extender.dev, scheduling.k8s.io]
    resources: [workloads]
    verbs: [list, watch]
"""
_ADOPTION = """\
  # nativeGroups: Adopt. The annotation gang-extender.dev/parent on a PodGroup that the controller of a workload made; a
  # patch with its UID, so none is created. Not needed while no TreeProfile has it.
  - apiGroups: [scheduling.k8s.io]
    resources: [podgroups]
    verbs: [patch]
"""
_KIND = """\
  # {reason}
  - apiGroups: [{of.group}]
    resources: [{of.plural}]
    verbs: [list, watch]
"""
_ROLE = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {name}
  labels: {{app.kubernetes.io/name: gang-extender, {label}: {kind}}}
rules:
{rules}---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {name}
  labels: {{app.kubernetes.io/name: gang-extender, {label}: {kind}}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {name}
subjects:
  - kind: ServiceAccount
    name: gang-extender
    namespace: gang-extender
"""


def render(kinds: Sequence[WorkloadKind] = OBJECT_KINDS) -> str:
    """Return the text of `deploy/kubernetes/workloads/rbac.yaml`."""
    roles = [
        ("gang-extender-trees", "groups", _GROUPS),
        ("gang-extender-tree-adoption", "adoption", _ADOPTION),
    ]
    for of in kinds:
        rules = _KIND.format(reason=_reason(of), of=of)
        roles.append((f"gang-extender-tree-{of.kind.lower()}", of.kind, rules))
    return HEADER + "".join(
        _ROLE.format(name=name, label=KIND_LABEL, kind=kind, rules=rules)
        for name, kind, rules in roles
    )


def _reason(kind: WorkloadKind) -> str:
    if kind.parts is None:
        return f"The annotations of a {kind.kind} count for the trees of what it owns."
    return f"What a tree is made from. Nothing is written to a {kind.kind}."


if __name__ == "__main__":
    sys.stdout.write(render())
