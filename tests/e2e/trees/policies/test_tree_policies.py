"""The policies that write the tree label into pod templates, on a real API server: each kind of the table is covered."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from extender.cluster.manifests.workload_expansion import with_template_labels
from extender.core.workloads.kind_table import BY_KIND, OBJECT_KINDS
from extender.core.workloads.kinds.jobset_kind import NODE_SELECTOR
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    GANG_ANNOTATION,
    LEAF_LABEL,
    MANAGED_BY,
    NAMESPACE,
    SOURCE_ANNOTATION,
    TREE_LABEL,
    WorkloadObject,
)
from extender.ports.written_names import MANAGED_BY_LABEL
from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.plane import ControlPlane
from tests.e2e.trees.policies.conftest import (
    AT_ONCE,
    LABELLED,
    OFF_HERE,
    PLAIN,
    apply,
    dry_run,
    remove,
)
from tests.e2e.trees.policies.workload_samples import a_workload, labels_in, path_to, templates_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]
WITH_TEMPLATES = [one for one in OBJECT_KINDS if one.template_paths]
each_kind = pytest.mark.parametrize("kind", WITH_TEMPLATES, ids=lambda one: one.kind)
JOB = BY_KIND["Job"]


async def created(
    api: Api, kind: WorkloadKind, namespace: str, thing: Object | None = None
) -> Object:
    return await dry_run(api, path_to(kind, namespace), thing or a_workload(kind, namespace))


def stamped(kind: WorkloadKind, thing: Object) -> set[str | None]:
    return set(labels_in(kind, thing, TREE_LABEL))


@each_kind
async def test_the_label_of_a_workload_wins_over_that_of_its_namespace(
    admission: Api, kind: WorkloadKind
) -> None:
    """`off` on either level is a label like any other; without a label there is no tree."""
    for namespace, own, profile in (
        (PLAIN, None, None),
        (PLAIN, "silver", "silver"),
        (PLAIN, "off", None),
        (LABELLED, None, "gold"),
        (LABELLED, "silver", "silver"),
        (LABELLED, "off", None),
        (OFF_HERE, None, None),
        (OFF_HERE, "silver", "silver"),
    ):
        labels = {"app": "a"} | ({TREE_LABEL: own} if own else {})
        found = await created(
            admission, kind, namespace, a_workload(kind, namespace, labels=labels)
        )
        assert stamped(kind, found) == {profile}, (namespace, own)
        inherited = own is None and profile is not None
        notes = found["metadata"].get("annotations", {})
        assert notes.get(SOURCE_ANNOTATION) == (NAMESPACE if inherited else None)
        assert found["metadata"].get("labels", {}).get(TREE_LABEL) == own


@each_kind
async def test_the_leaf_label_is_what_the_compiler_computes(
    admission: Api, kind: WorkloadKind
) -> None:
    """CEL and Python agree for each template; without a profile there is none."""
    found = await created(admission, kind, LABELLED)
    for template, item in templates_of(kind, found):
        expected = kind.leaf_label(item) if kind.leaf_label else ""
        assert template["metadata"]["labels"].get(LEAF_LABEL, "") == expected
    assert set(labels_in(kind, await created(admission, kind, PLAIN), LEAF_LABEL)) == {None}


@each_kind
async def test_a_label_in_a_template_stays(admission: Api, kind: WorkloadKind) -> None:
    """The user may write both labels; the other templates get those of the workload."""
    thing = a_workload(kind, LABELLED)
    templates = [template for template, _ in templates_of(kind, thing)]
    templates[0]["metadata"] = {"labels": {TREE_LABEL: "mine", LEAF_LABEL: "own", "app": "a"}}
    found = await created(admission, kind, LABELLED, thing)
    first, *others = labels_in(kind, found, TREE_LABEL)
    assert (first, set(others)) == ("mine", {"gold"} if others else set())
    assert labels_in(kind, found, LEAF_LABEL)[0] == "own"
    assert labels_in(kind, found, "app")[0] == "a"


OTHERS_SCHEDULE: dict[str, Object] = {
    "schedulingGroup": {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
    "group label": {"metadata": {"labels": {"gang-extender.dev/pod-group": "g"}}},
    "alias of it": {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}},
    "schedulerName": {"spec": {"schedulerName": "volcano"}},
}


@each_kind
@pytest.mark.parametrize("reason", OTHERS_SCHEDULE)
async def test_one_template_of_another_scheduler_keeps_the_workload_out(
    admission: Api, kind: WorkloadKind, reason: str
) -> None:
    """As `kept_out` of the table has it."""
    thing = a_workload(kind, LABELLED, labels={TREE_LABEL: "silver"})
    *_, (template, _) = templates_of(kind, thing)
    for field, value in OTHERS_SCHEDULE[reason].items():
        before = template.get(field, {})
        labels = before.get("labels", {}) | value.get("labels", {})  # a selector needs its own
        template[field] = before | value | ({"labels": labels} if labels else {})
    assert stamped(kind, await created(admission, kind, LABELLED, thing)) == {None}


@each_kind
async def test_a_workload_that_another_controller_runs_is_kept_out(
    admission: Api, kind: WorkloadKind
) -> None:
    """spec.managedBy counts where the kind has it; its own controller may be named."""
    for manager, profile in (("example.com/other", None), (kind.manager, "gold")):
        if kind.manager:
            thing = a_workload(kind, LABELLED)
            *path, field = kind.manager_path
            holder = thing["spec"]
            for name in path:
                holder = holder.setdefault(name, {})
            holder[field] = manager
            assert stamped(kind, await created(admission, kind, LABELLED, thing)) == {profile}


@pytest.mark.kubernetes("1.37")  # a Job of 1.36 has no such field
@each_kind
async def test_a_scheduling_block_keeps_the_workload_out(
    admission: Api, kind: WorkloadKind
) -> None:
    """Its controller makes the groups; an empty block is none."""
    if kind.kind == "StatefulSet":  # has no such field, and kube-apiserver drops it
        return
    thing = a_workload(kind, LABELLED)
    thing["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {}}}
    assert stamped(kind, await created(admission, kind, LABELLED, thing)) == {None}


@each_kind
async def test_a_part_of_a_workload_has_the_labels_of_the_whole(
    admission: Api, kind: WorkloadKind
) -> None:
    """A Job of a JobSet: its template was stamped in the JobSet, or was left alone there."""
    for owner, controller, profile in (
        *((owner, True, None) for owner in kind.part_of),
        *((owner, False, "gold") for owner in kind.part_of),
        ("CronThing", True, "gold"),
    ):
        reference = {
            "apiVersion": "example.com/v1",
            "kind": owner,
            "name": "o",
            "uid": "00000000-0000-4000-8000-000000000009",
            "controller": controller,
        }
        thing = a_workload(kind, LABELLED, ownerReferences=[reference])
        assert stamped(kind, await created(admission, kind, LABELLED, thing)) == {profile}


# --- updates


async def stored(api: Api, kind: WorkloadKind, namespace: str, **metadata: Any) -> Object:
    return await api.post(path_to(kind, namespace), a_workload(kind, namespace, **metadata))


def without_labels(kind: WorkloadKind, thing: Object) -> Object:
    """Return a stored workload as a file has it that was written before our labels."""
    plain = copy.deepcopy(thing)
    plain["metadata"].pop("annotations", None)
    for template, _ in templates_of(kind, plain):
        labels = template.get("metadata", {}).get("labels", {})
        for key in (TREE_LABEL, LEAF_LABEL):
            labels.pop(key, None)
    return plain


def replace(plane: ControlPlane, thing: Object) -> None:
    done = plane.kubectl("replace", "-f", "-", stdin=json.dumps(thing))
    assert done.returncode == 0, done.stderr


@each_kind
async def test_a_replaced_workload_keeps_its_labels(
    cluster: Api, policies: ControlPlane, kind: WorkloadKind
) -> None:
    """kubectl replace sends the file of the user: no error about an immutable template, and no new generation."""
    before = await stored(cluster, kind, LABELLED)
    assert stamped(kind, before) == {"gold"}
    replace(policies, without_labels(kind, before))
    after = await cluster.get(path_to(kind, LABELLED, "w"))
    for key in (TREE_LABEL, LEAF_LABEL):
        assert labels_in(kind, after, key) == labels_in(kind, before, key)
    assert after["metadata"]["annotations"][SOURCE_ANNOTATION] == NAMESPACE
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


@each_kind
async def test_a_workload_from_before_the_label_stays_as_it_is(
    cluster: Api, policies: ControlPlane, kind: WorkloadKind
) -> None:
    """A label that is added later changes no template: some of its pods would be members and others not."""
    await stored(cluster, kind, PLAIN)
    patch = {"metadata": {"labels": {TREE_LABEL: "silver"}}}
    after = await cluster.patch(path_to(kind, PLAIN, "w"), patch)
    assert stamped(kind, after) == {None}
    replace(policies, without_labels(kind, after))
    assert stamped(kind, await cluster.get(path_to(kind, PLAIN, "w"))) == {None}


@each_kind
async def test_items_of_a_list_are_known_by_their_names(
    cluster: Api, policies: ControlPlane, kind: WorkloadKind
) -> None:
    """An item that moves keeps its own labels, and a new one gets the profile of the others."""
    lists = [path.partition("[]")[0] for path in kind.template_paths if "[]" in path]
    before = await stored(cluster, kind, LABELLED)
    thing = a_workload(kind, LABELLED)
    for name in {path.removeprefix("spec.") for path in lists}:
        items = thing["spec"][name]
        new = copy.deepcopy(items[-1])
        new["groupName" if "groupName" in new else "name"] = "new"
        thing["spec"][name] = [new, *reversed(items)]
    if lists:
        replace(policies, thing)
        after = await cluster.get(path_to(kind, LABELLED, "w"))
        assert stamped(kind, after) == {"gold"}
        for template, item in templates_of(kind, after):
            expected = kind.leaf_label(item) if kind.leaf_label else ""
            assert template["metadata"]["labels"].get(LEAF_LABEL, "") == expected
    assert stamped(kind, before) == {"gold"}


@pytest.mark.parametrize("name", ["JobSet", "LeaderWorkerSet"])
async def test_off_in_a_template_is_no_profile(
    cluster: Api, policies: ControlPlane, name: str
) -> None:
    """A new item gets none from it, or that of another one; without any, nothing of the workload is replaced by what is ours."""
    kind = BY_KIND[name]
    for several, profile in ((True, None), (False, "gold")):
        notes = {EXCLUSIVE_ANNOTATION: "leaf=net/row"} if several else {}
        thing = a_workload(kind, LABELLED, annotations=notes)
        templates = [template for template, _ in templates_of(kind, thing)]
        for template in templates if several else templates[:1]:
            template["metadata"] = {"labels": {TREE_LABEL: "off"}}
        await cluster.post(path_to(kind, LABELLED), copy.deepcopy(thing))
        if name == "JobSet":
            new = copy.deepcopy(thing["spec"]["replicatedJobs"][-1]) | {"name": "new"}
            new["template"]["spec"]["template"].pop("metadata", None)
            thing["spec"]["replicatedJobs"].append(new)
        theirs = {kind.exclusive_annotation: "net/rack"} if several else {}
        thing["metadata"]["annotations"] = theirs
        replace(policies, thing)
        after = await cluster.get(path_to(kind, LABELLED, "w"))
        if name == "JobSet":
            assert labels_in(kind, after, TREE_LABEL)[-1] == profile
        assert labels_in(kind, after, TREE_LABEL)[0] == "off"
        assert after["metadata"]["annotations"] == theirs | {SOURCE_ANNOTATION: NAMESPACE}
        await cluster.delete(path_to(kind, LABELLED, "w"), AT_ONCE)


async def test_a_long_list_of_templates_is_within_the_cost_of_cel(cluster: Api) -> None:
    """kube-apiserver ends an expression that costs too much, which would refuse the JobSet."""
    kind = BY_KIND["JobSet"]
    thing = a_workload(kind, LABELLED, annotations={kind.exclusive_annotation: "net/rack"})
    driver, worker, _ = thing["spec"]["replicatedJobs"]
    jobs = [driver] * 499 + [worker]  # the last one alone has several pods
    thing["spec"]["replicatedJobs"] = [job | {"name": f"job-{n}"} for n, job in enumerate(jobs)]
    await cluster.post(path_to(kind, LABELLED), copy.deepcopy(thing))
    after = await cluster.get(path_to(kind, LABELLED, "w"))
    thing["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"]
    replaced = await cluster.put(path_to(kind, LABELLED, "w"), thing)
    assert labels_in(kind, replaced, TREE_LABEL) == ["gold"] * 500
    assert replaced["metadata"]["annotations"][EXCLUSIVE_ANNOTATION] == "leaf=net/rack"


# --- exclusive domains


def exclusive_variants(kind: WorkloadKind) -> Iterator[tuple[Object, dict[str, str]]]:
    """Yield specs and annotations of a kind: one level of ours is the same as the annotation of its controller, or none is."""
    theirs = {kind.exclusive_annotation: "net/rack"}
    spec = a_workload(kind, LABELLED)["spec"]
    if kind.kind == "LeaderWorkerSet":
        template = spec["leaderWorkerTemplate"]
        at_once = {key: value for key, value in spec.items() if key != "startupPolicy"}
        whole = {GANG_ANNOTATION: "all"}
        subgroups = template | {"size": 4, "subGroupPolicy": {"subGroupSize": 2}}
        for variant in (
            spec,
            at_once,
            at_once | {"leaderWorkerTemplate": template | {"size": 1}},
            at_once | {"leaderWorkerTemplate": subgroups},
        ):
            yield variant, theirs
            yield variant, theirs | whole
        yield at_once, theirs | {EXCLUSIVE_ANNOTATION: "root=net/block"}
        yield at_once, {kind.exclusive_annotation: "net/rack,root=net/block"}
        return
    driver, worker, many = spec["replicatedJobs"]
    each_job = copy.deepcopy(many | {"replicas": 2})
    one_pod = copy.deepcopy(each_job)
    one_pod["template"]["spec"] |= {"parallelism": 1, "completions": 1}
    template = each_job["template"]["spec"]["template"]
    template["metadata"] = {"labels": {LEAF_LABEL: "replicated-job"}}
    for jobs in ([driver, worker, many], [driver, worker], [driver, one_pod], [worker, each_job]):
        yield {"replicatedJobs": jobs}, theirs
    jobs = {"replicatedJobs": [driver, worker]}
    yield jobs, theirs | {NODE_SELECTOR: "true"}
    yield {"replicatedJobs": [driver]}, theirs
    unlabelled = copy.deepcopy(one_pod)
    unlabelled["template"]["spec"]["template"]["metadata"] = {"labels": {LEAF_LABEL: ""}}
    yield {"replicatedJobs": [driver, worker, unlabelled | {"name": "unlabelled"}]}, theirs
    long = "a" * 253
    for value in (
        "",
        " ",
        "net/rack:Cluster",
        "net/rack,root=net/block",
        f"{long}/b",
        f"{long}a/b",
    ):
        yield jobs, {kind.exclusive_annotation: value}


def a_workload_object(
    kind: WorkloadKind, spec: Object, annotations: dict[str, str]
) -> WorkloadObject:
    return WorkloadObject(
        api_version=f"{kind.group}/{kind.versions[0]}",
        kind=kind.kind,
        namespace=LABELLED,
        name="w",
        uid="u",
        annotations=annotations,
        spec=copy.deepcopy(spec),
    )


@pytest.mark.parametrize("name", ["JobSet", "LeaderWorkerSet"])
async def test_an_exclusive_topology_becomes_ours(cluster: Api, name: str) -> None:
    """CEL and Python agree which level is the same; without a profile, and for a part of another workload, it stays."""
    kind = BY_KIND[name]
    for spec, given in exclusive_variants(kind):
        thing = a_workload(kind, LABELLED, annotations=given) | {"spec": spec}
        workload = a_workload_object(kind, spec, given)
        expected = with_template_labels(kind, workload, "gold").annotations
        found = await created(cluster, kind, LABELLED, thing)
        assert found["metadata"]["annotations"] == {**expected, SOURCE_ANNOTATION: NAMESPACE}
        plain = await created(
            cluster, kind, PLAIN, thing | {"metadata": {**thing["metadata"], "namespace": PLAIN}}
        )
        assert plain["metadata"]["annotations"] == given
        for owner in (*kind.policy_from, *kind.part_of):
            reference = {
                "apiVersion": "a/v1",
                "kind": owner,
                "name": "o",
                "uid": "o",
                "controller": True,
            }
            owned = thing | {"metadata": {**thing["metadata"], "ownerReferences": [reference]}}
            kept = await created(cluster, kind, LABELLED, owned)
            assert given.items() <= kept["metadata"]["annotations"].items()


@pytest.mark.parametrize("name", ["JobSet", "LeaderWorkerSet"])
async def test_the_file_with_an_exclusive_topology_can_be_applied_again(
    cluster: Api, policies: ControlPlane, name: str
) -> None:
    """The annotation of its controller is replaced once more; what was stored without the policy keeps it."""
    kind = BY_KIND[name]
    spec, theirs = list(exclusive_variants(kind))[name == "JobSet"]
    thing = a_workload(kind, LABELLED, annotations=theirs) | {"spec": spec}
    before = await cluster.post(path_to(kind, LABELLED), copy.deepcopy(thing))
    assert EXCLUSIVE_ANNOTATION in before["metadata"]["annotations"]
    replace(policies, thing)
    after = await cluster.get(path_to(kind, LABELLED, "w"))
    assert kind.exclusive_annotation not in after["metadata"]["annotations"]
    ours = before["metadata"]["annotations"][EXCLUSIVE_ANNOTATION]
    assert after["metadata"]["annotations"][EXCLUSIVE_ANNOTATION] == ours
    await cluster.delete(path_to(kind, LABELLED, "w"), AT_ONCE)
    await stored(cluster, kind, LABELLED)
    patch = {"metadata": {"annotations": theirs}}
    patched = await cluster.patch(path_to(kind, LABELLED, "w"), patch)
    assert theirs.items() <= patched["metadata"]["annotations"].items()
    assert EXCLUSIVE_ANNOTATION not in patched["metadata"]["annotations"]


@pytest.mark.parametrize("name", ["JobSet", "LeaderWorkerSet"])
async def test_an_exclusive_domain_of_the_user_stays(cluster: Api, name: str) -> None:
    """Where an update adds the annotation of the controller: what has a scope, or is changed with it; what may be from the policy is replaced."""
    kind = BY_KIND[name]
    spec, theirs = list(exclusive_variants(kind))[name == "JobSet"]
    assert kind.exclusive_level is not None
    level = kind.exclusive_level(a_workload_object(kind, spec, theirs))
    for before, given, after in (
        ("leaf=net/row:Cluster", theirs, "leaf=net/row:Cluster"),
        ("leaf=net/row,root=net/block", theirs, "leaf=net/row,root=net/block"),
        ("leaf=net/row", theirs | {EXCLUSIVE_ANNOTATION: "root=net/row"}, "root=net/row"),
        ("leaf=net/row", theirs | {EXCLUSIVE_ANNOTATION: "leaf=net/row"}, f"{level}=net/rack"),
        ("leaf=net/row", theirs, f"{level}=net/rack"),
    ):
        thing = a_workload(kind, LABELLED, annotations={EXCLUSIVE_ANNOTATION: before}) | {"spec": spec}  # fmt: skip
        stored_before = await cluster.post(path_to(kind, LABELLED), copy.deepcopy(thing))
        assert stored_before["metadata"]["annotations"][EXCLUSIVE_ANNOTATION] == before
        thing["metadata"] |= {
            "annotations": given,
            "resourceVersion": stored_before["metadata"]["resourceVersion"],
        }
        replaced = await cluster.put(path_to(kind, LABELLED, "w"), thing)
        notes = replaced["metadata"]["annotations"]
        assert notes == {EXCLUSIVE_ANNOTATION: after, SOURCE_ANNOTATION: NAMESPACE}
        await cluster.delete(path_to(kind, LABELLED, "w"), AT_ONCE)


# --- kinds without pod templates


@pytest.mark.parametrize(
    "kind", [one for one in OBJECT_KINDS if one.labels_from], ids=lambda one: one.kind
)
async def test_a_kind_without_templates_has_the_label_itself(
    cluster: Api, kind: WorkloadKind
) -> None:
    """So have the objects whose labels its pods get; their operator's updates, which lack it, do not remove it."""
    for one in (kind, *kind.labels_from):
        for namespace, own, profile in (
            (PLAIN, None, None),
            (LABELLED, None, "gold"),
            (LABELLED, "off", "off"),
            (OFF_HERE, None, None),
        ):
            labels = {TREE_LABEL: own} if own else {}
            thing = a_workload(kind, namespace, labels=labels)
            thing |= {"kind": one.kind, "apiVersion": f"{one.group}/{one.versions[0]}"}
            made = await cluster.post(path_to(one, namespace), thing)
            assert made["metadata"].get("labels", {}).get(TREE_LABEL) == profile
            thing["metadata"] = made["metadata"] | {"labels": {"a": "b"}, "annotations": {}}
            kept = await cluster.put(path_to(one, namespace, "w"), thing)
            assert kept["metadata"]["labels"].get(TREE_LABEL) == profile
            inherited = (namespace, own) == (LABELLED, None)
            note = kept["metadata"].get("annotations", {}).get(SOURCE_ANNOTATION)
            assert note == (NAMESPACE if inherited else None)
            await cluster.delete(path_to(one, namespace, "w"), AT_ONCE)


@pytest.mark.parametrize(
    "kind", [one for one in OBJECT_KINDS if one.label_patch], ids=lambda one: one.kind
)
async def test_a_trainjob_passes_its_label_to_its_jobset(
    cluster: Api, policies: ControlPlane, kind: WorkloadKind
) -> None:
    """As a patch of its runtime, `off` too; an update that lacks the patch keeps it, and a later label adds none."""
    others = [{"manager": "kueue.x-k8s.io/manager"}]
    for own, before in ((None, None), ("silver", None), ("off", others), ("silver", others)):
        labels = {TREE_LABEL: own} if own else {}
        thing = a_workload(kind, LABELLED, labels=labels)
        if before:
            thing["spec"]["runtimePatches"] = before
        template = {"metadata": {"labels": {TREE_LABEL: own}}}
        ours = {"manager": "gang-extender.dev/trees", "trainingRuntimeSpec": {"template": template}}
        expected = [*(before or ()), *([ours] if own else ())]
        made = await cluster.post(path_to(kind, LABELLED), thing)
        assert made["spec"].get("runtimePatches", []) == expected
        thing["metadata"]["labels"] = {} if own else {TREE_LABEL: "gold"}
        replace(policies, thing)
        kept = await cluster.get(path_to(kind, LABELLED, "w"))
        assert kept["spec"].get("runtimePatches", []) == expected
        await cluster.delete(path_to(kind, LABELLED, "w"), AT_ONCE)


# --- profiles and rights


async def test_profiles_are_checked_when_they_are_written(
    cluster: Api, policies: ControlPlane
) -> None:
    """An error has the field and what would be right."""
    path = "/apis/gang-extender.dev/v1alpha1/treeprofiles"

    def profile(*kinds: Object) -> Object:
        return {
            "apiVersion": "gang-extender.dev/v1alpha1",
            "kind": "TreeProfile",
            "metadata": {"name": "training"},
            "spec": {"kinds": list(kinds)},
        }

    topology = {"root": "net/block", "leaf": "net/rack"}
    jobset = {"kind": "JobSet", "gang": "per-job", "topology": topology, "disruptionMode": "single"}
    job = {"kind": "Job", "enabled": False, "nativeGroups": "Adopt"}
    await cluster.post(path, profile(job, jobset))
    printed = policies.kubectl("get", "gtp").stdout.splitlines()
    assert printed[0].split() == ["NAME", "JOBSET", "GANG", "AGE"]
    assert printed[1].split()[:2] == ["training", "per-job"]
    await cluster.delete(f"{path}/training")
    for kinds, error in (
        ([{"kind": "CronJob"}], r'kind: Unsupported value: "CronJob": supported values:.*"Job"'),
        ([{"kind": "Job"}, {"kind": "Job"}], r"kinds\[1\]: Duplicate value"),
        ([{"kind": "Job", "gang": "per-job"}], r"kinds\[0\].*gang per-job is for JobSet"),
        ([{"kind": "JobSet", "topology": {"root": "no key"}}], r"topology\.root"),
        ([{"kind": "PodGang", "nativeGroups": "Adopt"}], r"nativeGroups Adopt is for JobSet, Job"),
        ([{"kind": "JobSet", "gang": "some"}], r'gang: Unsupported value: "some"'),
    ):
        with pytest.raises(ApiError, match=error):
            await cluster.post(path, profile(*kinds), dryRun="All")


async def test_the_service_may_do_what_the_roles_of_the_enabled_kinds_allow(
    policies: ControlPlane,
) -> None:
    """A kind whose role was not applied is not readable; groups are created, applied and deleted."""
    everywhere = [f"/apis/{one.group}/{one.versions[0]}/{one.plural}" for one in OBJECT_KINDS]
    group = {
        "apiVersion": "gang-extender.dev/v1alpha1",
        "kind": "PodGroup",
        "metadata": {
            "name": "g",
            "labels": {TREE_LABEL: "default", MANAGED_BY_LABEL: MANAGED_BY},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "owner",
                    "uid": "76b72aed-54c6-4d2c-a1de-6f2f0f4a8c11",
                    "controller": True,
                }
            ],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    path = f"/apis/gang-extender.dev/v1alpha1/namespaces/{PLAIN}/podgroups/g"

    async def readable(api: Api) -> list[str]:
        found = []
        for one in everywhere:
            try:
                await api.get(one)
            except ApiError as refused:
                if refused.status != 403:
                    raise
            else:
                found.append(one)
        return found

    async with policies.api("extender") as service:
        assert await readable(service) == []
        apply(policies, "workloads/rbac.yaml", selector="gang-extender.dev/kind in (groups, Job)")

        async def only_jobs() -> bool:
            return await readable(service) == ["/apis/batch/v1/jobs"]

        await eventually(only_jobs)
        apply(policies, "workloads/rbac.yaml")

        async def all_kinds() -> bool:
            return await readable(service) == everywhere

        await eventually(all_kinds)
        query = {"fieldManager": "gang-extender-trees", "force": "true"}
        made = await service.patch(path, group, kind="apply", **query)
        assert made["metadata"]["name"] == "g"
        await service.get("/apis/gang-extender.dev/v1alpha1/treeprofiles")
        await service.delete(path)
        with pytest.raises(ApiError, match="forbidden"):
            await service.post(path_to(JOB, PLAIN), a_workload(JOB, PLAIN), dryRun="All")
    remove(policies, "workloads/rbac.yaml")
