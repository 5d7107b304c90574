"""Render the admission policies that confine the account of the service to what the service does.

    python -m deploy.render.render_confinement > deploy/kubernetes/confinement.yaml

Owns one ValidatingAdmissionPolicy per kind of write, and the one that leaves our scheduling gate to the service. RBAC
names resources and verbs; these policies name fields, so that a stolen token changes no image, label or namespace that
the service never changes. A test compares the file with the output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deploy.render import confinement_expressions as cel
from deploy.render.render_validating import Policy, Rule, Validation, policy_text
from deploy.render.tree_policy_expressions import labels_of, text, texts
from extender.core.model.pods import GATE
from extender.core.reconcile.finalizer_rules import FINALIZER
from extender.core.workloads.workload_object import MANAGED_BY, PARENT_ANNOTATION, TREE_LABEL
from extender.ports import written_names as names

HEADER = """\
# Generated from extender/ports/written_names.py; do not edit:
#   python -m deploy.render.render_confinement > deploy/kubernetes/confinement.yaml
#
# What the account of the extender may write, field by field, beside rbac.yaml: a stolen token changes nothing else. Only
# kube-apiserver runs these policies, no webhook server. Each applies to that one account, but for
# gang-extender-gate, which keeps every other user from removing our scheduling gate from a held pod.
# Pods of the namespaces in `exempt`, and of namespaces with the label gang-extender.dev/exempt: "true", are never changed.
# To remove a gate by hand, in an emergency: kubectl delete validatingadmissionpolicybinding gang-extender-gate
"""
GROUPS = ("podgroups", "compositepodgroups")
OURS = ("gang-extender.dev",)
OURS_AND_BUILTIN = ("gang-extender.dev", "scheduling.k8s.io")
KUEUE = ("kueue.x-k8s.io",)
GENERATED = ("generation", "managedFields", "resourceVersion")  # of metadata, by kube-apiserver
PRIORITY_MAX = 1_000_000_000  # higher values are those of system classes
TOPOLOGY_PREFIX = "topology.kubernetes.io/"  # labels of a Binding that kube-apiserver itself adds

EXEMPT = Validation("!variables.exempt", "the extender changes no pod of an exempt namespace")


def _changed_status(field: str) -> str:
    """Return the expression for what is changed of an object, but for one field of its status."""
    return (
        cel.changed("metadata", GENERATED)
        + f"\n+ (has(object.status) ? dyn(object.status) : {{}}).filter(key, key != '{field}'\n"
        "&& (!has(oldObject.status) || !(key in oldObject.status) || object.status[key] != oldObject.status[key]))"
    )


def _confined(
    name: str,
    comment: str,
    rules: tuple[Rule, ...],
    variables: dict[str, str],
    validations: tuple[Validation, ...],
) -> Policy:
    """Return a policy that applies to the account of the service alone."""
    return Policy(
        name=f"gang-extender-confined-{name}",
        comment=comment,
        rules=rules,
        conditions={"is-the-extender": cel.is_service()},
        variables=variables,
        validations=validations,
    )


def _unchanged(rule: str) -> Validation:
    """Return the rule that no field is changed, with a message that names those that are."""
    return Validation(
        "size(variables.changed) == 0",
        rule,
        f"{text(rule + '; this request changes ')} + variables.changed.join(', ')",
    )


def _conditions() -> dict[str, str]:
    """Return variables: the conditions of the object, as they were, and those that are new or different."""
    return {
        "conditions": f"has(object.status) ? {cel.list_of('object.status', 'conditions')} : []",
        "oldConditions": f"has(oldObject.status) ? {cel.list_of('oldObject.status', 'conditions')} : []",
        "written": "variables.conditions.filter(c, !variables.oldConditions.exists(o, o == c))",
    }


def _none_removed(kind: str) -> Validation:
    return Validation(
        "variables.oldConditions.all(o, variables.conditions.exists(c, c.type == o.type))",
        f"the extender removes no condition of a {kind}",
    )


def _gated(pod: str) -> str:
    return cel.exists_named(f"{pod}.spec", "schedulingGates", GATE)


def _changed(metadata: Sequence[str], field: str, allowed: Sequence[str]) -> str:
    """Return the list of what is changed of metadata and of another field, but for the allowed names in each."""
    return f"{cel.changed('metadata', metadata)}\n+ {cel.changed(field, allowed)}"


DISRUPTED = cel.condition_is(names.DISRUPTION_TARGET, "True", names.PREEMPTED)
WAITING = cel.condition_is(names.POD_SCHEDULED, "False", names.GATED)
PARENT, TREE, MANAGED = map(text, (PARENT_ANNOTATION, TREE_LABEL, names.MANAGED_BY_LABEL))
IS_MADE = f"{MANAGED} in LABELS && LABELS[{MANAGED}] == {text(MANAGED_BY)}"
IS_OURS = f"reportingController == {text(names.REPORTER)}"
POLICIES = (
    Policy(
        name="gang-extender-gate",
        comment="Users cannot remove our gate: pods without it, before their tree fits, cost kube-scheduler its time.",
        rules=(Rule(("",), ("pods",), ("UPDATE",)),),
        # One condition, because each costs every update of a pod; that of the user is the cheapest.
        conditions={
            "another-user-removes-the-gate": f"!({cel.is_service()})\n&& {_gated('oldObject')}\n&& !({_gated('object')})",
        },
        validations=(
            Validation(
                "false",
                f"only the extender removes the scheduling gate {GATE}; delete the pod, or let an administrator delete "
                "the ValidatingAdmissionPolicyBinding gang-extender-gate",
            ),
        ),
    ),
    _confined(
        "pods",
        "Pods: our scheduling gate is removed, and nothing else is changed.",
        (Rule(("",), ("pods",), ("UPDATE",)),),
        {
            "exempt": cel.is_exempt(),
            "changed": _changed(GENERATED, "spec", ("schedulingGates",)),
            "before": cel.list_of("oldObject.spec", "schedulingGates"),
            "after": cel.list_of("object.spec", "schedulingGates"),
        },
        (
            EXEMPT,
            _unchanged("the extender changes nothing of a pod but its gate"),
            Validation(
                "variables.after == variables.before\n"
                f"|| variables.after == variables.before.filter(gate, gate.name != {text(GATE)})",
                f"the extender removes no scheduling gate but {GATE}",
            ),
        ),
    ),
    _confined(
        "pod-status",
        "Status of pods: the nomination, that a victim is preempted, why a gated pod waits.",
        (Rule(("",), ("pods/status",), ("UPDATE",)),),
        {
            "exempt": cel.is_exempt(),
            "changed": _changed(GENERATED, "status", ("conditions", "nominatedNodeName")),
            **_conditions(),
        },
        (
            EXEMPT,
            _unchanged("the extender changes nothing of a pod but its nomination and conditions"),
            Validation(
                f"variables.written.all(c, {DISRUPTED}\n|| {WAITING})",
                f"the extender writes no condition of a pod but {names.DISRUPTION_TARGET} of a victim and the message of "
                f"{names.POD_SCHEDULED} of a gated pod",
            ),
            _none_removed("pod"),
        ),
    ),
    _confined(
        "evictions",
        "Victims of preemption: never in exempt namespaces, never of a system class, always with their own grace period.",
        (
            Rule(("",), ("pods",), ("DELETE",)),
            Rule(("",), ("pods/eviction",), ("CREATE",)),
        ),
        {
            "exempt": cel.is_exempt(),
            "options": "request.operation == 'DELETE' ? dyn(request.options)\n"
            ": has(object.deleteOptions) ? dyn(object.deleteOptions) : dyn({})",
        },
        (
            EXEMPT,
            Validation(
                "request.operation != 'DELETE' || !has(oldObject.spec.priority)\n"
                f"|| oldObject.spec.priority <= {PRIORITY_MAX}",
                "the extender evicts no pod of a system priority class",
            ),
            Validation(
                # kube-apiserver fills in the period of the spec, and 0 for a pod that has nothing to end
                "variables.options == null || !has(variables.options.gracePeriodSeconds)\n"
                "|| (request.operation == 'DELETE' && (!has(oldObject.spec.nodeName) || oldObject.spec.nodeName == ''\n"
                "|| oldObject.status.phase in ['Succeeded', 'Failed']\n"
                "|| variables.options.gracePeriodSeconds >= oldObject.spec.terminationGracePeriodSeconds))",
                "the extender evicts pods with their own grace period",
            ),
        ),
    ),
    _confined(
        "bindings",
        "Bindings: labels and annotations of a Binding are copied to its pod, so it has none but ours.",
        (Rule(("",), ("pods/binding", "bindings"), ("CREATE",)),),
        {"exempt": cel.is_exempt()},
        (
            EXEMPT,
            Validation("object.target.kind == 'Node'", "the extender binds pods to nodes"),
            Validation(
                f"{labels_of('object')}.all(key, key.startsWith({text(TOPOLOGY_PREFIX)}))\n"
                f"&& {labels_of('object', 'annotations')}.all(key, key == {text(names.PLAN_ANNOTATION)})",
                f"a Binding of the extender has no labels, and no annotation but {names.PLAN_ANNOTATION}",
            ),
        ),
    ),
    _confined(
        "groups",
        "Groups of our kinds: our finalizer on all; those of workload trees are made, changed and deleted whole.",
        (Rule(OURS, GROUPS, ("CREATE", "UPDATE", "DELETE")),),
        {
            "before": f"request.operation == 'CREATE' ? {{}} : {labels_of('oldObject')}",
            "after": f"request.operation == 'DELETE' ? {{}} : {labels_of('object')}",
            "ours": "request.operation == 'CREATE'\n"
            f"? {IS_MADE.replace('LABELS', 'variables.after')}\n&& {TREE} in variables.after\n"
            f": {IS_MADE.replace('LABELS', 'variables.before')}",
            "changed": "request.operation != 'UPDATE' ? []\n: variables.ours\n? "
            + _changed(
                (*GENERATED, "finalizers", "labels", "ownerReferences"),
                "spec",
                ("schedulingPolicy",),
            )
            + "\n: "
            + _changed((*GENERATED, "finalizers"), "spec", ()),
        },
        (
            Validation(
                "request.operation == 'UPDATE' || variables.ours",
                f"the extender creates and deletes only groups with the label {names.MANAGED_BY_LABEL}={MANAGED_BY}, and "
                f"creates them with {TREE_LABEL}",
            ),
            Validation(
                "request.operation != 'CREATE'\n"
                "|| (!has(object.metadata.finalizers) && !has(object.metadata.annotations)\n"
                "&& (has(object.metadata.ownerReferences)\n"
                "? size(object.metadata.ownerReferences) == 1\n"
                "&& has(object.metadata.ownerReferences[0].controller)\n"
                "&& object.metadata.ownerReferences[0].controller\n"
                ": request.resource.resource == 'podgroups'))",  # of plain pods
                "a group that the extender creates has its workload as controlling owner, or is a PodGroup of plain pods and has none; "
                "it has no annotations or finalizers",
            ),
            _unchanged("the extender changes nothing of a group but what it owns"),
            Validation(
                "request.operation != 'UPDATE'\n"
                f"|| {cel.without('object', 'finalizers', FINALIZER)}\n"
                f"== {cel.without('oldObject', 'finalizers', FINALIZER)}",
                f"the extender adds and removes no finalizer but {FINALIZER}",
            ),
            Validation(
                "request.operation != 'UPDATE' || !variables.ours\n"
                f"|| ({cel.keys_but('variables.after', TREE_LABEL)} == {cel.keys_but('variables.before', TREE_LABEL)}\n"
                f"&& {cel.uids('object')} == {cel.uids('oldObject')})",
                f"the extender changes no label of a group but {TREE_LABEL}, and no owner",
            ),
        ),
    ),
    _confined(
        "adoption",
        "Built-in PodGroups of other controllers: they get a parent by annotation, once, of their own namespace.",
        (Rule(("scheduling.k8s.io",), GROUPS, ("UPDATE",)),),
        {
            "changed": _changed((*GENERATED, "annotations"), "spec", ()),
            "before": labels_of("oldObject", "annotations"),
            "after": labels_of("object", "annotations"),
        },
        (
            _unchanged("the extender changes nothing of a built-in group but its annotation"),
            Validation(
                f"{cel.keys_but('variables.after', PARENT_ANNOTATION)}\n"
                f"== {cel.keys_but('variables.before', PARENT_ANNOTATION)}\n"
                f"&& ({PARENT} in variables.before\n"
                f"? {PARENT} in variables.after && variables.after[{PARENT}] == variables.before[{PARENT}]\n"
                f": !({PARENT} in variables.after) || !variables.after[{PARENT}].contains('/'))",
                f"the extender adds no annotation but {PARENT_ANNOTATION}, and changes none",
            ),
        ),
    ),
    _confined(
        "group-status",
        "Status of groups: our conditions; those of other writers stay.",
        (Rule(OURS_AND_BUILTIN, tuple(f"{plural}/status" for plural in GROUPS), ("UPDATE",)),),
        {
            "changed": _changed_status("conditions"),
            **_conditions(),
        },
        (
            _unchanged("the extender changes nothing of a group's status but its conditions"),
            Validation(
                f"variables.written.all(c, c.type in {texts(names.GROUP_CONDITIONS)})",
                f"the extender writes no condition of a group but {', '.join(names.GROUP_CONDITIONS)}",
            ),
            _none_removed("group"),
        ),
    ),
    _confined(
        "checked-workloads",
        "Workloads of Kueue: the answers to their AdmissionChecks.",
        (Rule(KUEUE, ("workloads/status",), ("UPDATE",)),),
        {"changed": _changed_status("admissionChecks")},
        (
            _unchanged(
                "the extender changes nothing of a Workload of Kueue but its admissionChecks"
            ),
            Validation(
                "oldObject.status.admissionChecks.map(c, c.name) == object.status.admissionChecks.map(c, c.name)",
                "the extender adds and removes no AdmissionCheck of a Workload",
            ),
        ),
    ),
    _confined(
        "admission-checks",
        "AdmissionChecks of Kueue: that they are answered.",
        (Rule(KUEUE, ("admissionchecks/status",), ("UPDATE",)),),
        {"changed": _changed_status("conditions"), **_conditions()},
        (
            _unchanged("the extender changes nothing of an AdmissionCheck but its conditions"),
            Validation(
                "variables.written.all(c, c.type == 'Active')",
                "the extender writes no condition of an AdmissionCheck but Active",
            ),
            _none_removed("AdmissionCheck"),
        ),
    ),
    _confined(
        "events",
        "Events: its own, and how often they were repeated.",
        (Rule(("events.k8s.io",), ("events",), ("CREATE", "UPDATE")),),
        {
            "changed": "request.operation != 'UPDATE' ? [] : "
            + cel.changed("metadata", GENERATED)
            + "\n+ dyn(object).filter(key, !(key in ['metadata', 'series'])\n"
            "&& (!(key in oldObject) || object[key] != oldObject[key]))",
        },
        (
            Validation(
                f"object.{IS_OURS} && (request.operation != 'UPDATE' || oldObject.{IS_OURS})",
                f"Events of the extender have the reportingController {names.REPORTER}",
            ),
            _unchanged("the extender changes nothing of an Event but its series"),
        ),
    ),
    _confined(
        "configmaps",
        "The right to create a ConfigMap cannot name one; this does.",
        (Rule(("",), ("configmaps",), ("CREATE", "UPDATE", "DELETE")),),
        {},
        (
            Validation(
                "request.operation != 'DELETE'\n"
                f"&& object.metadata.name == {text(names.LOG_HEAD_CONFIGMAP)}",
                f"the extender writes no ConfigMap but {names.LOG_HEAD_CONFIGMAP}",
            ),
        ),
    ),
)


def render() -> str:
    """Return the text of `deploy/kubernetes/confinement.yaml`."""
    return HEADER + "".join(map(policy_text, POLICIES))


if __name__ == "__main__":
    sys.stdout.write(render())
