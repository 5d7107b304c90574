"""What the design believes about kube-apiserver, asked of the real one.

Covered: which versions serve the built-in groups and which fields survive there, and whether an
API server at its defaults has what `deploy/` needs: MutatingAdmissionPolicy and CEL in CRDs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import BIND, GATE, MEMBER, a_node, a_pod, path_of
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import create_priority_class, wait_until_bound
from tests.e2e.recorder import Recorder, scheduler_config
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

Object = dict[str, Any]


@pytest.mark.kubernetes("1.37", "1.36")
async def test_which_versions_serve_the_built_in_groups(plane: ControlPlane, api: Api) -> None:
    """1.36 serves v1alpha2; 1.37 v1beta1 and v1alpha3, composite groups in v1alpha3 alone."""
    served = {}
    for version in (await api.get("/apis/scheduling.k8s.io"))["versions"]:
        found = await api.get(f"/apis/{version['groupVersion']}")
        kinds = {item["kind"] for item in found["resources"]} - {"PriorityClass"}
        if kinds:
            served[version["version"]] = kinds
    assert (
        served
        == {
            "1.36": {"v1alpha2": {"PodGroup", "Workload"}},
            "1.37": {
                "v1beta1": {"PodGroup", "Workload"},
                "v1alpha3": {"CompositePodGroup", "PodGroup", "Workload"},
            },
        }[plane.minor]
    )


@pytest.fixture
async def plain_api(tmp_path: Path) -> AsyncIterator[Api]:
    """A second control plane, with kube-apiserver's feature gates at their defaults."""
    with ControlPlane("1.37", tmp_path / "plain", native=False) as plain:
        async with plain.api() as client:
            yield client


async def test_the_pods_group_is_dropped_silently_with_gates_off(
    plane: ControlPlane, api: Api, plain_api: Api
) -> None:
    """K50: spec.schedulingGroup survives on an API server with the gate, else vanishes."""
    pod = a_pod("a", schedulingGroup={"podGroupName": "g"})
    assert (await api.create(pod))["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    assert "schedulingGroup" not in (await plain_api.create(pod))["spec"]
    versions = (await plain_api.get("/apis/scheduling.k8s.io"))["versions"]
    assert [version["version"] for version in versions] == ["v1"]


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_mutating_admission_policy_marks_and_holds_members(
    plane: ControlPlane, api: Api
) -> None:
    """K62: v1, served by default; profile, markers and gate are added at creation."""
    version = "admissionregistration.k8s.io/v1"
    policy = {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "experiment"},
        "spec": {
            "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
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
                    "name": "grouped",
                    "expression": "'gang-extender.dev/pod-group' in object.metadata.?labels.orValue({})",
                }
            ],
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {
                        "expression": (
                            "Object{spec: Object.spec{"
                            " schedulerName: 'gang-scheduler',"
                            f" schedulingGates: [Object.spec.schedulingGates{{name: '{GATE}'}}],"
                            " containers: [Object.spec.containers{"
                            "  name: object.spec.containers[0].name,"
                            "  resources: Object.spec.containers.resources{"
                            f"   requests: {{'{MEMBER}': '1', '{BIND}': '1'}},"
                            f"   limits: {{'{MEMBER}': '1', '{BIND}': '1'}}"
                            "  }}]"
                            "}}"
                        )
                    },
                }
            ],
        },
    }
    binding = {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "experiment"},
        "spec": {"policyName": "experiment"},
    }
    await api.create(policy)
    await api.create(binding)
    try:
        labels = {"labels": {"gang-extender.dev/pod-group": "g"}}

        async def mutated() -> Object | None:
            # It works a moment after its creation only; a dry run waits for that.
            made = await api.post(
                "/api/v1/namespaces/default/pods", a_pod("a", metadata=labels), dryRun="All"
            )
            return made if made["spec"]["schedulerName"] == "gang-scheduler" else None

        made = await eventually(mutated)
        plain = await api.create(a_pod("b"))
    finally:
        await api.delete(path_of(policy, named=True))
        await api.delete(path_of(binding, named=True))
    assert made["spec"]["schedulingGates"] == [{"name": GATE}]
    marked = {MEMBER: "1", BIND: "1"}
    assert made["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1"} | marked,
        "limits": marked,
    }
    assert plain["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_crd_with_cel_rules_refuses_what_breaks_them(plane: ControlPlane, api: Api) -> None:
    """Our kinds can keep immutable specs by rules of the schema alone."""
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "trials.experiment.gang-extender.dev"},
        "spec": {
            "group": "experiment.gang-extender.dev",
            "scope": "Namespaced",
            "names": {"plural": "trials", "singular": "trial", "kind": "Trial"},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "properties": {"minCount": {"type": "integer", "minimum": 1}},
                                    "x-kubernetes-validations": [
                                        {"rule": "self == oldSelf", "message": "spec is immutable"}
                                    ],
                                }
                            },
                        }
                    },
                }
            ],
        },
    }
    collection = "/apis/experiment.gang-extender.dev/v1alpha1/namespaces/default/trials"
    trial = {
        "apiVersion": "experiment.gang-extender.dev/v1alpha1",
        "kind": "Trial",
        "metadata": {"name": "a"},
        "spec": {"minCount": 2},
    }
    await api.create(crd)
    try:

        async def served() -> Object | None:
            try:
                return await api.post(collection, trial)
            except ApiError as error:
                if error.status == 404:
                    return None
                raise

        await eventually(served)
        with pytest.raises(ApiError, match="spec is immutable"):
            await api.patch(f"{collection}/a", {"spec": {"minCount": 3}})
        with pytest.raises(ApiError, match="greater than or equal to 1"):
            await api.post(collection, trial | {"metadata": {"name": "b"}, "spec": {"minCount": 0}})
    finally:
        await api.delete(path_of(crd, named=True))


def lost_fields(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Return the fields of what was sent that did not come back, outermost first."""
    if not isinstance(sent, dict):
        return [] if sent == kept else [path]
    lost = []
    for key, value in sent.items():
        here = f"{path}.{key}"
        if not isinstance(kept, dict) or key not in kept:
            lost.append(here)
        else:
            lost += lost_fields(value, kept[key], here)
    return lost


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_dry_run_of_full_groups_shows_which_fields_survive(
    plane: ControlPlane, api: Api
) -> None:
    """K60: what a gate takes away is seen by a dry run of a full object, on both versions."""
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    rack = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
    await create_priority_class(api, "group", 7)
    priority = {"priorityClassName": "group"}
    specs: dict[str, Object]
    if plane.minor == "1.36":
        version = "scheduling.k8s.io/v1alpha2"
        specs = {"PodGroup": gang | rack | priority | {"disruptionMode": "PodGroup"}}
        expected = {
            "PodGroup": [
                ".spec.schedulingConstraints",
                ".spec.priorityClassName",
                ".spec.disruptionMode",
            ]
        }
    else:
        version = "scheduling.k8s.io/v1alpha3"
        parent = {"parentCompositePodGroupName": "root"}
        workload = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
        common = rack | priority | parent | workload | {"preemptionPolicy": "Never"}
        specs = {
            "PodGroup": gang | common | {"disruptionMode": {"all": {}}},
            "CompositePodGroup": {
                "schedulingPolicy": {"gang": {"minGroupCount": 2}},
                "disruptionMode": {"all": {}},
            }
            | common,
        }
        expected = {
            "PodGroup": [".spec.preemptionPolicy"],
            "CompositePodGroup": [".spec.preemptionPolicy"],
        }
    lost = {}
    for kind, spec in specs.items():
        sent = {"apiVersion": version, "kind": kind, "metadata": {"name": "full"}, "spec": spec}
        kept = await api.post(path_of(sent), sent, dryRun="All")
        lost[kind] = lost_fields(spec, kept["spec"], ".spec")
    assert lost == expected


@pytest.mark.kubernetes("1.37", "1.36")
async def test_kube_scheduler_reports_its_gates_in_its_metrics(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K60: kubernetes_feature_enabled shows whether group scheduling of its own is on."""
    plane.start_scheduler(scheduler_config(recorder.url))
    text = plane.scheduler_metrics()
    assert 'kubernetes_feature_enabled{name="GenericWorkload"' in text
    line = next(
        line
        for line in text.splitlines()
        if line.startswith('kubernetes_feature_enabled{name="GenericWorkload"')
    )
    assert line.endswith(" 0")


async def test_the_api_server_goes_away_and_comes_back_with_everything(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """Outages for later tests: address, users and objects outlive it; kube-scheduler goes on."""
    await api.create(a_node("n0"))
    plane.start_scheduler(scheduler_config(recorder.url))
    plane.apiserver.kill()
    with pytest.raises(OSError):
        await api.get("/api/v1/nodes")
    plane.start_apiserver()
    assert len((await api.get("/api/v1/nodes"))["items"]) == 1
    pod = await api.create(a_pod("a", markers=(MEMBER, BIND)))
    await wait_until_bound(api, pod)
