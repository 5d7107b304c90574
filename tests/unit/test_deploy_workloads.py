"""The files in deploy/kubernetes/workloads are those that the table of kinds renders, and cover each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deploy.render import render_leaf_policy, render_tree_policies, render_tree_roles
from deploy.render.tree_policy_expressions import templates
from extender.core.workloads.kind_table import BY_KIND, OBJECT_KINDS
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import WorkloadObject

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "deploy" / "kubernetes" / "workloads"
MEMBERS = "deploy/kubernetes/admission-policy.yaml"
POOL = "deploy/kubernetes/second-scheduler/pool-policy.yaml"
Object = dict[str, Any]


def leaf_policy(*names: str) -> str:
    return render_leaf_policy.render({name: (ROOT / name).read_text() for name in names})


def of_kind(text: str, kind: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one and one["kind"] == kind]


def test_the_files_are_rendered_from_the_table() -> None:
    """The first lines of each file have the command that writes it."""
    for path, rendered in {
        WORKLOADS / "tree-policies.yaml": render_tree_policies.render(),
        WORKLOADS / "rbac.yaml": render_tree_roles.render(),
        WORKLOADS / "leaf-policy.yaml": leaf_policy(MEMBERS),
        ROOT / "deploy/kubernetes/second-scheduler/leaf-policy.yaml": leaf_policy(MEMBERS, POOL),
    }.items():
        assert path.read_text(encoding="utf-8") == rendered, path


def test_each_kind_has_a_role_and_a_policy_with_its_label(subtests: pytest.Subtests) -> None:
    """The label is the switch of the kind: kubectl apply -l gang-extender.dev/kind=..."""
    roles = of_kind((WORKLOADS / "rbac.yaml").read_text(), "ClusterRole")
    policies = of_kind((WORKLOADS / "tree-policies.yaml").read_text(), "MutatingAdmissionPolicy")
    for kind in OBJECT_KINDS:
        with subtests.test(kind.kind):
            name = f"gang-extender-tree-{kind.kind.lower()}"
            (role,) = [one for one in roles if one["metadata"]["name"] == name]
            assert role["metadata"]["labels"]["gang-extender.dev/kind"] == kind.kind
            assert role["rules"] == [
                {"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["list", "watch"]}
            ]
            of_this_kind = [one for one in policies if one["metadata"]["name"] == name]
            assert bool(of_this_kind) == render_tree_policies.has_policy(kind)
            for policy in of_this_kind:
                assert policy["metadata"]["labels"]["gang-extender.dev/kind"] == kind.kind
                (rule, *_) = policy["spec"]["matchConstraints"]["resourceRules"]
                assert rule["resources"] == [kind.plural]


def test_the_controller_in_the_table_is_the_one_that_keeps_nothing_out(
    subtests: pytest.Subtests,
) -> None:
    """The policy reads `manager`, the compiler `kept_out`: both keep out the same workloads."""

    def kept_out(kind: WorkloadKind, manager: str) -> bool:
        spec: Object = {kind.manager_path[-1]: manager}
        for field in reversed(kind.manager_path[:-1]):
            spec = {field: spec}
        return bool(kind.kept_out(_workload(kind, spec)))

    for kind in OBJECT_KINDS:
        with subtests.test(kind.kind):
            assert kept_out(kind, "example.com/other") == bool(kind.manager)
            assert not kept_out(kind, kind.manager)


def test_pods_get_the_label_through_templates_or_through_other_objects(
    subtests: pytest.Subtests,
) -> None:
    """A kind whose pods have a name rule has one of both."""
    for kind in OBJECT_KINDS:
        with subtests.test(kind.kind):
            assert bool(kind.template_paths) + bool(kind.labels_from) == bool(kind.name_rules)


def _workload(kind: WorkloadKind, spec: Object) -> WorkloadObject:
    return WorkloadObject(
        api_version=f"{kind.group}/{kind.versions[0]}",
        kind=kind.kind,
        namespace="default",
        name="w",
        uid="00000000-0000-4000-8000-000000000001",
        spec=spec,
    )


def test_a_path_has_at_most_one_list() -> None:
    """A second list would need an index of its own in the JSON pointer."""
    kind = msgspec.structs.replace(BY_KIND["Job"], template_paths=("spec.a[].b[].template",))
    with pytest.raises(ValueError, match=r"spec\.a\[\]\.b\[\]\.template: .* at most one"):
        templates(kind)


def test_policies_with_different_variables_of_one_name_cannot_be_joined() -> None:
    """The leaf policy has the variables of all of them."""
    members = (ROOT / MEMBERS).read_text()
    other = members.replace("!has(object.spec.schedulerName) ||", "", 1)
    with pytest.raises(
        ValueError, match="variable isDefaultScheduler is there twice: gang-extender-members"
    ):
        render_leaf_policy.render({"a": members, "b": other})
