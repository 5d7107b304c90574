"""What webhooks and controllers add to pods is in the pods of a plan: selectors, tolerations, affinity, containers."""

from __future__ import annotations

from collections import defaultdict

import pytest

from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.support.service.manifest_builders import RACK, a_manifest, a_node, an_object
from tests.support.service.workload_builders import DEFAULT, a_jobset, a_replicated_job, a_template

ALPHA = "alpha.jobset.sigs.k8s.io"
BY_SELECTOR = {f"{ALPHA}/exclusive-topology": RACK, f"{ALPHA}/node-selector": "true"}
LWS = "leaderworkerset.sigs.k8s.io"
RAY = "ray.io/v1"


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
    (first,) = {nodes["l-0-planned-s0-1"], nodes["l-0-planned-s0-0"]}
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
