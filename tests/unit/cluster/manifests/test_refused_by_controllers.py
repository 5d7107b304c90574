"""What the API or the webhook of a workload's controller refuses is no tree: the text names the field, its value, and what is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_compiler import CompileRequest, compile_tree
from extender.core.workloads.tree_policy import DEFAULT_PROFILE
from extender.core.workloads.workload_object import WorkloadObject
from tests.support.service.manifest_builders import a_manifest, a_node, a_pod, an_object
from tests.support.service.workload_builders import (
    a_job,
    a_jobset,
    a_namespace,
    a_replicated_job,
    a_template,
)

SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
LARGE = 2_000_000_000


def steps(*jobs: tuple[str, list[dict[str, str]]], **spec: Any):
    """A JobSet whose ReplicatedJobs have this dependsOn."""
    return a_jobset(
        *(a_replicated_job(name) | {"dependsOn": after} for name, after in jobs), **spec
    )


def after(name: str, status: str = "Complete"):
    return [{"name": name, "status": status}]


def an_lws(
    annotations: dict[str, str] | None = None, replicas: int = 1, policy: Any = None, **spec: Any
):
    pods = spec.pop("template", None) or a_template()
    template = {"size": spec.pop("size", 4), "workerTemplate": pods}
    if policy is not None:
        template["subGroupPolicy"] = policy
    body = {"replicas": replicas, "leaderWorkerTemplate": template, **spec}
    metadata = {"labels": {"gang-extender.dev/tree": "default"}, "annotations": annotations or {}}
    return an_object(
        "LeaderWorkerSet", "serve", "leaderworkerset.x-k8s.io/v1", metadata=metadata, spec=body
    )


def a_set(clique: dict[str, Any], groups: list[dict[str, Any]] | None = None, replicas: int = 1):
    one = {"name": "a", "spec": {"podSpec": a_template()["spec"], **clique}}
    template = {"cliques": [one], "podCliqueScalingGroups": groups or []}
    spec = {"replicas": replicas, "template": template}
    return an_object("PodCliqueSet", "set", "grove.io/v1alpha1", spec=spec)


def plan(*workload: object, nodes: int = 1) -> dict[str, Any]:
    """Return the answer of /v1/plan."""
    body = {"cluster": [a_node(f"n{at}") for at in range(nodes)], "workload": workload}
    answer: dict[str, Any] = msgspec.json.decode(answer_plan_request(msgspec.json.encode(body)))
    return answer


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (steps(("a", after("b")), ("b", after("a"))), "spec.replicatedJobs[0].dependsOn: 'b' is not one of"),
        (steps(("a", []), ("b", after("b"))), "spec.replicatedJobs[1].dependsOn: 'b' is not one of the ReplicatedJobs listed before b, which are a"),
        (steps(("a", []), ("b", after("aa"))), "spec.replicatedJobs[1].dependsOn: 'aa' is not one of"),
        (steps(("a", after("b")), ("b", [])), "spec.replicatedJobs[0].dependsOn: 'b' is not one of the ReplicatedJobs listed before a, and there are none"),
        (steps(("a", []), ("b", after("a")), startupPolicy={"startupPolicyOrder": "InOrder"}),
         "spec.replicatedJobs[1].dependsOn: cannot be combined with startupPolicyOrder InOrder"),
        (an_lws({SUBGROUP: "net/rack"}), f"metadata.annotations[{SUBGROUP}]: 'net/rack': there are no subgroups"),
        (an_lws(policy={"subGroupSize": 3}, size=5), "subGroupSize: 3: 5 or 4 pods cannot be divided into subgroups of 3"),
        (an_lws(policy={"subGroupSize": 8}), "subGroupSize: 8: 4 or 3 pods cannot be divided into subgroups of 8"),
        (an_lws(policy={"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}),
         "subGroupSize: 2: 3 pods cannot be divided into subgroups of 2"),
        (a_job(completionMode="Indexed", parallelism=3), "spec.completions: is missing; with completionMode Indexed set it, to 3"),
    ],
    ids=["cycle", "itself", "unknown", "later", "two orders", "no subgroups", "rest", "larger", "without leader", "indexed"],
)  # fmt: skip
def test_a_tree_that_its_controller_refuses_is_invalid(workload, words) -> None:
    gangs = plan(workload, a_job("other"))["gangs"]
    assert sorted(gang["verdict"] for gang in gangs) == ["invalid", "placed"]
    (gang,) = (one for one in gangs if one["verdict"] == "invalid")
    assert words in str(gang["reasons"])


def test_a_jobset_that_waits_for_itself_is_planned_pod_by_pod_where_only_its_namespace_asks() -> (
    None
):
    """A tree with steps in a circle ended `plan` with a KeyError."""
    circle = steps(("a", after("b")), ("b", after("a")))
    circle["metadata"]["labels"] = {}
    answer = plan(a_namespace("default", tree="default"), circle)
    assert any("dependsOn: 'b' is not one of" in text for text in answer["warnings"])


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (steps(("a", []), ("b", after("a", "Completed"))), 'dependsOn[0].status: expected one of Complete, Ready, found "Completed"'),
        (a_jobset(startupPolicy={"startupPolicyOrder": "Inorder"}), 'startupPolicyOrder: expected one of AnyOrder, InOrder, found "Inorder"'),
        (a_job(completionMode="indexed"), 'spec.completionMode: expected one of Indexed, NonIndexed, found "indexed"'),
        (an_lws(startupPolicy="leaderReady"), 'spec.startupPolicy: expected one of LeaderCreated, LeaderReady, found "leaderReady"'),
        (an_lws(policy={"subGroupSize": 2, "subGroupPolicyType": "LeaderExclude"}), "subGroupPolicyType: expected one of"),
        (an_lws(size=0), "spec.leaderWorkerTemplate.size: expected a whole number from 1"),
        (a_set({"replicas": 2, "minAvailable": 5}), "spec.template.cliques[0].spec.minAvailable: is 5, more than replicas, which is 2"),
        (a_set({"replicas": 2, "minAvailable": 0}), "minAvailable: expected a whole number from 1"),
        (a_set({}, [{"name": "g", "cliqueNames": ["a"], "minAvailable": 3}]), "podCliqueScalingGroups[0].minAvailable: is 3, more than replicas, which is 1"),
        (a_set({"startsAfter": ["b"]}), "spec.template.cliques[0].spec.startsAfter: there is no clique 'b'; there are a"),
    ],
)  # fmt: skip
def test_a_value_that_the_api_refuses_is_an_error(workload, words) -> None:
    with pytest.raises(BadInput) as caught:
        a_manifest([], [workload])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "template", [{"spec": {"containers": []}}, {"spec": {"nodeSelector": {}}}, {"metadata": {}}]
)
def test_a_template_without_containers_is_a_warning(template) -> None:
    found = a_manifest([], [a_job(template=template)])
    assert found.warnings == (
        "Job/default/fit: pod template of job: spec.containers: is missing or empty; Kubernetes refuses such pods",
    )


@pytest.mark.parametrize(
    "workload",
    [
        a_job(parallelism=LARGE),
        a_jobset(a_replicated_job("a", LARGE)),
        a_jobset(a_replicated_job("a", 400, parallelism=400, completions=400)),
        an_lws(replicas=LARGE),
        an_lws(replicas=2_000, size=51),
        an_object("DisaggregatedSet", "set", "disaggregatedset.x-k8s.io/v1",
                  spec={"roles": [{"name": "a", "spec": an_lws(replicas=LARGE)["spec"]}]}),
        an_object("RayCluster", "ray", "ray.io/v1", spec={
            "headGroupSpec": {"template": a_template()},
            "workerGroupSpecs": [{"groupName": "w", "replicas": LARGE, "template": a_template()}]}),
        a_set({"replicas": LARGE}),
        a_set({"replicas": 1000}, replicas=1000),
        a_set({}, [{"name": "g", "cliqueNames": ["a"], "replicas": 90_000, "minAvailable": 90_000}], 90_000),
    ],
    ids=["Job", "JobSet", "slices", "LeaderWorkerSet", "replicas", "DisaggregatedSet", "RayCluster", "clique", "sets", "groups"],
)  # fmt: skip
def test_a_workload_of_more_pods_than_a_cluster_has_is_an_error_before_they_are_made(
    workload,
) -> None:
    """A parallelism of two thousand millions took all memory of the machine."""
    with pytest.raises(BadInput, match=r"100000"):
        a_manifest([], [workload])


def test_the_leader_compiles_a_jobset_of_any_size() -> None:
    """The webhook of JobSet allows 2**31 - 1 pods; a list of as many templates ended the leader."""
    jobset = a_jobset(a_replicated_job("a", LARGE, template=labelled(a_template())))
    tree = compiled(jobset)
    assert [(one.kind, one.minimum) for one in tree.groups] == [("PodGroup", LARGE)]
    notes = {
        f"alpha.jobset.sigs.k8s.io/{one}": "rack" for one in ("exclusive-topology", "node-selector")
    }
    tree = compiled(
        a_jobset(a_replicated_job("a", LARGE, template=labelled(a_template())), annotations=notes)
    )
    assert tree.refusal is not None
    assert (
        f"spec.replicatedJobs[a].replicas: {LARGE} pods with a node selector for each Job"
        in tree.refusal.message
    )


def labelled(template: dict[str, Any]) -> dict[str, Any]:
    """Return a template as the admission policy stores that of Jobs of one pod."""
    return template | {"metadata": {"labels": {"gang-extender.dev/leaf": "replicated-job"}}}


def compiled(jobset: dict[str, Any]):
    metadata = jobset["metadata"]
    workload = WorkloadObject(
        api_version=jobset["apiVersion"], kind="JobSet", namespace="default", name=metadata["name"],
        uid="6f2f0f4a-0000", spec=jobset["spec"], annotations=metadata.get("annotations") or {},
    )  # fmt: skip
    return compile_tree(
        BY_KIND["JobSet"],
        CompileRequest(workload=workload, profile=DEFAULT_PROFILE, profile_name="default"),
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedul", "labelSelector": {}}]},
         'whenUnsatisfiable: "DoNotSchedul" is none of DoNotSchedule, ScheduleAnyway'),
        ({"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 0, "labelSelector": {}}]}, "[0].maxSkew: 0 is less than 1"),
        ({"topologySpreadConstraints": [{"labelSelector": {}}]}, "spec.topologySpreadConstraints[0].topologyKey: is missing"),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}},
         "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: is missing"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedul"}]}, 'spec.tolerations[0].effect: "NoSchedul" is none of'),
        ({"initContainers": [{"name": "i", "restartPolicy": "always"}]}, 'spec.initContainers[0].restartPolicy: "always" is none of Always'),
        ({"containers": [{"name": "m", "resources": {"requests": {"nvidia.com/gpu": "500m"}}}]}, 'nvidia.com/gpu: "500m" is not a whole number'),
        ({"containers": [{"name": "m", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
         'requests: cpu: "2" is more than its limit, which is "1"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("made", [True, False], ids=["template", "pod"])
def test_a_value_in_a_pod_that_an_api_server_refuses_is_an_error(spec, words, made) -> None:
    whole = {**a_template()["spec"], **spec}
    thing = a_job(template={"spec": whole}) if made else an_object("Pod", "p", "v1", spec=whole)
    with pytest.raises(BadInput) as caught:
        a_manifest([], [thing])
    assert words in str(caught.value)


@pytest.mark.parametrize("written", ["1", "2.0", "2000m", "1e0", 2, "1k"])
def test_whole_numbers_of_devices_are_read_however_they_are_written(written) -> None:
    template = a_template({"nvidia.com/gpu": written, "cpu": "0.5"})
    assert len(a_manifest([], [a_job(template=template)]).pods) == 1


@pytest.mark.parametrize(
    ("volume", "others", "text"),
    [
        ({"persistentVolumeClaim": {"claimName": "data"}}, (), "volume claims of 2 pods (default/data) are not in the files, or their volumes: "),
        ({"persistentVolumeClaim": {"claimName": "data"}}, (an_object("PersistentVolumeClaim", "data", "v1", spec={}),),
         "volume claims of 2 pods (default/data) are not bound to a volume: "),
        ({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}, (), "-0-v, default/fit-"),
    ],
    ids=["absent", "unbound", "ephemeral"],
)  # fmt: skip
def test_volumes_of_which_no_node_is_known_are_a_warning(volume, others, text) -> None:
    template = a_template(volumes=[{"name": "v", **volume}])
    answer = plan(*others, a_job(parallelism=2, completions=2, template=template))
    assert answer["verdict"] == "placed"
    (warning,) = (one for one in answer["warnings"] if "volume claims of 2 pods" in one)
    assert text in warning
    assert "is not known, so kube-scheduler may find fewer nodes" in warning
    assert ("kubectl get pv,pvc,sc" in warning) == (not others)


@pytest.mark.parametrize(
    ("field", "name", "place", "hint"),
    [
        ("labels", "trees", "metadata", "did you mean gang-extender.dev/tree?"),
        ("labels", "min", "metadata", "it is one of the annotations"),
        ("annotations", "tree", "metadata", "it is one of the labels"),
        (
            "labels",
            "pod-gruop",
            "spec.template.metadata",
            "did you mean gang-extender.dev/pod-group?",
        ),
        ("annotations", "pod-group", "spec.template.metadata", "it is one of the labels"),
    ],
)
def test_a_name_of_ours_in_the_wrong_place_is_an_error_at_each_depth(
    field, name, place, hint
) -> None:
    job = a_job()
    target = (
        job["metadata"]
        if place == "metadata"
        else job["spec"]["template"].setdefault("metadata", {})
    )
    target.setdefault(field, {})[f"gang-extender.dev/{name}"] = "x"
    with pytest.raises(BadInput) as caught:
        a_manifest([], [job])
    assert f"{place}.{field}[gang-extender.dev/{name}]: has no meaning; {hint}" in str(caught.value)


def test_an_exempt_namespace_may_be_in_the_file_of_a_workload() -> None:
    labels = {"gang-extender.dev/exempt": "true"}
    space = an_object("Namespace", "system", "v1", namespace="", metadata={"labels": labels})
    assert len(a_manifest([], [space, a_job()]).pods) == 1


def test_a_kind_in_other_letters_is_suggested() -> None:
    with pytest.raises(BadInput, match=r"kind job of batch/v1 is not planned; did you mean Job\?"):
        a_manifest([], [a_job() | {"kind": "job"}])


FAILURE = {"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}]}
JOB_SPECS: list[tuple[dict[str, Any], str]] = [
    ({"template": a_template(restartPolicy="Always")}, "template.spec.restartPolicy: is 'Always'; pods of a Job have Never or OnFailure"),
    ({"podFailurePolicy": FAILURE, "backoffLimitPerIndex": 1, "completionMode": "Indexed", "completions": 1,
      "template": a_template(restartPolicy="OnFailure")}, "podFailurePolicy: needs restartPolicy Never"),
    ({"podFailurePolicy": FAILURE}, "podFailurePolicy.rules[0].action: is FailIndex, which needs backoffLimitPerIndex"),
    ({"podFailurePolicy": {}, "podReplacementPolicy": "TerminatingOrFailed"}, ""),
    ({"podFailurePolicy": {"rules": [{"action": "Ignore"}]}, "podReplacementPolicy": "TerminatingOrFailed"},
     "podReplacementPolicy: is TerminatingOrFailed"),
    ({"backoffLimitPerIndex": 1, "completionMode": "NonIndexed"}, "backoffLimitPerIndex: is for Indexed Jobs"),
    ({"successPolicy": {"rules": []}, "completionMode": "NonIndexed"}, "successPolicy: is for Indexed Jobs"),
    ({"maxFailedIndexes": 1, "completionMode": "Indexed", "completions": 1}, "maxFailedIndexes: needs backoffLimitPerIndex"),
    ({"maxFailedIndexes": 5, "backoffLimitPerIndex": 1, "completionMode": "Indexed", "completions": 1},
     "maxFailedIndexes: is 5, more than completions, which is 1"),
    ({"template": a_template(nodeName="n0")}, "spec.nodeName: is 'n0', so no scheduler looks at the pods"),
    ({"maxFailedIndexes": 1, "backoffLimitPerIndex": 1, "completionMode": "Indexed", "completions": 1}, ""),
]  # fmt: skip


@pytest.mark.parametrize("in_set", [False, True], ids=["Job", "JobSet"])
@pytest.mark.parametrize(("spec", "words"), JOB_SPECS)
def test_a_job_that_kubernetes_refuses_is_invalid(in_set, spec, words) -> None:
    workload = a_jobset(a_replicated_job("w", **spec)) if in_set else a_job(**spec)
    template = spec.get("template") or a_template(restartPolicy="Never")
    (workload["spec"]["replicatedJobs"][0]["template"]["spec"] if in_set else workload["spec"])["template"] = template  # fmt: skip
    (gang,) = plan(workload)["gangs"]
    assert gang["verdict"] == ("invalid" if words else "placed")
    assert words in str(gang["reasons"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"podReplacementPolicy": "Never"}, "podReplacementPolicy: expected one of Failed, TerminatingOrFailed"),
        ({"podFailurePolicy": {"rules": [{"action": "FailJobs"}]}}, "rules[0].action: expected one of Count, FailIndex, FailJob, Ignore"),
        ({"backoffLimit": -1}, "backoffLimit: expected a whole number of at least 0"),
        ({"template": a_template({"cpus": 1})}, "cpus: there is no such resource; did you mean cpu?"),
        ({"template": a_template({"gpu": 1})}, "gpu: there is no such resource; a device has a prefix: nvidia.com/gpu"),
        ({"template": a_template(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}])}, 'tolerations[0].value: is "b"'),
        ({"template": a_template(tolerations=[{"value": "b"}])}, "tolerations[0].key: is missing"),
        ({"template": a_template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}})},
         "nodeSelectorTerms: is empty"),
        ({"template": a_template(initContainers=[{"name": "main"}])}, 'the name "main" is used twice'),
        ({"template": a_template(resources={"requests": {"nvidia.com/gpu": 1}})}, "nvidia.com/gpu: a pod has cpu, memory and huge pages here"),
        ({"template": a_template(resources={"requests": {"cpu": "500m"}})}, 'cpu: "500m" is less than its containers request together'),
    ],
)  # fmt: skip
def test_a_value_that_kubernetes_refuses_is_an_error(spec, words) -> None:
    for thing in (a_job(**spec), a_jobset(a_replicated_job("w", **spec))):
        with pytest.raises(BadInput) as caught:
            a_manifest([], [thing])
        assert words in str(caught.value)


def a_cronjob(template: dict[str, Any]):
    job = {
        "metadata": {"labels": {"gang-extender.dev/tree": "default"}},
        "spec": {"template": template},
    }
    spec = {"schedule": "@daily", "jobTemplate": job}
    return an_object("CronJob", "nightly", "batch/v1", spec=spec)


DOORS: dict[str, Callable[[dict[str, Any]], object]] = {  # a pod template -> an object of -f
    "Job": lambda template: a_job(template=template),
    "JobSet": lambda template: a_jobset(a_replicated_job("w", template=template)),
    "CronJob": a_cronjob,
    "LeaderWorkerSet": lambda template: an_lws(template=template),
    "PodCliqueSet": lambda template: a_set({"podSpec": template["spec"]}),
    "Pod": lambda template: a_pod("p", **template["spec"]),
}
CLAIM = {"name": "c", "resourceClaimTemplateName": "t"}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("resources", "spec", "words"),
    [
        ({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}, {}, 'nvidia.com/gpu: "1" is not its limit, which is "2"'),
        ({"requests": {"nvidia.com/gpu": 1}}, {}, 'resources.limits: nvidia.com/gpu: is missing, and the request is "1"'),
        ({"requests": {"cpu": 1, "hugepages-2Mi": "4Mi"}}, {}, 'resources.limits: hugepages-2Mi: is missing, and the request is "4Mi"'),
        ({}, {"resourceClaims": [{"name": "c"}]}, 'spec.resourceClaims[0]: "c" names no claim; set one of'),
        ({}, {"resourceClaims": [CLAIM | {"resourceClaimName": "x"}]},
         'spec.resourceClaims[0]: "c" has resourceClaimName "x" and resourceClaimTemplateName "t"; remove one'),
        ({}, {"resourceClaims": [CLAIM, CLAIM]}, 'spec.resourceClaims[1]: "c" is there twice'),
        ({"claims": [{"name": "cc"}]}, {"resourceClaims": [CLAIM]}, 'resources.claims: "cc" is no entry of spec.resourceClaims; '),
        ({"limits": {"nvidia.com/gpu": 2}}, {}, ""),
        ({"claims": [{"name": "c", "request": "gpu"}]}, {"resourceClaims": [CLAIM]}, ""),
    ],
)  # fmt: skip
def test_devices_and_claims_are_as_kubernetes_has_them(door, resources, spec, words) -> None:
    template = a_template(**spec)
    if door in ("Job", "CronJob"):
        template["spec"]["restartPolicy"] = "Never"
    template["spec"]["containers"][0]["resources"] = resources
    if not words:
        a_manifest([], [DOORS[door](template)])
        return
    with pytest.raises(BadInput) as caught:
        a_manifest([], [DOORS[door](template)])
    assert words in str(caught.value)
    with pytest.raises(BadInput, match=re.escape(words)):
        plan(DOORS[door](template))


@pytest.mark.parametrize("missing", [True, False])
def test_a_job_without_a_restart_policy_is_planned_with_a_warning(
    missing,
) -> None:
    template = a_template() if missing else a_template(restartPolicy="OnFailure")
    for thing in (a_job("j", template=template), a_cronjob(template)):
        answer = plan(thing)
        assert [gang["verdict"] for gang in answer["gangs"]] == ["placed"]
        texts = [text for text in answer["warnings"] if "restartPolicy" in text]
        assert len(texts) == missing
        assert all("spec.template.spec.restartPolicy: is missing, and Kubernetes refuses such a Job" in text for text in texts)  # fmt: skip
    assert "restartPolicy" not in str(plan(a_jobset(a_replicated_job("w", template=template))))


@pytest.mark.parametrize("door", [*DOORS, "RayCluster"])
def test_a_restart_policy_that_does_not_exist_is_an_error(door) -> None:
    template = a_template(restartPolicy="never")
    thing = a_raycluster(template) if door == "RayCluster" else DOORS[door](template)
    with pytest.raises(BadInput) as caught:
        a_manifest([], [thing])
    assert "restartPolicy: expected one of Always, Never, OnFailure" in str(caught.value)
    assert '"never"' in str(caught.value)


def a_raycluster(template: dict[str, Any]):
    labels = {"labels": {"gang-extender.dev/tree": "default"}}
    spec = {"headGroupSpec": {"template": template}}
    return an_object("RayCluster", "ray", "ray.io/v1", metadata=labels, spec=spec)


def test_the_pods_of_stateful_sets_are_always_restarted() -> None:
    template = a_template(restartPolicy="Never")
    role = {
        "name": "prefill",
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    }
    labels = {"labels": {"gang-extender.dev/tree": "default"}}
    roles = an_object("DisaggregatedSet", "set", "disaggregatedset.x-k8s.io/v1", metadata=labels, spec={"roles": [role]})  # fmt: skip
    for thing, place in ((an_lws(template=template), "spec"), (roles, "spec.roles[0].spec")):
        (gang,) = plan(thing)["gangs"]
        assert gang["verdict"] == "invalid"
        assert f"{place}.leaderWorkerTemplate.workerTemplate.spec.restartPolicy: is 'Never'" in str(
            gang["reasons"]
        )
    (gang,) = plan(an_lws(template=a_template(restartPolicy="Always")), nodes=4)["gangs"]
    assert gang["verdict"] == "placed"


def test_jobset_sets_on_failure_which_a_failure_policy_refuses() -> None:
    job = a_replicated_job(
        "w", template=a_template(), podFailurePolicy={"rules": [{"action": "Ignore"}]}
    )
    (gang,) = plan(a_jobset(job))["gangs"]
    assert gang["verdict"] == "invalid"
    assert "podFailurePolicy: needs restartPolicy Never, and it is OnFailure" in str(
        gang["reasons"]
    )
