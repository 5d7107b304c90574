"""A PodCliqueSet of Grove in files is planned as the PodGangs and pods that its operator makes of it."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from extender.cluster.manifests.manifest_loader import load
from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.core.model.errors import BadInput
from extender.core.workloads.workload_object import GROUP_LABEL, TREE_LABEL
from tests.support.planning.controller_records import record
from tests.support.service.manifest_builders import BLOCK, RACK, a_fleet, a_manifest, an_object

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
LABELLED = {
    "apiVersion": "v1", "kind": "Namespace",
    "metadata": {"name": "default", "labels": {TREE_LABEL: "default"}},
}  # fmt: skip


def a_set(**template):
    """Return the PodCliqueSet of the record, as its user wrote it."""
    (found,) = (one for one in record("grove/created.json").items if one["kind"] == "PodCliqueSet")
    spec = copy.deepcopy(found["spec"])
    spec["template"] |= template
    return an_object("PodCliqueSet", "serve", "grove.io/v1alpha1", spec=spec)


def a_topology(*domains):
    levels = [{"domain": one, "key": f"topology.example.com/{one}"} for one in domains]
    return an_object(
        "ClusterTopology", "grove-topology", "grove.io/v1alpha1", "", spec={"levels": levels}
    )


def tree_of(found):
    groups = found.world.view.groups
    return {
        key.name: (groups[key].parent, groups[key].minimum, groups[key].constraints.topology)
        for key in found.groups
    }


def pods_by_leaf(found):
    pods = [found.world.view.pods[uid] for uid in found.pods]
    return Counter(pod.labels[GROUP_LABEL] for pod in pods)


@pytest.mark.parametrize("name", ["created", "scaling-group-scaled-up"])
def test_the_tree_is_that_of_the_recorded_podgangs(name) -> None:
    """The set alone, against the PodGangs and the pods that the operator made of it."""
    real = record(f"grove/{name}.json").items
    mine = a_set()
    (scaled,) = (one for one in real if one["kind"] == "PodCliqueScalingGroup")
    mine["spec"]["template"]["podCliqueScalingGroups"][0]["replicas"] = scaled["spec"]["replicas"]
    made = a_manifest([LABELLED], [mine])
    pods = [copy.deepcopy(one) for one in real if one["kind"] == "Pod"]
    for pod in pods:
        pod["metadata"]["labels"] |= {
            GROUP_LABEL: pod["metadata"]["labels"]["grove.io/podclique"], TREE_LABEL: "default",
        }  # fmt: skip
    given = a_manifest([LABELLED], [*(one for one in real if one["kind"] == "PodGang"), *pods])
    assert tree_of(made) == tree_of(given)
    assert pods_by_leaf(made) == pods_by_leaf(given)
    assert len(made.pods) == {"created": 9, "scaling-group-scaled-up": 13}[name]
    assert {pod.shape.requests for pod in made.world.view.pods.values()} == {
        pod.shape.requests for pod in given.world.view.pods.values() if pod.uid in given.pods
    }
    assert made.warnings == ()


def test_a_set_of_several_replicas_has_a_base_gang_for_each() -> None:
    mine = a_set()
    mine["spec"]["replicas"] = 2
    names = tree_of(a_manifest([LABELLED], [mine]))
    roots = [name for name, (parent, _, _) in names.items() if parent is None]
    assert roots == ["serve-0", "serve-1", "serve-0-pd-0", "serve-1-pd-0"]


def test_domains_are_node_labels_of_the_topology_in_the_files() -> None:
    mine = a_set(topologyConstraint={"packDomain": "block"})
    mine["spec"]["template"]["podCliqueScalingGroups"][0]["topologyConstraint"] = {
        "packDomain": "rack"
    }
    mine["spec"]["template"]["cliques"][0]["topologyConstraint"] = {"packDomain": "rack"}
    other = a_topology("rack")
    other["metadata"]["name"] = "other"
    tree = tree_of(a_manifest([LABELLED, a_topology("block", "rack"), other], [mine]))
    assert tree["serve-0"] == (None, 2, (BLOCK,))
    assert tree["serve-0-pd-0"][2] == (RACK,)
    assert tree["serve-0-router"] == ("serve-0", 1, (RACK,))
    assert tree["serve-0-serve-0-pd-0"] == ("serve-0", 2, (RACK,))
    assert tree["serve-0-pd-0-prefill"] == ("serve-0-serve-0-pd-0", 2, ())


def test_the_topology_binding_that_a_part_names_or_inherits_has_its_domains() -> None:
    """The current form: `pack` and `topologyName`, of the set, of a scaling group and of a clique."""
    mine = a_set(topologyConstraint={"topologyName": "topo", "pack": {"required": "block"}})
    mine["spec"]["template"]["podCliqueScalingGroups"][0]["topologyConstraint"] = {
        "pack": {"required": "rack", "preferred": "block"}
    }
    mine["spec"]["template"]["cliques"][0]["topologyConstraint"] = {
        "topologyName": "topo", "pack": {"required": "rack"},
    }  # fmt: skip
    binding = a_topology("block", "rack") | {"kind": "ClusterTopologyBinding"}
    binding["metadata"]["name"] = "topo"
    found = a_manifest([LABELLED, binding], [mine])
    tree = tree_of(found)
    assert tree["serve-0"] == (None, 2, (BLOCK,))
    assert tree["serve-0-pd-0"][2] == (RACK,)
    assert tree["serve-0-router"] == ("serve-0", 1, (RACK,))
    assert tree["serve-0-serve-0-pd-0"] == ("serve-0", 2, (RACK,))
    groups = found.world.view.groups.values()
    preferred = {
        group.key.name: group.constraints.preferred
        for group in groups
        if group.constraints.preferred
    }
    assert preferred == {"serve-0-serve-0-pd-0": (BLOCK,), "serve-0-pd-0": (BLOCK,)}
    assert found.warnings == ()


def test_priority_and_pods_of_a_clique_are_those_of_the_set() -> None:
    mine = a_set(priorityClassName="prod")
    mine["spec"]["template"]["cliques"][0] |= {"labels": {"team": "a"}}
    classes = an_object("PriorityClass", "prod", "scheduling.k8s.io/v1", "", value=7)
    found = a_manifest([LABELLED, classes], [mine])
    assert {group.priority for group in found.world.view.groups.values()} == {7}
    pods = {pod.name: pod for pod in found.world.view.pods.values()}
    assert {pod.priority for pod in pods.values()} == {7}
    assert pods["serve-0-router-0"].labels["team"] == "a"
    assert pods["serve-0-pd-1-decode-1"].labels["grove.io/base-podgang"] == "serve-0"
    assert "grove.io/base-podgang" not in pods["serve-0-router-0"].labels


def test_gangs_of_the_files_stand_for_themselves() -> None:
    """A PodGang of -f is planned with the pods given beside it; the other gang is made."""
    gang = an_object(
        "PodGang", "serve-0", "scheduler.grove.io/v1alpha1",
        spec={"podgroups": [{"name": "serve-0-router", "minReplicas": 1}]},
    )  # fmt: skip
    found = a_manifest([LABELLED], [a_set(), gang])
    assert len(found.pods) == 4
    assert "PodGang/default/serve-0: has no pod templates" in found.warnings[0]


def test_pods_that_are_there_are_not_made_again() -> None:
    items = [copy.deepcopy(one) for one in record("grove/created.json").items]
    pods = [one for one in items if one["kind"] == "Pod"]
    for pod in pods:
        leaf = pod["metadata"]["labels"]["grove.io/podclique"]
        pod["metadata"]["labels"] |= {GROUP_LABEL: leaf, TREE_LABEL: "default"}
    gangs = [one for one in items if one["kind"] == "PodGang"]
    found = a_manifest([LABELLED, *gangs, *pods[1:]], [a_set()])
    assert len(found.pods) == 1
    assert len(found.world.view.pods) == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topologyConstraint": {"packDomain": "rack"}},
         "object 1: PodCliqueSet/default/serve: spec.template.topologyConstraint.packDomain: 'rack' is not in the ClusterTopologyBinding "
         "grove-topology of the files (it is not there); add the output of `kubectl get clustertopologybinding grove-topology -o yaml`"),
        ({"topologyConstraint": {"topologyName": "topo", "pack": {"preferred": "rack"}}},
         "object 1: PodCliqueSet/default/serve: spec.template.topologyConstraint.pack.preferred: 'rack' is not in the "
         "ClusterTopologyBinding topo of the files (it is not there); add the output of `kubectl get clustertopologybinding topo -o yaml`"),
        ({"topologyConstraint": {"pack": {"requird": "rack"}}},
         "object 1: PodCliqueSet/default/serve: spec.template.topologyConstraint.pack.requird: Grove v0.1.0-alpha.12 has no such field; "
         "did you mean required?"),
        ({"topologyConstraint": {"topologyName": "topo"}},
         "object 1: PodCliqueSet/default/serve: spec.template.topologyConstraint: names no domain; set pack.required or pack.preferred"),
        ({"topologyConstraint": {"packDomain": "rack", "pack": {"required": "rack"}}},
         "object 1: PodCliqueSet/default/serve: spec.template.topologyConstraint: has packDomain and pack.required; leave out packDomain"),
        ({"placementPolicy": {"rack": "one"}},
         "object 1: PodCliqueSet/default/serve: spec.template.placementPolicy: there is no such field in Grove v0.1.0-alpha.12-rc1, "
         "so it is not used; leave it out"),
        ({"podCliqueScalingGroups": [{"name": "pd", "cliqueNames": ["worker"]}]},
         "object 1: PodCliqueSet/default/serve: spec.template.podCliqueScalingGroups[0].cliqueNames: there is no clique 'worker'; "
         "there are router, prefill, decode"),
        ({"cliques": [{"name": "a", "spec": {"replicas": "two"}}]},
         'object 1: PodCliqueSet/default/serve: spec.template.cliques[0].spec.replicas: expected a whole number from 0 to 100000, found "two"'),
    ],
    ids=["domain", "preferred", "misspelt", "nothing", "both", "unknown", "clique", "type"],
)  # fmt: skip
def test_a_wrong_field_is_named(change, words) -> None:
    with pytest.raises(BadInput) as caught:
        a_manifest([LABELLED], [a_set(**change)])
    assert str(caught.value) == words


def test_a_set_without_replicas_has_a_warning() -> None:
    mine = a_set()
    del mine["spec"]["replicas"]
    found = a_manifest([LABELLED], [mine])
    assert (found.warnings, found.groups) == (
        ("PodCliqueSet/default/serve: spec.replicas: is 0 or not set, so it has no pods",),
        (),
    )


def test_copies_of_a_set_are_other_sets() -> None:
    mine = a_set()
    for clique in mine["spec"]["template"]["cliques"]:
        clique["spec"]["podSpec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
    body = {"cluster": a_fleet("1 rack x 20 nodes"), "workload": [mine], "max_copies": True}
    found = msgspec.json.decode(answer_plan_request(msgspec.json.encode(body)))
    assert found["copies"] == {"wanted": 0, "fit": 2, "proved": True, "limited": False}
    assert [one["gang"] for one in found["gangs"]][:4] == [
        "default/serve-0", "default/serve-0-pd-0", "default/serve-2-0", "default/serve-2-0-pd-0",
    ]  # fmt: skip


def test_the_example_is_two_gangs() -> None:
    found = load([str(EXAMPLES / "cluster.yaml")], [str(EXAMPLES / "podcliqueset.yaml")])
    assert pods_by_leaf(found) == {
        "serve-0-router": 1, "serve-0-pd-0-prefill": 2, "serve-0-pd-0-decode": 1,
        "serve-0-pd-1-prefill": 2, "serve-0-pd-1-decode": 1,
    }  # fmt: skip
