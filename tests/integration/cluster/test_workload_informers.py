"""Workloads of the kinds that are served and allowed, and the requests that write their groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from extender.cluster.api_server import workload_informers
from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.types import WorkloadManifest
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import GroupKey, PodUid
from extender.core.workloads.admission_checks import CONTROLLER
from extender.core.workloads.tree_compiler import GroupSpec
from extender.ports.cluster_ports import PodRef
from extender.ports.workload_ports import GroupLink, GroupManifest, WorkloadView
from extender.runtime import periodic
from tests.integration.cluster.fake_api import FakeApi, Fault
from tests.support.waiting import eventually

TREE = "gang-extender.dev/tree"
LEAF = GroupKey("default", "train-worker-0-01234567", "PodGroup")
FOLDER = "/apis/gang-extender.dev/v1alpha1/namespaces/default"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_informers, "DISCOVER_EVERY_S", 0.05)
    monkeypatch.setattr(workload_informers, "RETRY_S", 0.05)


@pytest.fixture
async def served(cluster: KubernetesCluster, fake: FakeApi) -> KubernetesCluster:
    """The adapter on an API server that serves Job, JobSet and TreeProfile."""
    fake.groups["batch/v1"] = ["jobs"]
    fake.groups["jobset.x-k8s.io/v1alpha2"] = ["jobsets"]
    fake.groups["gang-extender.dev/v1alpha1"] = ["podgroups", "treeprofiles"]
    await cluster.start()
    return cluster


def a_job(name: str, *, labelled: bool = True, **metadata: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {TREE: "default"} if labelled else {}}, "spec": {}}
    return {
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"parallelism": 2, "template": template},
    }


def seen(cluster: KubernetesCluster) -> WorkloadView:
    return cluster.workloads.view()


def names(cluster: KubernetesCluster) -> set[str]:
    return {workload.name for workload in seen(cluster).objects.values()}


async def test_only_workloads_with_the_label_are_kept(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """The others of a cluster with many Jobs cost nothing; what was kept once stays until it is deleted."""
    fake.put("jobs", a_job("mine"))
    fake.put("jobs", a_job("other", labelled=False))
    await eventually(lambda: {"Job", "JobSet", "TreeProfile"} <= seen(served).synced)
    await eventually(lambda: names(served) == {"mine"})
    fake.put("jobs", a_job("mine", labelled=False))
    fake.put("jobs", a_job("late"))
    await eventually(lambda: names(served) == {"mine", "late"})
    fake.remove("jobs", "mine", "default")
    await eventually(lambda: names(served) == {"late"})


async def test_what_a_workload_owns_is_found_by_its_uid(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """The Jobs of a JobSet, while they exist."""
    owner = {"apiVersion": "x", "kind": "JobSet", "name": "s", "uid": "u1", "controller": True}
    fake.put("jobs", a_job("part", ownerReferences=[owner]))
    await eventually(
        lambda: [one.name for one in seen(served).owned.get("u1", {}).values()] == ["part"]
    )
    fake.remove("jobs", "part", "default")
    await eventually(lambda: "u1" not in seen(served).owned)


async def test_a_kind_whose_definition_appears_is_watched_and_goes(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """Its workloads come and go with it, and the view of the cluster stays ready."""
    await eventually(lambda: "Job" in seen(served).synced)
    assert "LeaderWorkerSet" not in seen(served).synced
    assert "LeaderWorkerSet" in seen(served).absent
    fake.groups["leaderworkerset.x-k8s.io/v1"] = ["leaderworkersets"]
    workload = a_job("serve", labels={TREE: "default"})
    fake.put("leaderworkersets", workload)
    await eventually(lambda: "serve" in names(served))
    del fake.groups["leaderworkerset.x-k8s.io/v1"]
    fake.cut_watches("leaderworkersets")
    await eventually(lambda: "serve" not in names(served))
    await eventually(lambda: "LeaderWorkerSet" in seen(served).absent)
    assert "LeaderWorkerSet" not in seen(served).synced
    assert served.not_ready_reason() == ""
    fake.groups["leaderworkerset.x-k8s.io/v1"] = ["leaderworkersets"]
    await eventually(lambda: "serve" in names(served))
    assert "LeaderWorkerSet" not in seen(served).absent


async def test_the_kinds_of_kueue_come_later_and_go(
    served: KubernetesCluster, fake: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """Without them nothing is logged again and again; each is logged once when it comes."""
    caplog.set_level("INFO", workload_informers.__name__)
    await eventually(lambda: {"Job", "TreeProfile"} <= seen(served).synced)
    looks = iter(range(3))  # of discovery
    revision = served.workloads._changed.revision
    while next(looks, None) is not None:
        revision = await served.workloads._changed.wait(revision)
    assert "kueue" not in caplog.text
    plurals = ["admissionchecks", "resourceflavors", "workloads"]
    fake.groups["kueue.x-k8s.io/v1beta2"] = plurals
    check = {"metadata": {"name": "gangs"}, "spec": {"controllerName": CONTROLLER}}
    fake.put("admissionchecks", check)
    await eventually(lambda: "gangs" in seen(served).checks)
    kinds = {f"Kueue {kind}" for kind in ("AdmissionCheck", "ResourceFlavor", "Workload")}
    await eventually(lambda: kinds <= seen(served).synced)
    lines = [r.resource for r in caplog.records if r.getMessage() == "workload kind is served"]
    assert sorted(each for each in lines if "kueue" in each) == [
        f"{plural}.kueue.x-k8s.io" for plural in plurals
    ]
    del fake.groups["kueue.x-k8s.io/v1beta2"]
    fake.cut_watches("admissionchecks")
    await eventually(lambda: not seen(served).checks)
    assert served.not_ready_reason() == ""


async def test_a_kind_in_another_version_is_not_absent(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """There may be objects, which are not read: nothing is concluded from them."""
    fake.groups["leaderworkerset.x-k8s.io/v2"] = ["leaderworkersets"]
    fake.groups["ray.io/v1"] = ["rayclusters"]
    await eventually(lambda: "RayCluster" in seen(served).synced)
    assert "LeaderWorkerSet" not in seen(served).synced | seen(served).absent


async def test_a_kind_without_its_role_is_switched_off(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """403 for JobSets: Jobs are read, nothing is not ready; with the role JobSets are read too."""
    refused = Fault(lambda r: r.path.endswith("/jobsets"), status=403, times=10_000)
    fake.faults.append(refused)
    fake.put("jobs", a_job("mine"))
    await eventually(lambda: names(served) == {"mine"})
    assert served.not_ready_reason() == ""
    assert "JobSet" not in seen(served).synced
    refused.times = 0
    await eventually(lambda: "JobSet" in seen(served).synced)


async def test_profiles_are_read_and_a_wrong_one_changes_nothing(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """A gang mode that the kind does not have leaves the profile as it was."""
    kinds = [{"kind": "Job", "topology": {"leaf": "net/rack"}}]
    fake.put("treeprofiles", {"metadata": {"name": "racks"}, "spec": {"kinds": kinds}})
    await eventually(lambda: "racks" in seen(served).profiles)
    wrong = [{"kind": "Job", "gang": "per-job"}]
    fake.put("treeprofiles", {"metadata": {"name": "racks"}, "spec": {"kinds": wrong}})
    fake.put("treeprofiles", {"metadata": {"name": "other"}, "spec": {}})
    await eventually(lambda: "other" in seen(served).profiles)
    assert seen(served).profiles["racks"].of("Job").leaf_topology == "net/rack"
    fake.remove("treeprofiles", "racks")
    await eventually(lambda: "racks" not in seen(served).profiles)


def a_manifest(**fields: Any) -> GroupManifest:
    spec = GroupSpec(
        kind="PodGroup", name=LEAF.name, parent="train-01234567", minimum=4, topology="net/rack",
        disruption_mode="all", priority_class="high", **fields,
    )  # fmt: skip
    return GroupManifest(
        namespace="default", spec=spec, template_of="train-01234567", profile="default",
        owner_api_version="jobset.x-k8s.io/v1alpha2", owner_kind="JobSet", owner_name="train",
        owner_uid="u1",
    )  # fmt: skip


async def test_a_group_is_created_with_its_owner(served: KubernetesCluster, fake: FakeApi) -> None:
    """POST, so that a group of the same name is never changed; no finalizer, and the owner is not blocked."""
    await served.workloads.create_group(a_manifest())
    (body,) = [body for path, body in fake.bodies if path == f"{FOLDER}/podgroups"]
    assert body["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "disruptionMode": {"all": {}},
        "parentCompositePodGroupName": "train-01234567",
        "workloadRef": {"workloadName": "train-01234567", "templateName": LEAF.name},
        "schedulingConstraints": {"topology": [{"key": "net/rack"}]},
        "priorityClassName": "high",
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u1", True, False)
    assert "finalizers" not in body["metadata"]


async def test_a_group_that_exists_is_no_error(served: KubernetesCluster, fake: FakeApi) -> None:
    """The answer to an earlier attempt was lost, or another client has the name: the view decides."""
    body = msgspec.json.encode({"reason": "AlreadyExists", "message": "exists"})
    fake.faults.append(Fault(lambda r: r.method == "POST", status=409, body=body))
    await served.workloads.create_group(a_manifest())


async def test_fields_are_applied_to_one_object_only(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """Server-side apply with the UID as precondition: a group that was made again is not changed."""
    fake.put("podgroups", {"metadata": {"name": LEAF.name, "namespace": "default", "uid": "g1"}})
    await served.workloads.apply_group(a_manifest(), "g1")
    query = next(query for method, _, query in fake.calls if method == "PATCH")
    assert query == {"fieldManager": "gang-extender-trees", "force": "true"}
    with pytest.raises(ClusterUnavailable, match="immutable"):  # the view will show the other one
        await served.workloads.apply_group(a_manifest(), "g2")


async def test_a_link_is_one_annotation_on_one_object(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """Server-side apply of the annotation alone, with the UID, in the version of the group, and not by force."""
    fake.groups["scheduling.k8s.io/v1beta1"] = ["podgroups"]
    fake.put("podgroups", {"metadata": {"name": LEAF.name, "namespace": "default", "uid": "g1"}})
    link = GroupLink(key=LEAF, uid="g1", api_version="scheduling.k8s.io/v1beta1", parent="search")
    await served.workloads.link_group(link)
    (call,) = [call for call in fake.calls if call[0] == "PATCH"]
    folder = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
    assert call[1:] == (f"{folder}/{LEAF.name}", {"fieldManager": "gang-extender-trees"})
    (body,) = [body for path, body in fake.bodies if path == f"{folder}/{LEAF.name}"]
    annotations = {"gang-extender.dev/parent": "search"}
    metadata = {"name": LEAF.name, "namespace": "default", "uid": "g1", "annotations": annotations}
    assert body == {
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata,
    }  # fmt: skip
    again = GroupLink(key=LEAF, uid="g2", api_version="scheduling.k8s.io/v1beta1", parent="search")
    with pytest.raises(ClusterUnavailable, match="immutable"):  # the view will show the other one
        await served.workloads.link_group(again)


async def test_a_job_that_a_jobset_maps_to_a_group_is_read(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """It may own a group that belongs to the tree of the JobSet; it has no tree label itself."""
    mapped = {"scheduling.k8s.io/group-template-name": "worker"}
    fake.put("jobs", a_job("mapped", labelled=False, annotations=mapped))
    fake.put("jobs", a_job("other", labelled=False))
    await eventually(lambda: "Job" in seen(served).synced)
    await eventually(lambda: names(served) == {"mapped"})


async def test_a_group_that_is_gone_is_deleted_already(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """404 is a success; the request has the UID."""
    await served.workloads.delete_group(LEAF, "g1")
    assert fake.count("DELETE", f"/podgroups/{LEAF.name}") == 1


async def test_the_reason_of_a_waiting_pod_is_its_condition(
    served: KubernetesCluster, fake: FakeApi
) -> None:
    """Only the condition PodScheduled is written, and its reason stays that of a gated pod."""
    fake.put("pods", {"metadata": {"name": "p", "namespace": "default", "uid": "p1"}, "spec": {}})
    await served.explain_waiting(
        PodRef(namespace="default", name="p", uid=PodUid("p1")), "no tree: x"
    )
    (body,) = [body for path, body in fake.bodies if path.endswith("/pods/p/status")]
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "SchedulingGated")
    assert condition["message"] == "no tree: x"


async def test_a_defect_with_one_workload_keeps_no_other(
    served: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays as it was; a defect of the whole resource ends no task in silence: it is listed again."""
    monkeypatch.setattr(periodic, "FIRST_MS", 1)
    fake.put("jobs", a_job("first"))
    await eventually(lambda: names(served) == {"first"}, "the first one")
    store = served.workloads._store
    inner = store.upsert
    refused: list[bytes] = []

    def fails(found: WorkloadManifest) -> None:
        if found.metadata.name == "bad":
            raise ZeroDivisionError("the test fails it")
        inner(found)

    with monkeypatch.context() as broken:
        broken.setattr(store, "upsert", fails)
        fake.put("jobs", a_job("bad"))
        fake.put("jobs", a_job("good"))
        await eventually(lambda: names(served) == {"first", "good"}, "the other one")
        (informer,) = (i for r, i in served.workloads._informers.of.items() if r.name == "jobs")

        def refuses(line: bytes) -> None:
            refused.append(line)
            raise ZeroDivisionError("the test fails it")

        broken.setattr(informer, "_change", refuses)
        fake.put("jobs", a_job("lost"))
        await eventually(lambda: bool(refused), "the defect of the whole resource")

    def recovered() -> bool:
        fake.put(
            "jobs", a_job("first")
        )  # a change that is left out is made again with the next one
        return names(served) == {"first", "good", "bad", "lost"}

    await eventually(recovered, "all of them")
