"""The manifests of deploy/kubernetes on a real API server: they apply, and they have the effect that their comments state."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.connection.api_client import (
    ApiResponse,
    ApiServer,
    Request,
    kubernetes_config,
    load_configuration,
)
from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import a_node, a_pod
from tests.controlplane.plane import SHIPPED_MANIFESTS, ControlPlane
from tests.e2e.conftest import require_programs, until_gates_are_free
from tests.support.certificates import certificate_folder, files_of, point_at
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KEPT = ("namespace", "crds")
GATE = {"name": "gang-extender.dev/admission"}
MARKERS = {"gang-extender.dev/member": "1", "gang-extender.dev/bind": "1"}
OURS = "/apis/gang-extender.dev/v1alpha1/namespaces/default"
Object = dict[str, Any]

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]


async def refuses_other_labels(api: Api) -> None:
    """Wait until the policy about labels is enforced too: the API server loads each policy in its own time."""
    probe = a_pod("label-probe", metadata={"labels": {"gang-extender.dev/pod-group": "g"}})
    await api.create(probe)
    path = "/api/v1/namespaces/default/pods/label-probe"

    async def refused() -> bool:
        patch = {"metadata": {"labels": {"gang-extender.dev/pod-group": "h"}}}
        try:
            await api.patch(path, patch, dryRun="All")
        except ApiError as error:
            return "immutable" in str(error)
        return False

    await eventually(refused)
    await api.delete(path, {"gracePeriodSeconds": 0})


async def gates(api: Api) -> bool:
    """Return whether a pod with our label gets our gate."""
    pod = a_pod("probe", metadata={"labels": {"gang-extender.dev/pod-group": "g"}})
    found = await api.post("/api/v1/namespaces/default/pods", pod, dryRun="All")
    return GATE in found["spec"].get("schedulingGates", [])


@pytest.fixture(scope="module")
def shipped(plane: ControlPlane) -> Iterator[None]:
    """Our manifests; afterwards what changes pods is gone, as other tests want it.

    The CRDs stay, emptied: a definition that ends takes its time, and refuses objects meanwhile.
    """
    files = [str(DEPLOY / "kubernetes" / f"{name}.yaml") for name in SHIPPED_MANIFESTS]
    flags = [part for file in files for part in ("-f", file)]
    applied = plane.kubectl("apply", "--server-side", *flags)
    assert applied.returncode == 0, applied.stderr

    async def until_enforced() -> None:
        async with plane.api() as api:

            async def ready() -> bool:
                try:
                    await api.get(f"{OURS}/workloads")
                    return await gates(api)
                except ApiError:
                    return False

            await eventually(ready)
            await refuses_other_labels(api)

    async def until_free() -> None:
        async with plane.api() as api:

            async def off() -> bool:
                try:
                    return not await gates(api)
                except ApiError:  # one policy refuses what another one does not change any more
                    return False

            await eventually(off)
            await until_gates_are_free(api)

    asyncio.run(until_enforced())
    yield
    rest = [str(DEPLOY / "kubernetes" / f"{n}.yaml") for n in SHIPPED_MANIFESTS if n not in KEPT]
    flags = [part for file in rest for part in ("-f", file)]
    deleted = plane.kubectl("delete", "--ignore-not-found", "--wait=false", *flags)
    assert deleted.returncode == 0, deleted.stderr
    asyncio.run(until_free())


@pytest.fixture
async def installed(shipped: None, api: Api) -> AsyncIterator[Api]:
    """A cluster with our manifests, and no group."""
    yield api
    for kind in ("podgroups", "compositepodgroups", "workloads"):
        await api.delete(f"{OURS}/{kind}")


async def created(api: Api, **more: Any) -> Object:
    """What a pod becomes on its way in; nothing is stored."""
    return await api.post("/api/v1/namespaces/default/pods", a_pod("p", **more), dryRun="All")


async def test_a_pod_that_names_a_group_is_held_and_marked(installed: Api) -> None:
    """By label, by alias and by field alike: gate, both markers, our profile."""
    for label in ("gang-extender.dev/pod-group", "scheduling.x-k8s.io/pod-group"):
        pod = await created(installed, metadata={"labels": {label: "g"}})
        assert pod["spec"]["schedulingGates"] == [GATE]
        assert pod["spec"]["schedulerName"] == "gang-scheduler"
        needs = pod["spec"]["containers"][0]["resources"]
        assert MARKERS.items() <= needs["requests"].items()
        assert needs["limits"] == MARKERS
        assert needs["requests"]["cpu"] == "1"
    pod = await created(installed, schedulingGroup={"podGroupName": "g"})
    assert pod["spec"]["schedulingGates"] == [GATE]
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    assert pod["metadata"]["labels"] == {"gang-extender.dev/pod-group": "g"}


async def test_a_group_name_beyond_a_label_stays_in_its_field(installed: Api) -> None:
    """63 characters fit into a label, 253 into a name."""
    name = ".".join(["g" * 60, "h" * 60])
    pod = await created(installed, schedulingGroup={"podGroupName": name})
    assert "labels" not in pod["metadata"]
    assert pod["spec"]["schedulingGates"] == [GATE]


async def test_other_pods_are_left_alone(installed: Api) -> None:
    """Also those that a kubelet has bound already."""
    pod = await created(installed, metadata={"labels": {"app": "x"}})
    assert "schedulingGates" not in pod["spec"]
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    mirror = await created(
        installed, metadata={"labels": {"gang-extender.dev/pod-group": "g"}}, nodeName="n"
    )
    assert "schedulingGates" not in mirror["spec"]


async def test_what_is_there_already_is_not_added_again(installed: Api) -> None:
    """Examples carry the gate and the markers; a scheduler of its own stays."""
    other = {"name": "example.com/quota"}
    pod = a_pod(
        "p",
        metadata={"labels": {"gang-extender.dev/pod-group": "g"}},
        markers=tuple(MARKERS),
        schedulerName="another",
        schedulingGates=[GATE, other],
    )
    answer = await installed.post("/api/v1/namespaces/default/pods", pod, dryRun="All")
    assert answer["spec"]["schedulingGates"] == [GATE, other]
    assert answer["spec"]["schedulerName"] == "another"
    assert answer["spec"]["containers"][0]["resources"] == pod["spec"]["containers"][0]["resources"]


async def test_the_label_of_a_group_is_immutable(installed: Api) -> None:
    """As the field is; other labels may change."""
    pod = await installed.create(
        a_pod("p", metadata={"labels": {"gang-extender.dev/pod-group": "g"}})
    )
    path = "/api/v1/namespaces/default/pods/p"
    await installed.patch(path, {"metadata": {"labels": {"app": "y"}}})
    for value in ("h", None):
        patch = {"metadata": {"labels": {"gang-extender.dev/pod-group": value}}}
        with pytest.raises(ApiError, match="immutable"):
            await installed.patch(path, patch)
    assert pod["spec"]["schedulingGates"] == [GATE]


async def test_the_label_outlives_an_api_server_that_drops_the_field(tmp_path: Path) -> None:
    """With GenericWorkload off spec.schedulingGroup is lost; the member is still a member."""
    require_programs("1.37")
    with ControlPlane("1.37", tmp_path, native=False) as plane:
        file = str(DEPLOY / "kubernetes" / "admission-policy.yaml")
        applied = plane.kubectl("apply", "--server-side", "-f", file)
        assert applied.returncode == 0, applied.stderr
        async with plane.api() as api:

            async def look() -> Object | None:
                pod = await created(api, schedulingGroup={"podGroupName": "g"})
                return pod if pod["spec"].get("schedulingGates") else None

            pod = await eventually(look)
    assert "schedulingGroup" not in pod["spec"]
    assert pod["metadata"]["labels"] == {"gang-extender.dev/pod-group": "g"}


# --- the CRDs

GANG = {"gang": {"minCount": 4}}
GROUPS = {"gang": {"minGroupCount": 1}}


def workload(
    *, leaves: list[Object] | None = None, composites: list[Object] | None = None
) -> Object:
    spec: Object = {}
    if leaves is not None:
        spec["podGroupTemplates"] = leaves
    if composites is not None:
        spec["compositePodGroupTemplates"] = composites
    return {
        "apiVersion": "gang-extender.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": spec,
    }


def leaf(name: str = "leaf", **more: Any) -> Object:
    return {"name": name, "schedulingPolicy": GANG, **more}


def composite(name: str, *children: Object, **more: Any) -> Object:
    lists: dict[str, list[Object]] = {}
    for child in children:
        is_leaf = "minCount" in child["schedulingPolicy"].get("gang", {"minCount": 1})
        key = "podGroupTemplates" if is_leaf else "compositePodGroupTemplates"
        lists.setdefault(key, []).append(child)
    return {"name": name, "schedulingPolicy": GROUPS, **lists, **more}


def a_group(kind: str = "PodGroup", **spec: Any) -> Object:
    policy = GANG if kind == "PodGroup" else GROUPS
    return {
        "apiVersion": "gang-extender.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": policy, **spec},
    }


REF = {"workloadName": "w", "templateName": "t"}
ALL = {"disruptionMode": {"all": {}}}
BAD = {
    "E01 neither": (workload(), "not both, not neither"),
    "E01 both": (workload(leaves=[leaf()], composites=[composite("c", leaf("x"))]), "not both"),
    "E02 nine templates": (workload(leaves=[leaf(f"l{n}") for n in range(9)]), "at most 8"),
    "E02 two levels": (
        a_group(schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}),
        "at most 1",
    ),
    "E03 one list": (workload(leaves=[leaf("a"), leaf("a")]), "Duplicate value"),
    "E03 two lists": (
        workload(composites=[composite("t", leaf("a"), composite("a", leaf("b")))]),
        "unique in the whole",
    ),
    "E03 cousins": (
        workload(composites=[composite("t", composite("a", leaf("x")), composite("b", leaf("x")))]),
        "unique in the whole",
    ),
    "E04 five levels": (
        workload(
            composites=[composite("a", composite("b", composite("c", composite("d", leaf("e")))))]
        ),
        "at most 0 items",
    ),
    "E05 no child": (workload(composites=[composite("c")]), "at least one child"),
    "E06 no policy": (a_group(schedulingPolicy={}), "exactly one of basic, gang"),
    "E06 two policies": (a_group(schedulingPolicy={"basic": {}, **GANG}), "exactly one of basic"),
    "E06 two modes": (a_group(disruptionMode={"single": {}, "all": {}}), "exactly one of single"),
    "E06 two sources": (
        a_group(
            resourceClaims=[
                {"name": "c", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}
            ]
        ),
        "exactly one of resourceClaimName",
    ),
    "E07 zero pods": (
        a_group(schedulingPolicy={"gang": {"minCount": 0}}),
        "greater than or equal to 1",
    ),
    "E07 zero groups": (
        a_group(
            "CompositePodGroup", schedulingPolicy={"gang": {"minGroupCount": 0}}, workloadRef=REF
        ),
        "greater than or equal to 1",
    ),
    "more required groups than count": (
        a_group(
            "CompositePodGroup",
            schedulingPolicy={"gang": {"minGroupCount": 1, "requiredGroups": ["a", "b"]}},
            workloadRef=REF,
        ),
        "requiredGroups count towards minGroupCount",
    ),
    "a required group that cannot be": (
        a_group(
            "CompositePodGroup",
            schedulingPolicy={"gang": {"minGroupCount": 1, "requiredGroups": ["A_b"]}},
            workloadRef=REF,
        ),
        "requiredGroups[0]",
    ),
    "a preferred key twice": (
        a_group(schedulingConstraints={"preferred": ["net/rack", "net/block", "net/rack"]}),
        "preferred has a key twice",
    ),
    "too many preferred keys": (
        a_group(schedulingConstraints={"preferred": [*"abcde"]}),
        "must have at most 4 items",
    ),
    "a preferred key that cannot be": (
        a_group(schedulingConstraints={"preferred": ["net/rack/"]}),
        "preferred[0]",
    ),
    "slices of one key twice": (
        a_group(schedulingConstraints={"slices": [{"size": n, "key": "net/rack"} for n in (4, 2)]}),
        "slices[1]: Duplicate value",
    ),
    "slices without a pod": (
        a_group(schedulingConstraints={"slices": [{"size": 0, "key": "net/rack"}]}),
        "slices[0].size",
    ),
    "balance without a preferred key": (
        a_group(schedulingConstraints={"balanced": True}),
        "balanced needs preferred",
    ),
    "a group near another one twice": (
        a_group(schedulingConstraints={"near": [{"group": "b", "key": "net/rack"}] * 2}),
        "near[1]: Duplicate value",
    ),
    "too many groups to be near to": (
        a_group(schedulingConstraints={"near": [{"group": g, "key": "k"} for g in "abcde"]}),
        "must have at most 4 items",
    ),
    "a group to be near to without a key": (
        a_group(schedulingConstraints={"near": [{"group": "b"}]}),
        "near[0].key",
    ),
    "an exclusive domain without a key": (
        a_group(schedulingConstraints={"exclusive": {"scope": "Cluster"}}),
        "exclusive.key",
    ),
    "a scope that there is not": (
        a_group(schedulingConstraints={"exclusive": {"key": "net/rack", "scope": "All"}}),
        "exclusive.scope",
    ),
    "E08 too high": (a_group(priority=1_000_000_001), "less than or equal to 1000000000"),
    "E09 siblings": (
        workload(leaves=[leaf("a", priorityClassName="x"), leaf("b", priorityClassName="y")]),
        "share one priorityClassName",
    ),
    "E09 parent": (
        workload(composites=[composite("c", leaf("a", priorityClassName="x"))]),
        "share one priorityClassName",
    ),
    "E10 nesting": (
        workload(composites=[composite("c", leaf("a"), **ALL)]),
        "only children that are all",
    ),
    "E12 parent alone": (a_group(parentCompositePodGroupName="p"), "workloadRef is required"),
    "E12 composite": (a_group("CompositePodGroup"), "workloadRef: Required"),
    "E14 key": (
        a_group(schedulingConstraints={"topology": [{"key": "not a key"}]}),
        "topology[0].key",
    ),
    "E14 name": (workload(leaves=[leaf("Not_A_Label")]), "podGroupTemplates[0].name"),
}


def path_for(thing: Object, name: str = "") -> str:
    return f"{OURS}/{thing['kind'].lower()}s{name}"


async def test_what_breaks_a_rule_is_refused(installed: Api) -> None:
    """E01 to E14, each with the words that help."""
    wrong = {}
    for rule, (thing, words) in BAD.items():
        try:
            await installed.post(path_for(thing), thing, dryRun="All")
            wrong[rule] = "was accepted"
        except ApiError as refusal:
            if words not in str(refusal):
                wrong[rule] = str(refusal)
    assert wrong == {}


async def test_what_keeps_the_rules_is_accepted(installed: Api) -> None:
    """Four levels, eight templates, basic policies, and trees that are disrupted as a whole."""
    good = [
        workload(leaves=[leaf(f"l{n}") for n in range(8)]),
        workload(composites=[composite("a", composite("b", composite("c", leaf("d"))))]),
        workload(composites=[composite("a", leaf("l", **ALL), composite("b", leaf("m", **ALL), **ALL), **ALL)]),
        a_group(schedulingPolicy={"basic": {}}),
        a_group(schedulingConstraints={"exclusive": {"key": "net/rack", "resource": "nvidia.com/gpu"}}),
        a_group(schedulingConstraints={"exclusive": {"key": "net/rack", "scope": "Cluster"}}),
        a_group(schedulingPolicy={"basic": {}}, **ALL),  # E11, with a warning, as Kubernetes 1.37
        workload(leaves=[leaf("l", schedulingPolicy={"basic": {}}, **ALL)]),
        a_group(parentCompositePodGroupName="p", workloadRef=REF, priorityClassName="x", **ALL),
        a_group("CompositePodGroup", workloadRef=REF, schedulingPolicy={"basic": {}}),
        a_group(resourceClaims=[{"name": "c", "resourceClaimName": "a"}], preemptionPolicy="Never"),
    ]  # fmt: skip
    for thing in good:
        await installed.post(path_for(thing), thing, dryRun="All", fieldValidation="Strict")


async def test_frozen_fields_are_frozen(installed: Api) -> None:
    """E13: only minCount of a leaf and minGroupCount of a composite change, in groups and in templates."""
    tree = workload(composites=[composite("t", composite("c", leaf("x")))])
    await installed.post(path_for(tree), tree)
    path = path_for(tree, "/w")

    async def changed(change: Any) -> None:
        wanted = copy.deepcopy(await installed.get(path))
        change(wanted["spec"]["compositePodGroupTemplates"][0]["compositePodGroupTemplates"][0])
        await installed.put(path, wanted)

    await changed(
        lambda c: c["podGroupTemplates"][0].update(schedulingPolicy={"gang": {"minCount": 9}})
    )
    await changed(lambda c: c.update(schedulingPolicy={"gang": {"minGroupCount": 2}}))
    for words, change in {
        "basic and gang cannot": lambda c: c["podGroupTemplates"][0].update(schedulingPolicy={"basic": {}}),
        "and gang cannot be switched": lambda c: c.update(schedulingPolicy={"basic": {}}),
        "added or removed": lambda c: c["podGroupTemplates"].append(leaf("y")),
        "disruptionMode is immutable": lambda c: c["podGroupTemplates"][0].update(ALL),
        "greater than or equal to 1": lambda c: c.update(schedulingPolicy={"gang": {"minGroupCount": 0}}),
    }.items():  # fmt: skip
        with pytest.raises(ApiError, match=words):
            await changed(change)
    await installed.delete(path)


async def test_frozen_fields_of_groups_are_frozen(installed: Api) -> None:
    """E13 for running groups: neither changed, nor added, nor taken away."""
    group = a_group(parentCompositePodGroupName="p", workloadRef=REF, priorityClassName="a")
    await installed.post(path_for(group), group)
    path = path_for(group, "/g")
    await installed.patch(path, {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
    for field, value in {
        "parentCompositePodGroupName": "q",
        "workloadRef": {"templateName": "u"},
        "priorityClassName": None,
        "priority": 7,
        "preemptionPolicy": "Never",
        "disruptionMode": {"all": {}},
        "schedulingConstraints": {"topology": [{"key": "k"}]},
    }.items():
        with pytest.raises(ApiError, match=f"{field} is immutable"):
            await installed.patch(path, {"spec": {field: value}})
    with pytest.raises(ApiError, match="cannot be switched"):
        await installed.patch(path, {"spec": {"schedulingPolicy": {"gang": None, "basic": {}}}})
    await installed.delete(path)


async def test_the_minimum_of_a_composite_changes_and_nothing_else_of_it(installed: Api) -> None:
    """E13 for a running composite: minGroupCount up and down, at least 1; its policy stays a gang."""
    group = a_group("CompositePodGroup", schedulingPolicy=GROUPS, workloadRef=REF)
    await installed.post(path_for(group), group)
    path = path_for(group, "/g")
    for minimum in (3, 2):
        await installed.patch(
            path, {"spec": {"schedulingPolicy": {"gang": {"minGroupCount": minimum}}}}
        )
    for words, spec in {
        "greater than or equal to 1": {"schedulingPolicy": {"gang": {"minGroupCount": 0}}},
        "cannot be switched": {"schedulingPolicy": {"gang": None, "basic": {}}},
        "workloadRef is immutable": {"workloadRef": {"templateName": "u"}},
        "parentCompositePodGroupName is immutable": {"parentCompositePodGroupName": "q"},
    }.items():
        with pytest.raises(ApiError, match=words):
            await installed.patch(path, {"spec": spec})
    kept = await installed.get(path)
    assert kept["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
    await installed.delete(path)


async def test_the_required_groups_of_a_composite_change_with_its_minimum(installed: Api) -> None:
    """L27: names of children that always count, in groups and in templates."""
    gang: Object = {"minGroupCount": 1, "requiredGroups": ["g-head"]}
    group = a_group("CompositePodGroup", schedulingPolicy={"gang": gang}, workloadRef=REF)
    await installed.post(path_for(group), group)
    path = path_for(group, "/g")
    more = {"minGroupCount": 2, "requiredGroups": ["g-head", "g-gpu"]}
    await installed.patch(path, {"spec": {"schedulingPolicy": {"gang": more}}})
    assert (await installed.get(path))["spec"]["schedulingPolicy"] == {"gang": more}
    fewer = {"minGroupCount": 1, "requiredGroups": ["g-gpu"]}
    await installed.patch(path, {"spec": {"schedulingPolicy": {"gang": fewer}}})
    await installed.patch(path, {"spec": {"schedulingPolicy": {"gang": more}}})
    with pytest.raises(ApiError, match="at least their number"):
        await installed.patch(path, {"spec": {"schedulingPolicy": {"gang": {"minGroupCount": 1}}}})
    await installed.delete(path)
    template = composite("t", leaf("a"), leaf("b"))
    template["schedulingPolicy"] = {"gang": {"minGroupCount": 1, "requiredGroups": ["a"]}}
    made = workload(composites=[template])
    stored = await installed.post(path_for(made), made)
    assert stored["spec"]["compositePodGroupTemplates"][0]["schedulingPolicy"] == template["schedulingPolicy"]  # fmt: skip
    await installed.delete(path_for(made, "/w"))


async def test_groups_are_printed_with_what_people_ask_for(
    plane: ControlPlane, installed: Api
) -> None:
    """By short name: minimum, parent, whether it was scheduled, age."""
    group = a_group(parentCompositePodGroupName="p", workloadRef=REF)
    await installed.post(path_for(group), group)
    printed = plane.kubectl("get", "gpg,gcpg,gwl")
    assert printed.stdout.split("\n")[0].split() == [
        "NAME",
        "MINIMUM",
        "PARENT",
        "SCHEDULED",
        "AGE",
    ]
    assert printed.stdout.split("\n")[1].split()[1:3] == ["4", "p"]
    await installed.delete(path_for(group, "/g"))


async def test_finalizers_are_removed_as_in_the_runbook(
    plane: ControlPlane, installed: Api
) -> None:
    """The commands of docs/runbook/upgrade-and-remove.md, run by a shell: deleted groups go without the extender."""
    kept = {"finalizers": ["gang-extender.dev/group-protection"]}
    for kind in ("PodGroup", "CompositePodGroup"):
        group = a_group(kind, **({} if kind == "PodGroup" else {"workloadRef": REF}))
        group["metadata"] |= kept
        await installed.post(path_for(group), group)
        await installed.delete(path_for(group, "/g"))
        assert (await installed.get(path_for(group, "/g")))["metadata"]["deletionTimestamp"]
    page = DEPLOY.parent / "docs/runbook/upgrade-and-remove.md"
    text = page.read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- tested: strip-finalizers -->\n")
    block = "\n".join(itertools.takewhile(lambda line: line.startswith("    "), rest.splitlines()))
    assert block
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        env={
            "PATH": f"{plane.binaries}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig()),
            "HOME": str(plane.folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind in ("podgroups", "compositepodgroups"):
        assert (await installed.get(f"{OURS}/{kind}"))["items"] == []


async def test_the_example_is_accepted(plane: ControlPlane, installed: Api) -> None:
    """deploy/examples on the API server they are for, strictly validated."""
    await installed.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "prod"}, "value": 1000}
    )  # fmt: skip
    await installed.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "batch"}, "value": 100}
    )  # fmt: skip
    for name in ("serve", "train", "preferred", "slices"):
        file = str(DEPLOY / "examples" / f"{name}.yaml")
        applied = plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", file)
        assert applied.returncode == 0, applied.stderr


async def test_the_deployment_is_accepted(plane: ControlPlane, installed: Api) -> None:
    """Strictly validated, without a warning."""
    for name in ("deployment", "service"):
        file = str(DEPLOY / "kubernetes" / f"{name}.yaml")
        applied = plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", file)
        assert applied.returncode == 0, applied.stderr
        assert "Warning" not in applied.stderr


async def test_the_token_that_the_deployment_mounts_is_enough(
    plane: ControlPlane, installed: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token as the kubelet asks for by the volume: the client takes it from the mount, and then the next one from the same file."""
    (deployment, _) = yaml.safe_load_all((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = (one["projected"] for one in pod["volumes"] if one["name"] == "token")
    asked = volume["sources"][0]["serviceAccountToken"]
    path = f"/api/v1/namespaces/gang-extender/serviceaccounts/{pod['serviceAccountName']}/token"

    async def mount() -> dict[str, Any]:
        spec = {"expirationSeconds": asked["expirationSeconds"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made: dict[str, Any] = (await installed.post(path, body))["status"]
        (tmp_path / asked["path"]).write_text(made["token"])
        return made

    ends = datetime.fromisoformat((await mount())["expirationTimestamp"])
    assert timedelta(minutes=55) < ends - datetime.now(UTC) <= timedelta(minutes=60)
    (tmp_path / "ca.crt").write_bytes(plane.ca_file.read_bytes())
    incluster_config = kubernetes_config.incluster_config
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(incluster_config, "TOKEN_REFRESH_PERIOD", timedelta(0))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane.port))
    configuration = await load_configuration(None)
    async with ApiServer(configuration) as server:
        assert b'"NodeList"' in await server.call(Request(method="GET", path="/api/v1/nodes"))
        (tmp_path / "token").write_text("no token")
        with pytest.raises(ApiResponse, match="401"):
            await server.call(Request(method="GET", path="/api/v1/nodes"))
        await mount()
        assert b'"NodeList"' in await server.call(Request(method="GET", path="/api/v1/nodes"))
        with pytest.raises(ApiResponse, match="403"):
            await server.call(Request(method="GET", path="/api/v1/secrets"))


async def test_the_scheduler_takes_its_configuration(
    plane: ControlPlane, installed: Api, tmp_path: Path
) -> None:
    """The file as it is, but for the paths of kubeconfig and certificates; an ordinary pod is bound with no extender there."""
    text = (DEPLOY / "kubernetes" / "scheduler-config.yaml").read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    assert config["leaderElection"]["leaderElect"] is True
    url = config["extenders"][0]["urlPrefix"].removesuffix("/scheduler")
    files = files_of(certificate_folder(tmp_path))
    elected = {"leaderElection": config["leaderElection"]}
    await installed.create(a_node("n1"))
    plane.start_scheduler(point_at(config, url, files) | elected)
    pod = await installed.create(a_pod("ordinary"))

    async def bound() -> bool:
        found = await installed.get(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
        return bool(found["spec"].get("nodeName"))

    await eventually(bound)
