"""Render the admission policy that gives pods with the tree label their leaf.

    python -m deploy.render.render_leaf_policy deploy/kubernetes/admission-policy.yaml

Owns the policy `gang-extender-leaf`. kube-apiserver runs mutating policies in no order, and calls a policy whose
conditions did not hold in the first pass not again in the second. So a policy for pods that name a group may have run
before the pod has its leaf: all that those policies do is part of this one. Each of their mutations changes nothing
the second time. A test compares the files with the output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.render import tree_policy_expressions as cel
from deploy.render.render_tree_policies import (
    PATCH_FIELDS,
    binding,
    document,
    patch,
    section,
)
from extender.core.workloads.kind_table import NAME_RULES
from extender.core.workloads.kinds.job_kind import NAME_LABEL as JOB_NAME
from extender.core.workloads.kinds.plain_pods_kind import (
    KUEUE_NAME,
    KUEUE_RULE,
    KUEUE_TOTAL,
    NAME_LABEL,
    PLAIN_PODS,
    TOTAL_LABEL,
)
from extender.core.workloads.name_rules import NAME_MAX, LabelCondition, NameRule, Piece
from extender.core.workloads.tree_policy import DEFAULT_PROFILE
from extender.core.workloads.workload_object import GROUP_LABEL, GROUP_LABELS, OFF, TREE_LABEL

NAME = "gang-extender-leaf"
LABELS = "{app.kubernetes.io/name: gang-extender}"

Policy = Mapping[str, Any]  # of a YAML file


def render(files: Mapping[str, str], rules: Sequence[NameRule] = NAME_RULES) -> str:
    """Return the text of a leaf policy.

    Args:
        files: Texts of YAML files by their names. Their mutating policies for pods become part of this one.
        rules: The name rules of all kinds.

    Raises:
        ValueError: Two policies have different variables of one name.
    """
    policies = [policy for content in files.values() for policy in _policies(content)]
    spec = (
        "  # A pod without its leaf would be scheduled alone.\n"
        "  failurePolicy: Fail\n"
        "  # The webhook of a controller may add the label that a name rule needs; a leaf never changes.\n"
        "  reinvocationPolicy: IfNeeded\n"
        "  matchConstraints:\n    resourceRules:\n"
        '      - apiGroups: [""]\n        apiVersions: [v1]\n        operations: [CREATE]\n        resources: [pods]\n'
        f"{section('matchConditions', _conditions().items())}"
        f"{section('variables', _variables(policies, rules).items())}"
        f"  mutations:\n{patch('JSONPatch', _add_leaf())}"
        f"{''.join(map(_guarded, policies))}"
    )
    policy = document("MutatingAdmissionPolicy", NAME, LABELS, spec, _header(files))
    return policy.removeprefix("---\n") + binding(NAME, LABELS)


def _header(files: Mapping[str, str]) -> str:
    return (
        "# Generated from extender/core/workloads/kind_table.py and policies for pods that name a group; do not edit:\n"
        f"#   python -m deploy.render.render_leaf_policy {' '.join(files)}\n"
        "#\n"
        "# A pod whose template has the label gang-extender.dev/tree gets its leaf when it is created, from the labels of\n"
        "# its controller. kube-apiserver runs mutating policies in no order and calls a policy that did not match\n"
        "# before not again; so gate, profile and markers of members are set here too.\n"
    )


def _policies(content: str) -> list[Policy]:
    """Return the mutating policies for pods."""
    documents = [document for document in yaml.safe_load_all(content) if document]
    mutating = [one for one in documents if one["kind"] == "MutatingAdmissionPolicy"]
    rules = [one["spec"]["matchConstraints"]["resourceRules"] for one in mutating]
    pairs = zip(mutating, rules, strict=True)
    return [policy for policy, of in pairs if any(rule["resources"] == ["pods"] for rule in of)]


def _conditions() -> dict[str, str]:
    key = cel.text(TREE_LABEL)
    return {
        "has-a-profile": f"has(object.metadata.labels) && ({key} in object.metadata.labels\n"
        f"? object.metadata.labels[{key}] != {cel.text(OFF)}\n"
        f": {cel.texts((NAME_LABEL, TOTAL_LABEL))}.all(key, key in object.metadata.labels))",
        "not-of-another-scheduler": f"!{cel.has_other_scheduler('object')}",
        "not-bound": "!has(object.spec.nodeName) || object.spec.nodeName == ''",
    }


def _variables(policies: Sequence[Policy], rules: Sequence[NameRule]) -> dict[str, str]:
    variables: dict[str, str] = {
        "labels": "has(object.metadata.labels) ? object.metadata.labels : {}"
    }
    for policy in policies:
        for definition in policy["spec"].get("variables", ()):
            if (
                variables.setdefault(definition["name"], definition["expression"])
                != definition["expression"]
            ):
                raise ValueError(
                    f"variable {definition['name']} is there twice: {policy['metadata']['name']}"
                )
    variables["unasked"] = _unasked()
    variables["leaf"] = (
        f"!variables.unasked && (has(object.spec.schedulingGroup) || {cel.texts(GROUP_LABELS)}.exists(key, key in variables.labels))\n"
        f"? ''\n: !({cel.text(TREE_LABEL)} in variables.labels)\n"
        f"? {cel_of(PLAIN_PODS.name_rules)}\n: {cel_of((*rules, KUEUE_RULE))}"
    )
    return variables


def _unasked() -> str:
    """Return the condition that a pod names a group that its Job did not ask for.

    With the gate WorkloadWithJob the Job controller makes a basic group for every Job without `spec.scheduling` and a
    group of its own (KEP-5547), named `<Job>-<hash>-<Job>-pgt-0-<hash>`; the pods of a tree would be placed one by one.
    Another policy may have copied its name into our label already.
    """
    named, key = "object.spec.schedulingGroup.podGroupName", cel.text(GROUP_LABEL)
    return (
        "has(object.spec.schedulingGroup) && has(object.spec.schedulingGroup.podGroupName)\n"
        f"&& {cel.text(JOB_NAME)} in variables.labels\n"
        f"&& {named}.contains('-' + variables.labels[{cel.text(JOB_NAME)}] + '-pgt-0-')\n"
        f"&& (!({key} in variables.labels) || variables.labels[{key}] == {named})"
    )


def _add_leaf() -> str:
    return (
        'variables.leaf == \'\' ? [] : [JSONPatch{op: "add", path: "/metadata/labels/" '
        f'+ jsonpatch.escapeKey("{GROUP_LABEL}"), value: variables.leaf}}]\n'
        '+ (variables.unasked ? [JSONPatch{op: "remove", path: "/spec/schedulingGroup"}] : [])\n'
        f"+ {_add_labels()}"
    )


def _add_labels() -> str:
    """Return the patches that complete the labels of plain pods; the twin is `policy_labels` in the table entry."""
    kueue, annotation = cel.text(KUEUE_NAME), cel.text(KUEUE_TOTAL)
    is_kueue = f"&& {kueue} in variables.labels "
    annotations = f"has(object.metadata.annotations) && {annotation} in object.metadata.annotations"
    added = (
        (TREE_LABEL, "", cel.text(DEFAULT_PROFILE.name)),
        (NAME_LABEL, is_kueue, f"variables.labels[{kueue}]"),
        (
            TOTAL_LABEL,
            f"{is_kueue}&& {annotations} ",
            f"object.metadata.annotations[{annotation}]",
        ),
    )
    return "\n+ ".join(
        f"(variables.leaf != '' && !({cel.text(label)} in variables.labels) {condition}? [JSONPatch{{op: \"add\", "
        f'path: "/metadata/labels/" + jsonpatch.escapeKey("{label}"), value: {value}}}] : [])'
        for label, condition, value in added
    )


def _guarded(policy: Policy) -> str:
    """Return the mutation of a policy, under its conditions."""
    spec = policy["spec"]
    (mutation,) = spec["mutations"]
    conditions = [f"({condition['expression']})" for condition in spec.get("matchConditions", ())]
    guard = f"!({' && '.join(conditions)})"
    patch_type = mutation["patchType"]
    nothing = {"ApplyConfiguration": "Object{}", "JSONPatch": "[]"}[patch_type]
    expression = mutation[PATCH_FIELDS[patch_type]]["expression"]
    return patch(patch_type, f"{guard} ? {nothing} :\n{expression}")


# --- the rules of the names of leaves as CEL


def cel_of(rules: Iterable[NameRule], labels: str = "variables.labels") -> str:
    """Return the CEL expression of the leaf's name; an empty string where no rule applies.

    It is a list of what each rule gives and not one condition inside of another: kube-apiserver refuses expressions with more
    than 32 levels.

    Args:
        rules: The first one that applies counts.
        labels: The CEL expression of the labels of the pod, a map.
    """
    names = []
    for rule in rules:
        conditions = [_cel_condition(labels, condition) for condition in rule.when]
        conditions += [f"{cel.text(key)} in {labels}" for key in rule.label_keys]
        name = _cel_name(_cel_piece(labels, rule.head), [_cel_piece(labels, p) for p in rule.rest])
        names.append(f"({' && '.join(conditions)})\n? {name} : ''")
    joined = ",\n".join(names)
    return f"([{joined}].filter(leaf, leaf != '') + [''])[0]"


def _cel_condition(labels: str, condition: LabelCondition) -> str:
    key = cel.text(condition.key)
    expression = f"{key} in {labels}"
    if condition.value is not None:
        expression = f"{expression} && {labels}[{key}] == {cel.text(condition.value)}"
    return f"!({expression})" if condition.absent else f"({expression})"


def _cel_piece(labels: str, piece: Piece) -> str:
    if isinstance(piece, str):
        return cel.text(piece)
    value = f"{labels}[{cel.text(piece.key)}]"
    if piece.ordinal:
        dash = f"{value}.lastIndexOf('-')"
        return f"({dash} > 0 ? {value}.substring(0, {dash}) : {value})"
    if piece.first:
        value = f"(size({value}) > {piece.first} ? {value}.substring(0, {piece.first}) : {value})"
    return value


def _cel_name(head: str, rest: list[str]) -> str:
    """Return the CEL form of `joined_name`; head and rest are joined in a list so that each is written once."""
    pair = f"[({head}).replace('.', '-'), ({' + '.join(rest) if rest else cel.text('')}).replace('.', '-')]"
    return (
        f"[{pair}].map(n, size(n[0]) + size(n[1]) <= {NAME_MAX} ? n[0] + n[1]"
        f" : size(n[1]) < {NAME_MAX} ? n[0].substring(0, {NAME_MAX} - size(n[1])) + n[1]"
        f" : 'x' + n[1].substring(size(n[1]) - {NAME_MAX - 1}))[0]"
    )


if __name__ == "__main__":
    sys.stdout.write(
        render({name: Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]})
    )
