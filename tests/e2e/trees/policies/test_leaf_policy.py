"""The policy that gives pods their leaf, on a real API server: the same names as in Python, and all that a member has."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.core.workloads.kind_table import BY_KIND, NAME_RULES, leaf_of_pod
from extender.core.workloads.name_rules import NAME_MAX, LabelValue, NameRule
from extender.core.workloads.workload_object import LEAF_LABEL, TREE_LABEL
from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import BIND, GATE, MEMBER, a_pod
from tests.controlplane.plane import ControlPlane
from tests.e2e.trees.policies.conftest import LABELLED, PLAIN, apply, apply_objects, dry_run, remove
from tests.e2e.trees.policies.workload_samples import a_workload, labels_in, path_to
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]
RECORDS = Path(__file__).parents[3] / "golden" / "controllers"
ROOT = Path(__file__).parents[4]
GROUP = "gang-extender.dev/pod-group"
PODS = f"/api/v1/namespaces/{PLAIN}/pods"
MARKERS = {MEMBER: "1", BIND: "1"}
UID = "76b72aed-54c6-4d2c-a1de-6f2f0f4a8c11"
OURS = (GROUP, TREE_LABEL, LEAF_LABEL)


def recorded_labels() -> list[dict[str, str]]:
    """Return the labels of each recorded pod, without ours; each only once."""
    found = {}
    for file in sorted(RECORDS.glob("*/*.json")):
        for item in msgspec.json.decode(file.read_bytes())["items"]:
            if item["kind"] == "Pod" or "containers" in item.get("spec", {}):
                labels = {k: v for k, v in item["metadata"]["labels"].items() if k not in OURS}
                found[msgspec.json.encode(labels, order="sorted")] = labels
    return list(found.values())


async def admitted(api: Api, labels: Mapping[str, str], **spec: Any) -> Object:
    pod = a_pod("p", namespace=PLAIN, metadata={"labels": dict(labels)}, **spec)
    return await dry_run(api, PODS, pod)


async def check_leaves(api: Api, all_labels: list[dict[str, str]]) -> int:
    """Compare the leaf of each pod with that in Python; return how many have one."""
    found = await asyncio.gather(*(admitted(api, labels) for labels in all_labels))
    names = [pod["metadata"]["labels"].get(GROUP, "") for pod in found]
    for labels, name, pod in zip(all_labels, names, found, strict=True):
        assert name == leaf_of_pod(labels), labels
        assert bool(name) == ("schedulingGates" in pod["spec"])
    return sum(map(bool, names))


async def test_recorded_pods_get_the_leaf_that_is_computed_in_python(admission: Api) -> None:
    """Each pod that a real controller made, with each value of the leaf label."""
    conditions = [one for rule in NAME_RULES for one in rule.when if one.key == LEAF_LABEL]
    leaves = sorted({one.value for one in conditions if one.value})
    recorded = recorded_labels()
    pods = [
        labels | {TREE_LABEL: "gold"} | leaf
        for labels in recorded
        for leaf in ({}, *({LEAF_LABEL: value} for value in leaves))
    ]
    assert await check_leaves(admission, pods) > len(recorded) / 2


def labels_for(rule: NameRule, head: str, other: str) -> dict[str, str]:
    """Make the labels of a pod to which a rule applies, if none before it does."""
    labels = dict.fromkeys(rule.label_keys, other) | {rule.head.key: head}
    for one in rule.when:
        if not one.absent:
            labels[one.key] = one.value if one.value is not None else labels.get(one.key, other)
    cut = {one.key for one in rule.rest if isinstance(one, LabelValue) and one.first}
    return labels | dict.fromkeys(cut, UID) | {TREE_LABEL: "gold"}


def cases() -> Iterator[dict[str, str]]:
    heads = ("w", "a.b.c", "x" * 62 + "y", "a.b-" * 15 + "cde")
    others = ("0", "a.b", "z" * 63)
    for rule in NAME_RULES:
        for head, other in itertools.product(heads, others):
            yield labels_for(rule, head, other)
        filler = NAME_MAX - sum(len(one) for one in rule.rest if isinstance(one, str))
        for length in range(max(1, filler - 11), min(filler + 1, NAME_MAX + 1), 2):
            yield labels_for(rule, "h" * length, "1")


async def test_long_names_and_dots_are_cut_alike(admission: Api) -> None:
    """For each rule: lengths around the limit, values that are cut to a piece, names that lose their beginning."""
    pods = list(cases())
    assert await check_leaves(admission, pods) == len(pods)
    for rule in NAME_RULES:
        labels = labels_for(rule, "head", "other")
        for key in {one.key for one in rule.rest if isinstance(one, LabelValue)}:
            assert (
                await check_leaves(admission, [{k: v for k, v in labels.items() if k != key}]) <= 1
            )


A_MEMBER = labels_for(NAME_RULES[-1], "work", "0")


async def test_a_member_has_gate_scheduler_and_markers_once(admission: Api) -> None:
    """What a pod has already is not added again."""
    other = {"name": "example.com/quota"}
    for spec, gates in (
        ({}, [{"name": GATE}]),
        ({"schedulingGates": [other]}, [other, {"name": GATE}]),
        ({"schedulingGates": [{"name": GATE}], "markers": (MEMBER, BIND)}, [{"name": GATE}]),
    ):
        pod = await admitted(admission, A_MEMBER, **spec)
        assert pod["spec"]["schedulingGates"] == gates
        assert pod["spec"]["schedulerName"] == "gang-scheduler"
        assert pod["spec"]["containers"][0]["resources"]["limits"] == MARKERS
        assert pod["metadata"]["labels"] == A_MEMBER | {GROUP: leaf_of_pod(A_MEMBER)}


async def test_pods_that_have_no_leaf_are_left_alone(admission: Api) -> None:
    """Without a profile, bound already, of another scheduler, or of no workload that is known."""
    without = {key: value for key, value in A_MEMBER.items() if key != TREE_LABEL}
    for labels, spec in (
        (without, {}),
        (without | {TREE_LABEL: "off"}, {}),
        (A_MEMBER, {"nodeName": "n"}),
        (A_MEMBER, {"schedulerName": "kai-scheduler"}),
        ({TREE_LABEL: "gold", "app": "a"}, {}),
    ):
        pod = await admitted(admission, labels, **spec)
        assert pod["metadata"]["labels"] == labels
        assert "schedulingGates" not in pod["spec"]
    in_labelled = a_pod("p", namespace=LABELLED, metadata={"labels": without})
    pod = await dry_run(admission, f"/api/v1/namespaces/{LABELLED}/pods", in_labelled)
    assert pod["metadata"]["labels"] == without, "a pod has its profile from its template only"


async def test_a_pod_that_names_a_group_keeps_it(admission: Api) -> None:
    """By label, by alias or by field, it is a member of that group."""
    for key in (GROUP, "scheduling.x-k8s.io/pod-group"):
        pod = await admitted(admission, A_MEMBER | {key: "mine"})
        assert pod["metadata"]["labels"] == A_MEMBER | {key: "mine"}
        assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    pod = await admitted(admission, A_MEMBER, schedulingGroup={"podGroupName": "mine"})
    assert pod["metadata"]["labels"] == A_MEMBER | {GROUP: "mine"}


# --- the order of policies


@pytest.fixture
async def alone(policies: ControlPlane, cluster: Api) -> AsyncIterator[Api]:
    """The leaf policy without that for members, as if this one had run before a pod had its leaf."""
    remove(policies, "admission-policy.yaml")

    async def is_gated(*, wanted: bool) -> bool:
        """Return whether a member has the gate or not, as wanted; it is refused while only some policies are known."""
        try:
            found = await admitted(cluster, {GROUP: "g"})
        except ApiError as refused:
            if "gang-extender-held" not in str(refused):
                raise
            return False
        return ("schedulingGates" in found["spec"]) == wanted

    await eventually(partial(is_gated, wanted=False))
    yield cluster
    apply(policies, "admission-policy.yaml")
    await eventually(partial(is_gated, wanted=True))


async def test_a_member_is_complete_when_the_other_policy_ran_before_it_had_a_leaf(
    alone: Api,
) -> None:
    """kube-apiserver runs policies in no order, and calls one that did not match not again."""
    pod = await admitted(alone, A_MEMBER)
    assert pod["metadata"]["labels"] == A_MEMBER | {GROUP: leaf_of_pod(A_MEMBER)}
    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    assert pod["spec"]["schedulerName"] == "gang-scheduler"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == MARKERS


def a_late_label(key: str) -> tuple[Object, Object]:
    """Make a policy that moves a label from another key to its place, as a webhook of a controller sets it."""
    patch = (
        f'[JSONPatch{{op: "move", from: "/metadata/labels/late", '
        f'path: "/metadata/labels/" + jsonpatch.escapeKey("{key}")}}]'
    )
    version = "admissionregistration.k8s.io/v1"
    metadata = {"name": "late-label"}
    policy = {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchConditions": [
                {
                    "name": "late",
                    "expression": "has(object.metadata.labels) && 'late' in object.metadata.labels",
                }
            ],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        },
    }
    binding = {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": "late-label"},
    }
    return policy, binding


async def test_a_label_that_a_controller_sets_later_is_seen_in_the_second_pass(
    policies: ControlPlane, cluster: Api
) -> None:
    """Whichever of both policies runs first, the pod has its leaf and all that belongs to it."""
    key = NAME_RULES[-1].head.key
    late = {k: v for k, v in A_MEMBER.items() if k != key} | {"late": A_MEMBER[key]}
    apply_objects(policies, *a_late_label(key))
    try:

        async def moved() -> bool:
            return key in (await admitted(cluster, late))["metadata"]["labels"]

        await eventually(moved)
        for _ in range(4):  # a change of any policy draws their order anew
            pod = await admitted(cluster, late)
            assert pod["metadata"]["labels"] == A_MEMBER | {GROUP: leaf_of_pod(A_MEMBER)}
            assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
            assert pod["spec"]["schedulerName"] == "gang-scheduler"
            await drawn_anew(policies, cluster)
    finally:
        for kind in ("mutatingadmissionpolicy", "mutatingadmissionpolicybinding"):
            done = policies.kubectl("delete", kind, "late-label")
            assert done.returncode == 0, done.stderr


async def drawn_anew(plane: ControlPlane, api: Api) -> None:
    """Change a policy for ConfigMaps and wait until the change is enforced."""
    drawn_anew.count += 1
    value = str(drawn_anew.count)
    policy, binding = a_late_label("x")
    for one in (policy, binding):
        one["metadata"] = {"name": "order-probe"}
    binding["spec"] = {"policyName": "order-probe"}
    patch = f'[JSONPatch{{op: "add", path: "/data", value: {{"seen": "{value}"}}}}]'
    policy["spec"]["mutations"][0]["jsonPatch"]["expression"] = patch
    policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] = ["configmaps"]
    del policy["spec"]["matchConditions"]
    apply_objects(plane, policy, binding)

    async def seen() -> bool:
        thing = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": PLAIN},
        }
        found = await dry_run(api, f"/api/v1/namespaces/{PLAIN}/configmaps", thing)
        return found.get("data", {}).get("seen") == value

    await eventually(seen)


drawn_anew.count = 0


# --- installation


async def test_no_workload_is_labelled_before_its_pods_get_their_leaf(
    policies: ControlPlane, cluster: Api
) -> None:
    """With the commands of docs/workloads.md in their order, each of which the API server takes into use in its own time."""
    install = (ROOT / "docs" / "workloads.md").read_text().partition("## Install")[2]
    names = re.findall(r"-f deploy/kubernetes/(workloads/\S+-polic(?:y|ies)\.yaml)", install)
    assert len(names) == 2
    job = BY_KIND["Job"]

    async def labelled() -> bool:
        made = await dry_run(cluster, path_to(job, LABELLED), a_workload(job, LABELLED))
        return None not in labels_in(job, made, TREE_LABEL)

    async def has_leaf() -> bool:
        return GROUP in (await admitted(cluster, A_MEMBER))["metadata"]["labels"]

    async def neither() -> bool:
        return not await labelled() and not await has_leaf()

    def apply_each() -> None:
        for name in names:
            apply(policies, name)

    remove(policies, *names)
    await eventually(neither)
    applied = asyncio.create_task(asyncio.to_thread(apply_each))
    await eventually(labelled, every_s=0.01)
    assert await has_leaf()
    await applied


# --- a second scheduler


async def test_with_a_pool_a_leaf_is_sent_to_it(policies: ControlPlane, cluster: Api) -> None:
    """The leaf policy of deploy/kubernetes/second-scheduler does what the policy of the pool does."""
    apply(policies, "second-scheduler/leaf-policy.yaml")
    try:

        async def in_pool() -> Object | None:
            pod = await admitted(cluster, A_MEMBER)
            return pod if "nodeSelector" in pod["spec"] else None

        pod = await eventually(in_pool)
        assert pod["spec"]["nodeSelector"] == {"gang-extender.dev/pool": "gangs"}
        assert [
            t["value"] for t in pod["spec"]["tolerations"] if t["key"] == "gang-extender.dev/pool"
        ] == ["gangs"]
        assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    finally:
        apply(policies, "workloads/leaf-policy.yaml")
