"""Render the admission policies that write the tree label into the pod templates of workloads.

    python -m deploy.render.render_tree_policies > deploy/kubernetes/workloads/tree-policies.yaml

Owns one MutatingAdmissionPolicy per kind of workload, with its binding. The label of a namespace is read from
`namespaceObject`, which variables and mutations have and matchConditions do not. A test compares the file with the
output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from deploy.render import tree_policy_expressions as cel
from extender.core.workloads.kind_table import KINDS
from extender.core.workloads.workload_kind import ObjectKind, RuntimePatch, WorkloadKind
from extender.core.workloads.workload_object import PATCH_MANAGER, TREE_LABEL

# on the objects for one kind, to apply or leave out: kubectl apply -l
KIND_LABEL = "gang-extender.dev/kind"
HEADER = """\
# Generated from extender/core/workloads/kind_table.py; do not edit:
#   python -m deploy.render.render_tree_policies > deploy/kubernetes/workloads/tree-policies.yaml
#
# A pod does not see its workload. So the label gang-extender.dev/tree of a workload, or of its namespace if it has none,
# is written into its pod templates when it is created; `off` on a workload wins. Existing workloads stay as they are,
# and an update that lacks the label keeps it: templates of Job and JobSet are immutable, that of a LeaderWorkerSet
# would start a rollout. An exclusive topology of JobSet or LeaderWorkerSet becomes the annotation gang-extender.dev/exclusive,
# since their controllers hold pods back for it. Every kind has its switch: kubectl apply -l 'gang-extender.dev/kind in (Job, JobSet)' -f <this file>
"""


def render(kinds: Sequence[WorkloadKind] = KINDS) -> str:
    """Return the text of `deploy/kubernetes/workloads/tree-policies.yaml`."""
    policies = [_policy(kind) for kind in kinds if has_policy(kind)]
    return HEADER + "".join(policies)


def has_policy(kind: WorkloadKind) -> bool:
    """Return whether objects of a kind are changed when they are written."""
    return bool(kind.template_paths or kind.labels_from or kind.label_patch)


def block(expression: str, indent: int) -> str:
    """Return a folded block of YAML, each line with the same indentation."""
    lines = [line.strip() for line in expression.splitlines()]
    return ">-\n" + "".join(f"{' ' * indent}{line}\n" for line in lines if line)


def section(name: str, expressions: Iterable[tuple[str, str]]) -> str:
    """Return the section of a policy with variables or conditions: names and expressions; nothing where there are none."""
    items = [f"    - name: {n}\n      expression: {block(text, 8)}" for n, text in expressions]
    return "".join([f"  {name}:\n", *items]) if items else ""


def document(kind: str, name: str, labels: str, spec: str, comment: str = "") -> str:
    """Return an object of admission policies, behind a line that begins a document and comments."""
    return (
        f"---\n{comment}apiVersion: admissionregistration.k8s.io/v1\nkind: {kind}\n"
        f"metadata:\n  name: {name}\n  labels: {labels}\nspec:\n{spec}"
    )


PATCH_FIELDS = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}


def patch(patch_type: str, expression: str) -> str:
    """Return a mutation of one of PATCH_FIELDS."""
    return (
        f"    - patchType: {patch_type}\n      {PATCH_FIELDS[patch_type]}:\n"
        f"        expression: {block(expression, 10)}"
    )


def binding(name: str, labels: str) -> str:
    """Return the binding of a policy, for all namespaces."""
    return document("MutatingAdmissionPolicyBinding", name, labels, f"  policyName: {name}\n")


def _policy(kind: WorkloadKind) -> str:
    name = f"gang-extender-tree-{kind.kind.lower()}"
    labels = f"{{app.kubernetes.io/name: gang-extender, {KIND_LABEL}: {kind.kind}}}"
    resources = [
        ObjectKind(kind=kind.kind, group=kind.group, versions=kind.versions, plural=kind.plural)
    ]
    variables, mutation = _stamps(kind)
    spec = (
        "  # A workload without the label would run without its gang.\n  failurePolicy: Fail\n"
        "  # A template that has the label keeps it: the second pass changes nothing.\n"
        "  reinvocationPolicy: IfNeeded\n"
        "  matchConstraints:\n    resourceRules:\n"
        f"{''.join(_rule(resource) for resource in (*resources, *kind.labels_from))}"
        f"{section('variables', variables)}"
        f"  mutations:\n{patch('JSONPatch', mutation)}"
    )
    policy = document("MutatingAdmissionPolicy", name, labels, spec, _comment(kind))
    return policy + binding(name, labels)


def _comment(kind: WorkloadKind) -> str:
    if kind.label_patch is not None:
        return (
            f"# {kind.kind} has no pod templates, and its labels do not reach its pods: its own label is added to\n"
            f"# spec.{kind.label_patch.field}. That of the namespace reaches what its controller makes by itself.\n"
        )
    if not kind.template_paths:
        makers = ", ".join(maker.kind for maker in kind.labels_from)
        return f"# {kind.kind} has no pod templates: it has the label itself, and pods get that of {makers}.\n"
    parts = f" Parts of {', '.join(kind.part_of)} get theirs there." if kind.part_of else ""
    return f"# {kind.kind}: {', '.join(kind.template_paths)}.{parts}\n"


def _rule(resource: ObjectKind) -> str:
    return (
        f"      - apiGroups: [{resource.group}]\n"
        f"        apiVersions: [{', '.join(resource.versions)}]\n"
        "        operations: [CREATE, UPDATE]\n"
        f"        resources: [{resource.plural}]\n"
    )


def _stamps(kind: WorkloadKind) -> tuple[list[tuple[str, str]], str]:
    """Return the variables and the mutation of the policy of a kind."""
    if kind.template_paths:
        return _stamp_templates(kind)
    if kind.label_patch is not None:
        return _stamp_patch(kind.label_patch)
    return _stamp_object()


def _labels_and_profile() -> Iterable[tuple[str, str]]:
    yield "own", cel.labels_of("object")
    yield "inherited", cel.labels_of("namespaceObject")
    yield "asked", cel.asked_profile()
    yield "annotations", cel.labels_of("object", "annotations")
    old = cel.labels_of("oldObject", "annotations")
    yield "oldAnnotations", f"request.operation == 'UPDATE' ? {old} : {{}}"


def _stamp_templates(kind: WorkloadKind) -> tuple[list[tuple[str, str]], str]:
    reasons = [cel.controlled_by(kind.part_of)] if kind.part_of else []
    reasons.append(cel.kept_out(kind))
    variables = [
        *_labels_and_profile(),
        ("templates", cel.templates(kind)),
        ("ours", "!(" + "\n|| ".join(reasons) + ")"),
        ("profile", cel.profile_to_add()),
        ("stamps", cel.stamps(kind)),
        ("source", cel.source()),
    ]
    mutation = f"{cel.add_stamps()}\n+ {cel.add_source()}"
    if kind.exclusive_annotation:
        variables.append(("exclusive", cel.exclusive(kind)))
        mutation += f"\n+ {cel.replace_exclusive(kind)}"
    return variables, mutation


def _stamp_object() -> tuple[list[tuple[str, str]], str]:
    profile = (
        f"{cel.text(TREE_LABEL)} in variables.own ? []\n"
        f": request.operation == 'UPDATE' ? {cel.value_of(cel.labels_of('oldObject'), TREE_LABEL)}\n"
        ": variables.asked"
    )
    mutation = (
        "(size(variables.profile) > 0 && !has(object.metadata.labels)\n"
        '? [JSONPatch{op: "add", path: "/metadata/labels", value: {}}] : [])\n'
        f"+ {cel.add('variables.profile', cel.LABELS, TREE_LABEL)}\n"
        f"+ {cel.add_source()}"
    )
    return [*_labels_and_profile(), ("profile", profile), ("source", cel.source())], mutation


def _stamp_patch(entries: RuntimePatch) -> tuple[list[tuple[str, str]], str]:
    """Add an entry with the label when the object is created; an update keeps what the object had."""
    field, mine = f"spec.{entries.field}", f"p, p.{entries.key} == {cel.text(PATCH_MANAGER)}"
    entry = f"{{{cel.text(TREE_LABEL)}: value}}"
    for name in reversed(entries.path):
        entry = f"{{{cel.text(name)}: dyn({entry})}}"
    entry = f"{{{cel.text(entries.key)}: dyn({cel.text(PATCH_MANAGER)}), {entry[1:]}"
    missing = (
        f"variables.patches.exists({mine}) ? []\n"
        f": request.operation == 'UPDATE' ? variables.oldPatches.filter({mine})\n"
        f": {cel.value_of(cel.labels_of('object'), TREE_LABEL)}\n.map(value, {entry})"
    )
    variables = [
        ("patches", f"has(object.{field}) ? object.{field} : []"),
        (
            "oldPatches",
            f"request.operation == 'UPDATE' && has(oldObject.{field}) ? oldObject.{field} : []",
        ),
        ("missing", missing),
    ]
    path = f'"/spec/{entries.field}'
    mutation = (
        f"(size(variables.missing) > 0 && !has(object.{field})\n"
        f'? [JSONPatch{{op: "add", path: {path}", value: []}}] : [])\n'
        f'+ variables.missing.map(p, JSONPatch{{op: "add", path: {path}/-", value: p}})'
    )
    return variables, mutation


if __name__ == "__main__":
    sys.stdout.write(render())
