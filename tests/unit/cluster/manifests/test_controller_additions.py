"""What webhooks and controllers add to pods is in the pods of a plan: selectors, tolerations, affinity, containers."""

from __future__ import annotations

from collections import defaultdict

import pytest

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import build, complete
from extender.cluster.manifests.yaml_reader import Document
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.support.service.manifest_builders import RACK, a_manifest, a_node, an_object
from tests.support.service.workload_builders import (
    DEFAULT,
    a_job,
    a_jobset,
    a_replicated_job,
    a_template,
)

ALPHA = "alpha.jobset.sigs.k8s.io"
BY_SELECTOR = {f"{ALPHA}/exclusive-topology": RACK, f"{ALPHA}/node-selector": "true"}
LWS = "leaderworkerset.sigs.k8s.io"
RAY = "ray.io/v1"
POD_INDEX = "batch.kubernetes.io/job-completion-index"


def planned(found):
    """Return the verdict of the only tree, and the nodes of its pods."""
    question = PlanInput(
        groups=frozenset(found.groups),
        pods=frozenset(found.pods),
        order=found.order,
        origins=found.origins,
    )
    (gang,) = answer_plan_query(found.world.view, question).gangs
    return gang.verdict, {line.pod.partition("/")[2]: line.node for line in gang.assignments}


def a_job_node(name, job=""):
    """Make a node, or one that is set aside for a Job as the tool of JobSet does it."""
    node = a_node(
        name,
        {RACK: name[:2]} | ({f"{ALPHA}/namespaced-job": f"default_{job}"} if job else {}),
        cpu="4",
    )
    taint = {"key": f"{ALPHA}/no-schedule", "value": "true", "effect": "NoSchedule"}
    return node | ({"spec": {"taints": [taint]}} if job else {})


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("of_set", [True, False])
def test_jobs_placed_by_node_selector_go_to_the_nodes_with_their_names(of_set, parallelism):
    """By the annotations of the JobSet or of a ReplicatedJob; also where all Jobs are one group."""
    worker = a_replicated_job(
        "w", 2, parallelism=parallelism, completions=parallelism, template=a_template({"cpu": "4"})
    )
    if not of_set:
        worker["template"]["metadata"] = {"annotations": BY_SELECTOR}
    jobset = a_jobset(worker, name="q", annotations=BY_SELECTOR if of_set else {})
    free = [a_job_node(f"n{n}") for n in range(4)]
    assert planned(a_manifest(free, [jobset])) == ("impossible", {})
    aside = [a_job_node(f"r{job}{n}", f"q-w-{job}") for job in range(2) for n in range(parallelism)]
    verdict, nodes = planned(a_manifest([*free, *aside], [jobset]))
    assert verdict == "placed"
    assert sorted(nodes.values()) == sorted(node["metadata"]["name"] for node in aside)
    if parallelism > 1:
        assert {(pod.split("-")[2], node[1]) for pod, node in nodes.items()} == {
            ("0", "0"),
            ("1", "1"),
        }


def test_one_annotation_without_the_other_adds_nothing():
    worker = a_replicated_job("w", 2, template=a_template({"cpu": "1"}))
    alone = {f"{ALPHA}/node-selector": "true"}
    verdict, _ = planned(a_manifest([a_job_node("n0")], [a_jobset(worker, annotations=alone)]))
    assert verdict == "placed"


@pytest.mark.parametrize("policy", ["LeaderWorker", "LeaderExcluded"])
@pytest.mark.parametrize("labels", [DEFAULT, {"gang-extender.dev/tree": "off"}])
def test_an_exclusive_subgroup_has_a_domain_for_itself(policy, labels):
    """Also where no tree is made: the webhook changes the pods all the same."""
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    spec = {
        "replicas": 1,
        "leaderWorkerTemplate": {
            "size": 5, "workerTemplate": template,
            "subGroupPolicy": {"subGroupSize": 2, "subGroupPolicyType": policy},
        },
    }  # fmt: skip
    lws = an_object(
        "LeaderWorkerSet", "l", "leaderworkerset.x-k8s.io/v1", spec=spec,
        metadata={"labels": labels, "annotations": {f"{LWS}/subgroup-exclusive-topology": RACK}},
    )  # fmt: skip
    found = a_manifest([a_node(f"n{rack}", {RACK: f"r{rack}"}) for rack in range(2)], [lws])
    groups = defaultdict(int)
    for pod in found.world.view.pods.values():
        groups[pod.labels.get(f"{LWS}/subgroup-key", "")] += 1
    leader = {"": 1} if policy == "LeaderExcluded" else {}
    assert groups == {"l-0-planned-0": 3 - len(leader), "l-0-planned-1": 2} | leader
    if labels is not DEFAULT:
        return
    verdict, nodes = planned(found)
    assert verdict == "placed"
    leader = "l-0" if policy == "LeaderWorker" else "l-0-planned-s0-0"
    (first,) = {nodes["l-0-planned-s0-1"], nodes[leader]}
    assert {nodes["l-0-planned-s1-0"], nodes["l-0-planned-s1-1"]} == {"n0", "n1"} - {first}
    one_rack = a_manifest([a_node("n0", {RACK: "r0"}), a_node("n1", {RACK: "r0"})], [lws])
    assert planned(one_rack)[0] == "impossible"


def a_raycluster(*, worker="1", **spec):
    def a_group(cpu):
        return {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}

    head = {"template": a_group("1"), "labels": {"team": "a"}}
    group = {
        "groupName": "g",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 4,
        "template": a_group(worker),
    }
    body = {"headGroupSpec": head, "workerGroupSpecs": [group], **spec}
    return an_object("RayCluster", "c", RAY, spec=body, metadata={"labels": dict(DEFAULT)})


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({}, 1000),
        ({"enableInTreeAutoscaling": False}, 1000),
        ({"enableInTreeAutoscaling": True}, 1500),
        ({"enableInTreeAutoscaling": True, "autoscalerOptions": {"image": "x"}}, 1500),
        ({"enableInTreeAutoscaling": True, "autoscalerOptions": {"resources": {"requests": {"cpu": "2"}}}}, 3000),
    ],
)  # fmt: skip
def test_the_head_has_the_autoscaler_of_kuberay(spec, cpu):
    found = a_manifest([], [a_raycluster(**spec)])
    pods = {pod.name: pod for pod in found.world.view.pods.values()}
    assert dict(pods["c-ray-headgroup-0"].shape.requests)["cpu"] == cpu
    assert pods["c-ray-headgroup-0"].labels["team"] == "a"
    assert dict(pods["c-ray-g-0"].shape.requests)["cpu"] == 1000


def test_a_worker_waits_for_the_head_in_an_init_container():
    """It needs 200m, which counts where the worker itself needs less."""
    found = a_manifest([], [a_raycluster(worker="50m")])
    pods = {pod.name: pod for pod in found.world.view.pods.values()}
    assert dict(pods["c-ray-g-0"].shape.requests)["cpu"] == 200


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"parallelism": 3}, True),
        ({"parallelism": 3, "completionMode": "Indexed"}, True),
        ({"parallelism": 3, "completionMode": "NonIndexed"}, False),
        ({"parallelism": 3, "completions": 3}, False),
        ({}, False),
    ],
)
def test_jobs_that_kubernetes_refuses_are_named(spec, named):
    """JobSet makes them Indexed, and an Indexed Job needs `completions`; with neither field both are 1."""
    found = a_manifest([], [a_jobset(a_replicated_job("w", 1, **spec))])
    texts = [text for text in found.warnings if "refuses an Indexed Job" in text]
    assert len(texts) == named
    assert all("JobSet/default/train: ReplicatedJob w has no completions" in text for text in texts)


def apart(key, *values):
    """Pods of which each has a node for itself among those with a label."""
    expression = {"key": key, "operator": "In" if values else "Exists", "values": list(values)}
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [expression]},
    }
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return a_template({"cpu": "1"}, affinity={"podAntiAffinity": {required: [term]}})


def a_serving(template, **rest):
    template = {"size": 2, "workerTemplate": a_template({"cpu": "1"}), "leaderTemplate": template}
    spec = {"replicas": 2, "leaderWorkerTemplate": template, **rest}
    return an_object("LeaderWorkerSet", "serve", "leaderworkerset.x-k8s.io/v1", spec=spec)


def a_ray(template):
    workers = [
        {"groupName": "w", "replicas": 2, "minReplicas": 2, "template": template},
        {"groupName": "hosts", "replicas": 1, "minReplicas": 1, "numOfHosts": 2, "template": template},
    ]  # fmt: skip
    spec = {"headGroupSpec": {"template": template}, "workerGroupSpecs": workers}
    return an_object("RayCluster", "ray", RAY, spec=spec)


def a_job_of(template, **rest):
    return a_job("fit", parallelism=3, completions=3, template=template, **rest)


@pytest.mark.parametrize(
    ("workload", "nodes"),
    [
        (a_job_of(apart("job-name", "fit")), 3),
        (a_job_of(apart("batch.kubernetes.io/job-name", "fit")), 3),
        (a_job_of(apart("batch.kubernetes.io/controller-uid")), 3),
        (a_job_of(apart("job-name", "other")), 1),
        (a_jobset(a_replicated_job("w", 2, parallelism=2, completions=2, template=apart("jobset.sigs.k8s.io/replicatedjob-name", "w")), name="q"), 4),
        (a_jobset(a_replicated_job("w", 2, parallelism=2, completions=2, template=apart("job-name", "q-w-1")), name="q"), 3),
        (a_job_of(apart(POD_INDEX, "0"), completionMode="Indexed"), 2),
        (a_job_of(apart(POD_INDEX), completionMode="Indexed"), 3),
        (a_job_of(apart(POD_INDEX)), 1),
        (a_job_of(apart(POD_INDEX), completionMode="Indexed", status={"succeeded": 1}), 1),
        (a_jobset(a_replicated_job("w", 2, parallelism=2, completions=2, template=apart(POD_INDEX, "0")), name="q"), 3),
        (a_jobset(a_replicated_job("w", 2, parallelism=2, completions=2, completionMode="NonIndexed", template=apart(POD_INDEX)), name="q"), 1),
        (a_jobset(a_replicated_job("w", 3, template=apart(POD_INDEX, "0")), name="q"), 3),
        (a_serving(apart(f"{LWS}/name", "serve")), 3),
        (a_serving(apart(f"{LWS}/worker-index", "0")), 2),
        (a_serving(apart(f"{LWS}/worker-index", "0"), startupPolicy="LeaderReady"), 2),
        (a_serving(apart(f"{LWS}/group-index", "1")), 3),
        (a_ray(apart("ray.io/cluster", "ray")), 5),
        (a_ray(apart("ray.io/node-type", "head")), 2),
        (a_ray(apart("ray.io/group", "headgroup")), 2),
        (a_ray(apart("ray.io/group", "other")), 1),
    ],
)  # fmt: skip
def test_rules_of_pods_select_by_the_labels_of_controllers(workload, nodes):
    """No label of a controller but the name was there, so pods that exclude each other were placed on one node."""
    free = [a_node(f"n{n}", cpu="64") for n in range(6)]
    found = a_manifest(free, [workload])
    question = PlanInput(groups=frozenset(found.groups), pods=frozenset(found.pods))
    gangs = answer_plan_query(found.world.view, question).gangs
    placed = {line.pod: line.node for gang in gangs for line in gang.assignments}
    assert {gang.verdict for gang in gangs} == {"placed"}
    assert len(set(placed.values())) == nodes, placed


@pytest.mark.parametrize("serving", [True, False])
def test_the_leader_keeps_its_own_labels(serving):
    """A leader got the labels of the workers' template from a service of files."""
    lws = a_serving({**a_template(), "metadata": {"labels": {"role": "leader"}}})
    lws["metadata"]["labels"] = {"gang-extender.dev/tree": "default"}
    worker = {**a_template(), "metadata": {"labels": {"role": "worker"}}}
    lws["spec"]["leaderWorkerTemplate"]["workerTemplate"] = worker
    role = Role.CLUSTER if serving else Role.WANTED
    entries = entries_in([Document(where="f", value=lws)], role)
    pods = build(complete(entries, serving=serving)).world.view.pods.values()
    assert sorted((pod.labels["role"], pod.labels[f"{LWS}/worker-index"]) for pod in pods) == [
        ("leader", "0"), ("leader", "0"), ("worker", "1"), ("worker", "1"),
    ]  # fmt: skip
